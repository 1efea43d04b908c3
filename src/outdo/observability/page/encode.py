"""The tokens of one step as few bytes: a header in JSON, then one column after another in byte planes.

    4 bytes     length of the header, little-endian
    header      JSON: groups, rows, vocabulary, words of clip states, and where each column lies
    columns     offsets count from the end of the header; with "beside" the column of that name is to be added

Numbers of four bytes are stored as four planes, all lowest bytes first and so on: bytes that mean the same stand
together, which is what gzip needs. Floats keep 13 bits of their mantissa: four digits, what a person reads.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

FLOATS: Mapping[str, str] = {
    "old": "old_logprobs",
    "new": "new_logprobs",
    "ref": "ref_logprobs",
    "rollout": "rollout_logprobs",
    "values": "values",
    "advantages": "advantages",
    "target": "target",
    "bound": "bound",
    "ratio": "ratio",
    "entropy": "entropy",
    "policy_push": "policy_push",
    "kl_pull": "kl_pull",
    "share": "share",
    "weight": "weight",
    "a": "a_logprobs",
    "b": "b_logprobs",
}
"""What the page calls a number of each token, and the record's column that holds it."""

BESIDE: Mapping[str, str] = {**dict.fromkeys(("new", "ref", "rollout", "target", "bound", "a"), "old"), "b": "a"}
"""Log-probabilities that are stored as their distance from another: what is looked at is how far they are apart."""

REQUIRED = ("group", "rollout", "token_ids", "pieces")
"""Columns of the record without which there is nothing to show."""

LONGEST_PIECE = 200
"""Characters of one token that are shown."""

LONGEST_TEXT = 2_000
"""Characters of an answer, a verdict or an id that are shown."""

ROUGH, FEW_BITS = ("ref", "rollout"), 10
"""What lies near π_old, and of whose distance from it three digits are kept."""

KEPT_BITS = 13
"""Of the 23 bits of a float's mantissa: a relative error below 2^-14."""

Table = Any
"""A `pyarrow.Table`: pyarrow has no types to check."""
Array = NDArray[Any]
Floats = NDArray[numpy.float32]


