"""Draw a run's learning curve as an SVG: python docs/pictures/draw.py RUN FILE.svg

A dot is the share of right answers in a training step; a ring is the accuracy on the held-out questions.
"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 780, 320, 60, 215, 46, 44
BLUE, ORANGE, GREY, INK = "#2563a8", "#c2571a", "#9aa4af", "#27313b"
FONT = "font-family='system-ui, sans-serif'"


def main(run: Path, target: Path) -> None:
    """Draw the picture from `metrics.jsonl` and `summary.json` of a run."""
    shares = [json.loads(line)["right"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    steps = len(shares)

    def place(step: float, share: float) -> tuple[float, float]:
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + step / steps * width, TOP + (1 - share) * height

    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT} font-size='13' fill='{INK}'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        f"<text x='{LEFT}' y='24' font-size='15' font-weight='600'>Answers that are right, step by step</text>",
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(0, share)
        parts.append(f"<path d='M{x:.1f} {y:.1f}H{WIDTH - RIGHT}' stroke='#e4e8ec'/>")
        parts.append(f"<text x='{x - 10:.1f}' y='{y + 4:.1f}' text-anchor='end' fill='{GREY}'>{share:.0%}</text>")
    for step in range(0, steps + 1, 20):
        x, y = place(step, 0)
        parts.append(f"<text x='{x:.1f}' y='{y + 20:.1f}' text-anchor='middle' fill='{GREY}'>{step}</text>")
    for step, share in enumerate(shares, 1):
        x, y = place(step, share)
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.6' fill='{BLUE}' fill-opacity='.55'/>")
    for step, key in ((0, "before"), (steps, "after")):
        for name, colour in (("greedy", ORANGE), ("sampled", BLUE)):
            x, y = place(step, summary[key][name])
            parts.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='5.5' fill='white' stroke='{colour}' stroke-width='2.5'/>"
            )
    for name, shift in (("greedy", -4), ("sampled", 16)):
        before, after = summary["before"][name], summary["after"][name]
        colour = ORANGE if name == "greedy" else BLUE
        y = place(0, after)[1] + shift
        text = f"{name}: {before:.0%} to {after:.0%}"
        parts.append(f"<text x='{WIDTH - RIGHT + 14}' y='{y:.1f}' fill='{colour}'>{text}</text>")
    y = place(0, summary["after"]["sampled"])[1] + 36
    parts.append(
        f"<text x='{WIDTH - RIGHT + 14}' y='{y:.1f}' fill='{GREY}' font-size='12'>rings: 512 held-out sums</text>"
    )
    parts.append(
        f"<text x='{WIDTH - RIGHT + 14}' y='{y + 18:.1f}' fill='{GREY}' font-size='12'>dots: answers in training</text>"
    )
    target.write_text("\n".join([*parts, "</svg>", ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
