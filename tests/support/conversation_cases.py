"""Episodes of several conversations, made up for hypothesis, as a batch whose tokens have names."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from hypothesis import strategies as st
from toys import batch_of, rollout

from outdo.types import Batch, Rollout

Key = tuple[int, int, int]
"""Names a token wherever it stands: its episode, its conversation, and its place among the tokens that this adds."""


@dataclass(frozen=True)
class Talk:
    """A conversation: where it begins in the first one, and the lengths of its turns."""

    name: int
    follows: int  # a turn of the first conversation; -1: the prompt, -2: nothing
    turns: tuple[int, ...]


@dataclass(frozen=True)
class Played:
    """An episode: its conversations in the order of the row."""

    number: int
    reward: float
    talks: tuple[Talk, ...]  # the first one, and further ones


PROMPT = 2
SCRATCH, NEWS = 3, 2  # tokens before the first turn of a conversation from nothing, and before any other turn


def laid_out(episode: Played) -> tuple[Rollout, list[Key]]:
    """The row of an episode, and the name of each of its tokens behind the prompt."""
    tokens: list[int] = []
    mask: list[bool] = []
    keys: list[Key] = []
    forks: list[tuple[int, int]] = []
    ends = {-1: PROMPT - 1, -2: -1}  # the last column of each turn of the first conversation
    for place, talk in enumerate(episode.talks):
        random, added = Random(f"{episode.number} {talk.name}"), 0
        if place:
            forks.append((PROMPT + len(tokens), ends[talk.follows]))
        for turn, length in enumerate(talk.turns):
            read = 0 if not place and not turn else SCRATCH if talk.follows == -2 and not turn else NEWS
            for sampled in (False,) * read + (True,) * length:
                vocabulary = (100, 102) if sampled else (500 + 100 * talk.name, 600 + 100 * talk.name)
                tokens.append(random.randrange(*vocabulary))
                mask.append(sampled)
                keys.append((episode.number, talk.name, added))
                added += 1
            if not place:
                ends[turn] = PROMPT + len(tokens) - 1
    numbers = {"token_ids": tuple(tokens), "logprobs": tuple(-0.5 for _ in tokens), "loss_mask": tuple(mask)}
    parts = {"parts": episode.reward, "style": 1.0 - episode.reward / 3}
    right = episode.reward >= 1
    return rollout(len(tokens), episode.reward, **numbers, forks=tuple(forks), reward_parts=parts, right=right), keys


def named(name: str, key: Key) -> float:
    """A number in [0, 1) that depends on the name of a token alone."""
    return Random(f"{name} {key}").random()


def batched(groups: Sequence[Sequence[Played]]) -> tuple[Batch, list[list[Key]]]:
    """The batch of episodes with made-up measurements of every token, and the names of the tokens."""
    rows = [[laid_out(episode) for episode in group] for group in groups]
    first, second = ([row for row, _ in group] for group in rows)
    batch = batch_of([], first, [], [], second)  # every third prompt has two tokens
    keys = [names for group in rows for _, names in group]
    width = batch.token_ids.shape[1]
    starts = batch.prompt_lengths.tolist()

    def measured(name: str, low: float, high: float) -> torch.Tensor:
        values = torch.zeros(len(batch), width, dtype=torch.float64)
        for row, (names, start) in enumerate(zip(keys, starts, strict=True)):
            for place, key in enumerate(names):
                values[row, start + place] = low + (high - low) * named(name, key)
        return values

    old = measured("old", -3.0, -0.1)
    return batch.with_(
        rewards=batch.rewards.double(),
        reward_parts={name: part.double() for name, part in batch.reward_parts.items()},
        old_logprobs=old,
        ref_logprobs=old + measured("reference", -0.5, 0.5),
        teacher_logprobs=old + measured("teacher", -0.5, 0.5),
        rollout_logprobs=old + measured("engine", -0.1, 0.1),
        old_sums={
            "entropy": measured("entropy", 0.0, 2.0),
            "collision": (2 * old).exp() + measured("collision", 0.0, 0.1),
        },
        values=old + measured("values", -0.5, 0.09),  # log πθ of objectives as well
        baselines=torch.full((len(batch),), 0.25, dtype=torch.float64),
    ), keys


def by_name(values: torch.Tensor, batch: Batch, keys: Sequence[Sequence[Key]]) -> dict[Key, float]:
    """The values [B, T] of the trained tokens by their names."""
    found: dict[Key, float] = {}
    for row, (names, start) in enumerate(zip(keys, batch.prompt_lengths.tolist(), strict=True)):
        for place, key in enumerate(names):
            if batch.loss_mask[row, start + place]:
                found[key] = float(values[row, start + place])
    return found


TURNS = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)


@st.composite
def played(draw: st.DrawFn) -> list[list[Played]]:
    """Two groups of episodes, of which some have several conversations."""
    groups: list[list[Played]] = []
    for group in range(2):
        episodes: list[Played] = []
        for place in range(draw(st.integers(2, 3))):
            first = Talk(0, -1, draw(TURNS))
            further = [
                Talk(name, draw(st.integers(-2, len(first.turns) - 2)), draw(TURNS))
                for name in range(1, 1 + draw(st.integers(0, 3)))
            ]
            value = draw(st.sampled_from([0.0, 0.5, 1.0, 1.25]))
            episodes.append(Played(10 * group + place, value, (first, *further)))
        groups.append(episodes)
    return groups
