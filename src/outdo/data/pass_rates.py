"""Pass rates: how often a model answers each question right. `outdo eval --rates` writes, `data.select` reads them.

One JSON object per line: `{"id": "7", "pass_rate": 0.25, "right": 2, "k": 8, "fingerprint": "9f86d081884c7d65"}`. A
question that a model answers always or never right gives no gradient; pass rates show which these are before training.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outdo.data.files import read_rows, shorten
from outdo.utils.atomic import write_text_atomically
from outdo.utils.errors import UserError

Text = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """One question's share of right answers, right / k."""

    id: str
    pass_rate: float
    right: int
    k: int
    fingerprint: str  # of the question's text


def fingerprint(text: Text) -> str:
    """Return sixteen hexadecimal digits that change with a question's text, or with any of its messages."""
    content = text if isinstance(text, str) else [[message["role"], message["content"]] for message in text]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def check_output_path(path: Path) -> None:
    """Check, before the evaluation, that rates can be written to `path` and read again; raises `UserError`."""
    if path.suffix != ".jsonl":
        raise UserError([f"{path}: pass rates are written to a file ending in .jsonl, one per line"])
    if not path.parent.is_dir():
        raise UserError([f"{path}: there is no folder {path.parent}"])


def write(path: Path, rates: Iterable[PassRate]) -> None:
    """Write the rates to `path`, one per line, completely or not at all; an existing file is replaced.

    Raises `RunFolderError` if the file cannot be written.
    """
    write_text_atomically(path, "".join(f"{json.dumps(asdict(rate))}\n" for rate in rates))


def load(path: str) -> tuple[dict[str, PassRate], str]:
    """Read the rates of a file by question id, and the file's SHA-256. Raises `UserError` with every faulty line."""
    rows = read_rows(path)
    faults = {fault.row: fault.reason for fault in rows.faults}
    rates: dict[str, PassRate] = {}
    for number, row in rows.values.items():
        reason = _fault_in(row)
        if reason is None and row["id"] in rates:
            reason = f'the id "{row["id"]}" is in an earlier row too'
        if reason is None:
            rates[row["id"]] = PassRate(**{name: row[name] for name in PassRate.__slots__})
        else:
            faults[number] = reason
    if faults:
        lines = [f"{path}, row {number}: {reason}" for number, reason in sorted(faults.items())]
        raise UserError(shorten(lines, source=path))
    return rates, rows.fingerprint


def _fault_in(row: Mapping[str, Any]) -> str | None:
    """Return why a line is not a pass rate."""
    match row:
        case {"id": str(), "pass_rate": int() | float() as rate, "right": int(), "k": int(), "fingerprint": str()}:
            return None if 0 <= rate <= 1 else f"the pass rate {rate} is not between 0 and 1"
    return "expected id, pass_rate, right, k and fingerprint, as `outdo eval --rates` writes them"
