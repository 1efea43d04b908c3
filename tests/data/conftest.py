"""What the tests of data share: files of rows."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write rows into a JSONL file, and return its path."""

    def write(rows: Sequence[object], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write
