"""Draw the curves of one or two runs as a picture of small panels: `outdo plot`. The most important come first."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from outdo.extras.page import glossary
from outdo.utils.errors import UserError
from outdo.utils.picture_file import picture_mistakes, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Metrics = Mapping[str, Any]

GREY = "0.45"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.7",
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "0.92",
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
}
RUN_STYLES: Sequence[Mapping[str, Any]] = (
    {"color": "#1d5fa8", "linestyle": "-", "marker": "o"},
    {"color": "#c2570c", "linestyle": (0, (4, 1.5)), "marker": "s"},
)
"""The styles of the first and the second run, which differ in more than colour."""

DEFAULT_METRICS = (
    "eval/greedy",
    "eval/sampled",
    "moved_as_intended",
    "reward",
    "frac_zero_advantage",
    "frac_reward_zero_std",
    "frac_all_right",
    "frac_all_wrong",
    "attained",
    "overshoot",
    "entropy",
    "kl",
    "completions/mean_length",
    "completions/clipped_ratio",
    "sampling/sampling_logp_difference/mean",
    "tokens_per_second",
)
"""The metrics that are drawn by default, as far as the run has them."""

PANELS_PER_ROW = 3
"""The number of panels in a row."""

SHARES = re.compile(
    r"eval/(.*/)?(greedy|sampled)|right|moved_.*|frac_.*|transfer/followed|completions/clipped_ratio|target/reached"
)
"""Metrics that are shares: their axes go from 0 to 1, so that panels can be compared."""


def plot(runs: Mapping[str, Sequence[Metrics]], path: str | Path, *, names: Sequence[str] | None = None) -> None:
    """Draw the metrics `names` (or the default ones) of one or two runs into an .svg or .png file.

    `runs` maps the name of a run to lines as in `metrics.jsonl`. Thin lines show the measured values, thick lines their
    median over neighbouring steps, and bands 95 % confidence intervals. Equal pictures are equal files, byte for byte.
    Raises `UserError` for another suffix, for more than two runs, for metrics that no run has, and without matplotlib
    (extra `plot`).
    """
    drawn = _metrics_to_draw(runs, path, names)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise UserError([f'{path}: pictures need the package matplotlib: pip install "outdo[plot]"']) from None
    with rc_context(STYLE):
        across = min(PANELS_PER_ROW, len(drawn))
        down = -(-len(drawn) // across)
        figure = Figure(figsize=(max(4.6, 3.5 * across), 0.7 + 2.05 * down), layout="constrained")
        panels = figure.subplots(down, across, sharex=True, squeeze=False).flatten()
        for name, axes in zip(drawn, panels, strict=False):
            for lines, look in zip(runs.values(), RUN_STYLES, strict=False):
                _draw(axes, lines, name, look)
            _label(axes, name)
        for number, axes in enumerate(panels):
            axes.set_visible(number < len(drawn))
            if number + across >= len(drawn):
                axes.tick_params(labelbottom=True)
                axes.set_xlabel("step", color=GREY)
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        figure.align_ylabels()
        if len(runs) > 1:
            lines = [
                panels[0].plot([], [], label=name, **look)[0] for name, look in zip(runs, RUN_STYLES, strict=False)
            ]
            figure.legend(handles=lines, loc="outside upper left", ncols=2, frameon=False)
        else:
            figure.suptitle("".join(runs), x=0.01, ha="left", fontsize=11)
        save_picture(figure, path)


def metric_names(lines: Sequence[Metrics]) -> list[str]:
    """Return the names of the metrics with numbers, in the order of their first appearance."""
    return list({name: None for line in lines for name, value in line.items() if name != "step" and _finite(value)})


def _metrics_to_draw(runs: Mapping[str, Sequence[Metrics]], path: str | Path, names: Sequence[str] | None) -> list[str]:
    """Return the metrics to draw; report all mistakes at once."""
    mistakes = picture_mistakes(path)
    if not 1 <= len(runs) <= len(RUN_STYLES):
        mistakes.append(f"{len(runs)} runs: a picture holds one or two")
    known = list({name: None for lines in runs.values() for name in metric_names(lines)})
    mistakes += [_unknown(name, known, runs) for name in names or () if name not in known]
    drawn = (
        [name for name in DEFAULT_METRICS if name in known] or known if names is None else list(dict.fromkeys(names))
    )
    if not known:
        mistakes = [*mistakes, f"{' and '.join(runs)}: metrics.jsonl has no step yet, so there are no curves to draw"]
    if mistakes:
        raise UserError(mistakes)
    return drawn


def _unknown(name: str, known: Sequence[str], runs: Mapping[str, Any]) -> str:
    near = glossary.nearest(name, known)
    hint = f"; did you mean {near}?" if near else ""
    return f"{name}: no such metric was written in {' or '.join(runs)}{hint}"


def _draw(axes: "Axes", lines: Sequence[Metrics], name: str, look: Mapping[str, Any]) -> None:
    """Draw one curve. Up to 20 points (evaluations, for example) get marks; more get a smoothed line over them."""
    known = [(line["step"], line[name], line) for line in lines if _finite(line.get(name))]
    steps, values = [step for step, _, _ in known], [value for _, value, _ in known]
    line_look = {key: value for key, value in look.items() if key != "marker"}
    if len(known) <= 20:
        axes.plot(steps, values, linewidth=1.4, markersize=3.5, **look)
    else:
        axes.plot(steps, values, linewidth=0.6, alpha=0.4, color=look["color"])
        axes.plot(steps, smoothed(values), linewidth=1.7, **line_look)
    band = [(step, line.get(f"{name}_low"), line.get(f"{name}_high")) for step, _, line in known]
    if band and all(_finite(low) and _finite(high) for _, low, high in band):
        places, lows, highs = zip(*band, strict=True)
        axes.fill_between(places, lows, highs, color=look["color"], alpha=0.13, linewidth=0)


def _label(axes: "Axes", name: str) -> None:
    """Set the title from the glossary, with the name of the metric in small letters below."""
    entry = glossary.entry(name)
    axes.set_title(entry.title if entry else name, pad=14)
    if entry:
        axes.text(0, 1.03, name, transform=axes.transAxes, fontsize=7, color=GREY, family="monospace")
    if SHARES.fullmatch(name):
        axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter("{x:.4g}")
    axes.margins(x=0.02)


def smoothed(values: Sequence[float]) -> list[float]:
    """Return the moving median: over a fifteenth of all steps on each side, fewer at the ends.

    Where a metric falls or jumps from one step to the next, a mean would draw a slope that never was.
    """
    reach = max(2, len(values) // 15)
    return [median(values[max(0, n - reach) : n + reach + 1]) for n in range(len(values))]


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
