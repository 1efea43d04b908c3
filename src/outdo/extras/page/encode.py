"""Encode the tokens of one step compactly: a header in JSON, then the columns one after another as byte planes.

    4 bytes     length of the header, little-endian
    header      JSON: groups, rows, vocabulary, words of clip states, and the place of each column
    columns     offsets start at the end of the header; with "beside", the column of that name has to be added

Numbers of four bytes are stored as four planes, all lowest bytes first and so on: similar bytes are then next to each
other, which helps gzip. Floats keep 13 bits of their mantissa: four digits are enough for a reader.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from outdo.run.folder.run_files import number_or_none
from outdo.utils.text import shortened

FLOATS: Mapping[str, str] = {
    "old": "old_logprobs",
    "new": "new_logprobs",
    "ref": "ref_logprobs",
    "rollout": "rollout_logprobs",
    "teacher": "teacher_logprobs",
    "teacher_divergence": "teacher_divergence",
    "values": "values",
    "advantages": "advantages",
    "target": "target",
    "bound": "bound",
    "ratio": "ratio",
    "entropy": "entropy",
    "policy_push": "policy_push",
    "kl_pull": "kl_pull",
    "net_push": "net_push",  # not only its terms: their rounding would turn a sum of 0 into a push up or down
    "share": "share",
    "weight": "weight",
    "a": "a_logprobs",
    "b": "b_logprobs",
}
"""The page's name for each number of a token, and the column of the record that holds it."""

STORED_AS_DIFFERENCE: Mapping[str, str] = {
    **dict.fromkeys(("new", "ref", "rollout", "teacher", "target", "bound", "a"), "old"),
    "b": "a",
}
"""Log-probabilities that are stored as differences from another one, because readers look at the differences."""

TOP_COLUMNS, TOP_COUNT = ("old_top", "new_top", "teacher_top"), 5
"""Columns with the most probable tokens at each token, and how many of them are shown."""

REQUIRED = ("group", "rollout", "token_ids", "pieces")
"""Columns that a record must have."""

LONGEST_PIECE = 200
"""The maximum number of characters shown of one token."""

LONGEST_TEXT = 2_000
"""The maximum number of characters shown of an answer, a verdict or an id."""

COARSE, COARSE_BITS = ("ref", "rollout"), 10
"""Columns close to π_old, and the bits kept of their difference from it: three digits."""

KEPT_BITS = 13
"""Bits kept of the 23 bits of a float's mantissa: a relative error below 2^-14."""

Table = Any
"""A `pyarrow.Table`: pyarrow has no types to check."""
Array = NDArray[Any]
Floats = NDArray[numpy.float32]


def pack(table: Table) -> bytes:
    """Encode rows of a record (see `record.table`; the rows of a group are next to each other) as bytes.

    A float column that the record does not have becomes NaN. Raises ValueError or KeyError if the columns do not fit
    together.
    """
    if missing := [name for name in REQUIRED if name not in table.column_names]:
        raise KeyError(f"no column {', '.join(missing)}")
    lengths = lengths_of(table, "token_ids")
    vocabulary = _Vocabulary()
    tokens = vocabulary.indices(table, "token_ids", "pieces", "token_bytes")
    groups, numbers = _groups(table, vocabulary)
    clip, words = _clip_states(table, lengths)
    columns: dict[str, Array | None] = {"token": tokens, "trained": _trained(table, lengths), "clip": clip}
    for name, column in FLOATS.items():
        if name not in ("a", "b") or column in table.column_names:
            columns[name] = floats_of(table, column, lengths)
    top_columns, top_starts = _top_tokens(table, vocabulary)
    body = _Body()
    places = _add_columns(body, columns)
    for name, values in top_columns.items():  # whose length is their own
        places[name] = {**body.add(values, COARSE_BITS), "count": len(values)}
    header = {
        "step": table["step"][0].as_py() if len(table) and "step" in table.column_names else None,
        "groups": groups,
        "rows": [row | top for row, top in zip(_rows(table, numbers, lengths), top_starts, strict=True)],
        "clip": words,
        "vocabulary": vocabulary.entries,
        "columns": places,
    }
    header_bytes = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return struct.pack("<I", len(header_bytes)) + header_bytes + bytes(body.content)


