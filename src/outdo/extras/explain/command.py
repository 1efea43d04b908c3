"""`outdo explain`: what an objective does to one token, in numbers, in sentences and as a picture."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.divergences import k3
from outdo.algorithms.objectives.presets import grpo
from outdo.cli.arguments import AsJson, not_writable
from outdo.cli.output import print_line
from outdo.config.file import fault_of_toml, read_value
from outdo.config.method_rules import objective_mistakes
from outdo.config.recipe import Piece
from outdo.extras.explain.explain import Explanation, Point, explain, mistakes_in, table
from outdo.extras.explain.explain_plot import plot
from outdo.run.assemble.method import build_objective
from outdo.utils.errors import UserError
from outdo.utils.picture_file import picture_mistakes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainArguments:
    """The arguments of `outdo explain`."""

    old: float = 0.5
    news: Sequence[float] = ()  # none: πθ = π_old
    ref: float | None = None  # None: π_ref = π_old
    advantage: float = 1.0
    group: int = 1
    length: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One of the worked examples of the essay: grpo with ε = 0.2."""

    old: float
    news: Sequence[float]
    advantage: float
    refs: Sequence[float | None] = (None,)
    beta: float = 0.0

    @property
    def objective(self) -> Objective:
        return grpo(clip_low=0.2, clip_high=0.2, beta=self.beta)

    def points(self) -> list[Point]:
        """Return the rows as they are printed."""
        return [
            point
            for ref in self.refs
            for point in table(self.objective, old=self.old, news=self.news, advantage=self.advantage, ref=ref)
        ]


OBJECTIVE = "grpo"
"""The objective that is explained if none is named."""

EXAMPLES: Mapping[int, Example] = {
    1: Example(old=0.010, news=(0.008, 0.010, 0.012, 0.100, 0.500), advantage=1.0),
    2: Example(old=0.900, news=(0.800, 0.900, 0.950, 1.000), advantage=1.0),
    3: Example(old=0.900, news=(0.900, 0.800, 0.720, 0.500, 0.100), advantage=-1.0),
    4: Example(old=0.500, news=(0.600,), advantage=0.01, refs=(0.500, 0.100, 1e-50), beta=0.02),
}


