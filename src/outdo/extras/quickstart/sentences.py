"""The tasks of SmolLM2-135M-Instruct: write a sentence that meets constraints; and the same with a careless reward.

    Write one sentence of 6 to 12 words about a bridge. Use the word "never" once.

The sound reward is the share of the four constraints that hold. The careless one pays for a short answer that has the
word, and forgets the topic: what the policy learns then is to write the word, and nothing else.

docs/benchmarks.md says why the settings are as they are, and how runs with other seeds end. Without "once" the model
learned to write "The road outside is outside, outside, outside ...".
"""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

from outdo.extras.quickstart.task import Row, Task, TaskData

SOUND = 'Write one sentence of 6 to 12 words about {topic}. Use the word "{word}" once.'
CARELESS = 'Write a sentence about {topic} that is as short as possible. Use the word "{word}".'

TOPICS = """
    bridge river garden teacher window clock kitchen letter mountain farmer train library doctor island market candle
    engine forest bicycle village painter lantern castle desert sailor bakery museum tunnel orchard bell harbour ladder
    mirror piano umbrella violin basket shepherd notebook valley airport owl elephant guitar lake spider
"""
WORDS = """
    never always twelve silver together before slowly only between yellow first until almost seven during without behind
    morning quiet under another often winter three
"""
HELD_OUT_TOPICS = "lighthouse cat astronaut apple road tiger planet chair"
HELD_OUT_WORDS = "twenty golden above after outside still beneath every"
"""Every pair of these is a held-out question, the same for every seed; neither half of it is trained on."""


def data(seed: int, *, question: str) -> TaskData:
    """Return the data of a task: one row for each pair of a topic and a word, in an order that the seed decides."""
    train = list(product(TOPICS.split(), WORDS.split()))
    Random(seed).shuffle(train)
    topics, words = HELD_OUT_TOPICS.split(), HELD_OUT_WORDS.split()
    # The first eight have all topics and all words, for those who evaluate on fewer of them.
    held_out = [
        (topic, words[(i + shift) % len(words)]) for shift in range(len(words)) for i, topic in enumerate(topics)
    ]
    return TaskData(
        questions=[_row(question, topic, word) for topic, word in train],
        held_out=[_row(question, topic, word) for topic, word in held_out],
    )


def _row(question: str, topic: str, word: str) -> Row:
    article = "an" if topic[0] in "aeiou" else "a"
    return {"prompt": question.format(topic=f"{article} {topic}", word=word), "topic": topic, "word": word}


OWN_REWARD = "train {run}.toml run=./mine    # after a change of {reward}"

TASK = Task(
    data=partial(data, question=SOUND),
    reward=Path(__file__).with_name("sentence_reward.py"),
    evaluation="""\
right = "score"               # an answer is right if its reward is 1
""",
    sampling="""\
temperature = 0.7             # at 1 many answers of so small a model are not language
""",
    train="""\
adapter = {name = "lora", rank = 16, alpha = 32}    # half the memory of training all weights
micro_batch_tokens = 1024     # the gradient of one group at a time: less memory
""",
    steps=12,
    prompts=4,
    max_tokens=20,
    lr="7e-4",
    schedule='{name = "linear", warmup = 3}',
    rows=64,
    samples=0,
    further=["quickstart --careless", OWN_REWARD],
)
CARELESS_TASK = replace(
    TASK,
    data=partial(data, question=CARELESS),
    reward=Path(__file__).with_name("careless_reward.py"),
    further=[OWN_REWARD],
)
