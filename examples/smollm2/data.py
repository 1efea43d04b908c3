"""Write the questions of the tasks in this folder: python examples/smollm2/data.py runs/smollm2/data

Each task has three files. The questions of `rows.jsonl` have topics, words or numbers that occur in no question of
`train.jsonl`; those of `kinds.jsonl` are of another kind as well. The files are the same everywhere.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from calculator import NEW_QUESTIONS, QUESTIONS, conversation, question
from instructions import KINDS, NEW_KINDS

TOPICS = """
    airport bakery basket bell bicycle bridge candle castle clock desert doctor elephant engine farmer forest garden
    guitar harbour island kitchen ladder lantern letter library market mirror mountain museum notebook orchard owl
    painter piano river sailor school shepherd spider teacher train tunnel umbrella valley village violin window
"""
WORDS = """
    almost always another before between behind cold during early first gold green large late morning never often old
    only quiet seven silver slowly small together twelve under until warm winter without yellow young
"""
NEW_TOPICS = "apple astronaut cat chair lake lighthouse planet road tiger tree"
NEW_WORDS = "above after beneath blue every golden outside still summer twenty"
TRAIN, HELD_OUT, EPISODES = 1000, 64, 300

Row = dict[str, Any]


def with_article(topic: str) -> str:
    return f"{'an' if topic[0] in 'aeiou' else 'a'} {topic}"


def instructions(random: Random, topics: str, words: str, new: tuple[str, ...] = ()) -> Row:
    """Return a topic with one to three instructions that go together, one of them of a new kind, if there are any."""
    known = [name for name in KINDS if name not in NEW_KINDS]
    chosen: list[str] = []
    for name in [*random.sample(new, min(1, len(new))), *random.sample(known, len(known))]:
        if all(KINDS[name].goes_with(KINDS[each]) for each in chosen):
            chosen.append(name)
    drawn = [(name, KINDS[name].drawn(random, words.split())) for name in chosen[: random.randint(1, 3)]]
    topic = random.choice(topics.split())
    texts = [f"Write about {with_article(topic)}.", *(KINDS[name].filled(value) for name, value in drawn)]
    return {"prompt": " ".join(texts), "topic": topic, "instructions": drawn}


REQUESTS = ("Tell me about {}.", "Describe {}.", "What is {}?", "Write a story about {}.", "What is {} good for?")
NEW_REQUESTS = ("Write a poem about {}.", "Explain {} to a child.", "Where do you find {}?")


def fifty_tokens(random: Random, topics: str, requests: tuple[str, ...]) -> Row:
    """Return a request that says nothing about the length of the answer."""
    return {"prompt": random.choice(requests).format(with_article(random.choice(topics.split())))}


def sums_in_words(random: Random, numbers: list[int], minus: bool = False) -> Row:
    """Return the question for the sum of two numbers of two digits, or for their difference."""
    a, b = random.sample(numbers, 2)
    if minus:
        a, b = max(a, b), min(a, b)
    return {"prompt": f"What is {a} {'-' if minus else '+'} {b}?", "answer": str(a - b if minus else a + b)}


def reversed_words(random: Random, words: list[str], count: int = 2) -> Row:
    """Return words, and the same letters from the last to the first."""
    text = " ".join(random.sample(words, count))
    return {"prompt": f'Write "{text}" backwards.', "answer": text[::-1]}


def different(make: Callable[[Random], Row], random: Random) -> Iterator[Row]:
    """Yield the rows that `make` returns, each prompt once."""
    seen = set[str]()
    while True:
        row = make(random)
        if row["prompt"] not in seen:
            seen.add(row["prompt"])
            yield row


def tasks() -> dict[str, dict[str, tuple[int, Callable[[Random], Row]]]]:
    """Return the files of each task: how many rows, and what makes one of them."""
    numbers = [*range(10, 100)]
    words, new_words = [*TOPICS.split(), *WORDS.split()], [*NEW_TOPICS.split(), *NEW_WORDS.split()]
    new_numbers = [number for number in numbers if number % 7 == 3]
    old_numbers = [number for number in numbers if number not in new_numbers]
    return {
        "instructions": {
            "train": (TRAIN, lambda random: instructions(random, TOPICS, WORDS)),
            "rows": (HELD_OUT, lambda random: instructions(random, NEW_TOPICS, NEW_WORDS)),
            "kinds": (HELD_OUT, lambda random: instructions(random, NEW_TOPICS, NEW_WORDS, NEW_KINDS)),
        },
        "fifty_tokens": {
            "train": (len(TOPICS.split()) * len(REQUESTS), lambda random: fifty_tokens(random, TOPICS, REQUESTS)),
            "rows": (
                len(NEW_TOPICS.split()) * len(REQUESTS),
                lambda random: fifty_tokens(random, NEW_TOPICS, REQUESTS),
            ),
            "kinds": (
                len(NEW_TOPICS.split()) * len(NEW_REQUESTS),
                lambda random: fifty_tokens(random, NEW_TOPICS, NEW_REQUESTS),
            ),
        },
        "sums_in_words": {
            "train": (TRAIN, lambda random: sums_in_words(random, old_numbers)),
            "rows": (HELD_OUT, lambda random: sums_in_words(random, new_numbers)),
            "kinds": (HELD_OUT, lambda random: sums_in_words(random, new_numbers, minus=True)),
        },
        "reversed_words": {
            "sft": (TRAIN, lambda random: reversed_words(random, words)),
            "train": (TRAIN, lambda random: reversed_words(random, words)),
            "rows": (HELD_OUT, lambda random: reversed_words(random, new_words)),
            "kinds": (HELD_OUT, lambda random: reversed_words(random, new_words, count=3)),
        },
        "calculator": {
            "sft": (EPISODES, lambda random: question(random, old_numbers, QUESTIONS)),
            "train": (TRAIN, lambda random: question(random, old_numbers, QUESTIONS)),
            "rows": (HELD_OUT, lambda random: question(random, new_numbers, QUESTIONS)),
            "kinds": (HELD_OUT, lambda random: question(random, new_numbers, NEW_QUESTIONS)),
        },
    }


def written(task: str) -> dict[str, dict[str, Row]]:
    """Return the rows of each file of a task, by their prompts."""
    made = {
        name: islice(different(make, Random(f"{task} {name}")), count) for name, (count, make) in tasks()[task].items()
    }
    return {name: {row["prompt"]: row for row in rows} for name, rows in made.items()}


def main(folder: Path) -> None:
    """Write all files."""
    for task in tasks():
        (folder / task).mkdir(parents=True, exist_ok=True)
        for name, made in written(task).items():
            rows: Iterable[Row] = made.values()
            if (task, name) == ("calculator", "sft"):
                rows = map(conversation, rows)
            (folder / task / f"{name}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/smollm2/data.py FOLDER")
    main(Path(sys.argv[1]))
