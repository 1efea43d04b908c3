"""Read what wandb writes offline: a log in LevelDB's format, whose records are protocol buffers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, FILE_HEADER = 32 * 1024, 7
RECORD_HEADER = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Every record of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, part = path.read_bytes(), FILE_HEADER, b""
    while at < len(content):
        if BLOCK - at % BLOCK < RECORD_HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, size, kind = RECORD_HEADER.unpack_from(content, at)
        at += RECORD_HEADER.size + size
        part += content[at - size : at]
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(part)
            part = b""
            yield record


def history(path: Path) -> dict[int, dict[str, Any]]:
    """What was logged of each step."""
    lines = (each.history for each in records(path) if each.WhichOneof("record_type") == "history")
    return {
        line.step.num: {"/".join(each.nested_key) or each.key: json.loads(each.value_json) for each in line.item}
        for line in lines
    }


def config(path: Path) -> dict[str, Any]:
    """The settings that were sent."""
    (run,) = [each.run for each in records(path) if each.WhichOneof("record_type") == "run"]
    return {item.key: json.loads(item.value_json) for item in run.config.update}


def artifacts(path: Path) -> list[str]:
    """The kinds of the artifacts."""
    return [each.artifact.type for each in records(path) if each.WhichOneof("record_type") == "artifact"]
