"""`outdo explain`: what it finds is what there is, for whatever objective it is asked about."""

import builtins
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from contexts import essay
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.presets import dapo, dr_grpo, grpo, grpo_clip, gspo, likelihood, luspo, ppo, reinforce
from outdo.algorithms.objectives.surrogates import log_likelihood, unclipped
from outdo.algorithms.objectives.target.tpo import tpo
from outdo.algorithms.requirements import Requires
from outdo.config.names import OBJECTIVES
from outdo.extras.explain.command import ExplainArguments, run_example, run_explain
from outdo.extras.explain.explain import explain, table
from outdo.extras.explain.explain_plot import plot
from outdo.types import Batch, Terms, TokenScores
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve

# ------------------------------------------------------------------------------------------------------ what it finds


def test_the_stationary_point_between_reference_and_bound_matches_algebra() -> None:
    # Â/π_old = β (1/π - π_ref/π²) with Example 4's numbers is π² - π + 1/10 = 0; its other root is beyond the bound.
    told = explain(grpo(beta=0.02), old=0.5, new=0.5, ref=0.1, advantage=0.01)
    (turn,) = told.turns
    assert turn.kind == "maximum"
    assert not turn.kink
    assert turn.probability == pytest.approx((1 - math.sqrt(0.6)) / 2, rel=1e-12)
    assert told.destination == turn.probability


def test_a_gradient_that_jumps_over_0_has_a_kink() -> None:
    told = explain(grpo(beta=0.02), old=0.5, new=0.5, ref=0.5, advantage=0.01)
    (turn,) = told.turns
    assert turn.kink
    assert turn.probability == pytest.approx(0.6)


@pytest.mark.parametrize("old", [0.05, 0.1, 0.35, 0.5, 0.7, 0.83])
def test_the_gradient_at_a_kink_is_taken_on_the_side_of_the_old_policy(old: float) -> None:
    for side, advantage in ((1.2, 1.0), (0.8, -1.0)):
        for rounded in (side * old * (1 - 1e-15), side * old, side * old * (1 + 1e-15)):
            (point,) = table(grpo_clip(), old=old, news=[rounded], advantage=advantage)
            assert point.policy_gradient == pytest.approx(advantage / old)


@settings(max_examples=15)
@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.sampled_from([-1.0, -0.01, 0.0, 0.01, 1.0]))
def test_the_destination_is_where_gradient_ascent_ends(old: float, ref: float, advantage: float) -> None:
    objective = grpo(beta=0.05)
    told = explain(objective, old=old, new=old, ref=ref, advantage=advantage)
    way = torch.linspace(old, told.destination, 50, dtype=torch.float64).clamp(min=1e-6).tolist()
    values = [point.value for point in table(objective, old=old, news=way, ref=ref, advantage=advantage)]
    assert values == sorted(values) or max(values) - min(values) < 1e-12
    beyond = told.destination + 1e-3 * math.copysign(1, told.destination - old)
    if 0 < beyond < 1:
        (after,) = table(objective, old=old, news=[beyond], ref=ref, advantage=advantage)
        assert after.value <= values[-1] + 1e-12


def test_without_an_advantage_only_the_reference_pulls() -> None:
    told = explain(grpo(beta=0.04), old=0.01, new=0.01, ref=0.2, advantage=0.0)
    assert told.flat == ((0.0, 1.0),)
    assert told.bound is None
    assert told.clipped_ratio is None
    assert told.destination == pytest.approx(0.2)


def test_a_dual_clip_adds_a_flat_interval() -> None:
    told = explain(ppo(dual=3.0), old=0.2, new=0.2, advantage=-1.0)
    assert told.flat == ((0.0, pytest.approx(0.16)), (pytest.approx(0.6), 1.0))
    assert told.bound == pytest.approx(0.16)


def test_an_objective_without_a_bound_has_none() -> None:
    told = explain(reinforce(), old=0.3, new=0.5, advantage=1.0)
    assert told.bound is told.reachable is told.clipped_ratio is None
    assert told.flat == ()
    assert told.destination == 1.0


@pytest.mark.parametrize(("advantage", "destination"), [(1.0, math.sqrt(0.3)), (-1.0, 0.3**2)])
def test_a_target_is_its_own_bound_and_it_is_reachable(advantage: float, destination: float) -> None:
    told = explain(essay(), old=0.3, new=0.3, advantage=advantage)
    assert told.bound == pytest.approx(destination)
    assert told.destination == pytest.approx(destination)
    assert told.reachable


def test_the_entropy_bonus_covers_the_token_and_the_rest() -> None:
    formula = ComposedObjective(surrogate=log_likelihood, entropy_bonus=2.0)
    told = explain(formula, old=0.3, new=0.3, advantage=0.0)
    assert told.entropy == pytest.approx(2.0 * -(0.3 * math.log(0.3) + 0.7 * math.log(0.7)))
    assert told.entropy_gradient == pytest.approx(2.0 * math.log(0.7 / 0.3))
    assert told.destination == pytest.approx(0.5)


