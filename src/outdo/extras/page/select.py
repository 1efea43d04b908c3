"""Choose the steps, groups and tokens of a record for a page, and read only these.

Only one column of a step's file is in memory at a time, and only its rows for the page are kept: a long record does not
make a larger page than a short one. A record whose columns are too large even for that is not read (`MOST_ENTRIES`).
"""

import base64
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy
import pyarrow
from pyarrow import parquet

from outdo.extras.page.encode import FLOATS, TOP_COLUMNS, Array, Table, beginning, lengths_of, pack
from outdo.extras.page.turns import Read, turns_of
from outdo.extras.record import parquet as files
from outdo.run.folder.run_files import file_inside
from outdo.utils.errors import RunFolderError

STEP_TOKENS = 65_536
"""The maximum number of completion tokens of one step on a page, and of prompt tokens."""

DEFAULT_BYTES = 7_000_000
"""The default size of all tokens on a page, in bytes of its file."""

LEADING_STEPS = 6
"""The maximum number of steps that a page names with the reason why they are worth opening."""

TOKEN_COLUMNS = ("token_ids", "pieces", "token_bytes", "loss_mask", "clip", *FLOATS.values(), *TOP_COLUMNS)
SHOWN_COLUMNS = (
    *("step", "group", "rollout", "prompt_id", "prompt_token_ids", "prompt_pieces", "answer", "reward", "reward_parts"),
    *("status", "right", "advantage", "baseline", "finish_reason", "policy_version", "temperature", "measured"),
    "counts",
    *TOKEN_COLUMNS,
)
"""Columns of the record that the page shows, and those of them with one entry per completion token."""

SCORED_COLUMNS = ("group", "prompt_token_ids", "inputs", "token_ids", "forks", "temperature")
"""Columns of the record that say what a model has to score."""

MOST_ENTRIES, LARGEST_COLUMN = 2**25, 2**29
"""The maximum entries and bytes of a column: 33 million tokens in one step."""

READ_ERRORS = (OSError, pyarrow.ArrowException, ValueError, TypeError, KeyError, IndexError, RecursionError)
"""The exceptions that reading a file raises if it is not a valid record."""

COMPRESSION = 6
"""The level of gzip: level 9 takes three times as long, and saves one percent."""

Rescore = Callable[[Table], Table]
"""Adds the columns `a_logprobs` and `b_logprobs` to rows of a record with its `SCORED_COLUMNS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedRows:
    """The rows of a step on a page."""

    table: Table
    groups: int  # in the whole step


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """The comparison of one step's completions under two checkpoints, `a` and `b`."""

    step: int
    a: str
    b: str
    rescore: Rescore


# ------------------------------------------------------------------------------------------------------------- steps


def informative_steps(
    recorded: Sequence[int],
    metrics: Sequence[Mapping[str, float]],
    findings: Sequence[Mapping[str, Any]],
    *,
    best: int | None = None,
) -> dict[int, str]:
    """Return the most informative recorded steps with the reason, at most `LEADING_STEPS`, the most important first.

    These are the step that moved most, the first, the last, the best, and those at which something happened. If such a
    step is not recorded, the nearest recorded step takes its place.
    """
    reasons: dict[int, list[str]] = {}
    for step, why in _reasons(recorded, metrics, findings, best) if recorded else ():
        near = min(recorded, key=lambda known: (abs(known - step), known))
        if near in reasons or len(reasons) < LEADING_STEPS:
            reasons_of_step = reasons.setdefault(near, [])
            reasons_of_step += [why] if near == step else [f"{why} at step {step}"]
    return {step: ", ".join(dict.fromkeys(texts)) for step, texts in reasons.items()}


def moved_most(recorded: Sequence[int], metrics: Sequence[Mapping[str, float]]) -> int | None:
    """Return the recorded step that moved the policy most, by its `step_kl`; None if no step has measured it."""
    known = set(recorded)
    return _extreme([line for line in metrics if line["step"] in known], "step_kl", max)


def spread_out(steps: Sequence[int]) -> list[int]:
    """Return `steps` in an order in which every beginning of the list is spread over the whole run.

    The order is that of the van der Corput sequence: 0, 1/2, 1/4, 3/4, 1/8, ... of the run.
    """
    bits = max(1, (len(steps) - 1).bit_length())
    order = sorted(range(len(steps)), key=lambda index: int(f"{index:0{bits}b}"[::-1], 2))
    return [steps[index] for index in order]