def rounded(values: Floats, mantissa: int = KEPT_BITS) -> Floats:
    """Round `values` to so many bits of mantissa (ties to even). Infinities stay; all NaNs get the same bits."""
    dropped = 23 - mantissa
    bits = values.view(numpy.uint32)
    half = numpy.uint32((1 << (dropped - 1)) - 1)
    nearest = (bits + half + ((bits >> dropped) & 1)) & numpy.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return numpy.where(numpy.isnan(values), numpy.float32(numpy.nan), nearest.view(numpy.float32)).astype("<f4")


def _add_columns(body: "_Body", columns: Mapping[str, Array | None]) -> dict[str, dict[str, Any]]:
    """Store the columns with one entry for each token, first those that others are stored as differences from."""
    places = {name: body.add(values) for name, values in columns.items() if name not in STORED_AS_DIFFERENCE}
    for name in [name for name in STORED_AS_DIFFERENCE if name in columns]:
        bits = COARSE_BITS if name in COARSE else KEPT_BITS
        places[name] = _add_difference(
            body, columns[name], columns.get(STORED_AS_DIFFERENCE[name]), STORED_AS_DIFFERENCE[name], bits
        )
    return places


def _add_difference(body: "_Body", values: Floats | None, old: Floats | None, base: str, bits: int) -> dict[str, Any]:
    """Store a log-probability as its difference from another one, if that is known; return its place."""
    difference = None if values is None or old is None else _difference(values, old)
    return body.add(values) if difference is None else {**body.add(difference, bits), "beside": base}


def _difference(values: Floats, old: Floats) -> Floats | None:
    """Return `values` minus `old`, so that a small difference keeps its four digits; None if `old` is not known.

    A value of at most 0 stays at most 0 after decoding, because rounding keeps the order: no probability exceeds 1.
    """
    unknown = ~numpy.isfinite(old) & ~numpy.isnan(values)
    return None if unknown.any() else values - old