def test_the_default_reference_is_the_old_policy() -> None:
    assert explain(grpo(), old=0.3, new=0.4, advantage=1.0) == explain(grpo(), old=0.3, new=0.4, ref=0.3, advantage=1.0)
    assert explain(grpo_clip(), old=0.3, new=0.4, ref=0.1, advantage=1.0).ref is None


# ----------------------------------------------------------------------------------------------------------- how fast


@pytest.mark.parametrize(
    ("objective", "factors"),
    [
        (grpo(beta=0.02), (1 / 8, 1 / 20, 0.5)),
        (dapo(), (1 / 8, 1 / 20, 0.5)),
        (dr_grpo(length=100), (0.01, 1 / 8, 1.0, 0.5)),
        (luspo(), (1 / 8, 1.0, 0.5)),
        (reinforce(), (1 / 8, 1.0, 0.5)),
        (essay(), (1.0, 1.0)),
    ],
)
def test_the_speed_is_split_into_its_factors(objective: Objective, factors: tuple[float, ...]) -> None:
    told = explain(objective, old=0.3, new=0.3, ref=0.1, advantage=0.5, group=8, length=20)
    found = dict(told.factors)
    assert found.pop("the reference's pull", -0.02 * 2 / 3) == pytest.approx(-0.02 * 2 / 3)
    assert [*found.values()][: len(factors)] == pytest.approx(factors)


# --------------------------------------------------------------------------------------------------- any objective

NEEDED: dict[str, dict[str, Any]] = {"dr_grpo": {"length": 100}}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_can_be_explained(name: str) -> None:
    objective = resolve(OBJECTIVES[name])(**NEEDED.get(name, {}))
    for advantage in (1.0, -1.0):
        told = explain(objective, old=0.3, new=0.4, ref=0.2, advantage=advantage, group=4, length=3)
        assert math.isfinite(told.gradient)
        pulls = told.flat != ((0.0, 1.0),)
        assert pulls == (name != "tpo")  # which compares answers, and has only one
        if pulls:
            assert (told.destination > told.old) == (advantage > 0)


class Parabola:
    """An objective that is no ComposedObjective: -(πθ - 0.7)²."""

    requires = Requires()

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def __call__(self, scores: TokenScores, batch: Batch) -> Terms:
        value = -(scores.logprobs.exp() - 0.7).square().where(batch.loss_mask, 0.0).sum()
        nothing = value.detach() * 0
        return Terms(policy=value, divergence=nothing, entropy=nothing, loss=-value)


def test_a_custom_objective_can_be_explained() -> None:
    told = explain(Parabola(), old=0.2, new=0.5, advantage=1.0)
    assert told.gradient == pytest.approx(0.4)
    assert told.bound == told.destination == pytest.approx(0.7)


# ------------------------------------------------------------------------------------------------------ the command


def said(objective: Objective, asked: ExplainArguments, **options: Any) -> str:
    page = io.StringIO()
    run_explain("mine", lambda: objective, asked, Console(file=page, width=80), **options)
    return page.getvalue()


def test_the_command_prints_speed_distance_and_destination() -> None:
    page = said(grpo(beta=0.02), ExplainArguments(old=0.5, news=[0.6], ref=0.1, advantage=0.01, group=8, length=20))
    for line in (
        "mine: one token, π_old = 0.5, π_ref = 0.1, Â = 0.01",
        "× 1/8       for a group of 8",
        "× 1/20      for an answer of 20",
        "The policy term pulls up until πθ = 0.6, a ratio of 1.2.",
        "It has no gradient from 0.6 to 1.",
        "All terms together have a maximum at 0.1127 (stationary).",
        "Any number of small updates takes πθ from 0.5 to 0.1127.",
        "Â + β (π_ref / πθ - 1) = 0.01 + 0.02 (0.1 / 0.5 - 1) = -0.006 at π_old (DeepSeekMath, equation 21).",
        "Â ≤ β: at πθ = π_old it is 0 for π_ref = 0.25.",
    ):
        assert line in page
    assert re.search(r"0\.6⁻ +1\.2 +1\.2 +0\.012 +\+0\.02 +-0\.02778 +-0\.007778", page)


@pytest.mark.parametrize(
    ("objective", "advantage", "line"),
    [
        (grpo_clip(), 1.0, "until πθ = 1.08, a ratio of 1.2, which no probability reaches."),
        (grpo(), 1.0, "Â > β: at πθ = π_old there is no π_ref for which it is 0."),
        (grpo(), -1.0, "it is 0 for π_ref = 23.4, which no probability is."),
        (likelihood(), -1.0, "The policy term pulls down, and has no bound."),
        (tpo(), 1.0, "The policy term has no gradient."),
        (tpo(), 1.0, "here there is only one."),
        (gspo(), 1.0, "until πθ = 0.90036, a ratio of 1.0004."),
        (gspo(), 1.0, "It has no gradient from 0.90036 to 1."),
        (gspo(), 1.0, "takes πθ from 0.9 to 0.90036."),
        (gspo(), -1.0, "until πθ = 0.89973, a ratio of 0.9997."),
    ],
)
def test_the_command_describes_special_cases(objective: Objective, advantage: float, line: str) -> None:
    assert line in said(objective, ExplainArguments(old=0.9, ref=0.9, advantage=advantage))


