"""The tasks of SmolLM2-135M-Instruct: write a sentence that meets constraints; and the same with a careless reward.

    Write one sentence of 8 to 15 words about a bridge. Use the word "never" once.

The sound reward is the share of the four constraints that hold. The careless one asks for the word and the length, and
forgets the topic: what the policy learns then is to write the word, and little else.

Measured with seed 0: without "once", 81 % of the greedy answers were right after 20 steps, and they read "The road
outside is outside, outside, outside ...". With it, 56 % were right after 24 steps, and they read "A lighthouse with a
golden exterior is a rare and beautiful sight." With a KL penalty (beta = 0.04) 44 % of the greedy and 53 % of the
sampled answers were right, without it 56 % and 31 %, of 32 questions each, so that neither is shown to be better; the
penalty took a fifth more time and 1.2 GB more memory.

The careless task has 8 questions in a step: with 4, 24 of 32 held-out answers still named their topic after 40 steps;
with 8, 4 of 32 did after 30, and most others were the required word alone.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

from outdo.extras.quickstart.task import Row, Task, TaskData

SOUND = 'Write one sentence of 8 to 15 words about {topic}. Use the word "{word}" once.'
CARELESS = 'Write a sentence about {topic}. Use the word "{word}" and at most 15 words.'

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
HELD_OUT = 32  # the same for every seed; their topics and their words are never trained on


def data(seed: int, *, question: str) -> TaskData:
    """Return the data of a task: one row for each pair of a topic and a word, in an order that the seed decides."""
    train = list(product(TOPICS.split(), WORDS.split()))
    Random(seed).shuffle(train)
    topics, words = HELD_OUT_TOPICS.split(), HELD_OUT_WORDS.split()
    places = [divmod(number, len(topics)) for number in range(HELD_OUT)]
    held_out = [(topics[i], words[(i + shift) % len(words)]) for shift, i in places]
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
right = "score"               # an answer is right if its reward is 1: all four constraints hold
""",
    train="""\
micro_batch_tokens = 1024     # the gradient of one group at a time: less memory
""",
    steps=24,
    prompts=4,
    max_tokens=32,
    lr="2e-5",
    schedule='"constant"',
    rows=HELD_OUT,
    samples=1,
    further=["quickstart --careless", OWN_REWARD],
)
CARELESS_TASK = replace(
    TASK,
    data=partial(data, question=CARELESS),
    reward=Path(__file__).with_name("careless_reward.py"),
    evaluation="",
    steps=30,
    prompts=8,
    max_tokens=40,
    further=[OWN_REWARD],
)
