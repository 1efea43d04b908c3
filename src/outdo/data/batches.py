"""The batches of a run: of one source, of several appended or mixed ones, and of curricula among them."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from outdo.data.curriculum import Curriculum
from outdo.data.prompts import Prompts
from outdo.data.sequences import Joined
from outdo.data.splits import Questions
from outdo.types import Group, Prompt
from outdo.utils.errors import UserError

Item = TypeVar("Item")


class Mixture(Prompts[Item]):
    """Batches of prompts from several sources, in the shares that their weights have of the sum of all weights.

    Each prompt comes from the source that lacks most of its share so far; of equal ones, the first. So every number of
    prompts has the shares as nearly as whole prompts allow. Each source has its own epochs and orders.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[Item] | Prompts[Item]],
        weights: Sequence[float],
        *,
        per_step: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.sources = [
            source
            if isinstance(source, Prompts)
            else Prompts(source, per_step=per_step, seed=seed, shuffle=shuffle, name=str(index))
            for index, source in enumerate(sources)
        ]
        everything = Joined([source.prompts for source in self.sources])
        super().__init__(everything, per_step=per_step, seed=seed, shuffle=shuffle)
        self.shares = [weight / sum(weights) for weight in weights]

    def take(self, count: int) -> list[Item]:
        """Return the next `count` prompts of the mixture."""
        chosen = self._choose(self.position, [source.position for source in self.sources], count)
        self.position += count
        iterators = [iter(source.take(chosen.count(index))) for index, source in enumerate(self.sources)]
        return [next(iterators[index]) for index in chosen]

    def observe(self, groups: Sequence[Group]) -> None:
        """Tell all sources the answers to some prompts."""
        for source in self.sources:
            source.observe(groups)

    def metrics(self, questions: Sequence[Item]) -> dict[str, float]:
        """Return the metrics of all sources."""
        return {name: value for source in self.sources for name, value in source.metrics(questions).items()}

    def state(self) -> dict[str, Any]:
        """Return the number of prompts that have been taken, and the states of sources that have more than that."""
        states = {str(index): source.state() for index, source in enumerate(self.sources)}
        more = {index: state for index, state in states.items() if state.keys() > {"position"}}
        return {**super().state(), **({"sources": more} if more else {})}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position, which determines the positions in all sources."""
        super().load_state(state)
        chosen = self._choose(0, [0] * len(self.sources), self.position)
        more = state.get("sources", {})
        for index, source in enumerate(self.sources):
            source.load_state(more.get(str(index), {"position": chosen.count(index)}))

    def _choose(self, position: int, taken: Sequence[int], count: int) -> list[int]:
        """Return the sources of `count` prompts after the first `position`, of which each source has given `taken`."""
        counts, chosen = list(taken), list[int]()
        for total in range(position + 1, position + count + 1):
            lacking = [share * total - drawn for share, drawn in zip(self.shares, counts, strict=True)]
            index = lacking.index(max(lacking))
            counts[index] += 1
            chosen.append(index)
        return chosen


def in_batches(
    prompts: Sequence[Prompt], questions: Questions, *, per_step: int, seed: int, shuffle: bool
) -> Prompts[Prompt]:
    """Return the batches of the prompts of the training questions: mixed, if their sources have weights.

    Raises `UserError` if no prompt of a source, or of a level of a curriculum, is left.
    """
    how = {"per_step": per_step, "seed": seed, "shuffle": shuffle}
    if not questions.weights and not questions.curricula:
        return Prompts(prompts, **how)
    sources = _sources(prompts, questions)
    made = [
        _levels(source, questions, index, number=f"{index + 1}" if len(sources) > 1 else "", **how)
        if index in questions.curricula
        else Prompts(source, name=f"{index}", **how)
        for index, source in enumerate(sources)
    ]
    return Mixture(made, questions.weights, **how) if questions.weights else made[0]


def _sources(prompts: Sequence[Prompt], questions: Questions) -> Sequence[Sequence[Prompt]]:
    """Return the prompts of each source. Raises `UserError` if one of them has none."""
    if isinstance(prompts, Joined):  # one of them is streamed, and none has a curriculum
        sources = prompts.parts
    else:
        source_of = {question.id: question.source for question in questions.train}
        places = range(len(questions.weights) or 1)
        sources = [[prompt for prompt in prompts if source_of[prompt.id] == index] for index in places]
    if empty := [index + 1 for index, source in enumerate(sources) if not source]:
        raise UserError([f"data.path[{index}]: no question of this file is left to train on" for index in empty])
    return sources


def _levels(prompts: Sequence[Prompt], questions: Questions, index: int, *, number: str, **how: Any) -> Curriculum:
    """Return the curriculum of a source."""
    curriculum = questions.curricula[index]
    level_of = {question.id: question.level for question in questions.train if question.source == index}
    wanted = curriculum.levels or sorted({level for level in level_of.values() if level is not None})
    levels = {level: [prompt for prompt in prompts if level_of[prompt.id] == level] for level in wanted}
    if empty := [level for level, source in levels.items() if not source]:
        raise UserError([f"data.path: no question of level {level} is left to train on" for level in empty])
    return Curriculum(levels, window=curriculum.window, threshold=curriculum.threshold, number=number, **how)
