"""The batches of a run: of one source, of several appended or mixed ones, and of curricula among them."""

from collections.abc import Sequence
from typing import Any

from outdo.data.curriculum import Curriculum
from outdo.data.prompts import Mixture, Prompts
from outdo.data.splits import Questions
from outdo.data.streaming import Joined
from outdo.types import Prompt
from outdo.utils.errors import UserError


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
        _levels(source, questions, place, number=f"{place + 1}" if len(sources) > 1 else "", **how)
        if place in questions.curricula
        else Prompts(source, name=f"{place}", **how)
        for place, source in enumerate(sources)
    ]
    return Mixture(made, questions.weights, **how) if questions.weights else made[0]


def _sources(prompts: Sequence[Prompt], questions: Questions) -> Sequence[Sequence[Prompt]]:
    """Return the prompts of each source. Raises `UserError` if one of them has none."""
    if isinstance(prompts, Joined):  # one of them is streamed, and none has a curriculum
        sources = prompts.parts
    else:
        source_of = {question.id: question.source for question in questions.train}
        places = range(len(questions.weights) or 1)
        sources = [[prompt for prompt in prompts if source_of[prompt.id] == place] for place in places]
    if empty := [place + 1 for place, source in enumerate(sources) if not source]:
        raise UserError([f"data.path[{place}]: no question of this file is left to train on" for place in empty])
    return sources


def _levels(prompts: Sequence[Prompt], questions: Questions, place: int, *, number: str, **how: Any) -> Curriculum:
    """Return the curriculum of a source."""
    curriculum = questions.curricula[place]
    level_of = {question.id: question.level for question in questions.train if question.source == place}
    wanted = curriculum.levels or sorted({level for level in level_of.values() if level is not None})
    levels = {level: [each for each in prompts if level_of[each.id] == level] for level in wanted}
    if empty := [level for level, source in levels.items() if not source]:
        raise UserError([f"data.path: no question of level {level} is left to train on" for level in empty])
    return Curriculum(levels, window=curriculum.window, threshold=curriculum.threshold, number=number, **how)