def pack(table: Table) -> bytes:
    """Rows of a record (`record.table`, neighbours in a group being neighbours here) as bytes.

    A float column that the record does not have is not known: NaN. Raises ValueError or KeyError where the columns do
    not fit together.
    """
    if missing := [name for name in REQUIRED if name not in table.column_names]:
        raise KeyError(f"no column {', '.join(missing)}")
    lengths = lengths_of(table, "token_ids")
    vocabulary = _Vocabulary()
    tokens = vocabulary.indices(table, "token_ids", "pieces", "token_bytes")
    groups, numbers = _groups(table, vocabulary)
    clip, words = _clip(table, lengths)
    columns: dict[str, Array | None] = {"token": tokens, "trained": _trained(table, lengths), "clip": clip}
    for name, column in FLOATS.items():
        if name not in ("a", "b") or column in table.column_names:
            columns[name] = _floats(table, column, lengths)
    body = _Body()
    columns["others"] = _others(table, lengths)
    described = {name: body.add(values) for name, values in columns.items() if name not in BESIDE}
    for name in [name for name in BESIDE if name in columns]:
        kept = FEW_BITS if name in ROUGH else KEPT_BITS
        described[name] = _described(body, columns[name], columns.get(BESIDE[name]), BESIDE[name], kept)
    header = {
        "step": table["step"][0].as_py() if len(table) and "step" in table.column_names else None,
        "groups": groups,
        "rows": _rows(table, numbers, lengths),
        "clip": words,
        "vocabulary": vocabulary.entries,
        "columns": described,
    }
    written = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    return struct.pack("<I", len(written)) + written + bytes(body.content)


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and every column in full, constants repeated and distances added up, as the page does it."""
    (size,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + size])
    body = numpy.frombuffer(content, numpy.uint8, offset=4 + size)
    total = sum(row["length"] for row in header["rows"])
    columns: dict[str, Array] = {}
    for name, column in header["columns"].items():
        values = _unpacked(column, body, total)
        columns[name] = values + columns[column["beside"]] if "beside" in column else values
    return header, columns


def _unpacked(column: Mapping[str, Any], body: Array, total: int) -> Array:
    if column["kind"] == "constant":
        return numpy.full(total, math.nan if column["value"] is None else column["value"], numpy.float32)
    width, start, count = (1 if column["kind"] == "u8" else 4), column["offset"], column["count"]
    planes = body[start : start + width * count].reshape(width, count).T
    dtype = {"u8": "u1", "u32": "<u4", "f32": "<f4"}[column["kind"]]
    return numpy.ascontiguousarray(planes).view(dtype).reshape(count)


def rounded(values: Floats, kept: int = KEPT_BITS) -> Floats:
    """`values` with so many bits of mantissa, to nearest, ties to even; what is not finite stays, NaN in one form."""
    dropped = 23 - kept
    bits = values.view(numpy.uint32)
    half = numpy.uint32((1 << (dropped - 1)) - 1)
    nearest = (bits + half + ((bits >> dropped) & 1)) & numpy.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return numpy.where(numpy.isnan(values), numpy.float32(numpy.nan), nearest.view(numpy.float32)).astype("<f4")


def _described(body: "_Body", values: Floats | None, old: Floats | None, base: str, kept: int) -> dict[str, Any]:
    """Store a log-probability as its distance from another one, where that is known; and say where it is."""
    apart = None if values is None or old is None else _beside(values, old)
    return body.add(values) if apart is None else {**body.add(apart, kept), "beside": base}


def _beside(values: Floats, old: Floats) -> Floats | None:
    """`values` less `old`, so that a small difference keeps its four digits; None where `old` is not known.

    What was at most 0 still is when it is added up again, for rounding keeps the order: no probability is above 1.
    """
    unknown = ~numpy.isfinite(old) & ~numpy.isnan(values)
    return None if unknown.any() else values - old


class _Body:
    """The columns' bytes. Columns that are equal are stored once."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._places: dict[bytes, int] = {}

    def add(self, values: Array | None, kept: int = KEPT_BITS) -> dict[str, Any]:
        """Store a column (None: nothing of it is known) and say where."""
        if values is None:
            return {"kind": "constant", "value": None}
        if values.dtype == numpy.float32:
            values = rounded(values, kept)
        if (constant := _constant(values)) is not None:
            return constant
        kind = {"f4": "f32", "u4": "u32", "u1": "u8"}[values.dtype.str[1:]]
        planes = values.view(numpy.uint8).reshape(len(values), -1).T.tobytes()
        place = self._places.setdefault(planes, len(self.content))
        if place == len(self.content):
            self.content += planes
        return {"kind": kind, "offset": place, "count": len(values)}


def _constant(values: Array) -> dict[str, Any] | None:
    """How a column is described that has one value, if it has."""
    if len(values) == 0 or numpy.isnan(values).all():
        return {"kind": "constant", "value": None}
    same = (values == values[0]).all() and numpy.isfinite(values[0])
    return {"kind": "constant", "value": values[0].item()} if same else None


class _Vocabulary:
    """The distinct tokens of a step. A token may be spelt in several ways: a character torn over tokens is one's."""

    def __init__(self) -> None:
        self.entries: list[list[Any]] = []
        self._index: dict[tuple[int, str, str | None], int] = {}

    def indices(self, table: Table, ids: str, pieces: str, spelt: str = "") -> Array:
        """The tokens of a list column, all rows one after another, as indices into `entries`."""
        numbers = table[ids].combine_chunks().flatten().to_pylist()
        texts = table[pieces].combine_chunks().flatten().to_pylist()
        known = spelt in table.column_names
        octets = table[spelt].combine_chunks().flatten().to_pylist() if known else [None] * len(numbers)
        found = [self._of(*token) for token in zip(numbers, texts, octets, strict=True)]
        return numpy.array(found, numpy.uint32)

    def _of(self, number: int, piece: str, octets: bytes | None) -> int:
        differ = octets is not None and octets != piece.encode()
        key = (number, shortened(piece, LONGEST_PIECE), octets[:LONGEST_PIECE].hex() if octets and differ else None)
        if key not in self._index:
            self._index[key] = len(self.entries)
            self.entries.append(list(key))
        return self._index[key]


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]}…({len(text):,} characters)"


# ----------------------------------------------------------------------------------------------- reading the record


