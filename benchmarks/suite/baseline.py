"""A baseline of accepted figures, and what is worse than it: ratios with a wide margin, counts exactly."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.suite.report import CaseReport
from outdo.utils.errors import UserError

MARGIN = 0.6
"""A ratio may fall to this part of the accepted one: machines differ by less, and a lost optimisation costs more."""

Accepted = Mapping[str, Any]  # "ratios": case -> implementation -> what -> ratio; "counts": name -> number; "versions"


def figures(reports: Sequence[CaseReport]) -> dict[str, Any]:
    """Return the figures that are compared with a baseline."""
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    counts: dict[str, float] = {}
    for report in reports:
        if report.case.kind == "counts":
            counts |= report.counts
            continue
        for entry in report.entries:
            found = {"step": entry.ratio, "sampling": entry.sampling_ratio}
            numbers = {name: round(spread.median, 3) for name, spread in found.items() if spread}
            if entry.memory_ratio is not None:
                numbers["memory"] = round(entry.memory_ratio, 3)
            if numbers and entry is not report.entries[0]:
                ratios.setdefault(report.case.name, {})[entry.name] = numbers
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {"versions": versions, "counts": counts, "ratios": ratios}


def worse(accepted: Accepted, found: Accepted) -> list[str]:
    """Return a sentence for each ratio that fell below the margin, and for each count that grew."""
    messages: list[str] = []
    for case, implementations in found.get("ratios", {}).items():
        for name, numbers in implementations.items():
            before = accepted.get("ratios", {}).get(case, {}).get(name, {})
            messages += [
                f"{case}: {what}: the time of {name} was {before[what]:g} x that of outdo, and is {ratio:g} x"
                for what, ratio in numbers.items()
                if what in before and ratio < MARGIN * before[what]
            ]
    known = accepted.get("counts", {})
    messages += [
        f"counts: {name} grew from {known[name]:,.0f} to {number:,.0f}"
        for name, number in found.get("counts", {}).items()
        if name in known and number > known[name]
    ]
    if messages and accepted.get("versions") != found.get("versions"):
        messages.append(f"accepted with {accepted.get('versions')}, measured with {found.get('versions')}")
    return messages


def accept(path: Path, found: Accepted) -> None:
    """Write figures to a baseline, and keep its figures of other cases."""
    before = read(path) if path.exists() else {}
    ratios = {**before.get("ratios", {}), **found["ratios"]}
    counts = found["counts"] or before.get("counts", {})
    whole = {"versions": found["versions"], "counts": counts, "ratios": ratios}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> Accepted:
    """Read a baseline. Raises `UserError` if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError([f"{path}: expected a file that `make bench ARGS='--accept FILE'` wrote ({error})"]) from None
