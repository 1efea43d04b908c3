"""Write the table of `docs/gpu.md` from the rows and the results of devices: python -m benchmarks.gpu.page

`docs/gpu.jsonl` has a line for each device: the `runs/gpu.json` of `make gpu` there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import ROWS

PAGE, RESULTS = Path("docs/gpu.md"), Path("docs/gpu.jsonl")
TABLE = re.compile("(?<=<!-- rows -->\n).*?(?=<!-- end of rows -->)", re.DOTALL)


def table(devices: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table of Markdown, each with its verdict on every device where it has run."""
    lines = ["| row | what | why it could differ | what has to hold | on GPUs |", "|---|---|---|---|---|"]
    for name, row in ROWS.items():
        ran = {device["environment"]["hardware"]: device["rows"].get(name, {}).get("verdict") for device in devices}
        said = ", ".join(f"{hardware}: {verdict}" for hardware, verdict in ran.items() if verdict in ("pass", "fail"))
        lines.append(f"| `{name}` | {row.what} | {row.why} | {row.text} | {said or 'never run'} |")
    return "\n".join(lines) + "\n"


def with_table(page: str, results: str) -> str:
    """Return the page with the table of the rows, and of the lines of the results."""
    return TABLE.sub(lambda _: table([json.loads(line) for line in results.splitlines()]), page)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), RESULTS.read_text()))
