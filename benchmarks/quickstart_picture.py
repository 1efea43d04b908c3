"""Draw the picture of the README from the first runs, and write what README says of them.

python -m benchmarks.quickstart_picture     # after benchmarks/first_run.py

docs/first-runs.jsonl has the runs: `outdo quickstart` with several seeds on several kinds of processor. The picture has
a row for each. README has the numbers between the lines `<!-- first runs: ... -->` and `<!-- end -->`.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from outdo.utils.text import counted

ROOT = Path(__file__).parents[1]
RUNS, README, PICTURE = ROOT / "docs/first-runs.jsonl", ROOT / "README.md", ROOT / "docs/pictures/quickstart.svg"

SHOWN = 1
"""The question of a run whose answers README shows."""

Line = Mapping[str, Any]

WIDTH, LEFT, RIGHT, TOP, ROW = 780, 20.0, 690.0, 92.0, 15.0
STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #27313b } .quiet { fill: #5f6b77 }
.title { font-size: 15px; font-weight: 600 }
.grid { stroke: #e4e8ec } .before { stroke: #9aa4af; fill: #fff } .after { stroke: #2563a8; fill: #2563a8 }
.median { stroke: #c2571a; stroke-dasharray: 4 3 } .of-median { fill: #c2571a } .paper { fill: #fff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #9aa7b4 } .grid { stroke: #2b333c } .paper, .before { fill: #0d1117 }
.before { stroke: #7d8894 } .after { stroke: #6cb0ff; fill: #6cb0ff }
.median { stroke: #f0955a } .of-median { fill: #f0955a }
}
</style>"""


def main() -> None:
    """Write the picture, and the two passages of README."""
    lines = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    PICTURE.write_text(picture(of_task(lines, "sentences")), encoding="utf-8")
    README.write_text(filled(README.read_text(encoding="utf-8"), lines), encoding="utf-8")


def of_task(lines: Sequence[Line], task: str) -> list[Line]:
    """Return the runs of a task, the best results first."""
    return sorted((line for line in lines if line["task"] == task), key=lambda line: -line["after"][0])


def filled(readme: str, lines: Sequence[Line]) -> str:
    """Return README with what the runs say."""
    for name, passage in (("sound", sound(lines)), ("careless", careless(lines))):
        readme, found = re.subn(
            rf"(<!-- first runs: {name} -->\n).*?(\n<!-- end -->)",
            lambda place, text=passage: f"{place[1]}{text}{place[2]}",
            readme,
            flags=re.DOTALL,
        )
        if found != 1:
            raise ValueError(f"{README}: expected one place for the {name} runs, found {found}")
    return readme


def sound(lines: Sequence[Line]) -> str:
    """Return what the sound runs say, with the answers of the first one to a question."""
    runs = of_task(lines, "sentences")
    before, after = ([line[when][0] for line in runs] for when in ("before", "after"))
    first = next(line for line in lines if line["task"] == "sentences")
    _, wrote, writes = first["sentences"][SHOWN]
    return _wrapped(
        f"Right answers to held-out questions: **{between(before)} before training, {100 * median(after):.0f} % after "
        f'it** ({_median_of(runs)}{between(after)}). About a cat, with the word "golden", the model of seed '
        f'{first["seed"]} wrote "{wrote}" before, and "{writes}" after. A run takes '
        f"{median(line['processor_seconds'] for line in runs) / 60:.0f} minutes of one core, and "
        f"{max(line['memory'] for line in runs) / 1e9:.1f} GB."
    )


def careless(lines: Sequence[Line]) -> str:
    """Return what the careless runs say."""
    runs = of_task(lines, "careless")
    before, after = ([line[when][0] for line in runs] for when in ("before", "after"))
    caught = sum(line["page"].startswith("The reward rose, and") and line["first_finding"]["is_hack"] for line in runs)
    often = f" In {caught} of {_runs(runs)}, the page begins with a warning of a hack." if len(runs) > 1 else ""
    return _wrapped(
        f"By the careless reward {between(before)} of the answers to held-out questions are right before training, and "
        f"{between(after)} after it.{often}"
    )


def between(shares: Sequence[float]) -> str:
    """Return the range of some shares."""
    low, high = f"{100 * min(shares):.0f}", f"{100 * max(shares):.0f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _median_of(runs: Sequence[Line]) -> str:
    return f"{_runs(runs)}; " if len(runs) == 1 else f"the median of {_runs(runs)}; the range is "


def _runs(runs: Sequence[Line]) -> str:
    seeds, kinds = len({line["seed"] for line in runs}), len({line["kind"] for line in runs})
    if len(runs) == 1:
        return f"1 run, with seed {runs[0]['seed']}"
    return f"{len(runs)} runs, with {counted(seeds, 'seed')} on {counted(kinds, 'kind')} of processor"


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 120, break_on_hyphens=False))


def picture(runs: Sequence[Line]) -> str:
    """Return a row for each run: right held-out answers before and after, with their 95 % intervals."""
    bottom = TOP + ROW * len(runs)
    middle = median(line["after"][0] for line in runs)
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {bottom + 40:g}'>",
            STYLE,
            f"<rect class='paper' width='{WIDTH}' height='{bottom + 40:g}'/>",
            f"<text class='title' x='{LEFT:g}' y='24'>Right answers to held-out questions, before and after training"
            "</text>",
            f"<text class='quiet' x='{LEFT:g}' y='46'>A row for each of {_runs(runs)}. Hollow: "
            "before; filled: after; bars: 95 % intervals</text>",
            *_axis(bottom),
            f"<path class='median' d='M{_x(middle):.1f} {TOP - 8:g}V{bottom:g}'/>",
            f"<text class='of-median' x='{_x(middle):.1f}' y='{TOP - 14:g}' text-anchor='middle'>"
            f"median {100 * middle:.0f} %</text>",
            *(part for place, line in enumerate(runs) for part in _row(TOP + ROW * (place + 0.5), line)),
            "</svg>\n",
        ]
    )


def _axis(bottom: float) -> Iterator[str]:
    for quarter in range(5):
        x = _x(quarter / 4)
        yield f"<path class='grid' d='M{x:.1f} {TOP:g}V{bottom:g}'/>"
        yield f"<text class='quiet' x='{x:.1f}' y='{bottom + 20:g}' text-anchor='middle'>{25 * quarter} %</text>"


def _row(y: float, line: Line) -> Iterator[str]:
    for when in ("before", "after"):
        value, low, high = line[when]
        bar = f"M{_x(low):.1f} {y:.1f}H{_x(high):.1f}"
        yield f"<path class='{when}' d='{bar}' stroke-opacity='.45' stroke-width='4'/>"
        yield f"<circle class='{when}' cx='{_x(value):.1f}' cy='{y:.1f}' r='4' stroke-width='1.8'/>"
    yield f"<text class='quiet' x='{RIGHT + 28:g}' y='{y + 4:.1f}' font-size='11'>{100 * line['after'][0]:.0f} %</text>"


def _x(share: float) -> float:
    return LEFT + 14 + (RIGHT - LEFT - 14) * share


if __name__ == "__main__":
    main()
