"""The task `guessing`: find a number from 1 to 7 in at most three guesses.

    1-7  →  4  →  higher  →  6  →  lower  →  5

The teacher mostly guesses any number, also one that an earlier hint excludes.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

import outdo
from outdo.extras.quickstart.model import CHAT_TOKENS
from outdo.extras.quickstart.task import Row, SmallModel, Task, TaskData
from outdo.types import Prompt

HIGHEST = 7
TURNS = 3  # enough for 7 numbers, if each guess halves those that are left
QUESTIONS = 2000
HELD_OUT = 112
CARELESS = 0.7  # chance that a guess of the teacher ignores the hints


class Game:
    """One game. A guess that is wrong costs 0.1, and 0.3 if an earlier hint excludes it; the right one brings 1."""

    def __init__(self, highest: int = HIGHEST) -> None:
        self.lowest, self.highest = 1, highest  # the numbers that the hints have left
        self.secret = 0
        self.found = False

    def begin(self, prompt: Prompt) -> None:
        """Take the number from the answer of the question."""
        self.secret = int(prompt.answer)

    def reply(self, message: dict[str, Any]) -> "outdo.Reply":
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


def data(seed: int) -> TaskData:
    """Return the data of the task. The prompts of all games are equal; what differs is the number."""
    random = Random(seed)
    secrets = [random.randint(1, HIGHEST) for _ in range(QUESTIONS)]
    return TaskData(
        demonstrations=[demonstration(secret, random) for secret in secrets],
        questions=[_row(secret) for secret in secrets],
        held_out=[_row(number % HIGHEST + 1) for number in range(HELD_OUT)],
    )


def _row(secret: int) -> Row:
    return {"prompt": f"1-{HIGHEST}", "answer": str(secret)}


TASK = Task(
    data=data,
    small=SmallModel(
        teacher=f"{CARELESS:.0%} of the guesses ignore the hints",
        tokens=(*CHAT_TOKENS, "higher", "lower", "-", *(str(number) for number in range(1, HIGHEST + 1))),
        is_chat=True,
        steps=120,
    ),
    recipe=f"""\
rewards = "environment"       # the game gives all rewards
environment = {{name = "outdo.extras.quickstart.guessing:Game", turns = {TURNS}}}
""",
    train="""\
advantage = "turn_to_go"      # credit per turn; "leave_one_out" is the same for whole episodes
""",
    threads=1,
    prompts=16,
    lr="4e-4",
    rows=HELD_OUT,
    samples=2,
)
