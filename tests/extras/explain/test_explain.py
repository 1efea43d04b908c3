"""`outdo explain`: what it finds is what there is, for whatever objective it is asked about."""

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

from outdo.algorithms.objectives.base import Objective, PlainObjective
from outdo.algorithms.objectives.presets import dapo, dr_grpo, grpo, grpo_clip, gspo, likelihood, luspo, reinforce
from outdo.algorithms.objectives.target.tpo import tpo
from outdo.algorithms.requirements import Requires, requires
from outdo.algorithms.vocabulary_sums import token_collision
from outdo.config import methods
from outdo.config.names import OBJECTIVES
from outdo.extras.explain.command import ExplainArguments, command, run_example, run_explain
from outdo.extras.explain.explain import explain, table
from outdo.extras.explain.explain_plot import plot
from outdo.types import Batch, Terms, TokenScores
from outdo.utils.errors import OutdoError, UserError
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


@pytest.mark.parametrize("old", [0.1, 0.7])
def test_the_gradient_at_a_kink_is_taken_on_the_side_of_the_old_policy(old: float) -> None:
    for side, advantage in ((1.2, 1.0), (0.8, -1.0)):
        for rounded in (side * old * (1 - 1e-15), side * old, side * old * (1 + 1e-15)):
            (point,) = table(grpo_clip(), old=old, news=[rounded], advantage=advantage)
            assert point.policy_gradient == pytest.approx(advantage / old)


@settings(max_examples=5)
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


@pytest.mark.parametrize(("advantage", "destination"), [(1.0, math.sqrt(0.3)), (-1.0, 0.3**2)])
def test_a_target_is_its_own_bound_and_it_is_reachable(advantage: float, destination: float) -> None:
    told = explain(essay(), old=0.3, new=0.3, advantage=advantage)
    assert told.bound == pytest.approx(destination)
    assert told.destination == pytest.approx(destination)
    assert told.reachable


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


WITH_TEACHER = {name for name, facts in methods.OBJECTIVES.items() if facts.from_teacher}
COMMON = {"grpo", "dr_grpo", "gspo", "prime_rl", "target", "tpo"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in COMMON else [pytest.mark.release])
        for name in OBJECTIVES
        if name not in WITH_TEACHER
    ],
)
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


@requires(sums={"collision": token_collision})
def spread(scores: TokenScores, batch: Batch) -> Terms:
    """Â log πθ - Σ_v πθ(v)²"""
    gain = (scores.logprobs * batch.advantages)[batch.loss_mask].sum()
    cost = scores.sums["collision"][batch.loss_mask].sum()
    return Terms(policy=gain, divergence=cost, entropy=0 * gain, loss=cost - gain)


def test_a_custom_objective_may_read_a_sum_over_the_vocabulary() -> None:
    """That of the token and the rest: π² + (1 - π)²."""
    told = explain(PlainObjective(spread), old=0.25, new=0.25, advantage=2.0)
    assert told.gradient == pytest.approx(2 / 0.25 - (4 * 0.25 - 2))


# ------------------------------------------------------------------------------------------------------ the command


def said(objective: Objective, asked: ExplainArguments, **options: Any) -> str:
    page = io.StringIO()
    run_explain("mine", lambda: objective, asked, Console(file=page, width=80), **options)
    return page.getvalue()


@pytest.mark.parametrize(
    ("objective", "advantage", "line"),
    [
        (grpo_clip(), 1.0, "until πθ = 1.08, a ratio of 1.2, which no probability reaches."),
        (grpo(), 1.0, "Â > β: at πθ = π_old there is no π_ref for which it is 0."),
        (grpo(), -1.0, "it is 0 for π_ref = 23.4, which no probability is."),
        (likelihood(), -1.0, "The policy term pulls down, and has no bound."),
        (tpo(), 1.0, "here there is only one."),
        (gspo(), 1.0, "until πθ = 0.90036, a ratio of 1.0004."),
        (gspo(), -1.0, "until πθ = 0.89973, a ratio of 0.9997."),
    ],
)
def test_the_command_describes_special_cases(objective: Objective, advantage: float, line: str) -> None:
    assert line in said(objective, ExplainArguments(old=0.9, ref=0.9, advantage=advantage))


def test_an_objective_is_explained_without_any_option(capsys: pytest.CaptureFixture[str]) -> None:
    command("grpo", as_json=True)
    assert json.loads(capsys.readouterr().out)["points"]


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


# ------------------------------------------------------------------------------------------------------ the picture


def test_a_picture_can_be_a_png_and_the_same_svg_is_the_same_file(tmp_path: Path) -> None:
    for name in ("picture.png", "one.svg", "two.svg"):
        plot(grpo_clip(), tmp_path / name, old=0.9, news=[0.9], advantage=1.0)
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_a_picture_whose_folder_is_missing_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    picture = tmp_path / "missing" / "a.svg"
    for ask in ({"example": 1}, {}):
        with pytest.raises(UserError, match=r"a\.svg: cannot be written: there is no folder .*missing"):
            command(picture=picture, **ask)


def test_a_picture_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    full = tmp_path / "full.svg"
    full.symlink_to("/dev/full")
    with pytest.raises(OutdoError, match=r"full\.svg: cannot be written: No space left"):
        command(picture=full)


def test_a_worked_example_refuses_numbers_of_another_one() -> None:
    for other in ({"objective": "dapo"}, {"old": 0.3}, {"new": [0.2]}, {"settings": ["beta=0.1"]}, {"length": 2}):
        with pytest.raises(UserError, match="--example 2 has its own objective and numbers"):
            command(**{"example": 2, **other})


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
