"""The game of `guessing.toml`, its questions, and games of a teacher: find a number from 1 to 7 in three guesses.

    1-7  →  4  →  higher  →  6  →  lower  →  5

The teacher mostly guesses any number, also one that an earlier hint excludes.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import outdo
from outdo.types import Prompt

Row = dict[str, Any]

HIGHEST = 7
TURNS = 3  # enough for 7 numbers, if each guess halves those that are left
QUESTIONS = 2000
HELD_OUT = 112
CARELESS = 0.7  # chance that a guess of the teacher ignores the hints

TOKENS = ("<user>", "<assistant>", "higher", "lower", "-", *map(str, range(1, HIGHEST + 1)))
"""What the tokenizer of the model knows, with the roles of the chat template."""

FINE_TUNING = 120
"""Steps of fine-tuning on the games of the teacher."""


class Game:
    """One game. A guess that is wrong costs 0.1, and 0.3 if an earlier hint excludes it; the right one brings 1."""

    def __init__(self, highest: int = HIGHEST) -> None:
        self.lowest, self.highest = 1, highest  # the numbers that the hints have left
        self.secret = 0
        self.found = False

    def begin(self, prompt: Prompt) -> None:
        """Take the number from the answer of the question."""
        self.secret = int(prompt.answer)

    def reply(self, message: dict[str, Any]) -> outdo.Reply:
        """Say whether the number is higher or lower than the guess."""
        text = message["content"]
        guess = int(text) if text.isdecimal() else 0
        self.found = guess == self.secret
        if self.found:
            return outdo.Reply(done=True)
        possible = self.lowest <= guess <= self.highest
        hint = self.hint(guess)
        return outdo.Reply(messages=[{"role": "user", "content": hint}], reward=-0.1 if possible else -0.3)

    def hint(self, guess: int) -> str:
        """Return the hint for a wrong guess, and exclude the numbers that it excludes."""
        if guess < self.secret:
            self.lowest = max(self.lowest, guess + 1)
            return "higher"
        self.highest = min(self.highest, guess - 1)
        return "lower"

    def final_reward(self) -> bool:
        """Return whether the number was found."""
        return self.found


def demonstration(secret: int, random: Random, *, careless: float = CARELESS) -> Row:
    """Return a game of the teacher as messages."""
    return {"messages": list(_turns(secret, random, careless))}


def _turns(secret: int, random: Random, careless: float) -> Iterator[dict[str, str]]:
    game = Game()
    game.secret = secret
    said = f"1-{HIGHEST}"
    for _ in range(TURNS):
        lowest, highest = (1, HIGHEST) if random.random() < careless else (game.lowest, game.highest)
        guess = random.randint(lowest, highest)
        yield {"role": "user", "content": said}
        yield {"role": "assistant", "content": str(guess)}
        if guess == secret:
            return
        said = game.hint(guess)


def rows(seed: int) -> dict[str, list[Row]]:
    """Return the rows of each file. The prompts of all games are equal; what differs is the number."""
    random = Random(seed)
    secrets = [random.randint(1, HIGHEST) for _ in range(QUESTIONS)]
    return {
        "demonstrations": [demonstration(secret, random) for secret in secrets],
        "questions": [_row(secret) for secret in secrets],
        "held_out": [_row(number % HIGHEST + 1) for number in range(HELD_OUT)],
    }


def _row(secret: int) -> Row:
    return {"prompt": f"1-{HIGHEST}", "answer": str(secret)}
