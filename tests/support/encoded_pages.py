"""Decode the tokens of a step as the page does it in JavaScript."""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy

from outdo.extras.page.encode import Array


def unpack(content: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode the header and every column in full, with constants repeated and differences added, as the page does."""
    (size,) = struct.unpack_from("<I", content)
    header = json.loads(content[4 : 4 + size])
    body = numpy.frombuffer(content, numpy.uint8, offset=4 + size)
    total = sum(row["length"] for row in header["rows"])
    columns: dict[str, Array] = {}
    for name, column in header["columns"].items():
        values = _decoded_column(column, body, total)
        columns[name] = values + columns[column["beside"]] if "beside" in column else values
    return header, columns


def _decoded_column(column: Mapping[str, Any], body: Array, total: int) -> Array:
    if column["kind"] == "constant":
        value, size = column["value"], column.get("count", total)
        return numpy.full(size, math.nan if value is None else value, numpy.float32)
    width, start, count = (1 if column["kind"] == "u8" else 4), column["offset"], column["count"]
    planes = body[start : start + width * count].reshape(width, count).T
    dtype = {"u8": "u1", "u32": "<u4", "f32": "<f4"}[column["kind"]]
    return numpy.ascontiguousarray(planes).view(dtype).reshape(count)