class _Body:
    """The bytes of the columns. Equal columns are stored once."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, values: Array | None, bits: int = KEPT_BITS) -> dict[str, Any]:
        """Store a column (None: no value is known) and return its place."""
        if values is None:
            return {"kind": "constant", "value": None}
        if values.dtype == numpy.float32:
            values = rounded(values, bits)
        if (constant := _constant(values)) is not None:
            return constant
        kind = {"f4": "f32", "u4": "u32", "u1": "u8"}[values.dtype.str[1:]]
        planes = values.view(numpy.uint8).reshape(len(values), -1).T.tobytes()
        offset = self._places.setdefault(planes, len(self.content))
        if offset == len(self.content):
            self.content += planes
        return {"kind": kind, "offset": offset, "count": len(values)}


def _constant(values: Array) -> dict[str, Any] | None:
    """Return the description of a column with a single value; None for other columns."""
    if len(values) == 0 or numpy.isnan(values).all():
        return {"kind": "constant", "value": None}
    same = (values == values[0]).all() and numpy.isfinite(values[0])
    return {"kind": "constant", "value": values[0].item()} if same else None


class _Vocabulary:
    """The distinct tokens of a step.

    One id can have several texts, because a character that is split over several tokens belongs to one of them.
    """

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self._index: dict[tuple[int, str, str | None], int] = {}

    def indices(self, table: Table, ids: str, pieces: str, spelt: str = "") -> Array:
        """Return the tokens of a list column, all rows one after another, as indices into `entries`."""
        numbers = table[ids].combine_chunks().flatten().to_pylist()
        texts = table[pieces].combine_chunks().flatten().to_pylist()
        known = spelt in table.column_names
        octets = table[spelt].combine_chunks().flatten().to_pylist() if known else [None] * len(numbers)
        indices = [self.index_of(*token) for token in zip(numbers, texts, octets, strict=True)]
        return numpy.array(indices, numpy.uint32)

    def index_of(self, number: int, piece: str, octets: bytes | None) -> int:
        differ = octets is not None and octets != piece.encode()
        key = (number, shortened(piece, LONGEST_PIECE), octets[:LONGEST_PIECE].hex() if octets and differ else None)
        if key not in self._index:
            self._index[key] = len(self.entries)
            self.entries.append(list(key))
        return self._index[key]


def beginning(most: int) -> int:
    """Return how many of the `most` tokens shown of a long completion are from its beginning; the others end it."""
    return most - most // 3


# ----------------------------------------------------------------------------------------------- reading the record


def _groups(table: Table, vocabulary: _Vocabulary) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the common data of each group's rollouts, and for each row the index of its group."""
    numbers = table["group"].to_pylist()
    first = {number: row for row, number in reversed([*enumerate(numbers)])}
    order = list(dict.fromkeys(numbers))
    heads = table.take(pyarrow.array([first[number] for number in order], pyarrow.int64()))
    prompts: list[list[int]] = [[] for _ in order]
    if {"prompt_token_ids", "prompt_pieces"} <= set(table.column_names):
        flat = vocabulary.indices(heads, "prompt_token_ids", "prompt_pieces").tolist()
        ends = numpy.cumsum(lengths_of(heads, "prompt_token_ids")).tolist()
        prompts = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    groups = [
        {
            "number": number,
            "prompt_id": _text(head.get("prompt_id")) or "",
            "prompt": prompt,
            "answer": _text(head.get("answer")),
            "baseline": number_or_none(head.get("baseline")),
        }
        for number, prompt, head in zip(
            order, prompts, _row_dicts(heads, "prompt_id", "answer", "baseline"), strict=True
        )
    ]
    index_of = {number: index for index, number in enumerate(order)}
    return groups, [index_of[number] for number in numbers]


def _rows(table: Table, groups: Sequence[int], lengths: Array) -> list[dict[str, Any]]:
    starts = (numpy.cumsum(lengths) - lengths).tolist()
    names = ("rollout", "reward", "reward_parts", "status", "right", "finish_reason")
    others = ("policy_version", "advantage", "temperature", "measured", "omitted", "turns", "counts")
    return [
        {
            "group": group,
            "rollout": row["rollout"],
            "start": start,
            "length": length,
            "omitted": row.get("omitted") or 0,
            "reward": number_or_none(row.get("reward")),
            "parts": {name: number_or_none(part) for name, part in (row.get("reward_parts") or {}).items()},
            "status": _text(row.get("status")) or "ok",
            "right": row.get("right"),  # None: the run has no rule for it
            "finish": _text(row.get("finish_reason")) or "",
            "version": row.get("policy_version"),
            "advantage": number_or_none(row.get("advantage")),
            "temperature": number_or_none(row.get("temperature")),
            "measured": bool(row.get("measured")),
            "turns": row.get("turns") or [],  # see turns.py
            "counts": dict(row.get("counts") or ()),
        }
        for group, start, length, row in zip(
            groups, starts, lengths.tolist(), _row_dicts(table, *names, *others), strict=True
        )
    ]


def _row_dicts(table: Table, *names: str) -> list[dict[str, Any]]:
    """Return the rows of the columns that exist."""
    present = [name for name in names if name in table.column_names]
    return table.select(present).to_pylist() if present else [{} for _ in range(len(table))]


def lengths_of(table: Table, name: str) -> Array:
    """Return the length of each list of a column; 0 for a null."""
    return table[name].combine_chunks().value_lengths().fill_null(0).to_numpy().astype(numpy.int64)


