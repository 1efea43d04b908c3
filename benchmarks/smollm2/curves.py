"""Draw the curves of `docs/results.md`: python -m benchmarks.smollm2.curves docs/pictures/smollm2.svg

A panel for each task: the mean reward of ten steps, of each seed thin and of all thick; rings are the greedy answers to
held-out questions, squares those to questions of new kinds; grey fields are the bands. Panels for TRL and for the
other methods on `instructions` follow.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from matplotlib import rc_context
from matplotlib.figure import Figure

from benchmarks.smollm2.__main__ import results
from benchmarks.smollm2.plan import LAST, Result
from benchmarks.smollm2.run import EXAMPLES
from benchmarks.smollm2.tables import ALL_METHODS, ALL_TASKS, of, windows
from outdo.extras.page.bands import read_bands
from outdo.extras.page.curves import GREY, STYLE
from outdo.utils.picture_file import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE = "#1d5fa8", "#c2570c"
COLOURS = (BLUE, ORANGE, "#3d8f5f", "#7a4fa3", "#8a6d1d", "#b0305c", "0.5", "0.2")
ACROSS = 3


def draw(runs: Sequence[Result], path: Path) -> None:
    """Draw a panel for each task with runs, one for TRL, and one for the methods."""
    panels: dict[str, Mapping[str, list[Result]]] = {
        task: {"outdo": made} for task in ALL_TASKS if (made := of(runs, task, "grpo"))
    }
    for task in ALL_TASKS:
        if made := of(runs, task, "trl"):
            panels[f"{task}: outdo and TRL"] = {"outdo": of(runs, task, "grpo"), "TRL": made}
    methods = {name: made for name in ALL_METHODS if (made := of(runs, "instructions", name))}
    if len(methods) > 1:
        panels["instructions: methods"] = methods
    with rc_context(STYLE):
        down = -(-len(panels) // ACROSS)
        figure = Figure(figsize=(3.5 * ACROSS, 0.4 + 2.4 * down), layout="constrained")
        axes = figure.subplots(down, ACROSS, squeeze=False).flatten()
        for number, (title, lines) in enumerate(panels.items()):
            panel(axes[number], title, lines)
        for empty in axes[len(panels) :]:
            empty.set_visible(False)
        save_picture(figure, path)


def panel(axes: "Axes", title: str, lines: Mapping[str, list[Result]]) -> None:
    """Draw the curves of one or several kinds of runs; of a single kind also the held-out rewards and the band."""
    axes.set_title(title)
    axes.set_xlabel("step", color=GREY)
    for (name, runs), colour in zip(lines.items(), COLOURS, strict=False):
        curves = [windows(run) for run in runs]
        middles = [LAST * (number + 0.5) for number in range(len(curves[0]))]
        for curve in curves:
            axes.plot(middles, curve, color=colour, linewidth=0.7, alpha=0.45)
        axes.plot(middles, [fmean(column) for column in zip(*curves, strict=True)], color=colour, label=name)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=8)
        return
    for runs in lines.values():
        for held_out, marker in (("rows", "o"), ("kinds", "s")):
            for run in runs:
                points = held_out_rewards(run, held_out)
                axes.plot(*zip(*points, strict=True), marker, color=ORANGE, markerfacecolor="white", markersize=4)
        task = runs[0]["task"]
        for band in read_bands(EXAMPLES / f"{task}.band.toml"):
            if band.high <= 1:  # a share, and not a length
                axes.fill_between([band.first - 1, band.last + 1], band.low, band.high, color="0.9", zorder=0)


def held_out_rewards(run: Result, name: str) -> list[tuple[int, float]]:
    """Return the steps of the evaluations, and the mean rewards of the greedy answers."""
    key = f"{name}/greedy_reward"
    return [(0, run["before"][key]), *((each["step"], each[key]) for each in run["evaluations"])]


def main() -> None:
    """Draw the picture."""
    draw(results(), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