def _groups(table: Table, vocabulary: _Vocabulary) -> tuple[list[dict[str, Any]], list[int]]:
    """What the rollouts of a group have in common, and for each row which of these groups is its own."""
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
        for number, prompt, head in zip(order, prompts, _values(heads, "prompt_id", "answer", "baseline"), strict=True)
    ]
    place = {number: index for index, number in enumerate(order)}
    return groups, [place[number] for number in numbers]


def _rows(table: Table, groups: Sequence[int], lengths: Array) -> list[dict[str, Any]]:
    starts = (numpy.cumsum(lengths) - lengths).tolist()
    names = ("rollout", "reward", "reward_parts", "verdict", "right", "finish_reason")
    others = ("policy_version", "advantage", "temperature", "measured")
    return [
        {
            "group": group,
            "rollout": row["rollout"],
            "start": start,
            "length": length,
            "reward": number_or_none(row.get("reward")),
            "parts": {name: number_or_none(part) for name, part in (row.get("reward_parts") or {}).items()},
            "verdict": _text(row.get("verdict")) or "ok",
            "right": bool(row.get("right")),
            "finish": _text(row.get("finish_reason")) or "",
            "version": row.get("policy_version"),
            "advantage": number_or_none(row.get("advantage")),
            "temperature": number_or_none(row.get("temperature")),
            "measured": bool(row.get("measured")),
        }
        for group, start, length, row in zip(
            groups, starts, lengths.tolist(), _values(table, *names, *others), strict=True
        )
    ]


def _values(table: Table, *names: str) -> list[dict[str, Any]]:
    """Those of the columns that there are, a row each."""
    present = [name for name in names if name in table.column_names]
    return table.select(present).to_pylist() if present else [{} for _ in range(len(table))]


def lengths_of(table: Table, name: str) -> Array:
    """How many entries the lists of a column have; 0 where there is no list."""
    return table[name].combine_chunks().value_lengths().fill_null(0).to_numpy().astype(numpy.int64)


def _floats(table: Table, name: str, lengths: Array) -> Floats | None:
    """A list column, all rows one after another, NaN in rows that have none; None where there is no such column."""
    if name not in table.column_names or pyarrow.types.is_null(table[name].type):
        return None
    own = lengths_of(table, name)
    if ((own != lengths) & (own != 0)).any():
        raise ValueError(f"{name} has not one entry for each token")
    values = numpy.full(lengths.sum(), numpy.nan, numpy.float32)
    flat = table[name].combine_chunks().flatten().cast(pyarrow.float32())
    values[numpy.repeat(own == lengths, lengths)] = flat.to_numpy(zero_copy_only=False)
    return values


def _others(table: Table, lengths: Array) -> Floats | None:
    """What the group's other answers push on the same probability: the net push, less the token's own.

    Most tokens are alone where they stand, and nothing is stored of them.
    """
    net, policy, pull = (_floats(table, name, lengths) for name in ("net_push", "policy_push", "kl_pull"))
    if net is None or policy is None or pull is None:
        return None
    rest = net - (policy + pull)
    return numpy.where(numpy.abs(rest) <= 1e-6 * (numpy.abs(policy) + numpy.abs(pull)), numpy.float32(0), rest)


def _trained(table: Table, lengths: Array) -> Array | None:
    """1 where the policy chose the token."""
    found = _floats(table, "loss_mask", lengths)
    return None if found is None else numpy.nan_to_num(found).astype(numpy.uint8)


def _clip(table: Table, lengths: Array) -> tuple[Array | None, list[str]]:
    """For each token which of the words it is, and the words; None and no words where the record says nothing."""
    if "clip" not in table.column_names:
        return None, []
    column = table["clip"].combine_chunks()
    if (lengths_of(table, "clip") != lengths).any():
        raise ValueError("clip has not one entry for each token")
    encoded = column.flatten().cast(pyarrow.string()).fill_null("").dictionary_encode()
    words = [shortened(word, LONGEST_PIECE) for word in encoded.dictionary.to_pylist()]
    if len(words) > 256:
        raise ValueError("clip has more than 256 words")
    return encoded.indices.to_numpy().astype(numpy.uint8), words


def _text(value: Any) -> str | None:
    return None if value is None else shortened(str(value), LONGEST_TEXT)


def number_or_none(value: Any) -> float | None:
    """A finite number, or None: JSON has no other."""
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