def floats_of(table: Table, name: str, lengths: Array) -> Floats | None:
    """Return a list column, all rows one after another, with NaN for null rows; None if there is no such column."""
    if name not in table.column_names or pyarrow.types.is_null(table[name].type):
        return None
    own_lengths = lengths_of(table, name)
    if ((own_lengths != lengths) & (own_lengths != 0)).any():
        raise ValueError(f"{name} does not have one entry per token")
    values = numpy.full(lengths.sum(), numpy.nan, numpy.float32)
    flat = table[name].combine_chunks().flatten().cast(pyarrow.float32())
    values[numpy.repeat(own_lengths == lengths, lengths)] = flat.to_numpy(zero_copy_only=False)
    return values


def _top_tokens(table: Table, vocabulary: _Vocabulary) -> tuple[dict[str, Array], list[dict[str, int]]]:
    """Return the most probable tokens of policy and teachers, and for each row where its tokens begin in them.

    A column has `TOP_COUNT` entries for each token of the rows with such tokens: the index of a token and its
    log-probability, NaN where there is none. Before and after the step, and of the teachers, these are two columns
    each, such as `old_top` and `old_top_logprobs`.
    """
    columns: dict[str, Array] = {}
    starts: list[dict[str, int]] = [{} for _ in range(len(table))]
    for name in (name for name in TOP_COLUMNS if name in table.column_names):
        lists = table[name].combine_chunks()
        lengths = lengths_of(table, name)
        for row, start in enumerate((numpy.cumsum(lengths) - lengths).tolist()):
            starts[row] |= {name: start} if lengths[row] else {}
        of_tokens = lists.flatten()
        counts = of_tokens.value_lengths().fill_null(0).to_numpy()
        entries = of_tokens.flatten()
        rank = numpy.arange(len(entries)) - numpy.repeat(numpy.cumsum(counts) - counts, counts)
        token = numpy.repeat(numpy.arange(len(counts)), counts)
        shown = rank < TOP_COUNT
        at = (token * TOP_COUNT + rank)[shown]
        columns[name] = numpy.zeros(len(counts) * TOP_COUNT, numpy.uint32)
        columns[name][at] = _top_indices(entries, vocabulary)[shown]
        columns[f"{name}_logprobs"] = numpy.full(len(counts) * TOP_COUNT, numpy.nan, numpy.float32)
        columns[f"{name}_logprobs"][at] = entries.field("logprob").to_numpy(zero_copy_only=False)[shown]
    return columns, starts


def _top_indices(entries: Any, vocabulary: _Vocabulary) -> Array:
    """Return the indices of tokens in the vocabulary; a token id has one text here."""
    ids = entries.field("token_id").to_numpy(zero_copy_only=False)
    _, first, inverse = numpy.unique(ids, return_index=True, return_inverse=True)
    distinct = entries.take(pyarrow.array(first)).to_pylist()
    indices = [vocabulary.index_of(token["token_id"], token["piece"], token["token_bytes"]) for token in distinct]
    return numpy.array(indices, numpy.uint32)[inverse] if indices else numpy.zeros(0, numpy.uint32)


def _trained(table: Table, lengths: Array) -> Array | None:
    """Return 1 for tokens in the loss mask, else 0."""
    mask = floats_of(table, "loss_mask", lengths)
    return None if mask is None else numpy.nan_to_num(mask).astype(numpy.uint8)


def _clip_states(table: Table, lengths: Array) -> tuple[Array | None, list[str]]:
    """Return the word index of each token, and the words; None and no words if the record has no such column."""
    if "clip" not in table.column_names:
        return None, []
    column = table["clip"].combine_chunks()
    if (lengths_of(table, "clip") != lengths).any():
        raise ValueError("clip does not have one entry per token")
    encoded = column.flatten().cast(pyarrow.string()).fill_null("").dictionary_encode()
    words = [shortened(word, LONGEST_PIECE) for word in encoded.dictionary.to_pylist()]
    if len(words) > 256:
        raise ValueError("clip has more than 256 words")
    return encoded.indices.to_numpy().astype(numpy.uint8), words


def _text(value: Any) -> str | None:
    return None if value is None else shortened(str(value), LONGEST_TEXT)
