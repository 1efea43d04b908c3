"""How long the sequences of a run are, as the estimates of its memory take them.

Prompts have the lengths of a sample of the data, or `data.max_prompt_tokens` where these are not known; every answer is
as long as it may be. Micro-batches are formed of them as the run forms them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from random import Random

from outdo.config.attention import sequence_replicas
from outdo.config.recipe import Recipe

SAMPLED = 256
"""Questions of the data that are tokenised before a run."""

LONGEST_TEXTS = 8
"""Questions beside these whose texts are the longest: they show whether any prompt is too long."""

STEPS_DRAWN = 32
"""Steps whose prompts are drawn of the sample, to find the largest micro-batch."""

Unit = tuple[int, int]
"""The place of a prompt among those of a step, and how many of its answers stay together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceLengths:
    """The lengths of prompts and answers, in tokens."""

    prompts: tuple[int, ...]  # of a sample
    completion: int  # of the longest answer
    shared: bool = True  # whether a prompt is computed once for its group
    evaluated: int = 0  # answers that an evaluation samples

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt with the longest answer."""
        return max(self.prompts) + self.completion

    @property
    def mean_prompt(self) -> float:
        """The mean length of a prompt."""
        return sum(self.prompts) / len(self.prompts)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The tokens of one forward pass."""

    tokens: int  # computed
    repeated: int = 0  # tokens of prompts whose keys and values attention repeats for answers


def bound(recipe: Recipe) -> SequenceLengths:
    """Return the lengths of the longest sequences that a recipe allows."""
    return SequenceLengths(prompts=(recipe.data.max_prompt_tokens,), completion=recipe.sampling.max_tokens)


def sampled_places(count: int, first: int) -> list[int]:
    """Return the places of at most `SAMPLED` questions of `count`: so many `first` ones, then others spread evenly."""
    first = min(first, count)
    others = min(count, SAMPLED) - first
    return [*range(first), *(first + i * (count - first) // others for i in range(others))]


def longest_places(lengths: Iterable[int]) -> list[int]:
    """Return the places of the `LONGEST_TEXTS` longest texts, the longest first."""
    longest = nlargest(LONGEST_TEXTS, ((length, -index) for index, length in enumerate(lengths)))
    return [-index for _, index in longest]


def largest_micro_batch(lengths: SequenceLengths, recipe: Recipe) -> MicroBatch | None:
    """Return the largest micro-batch of one process in some steps; None where the run has yet to find its size.

    Replicas divide the sequences of a step. Those that share each sequence compute a part of its tokens.
    """
    budget, share = recipe.train.micro_batch_tokens, sequence_replicas(recipe)
    if budget == "auto":
        return None
    rows = -(-recipe.train.prompts * recipe.train.group_size * share // recipe.cluster.world_size)
    sizes = [
        _computed(prompts, micro_batch, lengths)
        for prompts in _steps(lengths, recipe, rows)
        for micro_batch in micro_batches(prompts, lengths.completion, recipe.train.group_size, budget, rows)
    ]
    largest = max(sizes, key=lambda micro_batch: micro_batch.tokens)
    return MicroBatch(tokens=-(-largest.tokens // share), repeated=-(-largest.repeated // share))


def _steps(lengths: SequenceLengths, recipe: Recipe, rows: int) -> Iterator[list[int]]:
    """Yield the lengths of the prompts that one process has in each of some steps, drawn by the recipe's seed."""
    random, count = Random(recipe.seed), -(-rows // recipe.train.group_size)
    for _ in range(min(recipe.steps, STEPS_DRAWN) if len(lengths.prompts) > 1 else 1):
        yield random.choices(lengths.prompts, k=count)


def micro_batches(prompts: Sequence[int], completion: int, group: int, budget: int, rows: int) -> list[list[Unit]]:
    """Divide the first `rows` answers to some prompts as `types.rows.pack_by_tokens` does, all of equal length."""
    units: list[Unit] = []
    for index, prompt in enumerate(prompts):
        members = min(group, rows - index * group)
        whole = members * (prompt + completion) <= budget
        units += [(index, members)] if whole else [(index, 1)] * members
    formed: list[list[Unit]] = []
    longest = 0
    for index, members in units:
        longest = max(longest, prompts[index] + completion)
        if formed and (sum(count for _, count in formed[-1]) + members) * longest <= budget:
            formed[-1].append((index, members))
        else:
            formed.append([(index, members)])
            longest = prompts[index] + completion
    return formed


def _computed(prompts: Sequence[int], units: Sequence[Unit], lengths: SequenceLengths) -> MicroBatch:
    """Return what a micro-batch computes: each prompt once, or each answer with its prompt, padded to the longest."""
    rows = sum(count for _, count in units)
    if not lengths.shared:
        return MicroBatch(tokens=rows * (max(prompts[index] for index, _ in units) + lengths.completion))
    once = sum(prompts[index] for index in {index for index, _ in units})
    repeated = sum(prompts[index] * count for index, count in units)
    return MicroBatch(tokens=once + rows * lengths.completion, repeated=repeated)
