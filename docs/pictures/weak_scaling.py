"""Draw simulated weak scaling as an SVG: python docs/pictures/weak_scaling.py FILE.svg

Each device has the same 16 answers of a step: the seconds of a step, part by part, and the tokens of a day per device.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

from outdo.config.recipe import Recipe
from outdo.extras.plan.hardware import Cluster, card_named
from outdo.extras.plan.problem import Problem
from outdo.extras.plan.search import Option, plan
from outdo.extras.plan.shapes import known_shapes
from outdo.extras.plan.workload import workload_of

DEVICES = (4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10000)
WIDTH, HEIGHT, LEFT, GAP, TOP, BOTTOM, PANEL = 900, 360, 62, 172, 56, 50, 270
BLUE, ORANGE, GREEN, GREY, INK = "#2563a8", "#c2571a", "#3b8a5a", "#9aa4af", "#27313b"
FONT = "font-family='system-ui, sans-serif'"
Curves = dict[str, tuple[str, list[float]]]


def problem(devices: int) -> Problem:
    """Return a step of 16 answers for each device, of 1,500 tokens on average and 8,192 at most."""
    recipe = Recipe.model_validate(
        {
            "model": "qwen2.5-7b",
            "data": {"path": "questions.jsonl"},
            "sampling": {"max_tokens": 8192},
            "train": {
                "objective": {"name": "grpo", "beta": 0.0},
                "prompts": devices,
                "group_size": 16,
                "gradient_checkpointing": True,
            },
        }
    )
    shape = known_shapes()["qwen2.5-7b"]
    work = workload_of(recipe, shape.facts, mean=1500, prompt=200, spread=0.8)[0]
    cluster = Cluster(devices, card_named("H100"))
    return Problem(shape=shape, cluster=cluster, work=work, recipe=recipe, reference=False)


def best(devices: int, kind: str) -> Option:
    """Return the best layout of a kind; with engines apart, at staleness 1."""
    options = plan(problem(devices), staleness=1 if kind == "apart" else 0).options
    return next(option for option in options if option.prediction.layout.kind == kind)


def main(target: Path) -> None:
    """Plan every size and write the picture; print the numbers."""
    together, apart = ([best(n, kind) for n in DEVICES] for kind in ("together", "apart"))
    for n, first, second in zip(DEVICES, together, apart, strict=True):
        found = first.prediction
        print(
            f"{n:6,}  sampling {found.sampling:6.1f}  training {found.training + found.scoring:6.1f}  "
            f"waiting {found.gathering:5.1f}  update {found.update:4.1f}  step {found.step:6.1f}  "
            f"kept {first.goodput:.3f}  million tokens a day and device {daily(first, n):.1f}; "
            f"apart {second.prediction.layout.trainers} + {second.prediction.layout.samplers}  "
            f"step {second.prediction.step:6.1f}  kept {second.goodput:.3f}  {daily(second, n):.1f}"
        )
    seconds: Curves = {
        "step": (INK, [each.prediction.step for each in together]),
        "sampling": (BLUE, [each.prediction.sampling for each in together]),
        "training": (ORANGE, [each.prediction.training + each.prediction.scoring for each in together]),
        "update and host": (GREY, [each.prediction.update + each.prediction.host for each in together]),
    }
    tokens: Curves = {
        "apart, staleness 1": (GREEN, [daily(each, n) for each, n in zip(apart, DEVICES, strict=True)]),
        "together": (INK, [daily(each, n) for each, n in zip(together, DEVICES, strict=True)]),
        "without failures": (
            GREY,
            [daily(each, n) / each.goodput for each, n in zip(together, DEVICES, strict=True)],
        ),
    }
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {FONT} font-size='13' fill='{INK}'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        *panel("Seconds of a step, all devices together", LEFT, seconds, "{:,.0f}"),
        *panel("Million tokens a day, per device", LEFT + PANEL + GAP, tokens, "{:,.0f}"),
    ]
    target.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def daily(option: Option, devices: int) -> float:
    """Return the million tokens that one device trains in a day."""
    return problem(devices).work.tokens * option.tokens_a_day / devices / 1e6


def panel(title: str, left: int, curves: Curves, form: str) -> list[str]:
    """Return the elements of one panel: logarithmic devices, and values from 0."""
    highest = 1.1 * max(max(values) for _, values in curves.values())
    unit = 10 ** math.floor(math.log10(highest))
    tick = next(unit * part for part in (0.2, 0.5, 1, 2) if highest / (unit * part) <= 6)

    def place(devices: float, value: float) -> tuple[float, float]:
        share = math.log(devices / DEVICES[0]) / math.log(DEVICES[-1] / DEVICES[0])
        return left + share * PANEL, TOP + (1 - value / highest) * (HEIGHT - TOP - BOTTOM)

    parts = [f"<text x='{left}' y='26' font-size='15' font-weight='600'>{title}</text>"]
    for n in range(int(highest / tick) + 1):
        x, y = place(DEVICES[0], n * tick)
        parts.append(f"<path d='M{x:.1f} {y:.1f}h{PANEL}' stroke='#e4e8ec'/>")
        parts.append(
            f"<text x='{x - 8:.1f}' y='{y + 4:.1f}' text-anchor='end' fill='{GREY}'>{form.format(n * tick)}</text>"
        )
    for devices in (4, 32, 256, 2048, 10000):
        x, y = place(devices, 0)
        parts.append(f"<text x='{x:.1f}' y='{y + 20:.1f}' text-anchor='middle' fill='{GREY}'>{devices:,}</text>")
    parts.extend(legends(curves, place))
    for colour, values in curves.values():
        points = " ".join("{:.1f},{:.1f}".format(*place(n, value)) for n, value in zip(DEVICES, values, strict=True))
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2.2'/>")
    return parts


def legends(curves: Curves, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    """Return a name at the end of each curve, moved down where two would overlap."""
    ends = sorted((place(DEVICES[-1], values[-1])[1], name, colour) for name, (colour, values) in curves.items())
    x, lowest, parts = place(DEVICES[-1], 0)[0], 0.0, []
    for y, name, colour in ends:
        lowest = max(y, lowest + 17)
        parts.append(f"<text x='{x + 8:.1f}' y='{lowest + 4:.1f}' fill='{colour}'>{name}</text>")
    return parts


if __name__ == "__main__":
    main(Path(sys.argv[1]))
