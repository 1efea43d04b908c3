"""Where training happened: the contexts whose tokens had most of the leverage over all recorded steps of a run.

The leverage of a token is share · |net push| · (1 - π_old): how strongly the step pushed its probability, times how far
the probability could move. `share` divides a probability among the rollouts that share it. A context is a token with
the `BEFORE` tokens before it in the same completion.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from outdo.extras.page.encode import Array, floats_of, lengths_of
from outdo.extras.page.select import READ_ERRORS, spread_out
from outdo.extras.record import parquet as files
from outdo.run.folder.run_files import file_inside
from outdo.utils.errors import RunFolderError
from outdo.utils.text import shortened

BEFORE = 2
"""How many earlier tokens are part of a context."""

ID_BITS = 21
"""Bits of a token id in the key of a context: three ids fit into a 64-bit integer. Larger ids are left out."""

MOST_STEPS, MOST_CONTEXTS = 200, 8
"""How many recorded steps are read at most, spread over the run; and how many contexts are returned."""

COLUMNS = ("token_ids", "pieces", "loss_mask", "old_logprobs", "new_logprobs", "net_push", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLeverage:
    """The leverage of one step, summed over the tokens of each context. [K] each, for K contexts in the step."""

    step: int
    keys: Array  # sorted; see `_keys`
    counts: Array
    leverage: Array
    upward: Array  # the part of the leverage that pushed the probability up
    probability: Array  # the sum of π_old over the context's tokens
    moved: float  # Σ share |π_new - π_old| per measured token: how far the step moved what was measured


def where_training_happened(folder: Path, recorded: Sequence[int]) -> dict[str, Any] | None:
    """Return the contexts with most of the leverage of a run, as the page shows them; None without any leverage.

        steps, tokens          what was read: recorded steps, and trained tokens in them
        half                   the smallest share of the tokens that has half of the leverage
        moved_most             the step that moved the measured probabilities most, or None
        contexts               of each: text before the token, token, share of leverage, count of tokens, in how many
                               steps, whether it was pushed up, its mean probability in the first and in the last tenth
                               of these steps, and the first step past the middle between the two

    Steps whose record is damaged or lacks a column are left out.
    """
    pieces: dict[int, str] = {}
    steps = [made for step in sorted(spread_out(recorded)[:MOST_STEPS]) if (made := _leverage(folder, step, pieces))]
    if not steps or not (total := sum(float(each.leverage.sum()) for each in steps)):
        return None
    keys = numpy.unique(numpy.concatenate([each.keys for each in steps]))
    leverage, counts = (_summed(steps, keys, name) for name in ("leverage", "counts"))
    order = numpy.argsort(-leverage, kind="stable")
    half = int(numpy.searchsorted(numpy.cumsum(leverage[order]), total / 2)) + 1
    measured = [each for each in steps if each.moved > 0]
    return {
        "steps": len(steps),
        "tokens": int(counts.sum()),
        "half": float(counts[order[:half]].sum() / counts.sum()),
        "moved_most": max(measured, key=lambda each: each.moved).step if measured else None,
        "contexts": [
            {
                **_texts(int(keys[place]), pieces),
                "leverage": float(f"{leverage[place] / total:.4g}"),
                "tokens": int(counts[place]),
                **_course(steps, int(keys[place])),
            }
            for place in order[:MOST_CONTEXTS]
            if leverage[place] > 0
        ],
    }


def _leverage(folder: Path, step: int, pieces: dict[int, str]) -> StepLeverage | None:
    """Sum the leverage of a step by context; None if its record is damaged. Adds the text of each token to `pieces`."""
    try:
        file_inside(folder, files.path_of(folder, step))
        table = files.read(folder, step, COLUMNS)
        lengths = lengths_of(table, "token_ids")
        ids = table["token_ids"].combine_chunks().flatten().to_numpy().astype(numpy.int64)
        columns = (floats_of(table, name, lengths) for name in COLUMNS[2:])
        mask, old, new, push, share = (numpy.asarray(column, numpy.float64) for column in columns)
        first = numpy.unique(ids, return_index=True)
        spelled = table["pieces"].combine_chunks().flatten()
        pieces |= {int(number): spelled[int(at)].as_py() for number, at in zip(*first, strict=True)}
    except (*READ_ERRORS, RunFolderError):
        return None
    known = (mask == 1) & numpy.isfinite(old) & numpy.isfinite(push) & numpy.isfinite(share) & (ids < 2**ID_BITS - 1)
    probability = numpy.exp(numpy.minimum(old, 0))
    leverage = share * numpy.abs(push) * (1 - probability)
    keys, place = numpy.unique(_keys(ids, lengths)[known], return_inverse=True)

    def summed(values: Array) -> Array:
        return numpy.bincount(place, values[known], len(keys))

    measured = known & numpy.isfinite(new)
    moved = (share * numpy.abs(numpy.exp(new) - probability))[measured]
    return StepLeverage(
        step=step,
        keys=keys,
        counts=summed(numpy.ones(len(ids))),
        leverage=summed(leverage),
        upward=summed(numpy.where(push > 0, leverage, 0)),
        probability=summed(probability),
        moved=float(moved.sum() / max(1e-9, share[measured].sum())),
    )


def _keys(ids: Array, lengths: Array) -> Array:
    """Return the context of each token as one integer: the ids of the token and of `BEFORE` earlier ones, plus 1.

    0 stands for a place before the first token of the completion.
    """
    starts = numpy.repeat(numpy.cumsum(lengths) - lengths, lengths)
    place = numpy.arange(len(ids)) - starts
    keys = ids + 1
    for back in range(1, BEFORE + 1):
        earlier = numpy.where(place >= back, numpy.roll(ids, back) + 1, 0)
        keys = keys + (numpy.minimum(earlier, 2**ID_BITS - 1) << (ID_BITS * back))
    return keys


def _texts(key: int, pieces: dict[int, str]) -> dict[str, Any]:
    """Return the text of a context's token and of the tokens before it."""
    ids = [(key >> (ID_BITS * back) & (2**ID_BITS - 1)) - 1 for back in range(BEFORE, -1, -1)]
    texts = [shortened(pieces.get(number, ""), 40) for number in ids]
    return {"before": "".join(texts[:-1]), "token": texts[-1], "start": ids[-2] < 0}


def _summed(steps: Sequence[StepLeverage], keys: Array, name: str) -> Array:
    """Sum an attribute over the steps, for each of `keys`."""
    total = numpy.zeros(len(keys))
    for each in steps:
        total[numpy.searchsorted(keys, each.keys)] += getattr(each, name)
    return total


def _course(steps: Sequence[StepLeverage], key: int) -> dict[str, Any]:
    """Return in which direction a context was pushed, and how its probability changed over the run."""
    found, means, upward, leverage = [], [], 0.0, 0.0
    for each in steps:
        place = int(numpy.searchsorted(each.keys, key))
        if place < len(each.keys) and each.keys[place] == key:
            found.append(each.step)
            means.append(float(each.probability[place] / each.counts[place]))
            upward += float(each.upward[place])
            leverage += float(each.leverage[place])
    few = max(1, len(means) // 10)
    first, last = sum(means[:few]) / few, sum(means[-few:]) / few
    way = 1 if last > first else -1
    past = next((step for step, mean in zip(found, means, strict=True) if way * (mean - (first + last) / 2) >= 0), None)
    probabilities = {"first": round(first, 5), "last": round(last, 5), "passed": past}
    return {"steps": len(found), "up": upward > leverage / 2, **probabilities}
