"""Recognise the error of torch for an operation without a deterministic algorithm. Works without torch."""

import re
import traceback
from pathlib import Path

SIGN = re.compile(r"(?P<operation>.+?) does not have a deterministic implementation, but you set")
OWN = Path(__file__).parents[1]


def not_deterministic(error: BaseException) -> str | None:
    """Return what the user reads about an operation without a deterministic algorithm; None for any other error."""
    match = SIGN.match(str(error)) if isinstance(error, RuntimeError) else None
    if match is None:
        return None
    return (
        f"the operation {match['operation']}{_place(error)} has no deterministic algorithm in torch: equal runs would "
        "differ in it. Compute it by other operations, or, if that is accepted, enclose it by "
        "torch.use_deterministic_algorithms(False) and torch.use_deterministic_algorithms(True)"
    )


def _place(error: BaseException) -> str:
    """Return `, called in FILE, line N,` of the user's own code; empty if none of it is on the stack."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not _is_library(Path(frame.filename))]
    return f", called in {outside[-1].filename}, line {outside[-1].lineno}," if outside else ""


def _is_library(file: Path) -> bool:
    return OWN in file.parents or "site-packages" in file.parts or not file.is_file()
