"""The table of decision 0052: where the settings of each configuration end."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from outdo.extras.convert.conversion import Conversion

PAGE = Path(__file__).parents[2] / "docs" / "decisions" / "0052-scripts-are-run-to-be-converted.md"
ENDS = ("recipe", "default", "remark", "incomplete")


def row(name: str, conversion: Conversion) -> str:
    """Return a row: how many settings there are, where they end, and what the recipe is."""
    counts = Counter(conversion.account.values())
    verdict = "incomplete" if conversion.incomplete else "honest" if conversion.reported else "right"
    numbers = [len(conversion.account), *(counts[end] for end in ENDS)]
    return f"| {name} | {' | '.join(map(str, numbers))} | {verdict} |"


def check_rows(rows: Iterable[str]) -> None:
    """Check that the page has these rows, and that its sentence counts all of its rows."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [row for row in rows if row not in lines]
    assert not missing, "the page lacks:\n" + "\n".join(missing)
    verdicts = Counter(line.split("|")[-2].strip() for line in lines if line.count("|") == 8)
    counted = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in ("right", "honest", "incomplete"))
    assert counted in " ".join(lines), counted