def test_numbers_near_1_and_near_the_old_probability_show_their_distance() -> None:
    page = said(gspo(), ExplainArguments(old=0.1234567, news=[0.1234568, 0.2]))
    assert "π_old = 0.1234567, Â = 1" in page
    assert re.search(r"0\.1234568 +1\.00000081 +1\.00000081 +1\.00000081 ", page)
    assert re.search(r"0\.2 +1\.62 +1\.0004 +1\.0004 +0\n", page)
    assert "takes πθ from 0.1234567 to 0.123506." in page


def test_the_equation_of_deepseekmath_is_shown_only_for_its_divergence() -> None:
    formula = ComposedObjective(surrogate=unclipped, beta=0.1, kl_ratio=True)
    assert "DeepSeekMath" not in said(formula, ExplainArguments(old=0.9, ref=0.1))


def test_the_command_prints_json() -> None:
    page = json.loads(said(grpo(), ExplainArguments(old=0.5, news=[0.5, 0.6], advantage=1.0), as_json=True))
    assert [point["new"] for point in page["points"]] == [0.5, 0.6]
    assert page["bound"] == pytest.approx(0.6)
    assert page["factors"]["the size of Â"] == pytest.approx(1.0)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    def make() -> Objective:
        raise UserError(["there is no objective grop"])

    asked = ExplainArguments(old=2.0, news=[1.5, 0.0], ref=-1.0, advantage=math.nan, group=0, length=0)
    with pytest.raises(UserError) as error:
        run_explain("mine", make, asked, Console(), picture=tmp_path / "picture.gif")
    for part in ("--old", "not 1.5", "not 0", "--ref", "--advantage", "--group", "--length", "grop", ".svg or .png"):
        assert part in str(error.value)
    assert len(error.value.problems) == 9


@pytest.mark.parametrize("old", [0.0, 1.0001, -0.5, math.nan])
def test_an_invalid_probability_is_an_error_from_python(old: float) -> None:
    with pytest.raises(UserError, match="old: a probability is above 0 and at most 1"):
        explain(grpo(), old=old, new=0.5, advantage=1.0)
    with pytest.raises(UserError, match="old: a probability is above 0 and at most 1"):
        table(grpo(), old=old, news=[], advantage=1.0)


def test_an_unknown_example_is_an_error() -> None:
    with pytest.raises(UserError, match="takes 1, 2, 3, 4, not 5"):
        run_example(5, Console())


# ------------------------------------------------------------------------------------------------------ the picture


def test_the_same_picture_is_the_same_file(tmp_path: Path) -> None:
    pages = []
    for name in ("one.svg", "two.svg"):
        run_example(4, Console(file=io.StringIO()), picture=tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]
    assert b"<dc:date>" not in pages[0]


@pytest.mark.parametrize("old", [0.01, 0.9])
def test_a_picture_can_be_a_png(tmp_path: Path, old: float) -> None:
    plot(grpo_clip(), tmp_path / "picture.png", old=old, news=[old], advantage=1.0)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_command_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=re.escape('pip install "outdo[plot]"')):
        said(grpo(), ExplainArguments(old=0.5), picture=tmp_path / "picture.svg")


# --------------------------------------------------------------------------------------------------------- the page


PAGE = (Path(__file__).parents[3] / "docs/explain.md").read_text(encoding="utf-8")


def test_the_documentation_shows_the_output_of_the_command() -> None:
    asked = ExplainArguments(old=0.5, news=[0.55, 0.6, 0.7], ref=0.1, advantage=0.01, group=8, length=20)
    out = Console(file=io.StringIO(), width=100)
    run_explain("grpo", lambda: grpo(beta=0.02), asked, out)
    run_explain("grpo_clip", grpo_clip, ExplainArguments(old=0.9, news=[0.95, 1.0]), out)
    run_example(4, out)
    assert isinstance(out.file, io.StringIO)
    printed = out.file.getvalue().splitlines()
    assert len(printed) > 20
    assert not [line for line in printed if line.rstrip() not in [each.rstrip() for each in PAGE.splitlines()]]


def test_the_python_example_of_the_documentation_is_right() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    told = names["told"]
    assert told.gradient == pytest.approx(-0.0078, abs=5e-5)
    assert (told.bound, told.destination) == (pytest.approx(0.6), pytest.approx(0.113, abs=5e-4))
    assert told.flat == ((pytest.approx(0.6), 1.0),)
    assert [row.clipped_ratio for row in names["rows"]] == pytest.approx([0.8, 1.2, 1.28])
