"""What was accepted once, and what has become worse since: ratios with a wide margin, counts exactly."""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.suite.report import CaseReport
from outdo.utils.errors import UserError

MARGIN = 0.6
"""A ratio may fall to this part of the accepted one: two machines differ by that much, a lost trick by more."""

Accepted = Mapping[str, Any]  # "ratios": case -> contender -> what -> ratio; "counts": name -> number; "versions"


def figures(reports: Sequence[CaseReport]) -> dict[str, Any]:
    """What is compared with what was accepted."""
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
    """One sentence for each ratio that fell below the margin, and for each count that grew."""
    said: list[str] = []
    for case, contenders in found.get("ratios", {}).items():
        for name, numbers in contenders.items():
            before = accepted.get("ratios", {}).get(case, {}).get(name, {})
            said += [
                f"{case}: {what}: outdo was {before[what]:g} x ahead of {name}, and is {ratio:g} x"
                for what, ratio in numbers.items()
                if what in before and ratio < MARGIN * before[what]
            ]
    known = accepted.get("counts", {})
    said += [
        f"counts: {name} grew from {known[name]:,.0f} to {number:,.0f}"
        for name, number in found.get("counts", {}).items()
        if name in known and number > known[name]
    ]
    if said and accepted.get("versions") != found.get("versions"):
        said.append(f"accepted with {accepted.get('versions')}, measured with {found.get('versions')}")
    return said


def accept(path: Path, found: Accepted) -> None:
    """Write what was found, beside what stands there of other cases."""
    before = read(path) if path.exists() else {}
    ratios = {**before.get("ratios", {}), **found["ratios"]}
    counts = found["counts"] or before.get("counts", {})
    whole = {"versions": found["versions"], "counts": counts, "ratios": ratios}
    path.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> Accepted:
    """What was accepted. Raises `UserError` where nothing can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError([f"{path}: expected what `make bench ARGS=--accept` wrote ({error})"]) from None
