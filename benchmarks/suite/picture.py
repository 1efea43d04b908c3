"""Draw the figures of a benchmark: a bar for each implementation of a case, and how costs grow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.suite.report import CaseReport, Entry, Spread
from outdo.extras.page.curves import GREY, STYLE
from outdo.utils.errors import UserError
from outdo.utils.picture_file import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLING: Mapping[str, Any] = {"color": "0.8", "hatch": "////", "edgecolor": "white", "linewidth": 0}
REST: Mapping[str, Any] = {"color": "#1d5fa8"}
ROOFLINE: Mapping[str, Any] = {"color": "black", "linewidth": 1.0, "linestyle": (0, (5, 2))}
LINE: Mapping[str, Any] = {"color": "#1d5fa8", "marker": "o", "markersize": 3.5, "linewidth": 1.2}
RING: Mapping[str, Any] = {"color": "#1d5fa8", "marker": "o", "markerfacecolor": "white", "linestyle": "none"}


def refuse_other_endings(path: Path) -> None:
    """Raise `UserError` if the name of a picture does not end in .svg or .png."""
    if path.suffix not in (".svg", ".png"):
        raise UserError([f"{path}: the name of a picture ends in .svg or .png"])


def draw(reports: Sequence[CaseReport], path: Path) -> None:
    """Draw a panel for each case: the seconds of every implementation, sampling hatched, and the machine's roofline."""
    timed = [report for report in reports if report.case.kind != "counts"]
    if not timed:
        raise UserError([f"{path}: there is nothing to draw: no case was timed"])
    heights = [1 + len(report.entries) for report in timed]
    with _saved_figure(path, (7.2, 0.8 + 0.34 * sum(heights))) as figure:
        panels = figure.subplots(len(timed), 1, squeeze=False, height_ratios=heights)[:, 0]
        for report, axes in zip(timed, panels, strict=True):
            _bars(report, axes)
        figure.supxlabel("seconds; hatched: sampling; dashed: the machine's roofline", fontsize=9)


def draw_scale(
    series: Mapping[str, Sequence[Mapping[str, float]]], groups: Sequence[Mapping[str, float]], path: Path
) -> None:
    """Draw step, memory and record over each size, on logarithmic axes; below, the cost of training on a group.

    A title has the slope between the two largest sizes: 1 is proportional, 0 is constant.
    """
    rows = {"seconds": "step [s]", "memory": "memory [MiB]", "recorded": "record [kB]"}
    with _saved_figure(path, (max(7.2, 1.95 * len(series)), 9.0)) as figure:
        above, below = figure.add_gridspec(2, 1, height_ratios=[3, 1.25])
        panels = above.subgridspec(len(rows), len(series)).subplots(sharex="col", sharey="row", squeeze=False)
        for column, (size, points) in enumerate(series.items()):
            for row, (name, label) in enumerate(rows.items()):
                axes, x, y = panels[row, column], [each[size] for each in points], [each[name] for each in points]
                axes.loglog(x, y, **LINE)
                axes.set_title(f"slope {slope(x, y):.2f}")
                axes.minorticks_off()
                if column == 0:
                    axes.set_ylabel(label)
            panels[-1, column].set_xticks([each[size] for each in points], [f"{each[size]:g}" for each in points])
            panels[-1, column].tick_params(axis="x", labelrotation=60)
            panels[-1, column].set_xlabel(size)
        left, right = below.subgridspec(1, 2).subplots(sharey=True, squeeze=False)[0]
        _groups(groups, left, right)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Compute the slope between the last two points, on logarithmic axes."""
    if len(x) < 2 or min(y[-2:]) <= 0:
        return 0.0
    return math.log(y[-1] / y[-2]) / math.log(x[-1] / x[-2])


def fit(x: Sequence[float], y: Sequence[float]) -> float:
    """Compute R², the share of the variance of y that a straight line over x explains."""
    n, mx, my = len(x), sum(x) / len(x), sum(y) / len(y)
    sxx, syy = sum((v - mx) ** 2 for v in x), sum((v - my) ** 2 for v in y)
    sxy = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return sxy**2 / (sxx * syy) if n > 1 and sxx and syy else 0.0


def _groups(groups: Sequence[Mapping[str, float]], *panels: "Axes") -> None:
    names = {"shared": "prompt + Σ answers [tokens]", "padded": "G × (prompt + longest answer) [tokens]"}
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        x, y = [each[name] for each in groups], [each["training"] for each in groups]
        axes.plot(x, y, **RING)
        axes.set_xlabel(label)
        axes.set_title(f"training on a group: R² {fit(x, y):.2f}")
    panels[0].set_ylabel("seconds")


def _bars(report: CaseReport, axes: "Axes") -> None:
    entries = [entry for entry in report.entries if not entry.failed]
    for place, entry in enumerate(entries):
        whole, sampling = _median(entry.seconds), _median(entry.sampling)
        axes.barh(place, max(0.0, whole - sampling) if whole else 0.0, left=sampling, height=0.66, **REST)
        axes.barh(place, sampling, height=0.66, **SAMPLING)
        end = max(whole, sampling)
        axes.text(end, place, f"  {end:.3g} s{_ratio_text(entry)}", va="center", fontsize=8)
    if report.roofline is not None and report.speed:
        axes.axvline(report.roofline.seconds(report.speed), **ROOFLINE)
    axes.set_yticks(range(len(entries)), [entry.name for entry in entries])
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.grid(visible=False)
    axes.set_title(f"{report.case.name}: {report.case.about}")


def _ratio_text(entry: Entry) -> str:
    ratio = entry.ratio or entry.sampling_ratio
    return f"  ({ratio.median:.2f} x outdo)" if ratio and ratio.median != 1 else ""


def _median(spread: Spread | None) -> float:
    return spread.median if spread else 0.0


@contextmanager
def _saved_figure(path: Path, inches: tuple[float, float]) -> Iterator["Figure"]:
    """Yield a figure, and write it to `path` at the end. Raises `UserError` without matplotlib (the extra `plot`)."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError([f'{path}: pictures need matplotlib: pip install "outdo[plot]"']) from None
    with rc_context({**STYLE, "axes.labelcolor": GREY}):
        figure = Figure(figsize=inches, layout="constrained")
        yield figure
        save_picture(figure, path)
