"""Curricula: questions of one level after the other; a level ends when enough of its last answers are right."""

from collections.abc import Mapping, Sequence
from typing import Any

from outdo.data.prompts import Prompts
from outdo.types import Group, Prompt
from outdo.utils.errors import RewardError


class Curriculum(Prompts[Prompt]):
    """Batches of prompts of one level, and of the next one when the last `window` questions of this one are solved.

    They are if the mean of their shares of right answers is at least `threshold`. Answers to questions of an earlier
    level, which are sampled ahead, do not count; nor do answers without a reward or without a verdict. The last level
    does not end. Each level has its own epochs and orders.

    Which level a question comes from depends on the answers that were `observed` before it is taken, in the order of
    the steps, and never on speed. `number` is that of the file, where there are several.
    """

    def __init__(
        self,
        levels: Mapping[int, Sequence[Prompt]],
        *,
        window: int,
        threshold: float,
        per_step: int,
        seed: int = 0,
        shuffle: bool = True,
        number: str = "",
    ) -> None:
        everything = [prompt for level in levels.values() for prompt in level]
        super().__init__(everything, per_step=per_step, seed=seed, shuffle=shuffle)
        self.levels = list(levels)
        self.window = window
        self.threshold = threshold
        self.number = number
        self.sources = [
            Prompts(prompts, per_step=per_step, seed=seed, shuffle=shuffle, name=f"{number}/{level}")
            for level, prompts in levels.items()
        ]
        self.place = 0  # of the level, among all of them
        self.shares: list[float] = []  # of right answers, to the last questions of this level
        self._level_of = {prompt.id: level for level, prompts in levels.items() for prompt in prompts}

    @property
    def level(self) -> int:
        """The level of the questions that are taken next."""
        return self.levels[self.place]

    def take(self, count: int) -> list[Prompt]:
        """Return the next `count` prompts, of the present level."""
        self.position += count
        return self.sources[self.place].take(count)

    def observe(self, groups: Sequence[Group]) -> None:
        """Count right answers; go on to the next level if this one is solved.

        Raises `RewardError` if the answers have rewards, and none of them tells whether its answer is right.
        """
        groups = [group for group in groups if group.prompt.id in self._level_of]
        for group, right in zip(groups, _verdicts(groups), strict=True):
            if not right or self._level_of[group.prompt.id] != self.level:
                continue
            self.shares = [*self.shares, sum(right) / len(right)][-self.window :]
            is_solved = len(self.shares) == self.window and sum(self.shares) >= self.threshold * self.window
            if is_solved and self.place + 1 < len(self.levels):
                self.place += 1
                self.shares = []

    def metrics(self, questions: Sequence[Prompt]) -> dict[str, float]:
        """Return the mean level of the questions of a step, if there are some of this curriculum."""
        levels = [self._level_of[prompt.id] for prompt in questions if prompt.id in self._level_of]
        name = f"data/level/{self.number}" if self.number else "data/level"
        return {name: sum(levels) / len(levels)} if levels else {}

    def state(self) -> dict[str, Any]:
        """Return the level, what counts for its end, and the positions in all levels."""
        positions = [source.position for source in self.sources]
        return {**super().state(), "place": self.place, "shares": list(self.shares), "positions": positions}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        super().load_state(state)
        self.place, self.shares = state["place"], list(state["shares"])
        for source, position in zip(self.sources, state["positions"], strict=True):
            source.position = position


def _verdicts(groups: Sequence[Group]) -> list[list[bool]]:
    """Return the verdicts on the scored answers of each group, without those that have none.

    Raises `RewardError` if there are scored answers, and no verdict.
    """
    scored = [[rollout.right for rollout in group.rollouts if rollout.scored] for group in groups]
    verdicts = [[right for right in of_question if right is not None] for of_question in scored]
    if any(scored) and not any(verdicts):
        raise RewardError("data.path: a curriculum counts right answers, and no reward tells what is right")
    return verdicts