def command(
    objective: Annotated[str, typer.Argument(help="a preset, or file.py:name")] = OBJECTIVE,
    *,
    old: Annotated[float, typer.Option(help="probability of the token when it was sampled")] = 0.5,
    new: Annotated[list[float] | None, typer.Option(help="its probability now; may be given several times")] = None,
    ref: Annotated[float | None, typer.Option(help="its probability under the reference; unset: as --old")] = None,
    advantage: Annotated[float, typer.Option(help="advantage of its answer")] = 1.0,
    settings: Annotated[list[str] | None, typer.Option("--set", help="option of the objective: beta=0.02")] = None,
    group: Annotated[int, typer.Option(help="number of answers to the question")] = 1,
    length: Annotated[int, typer.Option(help="tokens of each answer")] = 1,
    example: Annotated[int | None, typer.Option(help="print a worked example: 1, 2, 3 or 4")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="draw J and its gradient: .svg or .png")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a worked example, or explain an objective."""
    arguments = ExplainArguments(old=old, news=new or (), ref=ref, advantage=advantage, group=group, length=length)
    if example is not None:
        if objective != OBJECTIVE or settings or arguments != ExplainArguments():
            raise UserError([f"explain: --example {example} has its own objective and numbers; leave out all others"])
        run_example(example, Console(), picture=picture, as_json=as_json)
        return
    make = partial(named_objective, objective, settings or [], length=length)
    run_explain(objective, make, arguments, Console(), picture=picture, as_json=as_json)


def named_objective(name: str, settings: Sequence[str], *, length: int) -> Objective:
    """Build the objective of a name and of settings such as `"beta=0.02"`, with `length` as the longest answer.

    Raises `UserError` with every mistake in them.
    """
    options: dict[str, Any] = {}
    mistakes: list[str] = []
    for text in settings:
        key, equals, written = text.partition("=")
        if not equals:
            mistakes.append(f"explain: --set {text}: expected key=value, such as beta=0.02")
            continue
        if fault := fault_of_toml(written):
            mistakes.append(f"explain: --set {key}: {fault}")
            continue
        options[key] = read_value(written)
    piece = Piece(name=name, options=options)
    mistakes += objective_mistakes(piece, key="explain")
    if mistakes:
        raise UserError(mistakes)
    objective = build_objective(piece, filled={"length": length})
    if objective.requires.divergences:
        raise UserError([f"{piece.name} has a divergence from teachers, which depends on all tokens: docs/teachers.md"])
    return objective


def run_explain(
    title: str,
    make: Callable[[], Objective],
    arguments: ExplainArguments,
    console: Console,
    *,
    picture: Path | None = None,
    as_json: bool = False,
) -> None:
    """Explain the objective that `make` builds. Raises `UserError` with every mistake, including those of `make`."""
    mistakes = [f"explain: --{mistake}" for mistake in _mistakes(arguments)]
    objective = None
    try:
        objective = make()
    except UserError as error:
        mistakes += error.problems
    mistakes += _picture_mistakes(picture)
    if mistakes or objective is None:
        raise UserError(mistakes)
    old, advantage, ref = arguments.old, arguments.advantage, arguments.ref
    news = arguments.news or [old]
    explanation = explain(
        objective, old=old, new=news[0], advantage=advantage, ref=ref, group=arguments.group, length=arguments.length
    )
    points = table(objective, old=old, news=news, advantage=advantage, ref=ref)
    if picture is not None:
        plot(
            objective,
            picture,
            old=explanation.old,
            news=news,
            advantage=explanation.advantage,
            refs=[explanation.ref],
            title=_head(title, explanation),
        )
    if as_json:
        content = {"objective": title, "points": [*map(asdict, points)]} | explanation.details()
        console.file.write(json.dumps(content) + "\n")
        return
    print_line(console, _head(title, explanation))
    console.print(_rows(explanation, points))
    for line in _sentences(objective, explanation):
        print_line(console, line)
    if picture is not None:
        print_line(console, f"the picture is {picture}")


def run_example(number: int, console: Console, *, picture: Path | None = None, as_json: bool = False) -> None:
    """Print a worked example as it is in the essay. Raises `UserError` if there is no such example."""
    if number not in EXAMPLES:
        raise UserError([f"explain: --example takes {', '.join(map(str, EXAMPLES))}, not {number}"])
    example = EXAMPLES[number]
    if mistakes := _picture_mistakes(picture):
        raise UserError(mistakes)
    if picture is not None:
        plot(
            example.objective,
            picture,
            old=example.old,
            news=example.news,
            advantage=example.advantage,
            refs=example.refs,
            title=f"Example {number}: {_setting(example)}",
        )
    points = example.points()
    if as_json:
        console.file.write(json.dumps({"example": number, "points": [*map(asdict, points)]}) + "\n")
        return
    print_line(console, f"Example {number}: {_setting(example)}")
    columns, rows = _reference_rows(points) if example.beta else _clip_rows(points)
    console.print(_table(columns, rows))
    if picture is not None:
        print_line(console, f"the picture is {picture}")


def _picture_mistakes(picture: Path | None) -> list[str]:
    """Return why a picture cannot be written, before what takes time is computed."""
    if picture is None:
        return []
    return [*picture_mistakes(picture), *filter(None, [not_writable(picture)])]


def _mistakes(arguments: ExplainArguments) -> list[str]:
    return mistakes_in(
        old=arguments.old,
        news=arguments.news,
        advantage=arguments.advantage,
        ref=arguments.ref,
        group=arguments.group,
        length=arguments.length,
    )


# ------------------------------------------------------------------------------------------------- the essay's tables


def _setting(example: Example) -> str:
    beta = f", β = {example.beta}" if example.beta else ""
    return f"Â = {example.advantage}, ε = 0.2{beta}"


def _clip_rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Examples 1 to 3."""
    values = ([p.old, p.new, p.ratio, p.clipped_ratio or 0.0, p.objective] for p in points)
    return ["π_old", "πθ", "Ratio", "Clipped ratio", "Clipped objective"], [[f"{v:.3f}" for v in row] for row in values]


def _reference_rows(points: Sequence[Point]) -> tuple[list[str], list[list[str]]]:
    """Example 4."""
    names = ["π_ref", "π_old", "πθ", "dJ/dπθ (clip term)", "dJ/dπθ (KL)", "Total gradient"]
    rows = [
        [
            f"{p.ref:.3f}" if p.ref and p.ref >= 0.001 else f"{p.ref:.0e}",
            f"{p.old:.3f}",
            f"{p.new:.3f}⁻",
            f"{p.policy_gradient:+.3f}",
            f"{p.divergence_gradient:+.4f}",
            f"{p.gradient:+.4f}",
        ]
        for p in points
    ]
    return names, rows


# ---------------------------------------------------------------------------------------------------- any objective


def _head(title: str, explanation: Explanation) -> str:
    reference = "" if explanation.ref is None else f", π_ref = {_given(explanation.ref)}"
    return f"{title}: one token, π_old = {_given(explanation.old)}{reference}, Â = {_given(explanation.advantage)}"


def _rows(explanation: Explanation, points: Sequence[Point]) -> Table:
    """Make a table with a row for each πθ; the gradients are with respect to πθ."""
    edges = [edge for interval in explanation.flat for edge in interval]

    def place(point: Point) -> str:
        at_edge = point.new != point.old and any(abs(edge - point.new) < 1e-9 for edge in edges)
        side = ("⁻" if point.new > point.old else "⁺") if at_edge else ""
        return f"{_given(point.new)}{side}"

    names = ["πθ", "ratio", "clipped ratio", "objective", "dJ/dπθ"]
    rows = [
        [
            place(p),
            _short(p.ratio, beside=1.0),
            "-" if p.clipped_ratio is None else _short(p.clipped_ratio, beside=1.0),
            _short(p.objective, beside=p.advantage),
            _signed(p.policy_gradient),
        ]
        for p in points
    ]
    if explanation.ref is not None:
        names += ["reference term", "together"]
        rows = [
            [*row, _signed(p.divergence_gradient), _signed(p.gradient)] for row, p in zip(rows, points, strict=True)
        ]
    return _table(names, rows)


def _sentences(objective: Objective, explanation: Explanation) -> Iterator[str]:
    """Yield the sentences: the size of the gradient, how far the token moves, and the equation of DeepSeekMath."""
    factors = dict(explanation.factors)
    size, pull = factors.pop("the size of Â", None), factors.pop("the reference's pull", 0.0)
    yield "how fast: at πθ = π_old, ∇ log πθ is multiplied by"
    share = "" if size is None else f", in which the size of Â is a factor of {_short(size)}"
    yield f"    {_short(explanation.coefficient - pull):<9} by the policy term{share}"
    if explanation.ref is not None:
        yield f"  + {_short(pull):<9} by the reference's pull"
    for name, value in factors.items():
        yield f"  × {_fraction(value):<9} for {name}"
    yield f"  = {_short(explanation.coefficient * math.prod(factors.values()))}"
    yield "how much"
    yield from (f"  {line}" for line in _how_much(explanation))
    if objective.requires.whole_groups:
        yield "  It compares the answers to a question; here there is only one."
    yield from (f"  {line}" for line in _equation_21(objective, explanation))


def _how_much(explanation: Explanation) -> Iterator[str]:
    def probability(value: float) -> str:
        return _short(value, beside=explanation.old)

    way = "up" if explanation.advantage > 0 else "down"
    if explanation.bound is None:
        still = explanation.flat == ((0.0, 1.0),)
        yield "The policy term has no gradient." if still else f"The policy term pulls {way}, and has no bound."
    else:
        beyond = "" if explanation.reachable else ", which no probability reaches"
        ratio = _short(explanation.bound / explanation.old, beside=1.0)
        yield f"The policy term pulls {way} until πθ = {probability(explanation.bound)}, a ratio of {ratio}{beyond}."
    if explanation.bound is not None and explanation.flat:
        intervals = " and ".join(f"from {probability(low)} to {probability(high)}" for low, high in explanation.flat)
        yield f"It has no gradient {intervals}."
    for turn in explanation.turns:
        how = "at a kink" if turn.kink else "stationary"
        yield f"All terms together have a {turn.kind} at {probability(turn.probability)} ({how})."
    end = probability(explanation.destination)
    yield f"Any number of small updates takes πθ from {_given(explanation.old)} to {end}."


def _equation_21(objective: Objective, explanation: Explanation) -> Iterator[str]:
    """Yield the statement of DeepSeekMath's equation 21, if the objective has that coefficient."""
    if not isinstance(objective, ComposedObjective) or objective.divergence is not k3 or explanation.ref is None:
        return
    beta, advantage = float(objective.beta), explanation.advantage
    if not math.isclose(
        explanation.coefficient, advantage + beta * (explanation.ref / explanation.old - 1), abs_tol=1e-9
    ):
        return
    numbers = (
        f"{advantage:g} + {beta:g} ({explanation.ref:g} / {explanation.old:g} - 1) = {_short(explanation.coefficient)}"
    )
    yield f"Â + β (π_ref / πθ - 1) = {numbers} at π_old (DeepSeekMath, equation 21)."
    if advantage > beta:
        yield "Â > β: at πθ = π_old there is no π_ref for which it is 0."
    else:
        balance = explanation.old * (1 - advantage / beta)
        reached = "" if balance <= 1 else ", which no probability is"
        yield f"Â ≤ β: at πθ = π_old it is 0 for π_ref = {_short(balance)}{reached}."


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _fraction(value: float) -> str:
    """Format a value as 1/160 if it is such a fraction, else in digits."""
    fraction = Fraction(value).limit_denominator(1_000_000)
    exact = fraction.numerator == 1 and math.isclose(value, 1 / fraction.denominator)
    return str(fraction) if exact and fraction.denominator > 1 and value < 0.5 else _short(value)


def _given(value: float) -> str:
    """Format a value that the user has given: as it was typed."""
    return f"{value:.10g}"


def _short(value: float, *, beside: float | None = None) -> str:
    """Format a value in four digits, or in as many as its distance from `beside` needs for two: 1.0004 is not 1."""
    distance = 0.0 if beside is None else abs(value - beside)
    if not value or distance <= 1e-9 * abs(value):  # no distance, or one of rounding errors
        return f"{value:.4g}"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(distance)) + 2
    return f"{value:.{max(4, digits)}g}"


def _signed(value: float) -> str:
    return f"{value:+.4g}" if value else "0"