def _reasons(
    recorded: Sequence[int],
    metrics: Sequence[Mapping[str, float]],
    findings: Sequence[Mapping[str, Any]],
    best: int | None,
) -> Iterator[tuple[int, str]]:
    """Yield interesting steps with the reason, the most informative first."""
    if (moved := moved_most(recorded, metrics)) is not None:
        yield moved, "moved most"
    yield recorded[0], "first recorded"
    yield recorded[-1], "last recorded"
    if best is not None:
        yield best, "best evaluation"
    elif (telling := _extreme(metrics, "eval/greedy", max)) is not None:
        yield telling, "best evaluation"
    elif (telling := _extreme(metrics, "reward", max)) is not None:
        yield telling, "highest reward"
    for line in metrics:
        if line.get("updates/refused", 0) > 0:
            yield int(line["step"]), "an update was refused"
    for level in ("warning", "note"):
        for finding in findings:
            if finding["level"] == level:
                yield finding["first"], f"a {level} begins ({finding['metric']})"
    if (telling := _extreme(metrics, "moved_as_intended", min)) is not None:
        yield telling, "fewest tokens moved as intended"


def _extreme(
    metrics: Sequence[Mapping[str, float]], name: str, which: Callable[..., Mapping[str, float]]
) -> int | None:
    lines = [line for line in metrics if name in line]
    return int(which(lines, key=lambda line: line[name])["step"]) if lines else None


# ------------------------------------------------------------------------------------------------------------ tokens


def encoded_step(
    folder: Path,
    step: int,
    why: str,
    *,
    groups: int | None = None,
    tokens: int = STEP_TOKENS,
    comparison: CheckpointComparison | None = None,
) -> dict[str, Any]:
    """Return a step's tokens in the form that the page reads: `groups` of them, or as many as fit `tokens` tokens.

    Raises: RunFolderError with the name of the file if it is damaged.
    """
    try:
        rescore = None if comparison is None else comparison.rescore
        rows = select_rows(folder, step, groups=groups, tokens=tokens, rescore=rescore)
        content = pack(rows.table)
    except READ_ERRORS as error:
        raise RunFolderError(f"{files.path_of(folder, step)}: {str(error).splitlines()[0]}") from error
    blob = base64.b64encode(gzip.compress(content, COMPRESSION, mtime=0)).decode()
    shown = int(lengths_of(rows.table, "token_ids").sum())
    return {"step": step, "why": why, "groups_in_all": rows.groups, "tokens": shown, "blob": blob}


