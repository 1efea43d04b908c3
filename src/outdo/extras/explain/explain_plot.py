"""Plot J and its gradient over the probability of a token, without colours: `outdo explain --plot`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outdo.algorithms.objectives.base import Objective
from outdo.extras.explain.explain import Explanation, Point, explain, table
from outdo.utils.errors import UserError
from outdo.utils.picture_file import picture_mistakes, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY, OLD, REF = "0.45", r"$\pi_{old}$", r"$\pi_{ref}$"
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "hatch.linewidth": 0.4,
}
LINES: Mapping[str, Mapping[str, Any]] = {
    "all terms": {"color": "black", "linewidth": 1.8},
    "policy term": {"color": "black", "linewidth": 1.1, "linestyle": (0, (5, 2))},
    "reference term": {"color": "black", "linewidth": 1.1, "linestyle": (0, (1, 1.4))},
}
FLAT: Mapping[str, Any] = {"facecolor": "0.93", "edgecolor": "0.75", "hatch": "///", "linewidth": 0, "zorder": 0}
RING: Mapping[str, Any] = {"marker": "o", "color": "black", "markerfacecolor": "white", "linestyle": "none"}
SMALL_PROBABILITY = 0.05
"""For a smaller π_old the axis is logarithmic."""

Heights = dict[str, list[float]]


def plot(
    objective: Objective,
    path: str | Path,
    *,
    old: float,
    news: Sequence[float],
    advantage: float,
    refs: Sequence[float | None] = (None,),
    title: str = "",
) -> None:
    """Draw J and dJ/dπ over π into an .svg or .png file: one column per π_ref, with the πθ as rings.

    With a reference, J is drawn relative to its value at π_old. Equal pictures are equal files, byte for byte. Raises
    `UserError` for another suffix, for values that are not probabilities, and without matplotlib (the extra `plot`).
    """
    columns = [_Column.of(objective, news, old=old, advantage=advantage, ref=ref) for ref in refs]
    if mistakes := picture_mistakes(path):
        raise UserError(mistakes)
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError([f'{path}: pictures need the package matplotlib: pip install "outdo[plot]"']) from None
    with rc_context(STYLE):
        width = max(6.8, 3.4 * len(columns))
        figure = Figure(figsize=(width, 5.4), layout="constrained")
        panels = figure.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
        for column, (value, slope) in zip(columns, panels.T, strict=True):
            column.draw(value, slope, inches=width / len(columns))
            if len(columns) > 1 and column.explanation.ref is not None:
                value.set_title(f"{REF} = {column.explanation.ref:g}", pad=32)
        _limit_height(panels[0, 0], [c.values(c.curve) for c in columns], [c.values(c.anchors) for c in columns])
        _limit_height(panels[1, 0], [c.slopes(c.curve) for c in columns], [c.slopes(c.anchors[1:]) for c in columns])
        panels[0, 0].set_ylabel("$J$" if columns[0].explanation.ref is None else r"$J - J(\pi_{old})$")
        panels[1, 0].set_ylabel(r"$dJ/d\pi$")
        lines, names = panels[1, 0].get_legend_handles_labels()
        once = dict(zip(names, lines, strict=True))
        figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=5, columnspacing=1.4, frameon=False)
        figure.suptitle(title.replace("π_old", OLD).replace("π_ref", REF), fontsize=11)
        save_picture(figure, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """The curves and points for one π_ref."""

    explanation: Explanation  # at πθ = π_old
    curve: Sequence[Point]
    rings: Sequence[Point]  # at the given πθ
    anchors: Sequence[Point]  # half of π_old, π_old, 1 and the rings: they set the height of the picture

    @classmethod
    def of(
        cls, objective: Objective, news: Sequence[float], *, old: float, advantage: float, ref: float | None
    ) -> "_Column":
        def points(places: Iterable[float]) -> tuple[Point, ...]:
            return table(objective, old=old, news=list(places), advantage=advantage, ref=ref)

        explanation = explain(objective, old=old, new=old, advantage=advantage, ref=ref)
        edges = [edge for interval in explanation.flat for edge in interval if 0 < edge < 1]
        jumps = [edge * (1 + side) for edge in edges for side in (-1e-9, 1e-9)]  # draws a jump as a vertical line
        return cls(
            explanation=explanation,
            curve=points(sorted(_probabilities(old) + jumps)),
            rings=points(news),
            anchors=points([old / 2, old, 1.0, *news]),
        )

    def values(self, points: Sequence[Point]) -> Heights:
        """Return J for each line."""
        if self.explanation.ref is None:
            return {"all terms": [point.value for point in points]}
        return {
            "all terms": [point.value - self.explanation.value for point in points],
            "policy term": [point.objective - self.explanation.objective for point in points],
        }

    def slopes(self, points: Sequence[Point]) -> Heights:
        """Return dJ/dπ for each line."""
        heights = {"all terms": [point.gradient for point in points]}
        if self.explanation.ref is not None:
            heights["policy term"] = [point.policy_gradient for point in points]
            heights["reference term"] = [point.divergence_gradient for point in points]
        return heights

    def draw(self, value: "Axes", slope: "Axes", *, inches: float) -> None:
        """Draw J in the upper axes and its gradient in the lower ones."""
        places, ringed = [point.new for point in self.curve], [point.new for point in self.rings]
        rare = self.explanation.old < SMALL_PROBABILITY
        slope.set_xscale("log" if rare else "linear")
        if not rare:
            slope.xaxis.set_major_formatter("{x:g}")
        slope.set_xlim(places[0] if rare else 0.0, 1.0)
        slope.set_xlabel(r"$\pi$")
        slope.axhline(0, color=GREY, linewidth=0.6)
        for axes, height in ((value, self.values), (slope, self.slopes)):
            for name, heights in height(self.curve).items():
                axes.plot(places, heights, label=name, **LINES[name])
            axes.plot(ringed, height(self.rings)["all terms"], label=r"$\pi_\theta$", clip_on=False, zorder=4, **RING)
            for low, high in self.explanation.flat:
                axes.axvspan(max(low, places[0]), high, label="policy term is flat", **FLAT)
            for probability in self.named_places():
                axes.axvline(probability, color=GREY, linewidth=0.8, linestyle=(0, (6, 3)), zorder=1)
        self.write_names(value, near=0.65 / inches)

    def named_places(self) -> dict[float, str]:
        """Return the probabilities with a name; names of equal probabilities are joined."""
        known = [(self.explanation.old, OLD), (self.explanation.ref, REF)]
        known += [(self.explanation.bound, "bound")] if self.explanation.reachable else []
        places: dict[float, str] = {}
        for probability, name in known:
            if probability is not None and probability >= self.curve[0].new:
                same = next((other for other in places if abs(other - probability) < 1e-9), probability)
                places[same] = f"{places[same]} = {name}" if same in places else name
        return places

    def write_names(self, axes: "Axes", *, near: float) -> None:
        """Write the names above the lines; a name too close to the one on its left goes one row higher."""
        to_axes = axes.transData + axes.transAxes.inverted()
        before, high = -1.0, False
        for probability, name in sorted(self.named_places().items()):
            x = to_axes.transform((probability, 0.0))[0]
            high = x - before < near and not high
            axes.text(x, 1.11 if high else 1.02, name, ha="center", va="bottom", transform=axes.transAxes)
            before = x
        if self.explanation.bound is not None and not self.explanation.reachable:
            axes.text(
                1.0, 1.11, f"bound {self.explanation.bound:.3g}: out of reach", ha="right", transform=axes.transAxes
            )


def _probabilities(old: float) -> list[float]:
    """Return the probabilities of the horizontal axis, from left to right."""
    if old < SMALL_PROBABILITY:
        first = torch.tensor(old / 10, dtype=torch.float64)
        return torch.logspace(first.log10().item(), 0, 301, dtype=torch.float64).clamp(max=1).tolist()
    return torch.linspace(0.002, 1, 500, dtype=torch.float64).tolist()


def _limit_height(axes: "Axes", curves: Sequence[Heights], anchors: Sequence[Heights]) -> None:
    """Limit the vertical axis to the lines, and to 2.2 times the largest absolute value of the anchors."""
    drawn, fixed = (
        torch.tensor([y for heights in group for line in heights.values() for y in line]) for group in (curves, anchors)
    )
    most = 2.2 * fixed.abs().max().item()
    low, high = max(drawn.min().item(), -most), min(drawn.max().item(), most)
    low, high = min(low, 0.0), max(high, 0.0)
    room = 0.08 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
