"""How often a model got each question right: written by `outdo eval --rates`, read by `data.select`.

One JSON object a line: `{"id": "7", "pass_rate": 0.25, "right": 2, "k": 8, "fingerprint": "9f86d081884c7d65"}`. What a
model always or never gets right teaches it nothing, and that can be known before it is trained.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outdo.data.files import Rows, read_rows
from outdo.storage.run_folder import write_text_atomically
from outdo.utils.errors import UserError

Text = str | Sequence[Mapping[str, Any]]

SHOWN = 20
"""Faulty lines that are written out; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """One question's share of right answers, right / k."""

    id: str
    pass_rate: float
    right: int
    k: int
    fingerprint: str  # of the question's text


def fingerprint(text: Text) -> str:
    """Sixteen hexadecimal digits that change with a question's text, or with any of its messages."""
    said = text if isinstance(text, str) else [[message["role"], message["content"]] for message in text]
    written = json.dumps(said).encode()
    return hashlib.sha256(written).hexdigest()[:16]


def check_output_path(path: Path) -> None:
    """Raise `UserError` where rates could not be written, or not be read again, before anything was spent on them."""
    if path.suffix != ".jsonl":
        raise UserError([f"{path}: pass rates are written one a line, to a file ending in .jsonl"])
    if not path.parent.is_dir():
        raise UserError([f"{path}: there is no folder {path.parent}"])


def write(path: Path, rates: Iterable[PassRate]) -> None:
    """Replace `path` by the rates, one a line; it is written whole or not at all.

    Raises: RunFolderError where the disk refuses.
    """
    write_text_atomically(path, "".join(f"{json.dumps(asdict(rate))}\n" for rate in rates))


def load(path: str) -> tuple[dict[str, PassRate], str]:
    """The rates of a file by the questions' ids, and the file's SHA-256. Raises `UserError` with every faulty line."""
    rows = read_rows(path)
    faults = {fault.row: fault.reason for fault in rows.faults}
    rates: dict[str, PassRate] = {}
    for number, row in rows.values.items():
        reason = _fault_in(row)
        if reason is None and row["id"] in rates:
            reason = f'the id "{row["id"]}" was there before'
        if reason is None:
            rates[row["id"]] = PassRate(**{name: row[name] for name in PassRate.__slots__})
        else:
            faults[number] = reason
    if faults:
        raise UserError(_told(rows, faults))
    return rates, rows.fingerprint


def _fault_in(row: Mapping[str, Any]) -> str | None:
    """Why a line is no pass rate."""
    match row:
        case {"id": str(), "pass_rate": int() | float() as rate, "right": int(), "k": int(), "fingerprint": str()}:
            return None if 0 <= rate <= 1 else f"the pass rate {rate} is not between 0 and 1"
    return "expected id, pass_rate, right, k and fingerprint, as `outdo eval --rates` writes them"


def _told(rows: Rows, faults: Mapping[int, str]) -> list[str]:
    lines = [f"{rows.source}, row {number}: {reason}" for number, reason in sorted(faults.items())]
    rest = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"{rows.source}: and {rest} more faults like these"] if rest > 0 else [])