def select_rows(
    folder: Path, step: int, *, groups: int | None = None, tokens: int = STEP_TOKENS, rescore: Rescore | None = None
) -> SelectedRows:
    """Read whole groups of a step, measured and mixed ones first: `groups` of them, or as many as fit `tokens` tokens.

    If the first group alone has more tokens, only the beginning and the end of its completions are shown. The column
    `omitted` has the number of tokens left out of each completion, and `turns` the parts of episodes of several turns.
    `rescore` adds its two columns; it gets whole completions, because each token is scored after those before it.

    Raises what `READ_ERRORS` lists, and RunFolderError.
    """
    path = file_inside(folder, files.path_of(folder, step))
    _check_column_sizes(path)
    present = parquet.read_schema(path).names
    heads = files.read(folder, step, [name for name in ("group", "reward", "advantage", "measured") if name in present])
    lists = [name for name in ("token_ids", "prompt_token_ids") if name in present]
    lengths = {name: lengths_of({name: column}, name) for name, column in files.read_each(folder, step, lists)}
    if heads["group"].null_count:
        raise ValueError("rows without a group")
    numbers = heads["group"].to_numpy()
    chosen, most = _choose_groups(heads, numbers, lengths, groups=groups, tokens=tokens)
    shown = pyarrow.array(numpy.isin(numbers, chosen))

    def read(names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield those of the columns that the record has, with the rows to show."""
        for name, whole in files.read_each(folder, step, [name for name in names if name in present]):
            yield name, whole.filter(shown)

    columns = {}
    for name, column in chain(read(SHOWN_COLUMNS), _scores(read, rescore)):
        if most is not None and name == "token_ids":
            columns["omitted"] = pyarrow.array(numpy.maximum(0, lengths_of({name: column}, name) - most))
        columns[name] = _shortened(column, most) if most is not None and name in TOKEN_COLUMNS else column
    return SelectedRows(table=pyarrow.table(columns | turns_of(read)), groups=len(set(numbers.tolist())))


def _scores(read: Read, rescore: Rescore | None) -> Iterator[tuple[str, Any]]:
    """Yield the two columns of `rescore`, of whole completions; nothing without it."""
    if rescore is not None:
        table = rescore(pyarrow.table(dict(read(SCORED_COLUMNS))))
        yield from ((name, table[name]) for name in ("a_logprobs", "b_logprobs"))


def _check_column_sizes(path: Path) -> None:
    """Raise ValueError if a column is too large for the memory: a small file can hold one value a billion times."""
    about = parquet.read_metadata(path)
    parts = [about.row_group(number) for number in range(about.num_row_groups)]
    for number in range(about.num_columns):
        columns = [part.column(number) for part in parts]
        entries = sum(column.num_values for column in columns)
        size = sum(column.total_uncompressed_size for column in columns)
        if entries > MOST_ENTRIES or size > LARGEST_COLUMN:
            name = columns[0].path_in_schema
            raise ValueError(f"{name} has {entries:,} entries in {size:,} bytes: too many to show")


def _choose_groups(
    heads: Table, numbers: Array, lengths: Mapping[str, Array], *, groups: int | None, tokens: int
) -> tuple[list[int], int | None]:
    """Return the groups to show, and how many tokens of each completion, or None for all."""
    order = sorted(set(numbers.tolist()), key=_priority(heads, numbers))
    if groups is not None:
        return order[:groups], None
    chosen: list[int] = []
    left = dict.fromkeys(lengths, tokens)
    for number in order:
        rows = numbers == number
        of_group = {name: column[rows] for name, column in lengths.items()}
        needed = {name: int(n.sum() if name == "token_ids" else n[0]) for name, n in of_group.items()}
        if all(needed[name] <= left[name] for name in left):
            chosen.append(number)
            left = {name: left[name] - needed[name] for name in left}
    if chosen or not order:
        return chosen, None
    return order[:1], max(1, tokens // int((numbers == order[0]).sum()))


def _priority(heads: Table, numbers: Array) -> Callable[[int], tuple[bool, bool, bool, int]]:
    """Return a sort key for groups: measured and mixed, then measured, then mixed, then others; in record order.

    A group is mixed if its rewards differ, or if an answer has an advantage: equal sums may be of different turns.
    """

    def column(name: str, missing: Any) -> list[Any]:
        return heads[name].to_pylist() if name in heads.column_names else [missing] * len(heads)

    rewards_of: dict[int, set[float]] = {}
    measured_groups: set[int] = set()
    advantages: set[int] = set()
    columns = column("reward", None), column("advantage", None), column("measured", False)
    for number, reward, advantage, was in zip(numbers.tolist(), *columns, strict=True):
        rewards_of.setdefault(number, set()).update(() if reward is None else (reward,))
        measured_groups.update((number,) if was else ())
        advantages.update((number,) if advantage else ())

    def key(number: int) -> tuple[bool, bool, bool, int]:
        unmeasured, equal = number not in measured_groups, len(rewards_of[number]) < 2 and number not in advantages
        return unmeasured or equal, unmeasured, equal, number

    return key


def _shortened(column: Any, most: int) -> Any:
    """Return a list column with `most` entries of each list, from its beginning and its end; null becomes empty."""
    whole = column.combine_chunks()
    lengths = whole.value_lengths().fill_null(0).to_numpy()
    starts = numpy.repeat(numpy.cumsum(lengths) - lengths, lengths)
    position, length = numpy.arange(len(starts)) - starts, numpy.repeat(lengths, lengths)
    is_shown = (length <= most) | (position < beginning(most)) | (position >= length - (most - beginning(most)))
    offsets = numpy.cumsum([0, *numpy.minimum(lengths, most)])
    return pyarrow.ListArray.from_arrays(pyarrow.array(offsets, pyarrow.int32()), whole.flatten().filter(is_shown))
