"""Draw the picture of the README from a run of the quickstart: right answers in training, and held-out ones.

python -m benchmarks.quickstart_picture quickstart/sentences/seed-0/run-1 docs/pictures/quickstart.svg
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from outdo.run.folder.run_folder import read_metrics

LEFT, RIGHT, TOP, BOTTOM = 60.0, 565.0, 46.0, 276.0
BLUE, ORANGE, GREY = "#2563a8", "#c2571a", "#9aa4af"
STYLE = "font-family='system-ui, sans-serif' font-size='13' fill='#27313b'"


def picture(run: Path) -> str:
    """Return the picture as SVG."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 780 320' {STYLE}>",
            "<rect width='780' height='320' fill='white'/>",
            "<text x='60' y='24' font-size='15' font-weight='600'>Answers that are right, step by step</text>",
            *_axes(summary["steps"]),
            *_dots(run, summary["steps"]),
            *_rings(summary),
            "</svg>\n",
        ]
    )


def _axes(steps: int) -> Iterator[str]:
    for quarter in range(5):
        y = _height(quarter / 4)
        yield f"<path d='M{LEFT:g} {y:.1f}H{RIGHT:g}' stroke='#e4e8ec'/>"
        yield f"<text x='{LEFT - 10:g}' y='{y + 4:.1f}' text-anchor='end' fill='{GREY}'>{quarter / 4:.0%}</text>"
        x = LEFT + (RIGHT - LEFT) * quarter / 4
        yield f"<text x='{x:.1f}' y='296' text-anchor='middle' fill='{GREY}'>{steps * quarter // 4}</text>"


def _dots(run: Path, steps: int) -> Iterator[str]:
    for line in read_metrics(run / "metrics.jsonl"):
        x, y = LEFT + (RIGHT - LEFT) * line["step"] / steps, _height(line["right"])
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.6' fill='{BLUE}' fill-opacity='.55'/>"


def _rings(summary: dict[str, dict[str, float]]) -> Iterator[str]:
    before, after = summary["before"], summary["after"]
    for kind, colour, down in (("greedy", ORANGE, -4), ("sampled", BLUE, 16)):
        for x, numbers in ((LEFT, before), (RIGHT, after)):
            y = _height(numbers[kind])
            yield f"<circle cx='{x:g}' cy='{y:.1f}' r='5.5' fill='white' stroke='{colour}' stroke-width='2.5'/>"
        text = f"{kind}: {before[kind]:.1%} to {after[kind]:.1%}"
        yield f"<text x='579' y='{_height(after[kind]) + down:.1f}' fill='{colour}'>{text}</text>"
    for y, text in ((98, "rings: held-out questions"), (116, "dots: answers in training")):
        yield f"<text x='579' y='{y}' fill='{GREY}' font-size='12'>{text}</text>"


def _height(share: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * share


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(picture(Path(sys.argv[1])), encoding="utf-8")
