"""Clipped tokens are those that the formula of each method clips, in plain Python, and those that the record names."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from record_cases import one_group, one_pass, step_of
from toys import RAGGED, batch_of, with_noise

from outdo.algorithms.objectives import presets, surrogates
from outdo.algorithms.objectives.base import Objective, clip_measurements
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.target.objective import target, target_essay
from outdo.algorithms.objectives.target.tpo import tpo
from outdo.extras.record.bounds import policy_push
from outdo.extras.record.tokens import CLIP, token_record
from outdo.run.metrics.metrics import step_metrics
from outdo.types import Batch, Step, TokenScores

Row = list[tuple[float, float, float]]
"""For each trained token of an answer: log πθ, the log-probability that it is compared with, and Â."""

Places = Callable[[Row], list[str]]
"""For each token of an answer where it is counted, "low", "high" or "dual"; empty where it is not clipped."""


def of_token(low: float, high: float, dual: float = math.inf) -> Places:
    """PPO's clip of a token: a good one beyond 1 + high, a bad one below 1 - low or beyond the dual bound."""

    def place(ratio: float, advantage: float) -> str:
        if advantage > 0:
            return "high" if ratio > 1 + high else ""
        return "" if advantage == 0 else "low" if ratio < 1 - low else "dual" if ratio > dual else ""

    return lambda row: [place(math.exp(new - old), advantage) for new, old, advantage in row]


def of_answer(low: float, high: float, *, mean: bool = True) -> Places:
    """The same of one ratio for the whole answer, at each of its tokens."""

    def places(row: Row) -> list[str]:
        whole = sum(new - old for new, old, _ in row) / (len(row) if mean and row else 1)
        return of_token(low, high)([(whole, 0.0, advantage) for _, _, advantage in row])

    return places


def of_probability(threshold: float, *, symmetric: bool = False) -> Places:
    """The probability has changed by more than the threshold, in the direction of Â unless it is symmetric."""

    def place(change: float, advantage: float) -> str:
        if advantage == 0 or abs(change) <= threshold:
            return ""
        if change * advantage < 0:
            return "dual" if symmetric else ""
        return "high" if advantage > 0 else "low"

    return lambda row: [place(math.exp(new) - math.exp(old), advantage) for new, old, advantage in row]


def of_logarithm(low: float, high: float) -> Places:
    """GMPO's clip, of the logarithm of each token's ratio."""
    return of_token(1 - math.exp(-low), math.exp(high) - 1)


def never(row: Row) -> list[str]:
    return ["" for _ in row]


CASES: dict[str, tuple[Objective, Places]] = {
    "grpo": (presets.grpo(beta=0.1), of_token(0.2, 0.2)),
    "dapo": (presets.dapo(), of_token(0.2, 0.28)),
    "ppo": (presets.ppo(), of_token(0.2, 0.2)),
    "ppo, dual": (presets.ppo(dual=1.5), of_token(0.2, 0.2, 1.5)),
    "grpo of engine": (replace(presets.grpo(beta=0.1), bypass=True), of_token(0.2, 0.2)),
    "reinforce_pp": (presets.reinforce_pp(), of_token(0.2, 0.2)),
    "gspo": (presets.gspo(clip_low=0.1, clip_high=0.1), of_answer(0.1, 0.1)),
    "gspo_token": (presets.gspo_token(clip_low=0.1, clip_high=0.1), of_answer(0.1, 0.1)),
    "gspo of engine": (replace(presets.gspo(clip_low=0.1, clip_high=0.1), bypass=True), of_answer(0.1, 0.1)),
    "dapo, level sequence": (replace(presets.dapo(), level=sequence), of_answer(0.2, 0.28)),
    "luspo": (presets.luspo(), of_answer(2e-3, 2.5e-3)),
    "rloo_clip": (presets.rloo_clip(), of_answer(0.2, 0.2, mean=False)),
    "gmpo": (presets.gmpo(clip_low=0.3, clip_high=0.4), of_logarithm(0.3, 0.4)),
    "dppo_tv": (presets.dppo_tv(threshold=0.1), of_probability(0.1)),
    "prime_rl": (presets.prime_rl(pull=0.0), of_probability(0.2)),
    "prime_rl_ipo": (presets.prime_rl_ipo(threshold=0.1, pull=0.0), of_probability(0.1, symmetric=True)),
    "cispo": (presets.cispo(), never),
    "sapo": (presets.sapo(), never),
    "unclipped": (replace(presets.grpo(beta=0.0), surrogate=surrogates.unclipped), never),
}


def measured(objective: Objective, batch: Batch, logprobs: torch.Tensor) -> Step:
    """A step whose only pass found the policy at `logprobs`."""
    batch = objective.prepare(batch)
    push = policy_push(objective, batch, logprobs)
    scores = TokenScores(logprobs=logprobs, sums={"entropy": torch.ones_like(logprobs)})
    update = one_pass(objective, batch, logprobs)
    tokens = {name: values for name, values in update.tokens.items() if name != "clipped"}
    tokens |= clip_measurements(objective, scores, batch, push)
    return step_of([], batch, replace(update, tokens=tokens))


def shares(step: Step) -> dict[str, float]:
    """Return what `clip_ratio/*` are, without what is 0."""
    found = step_metrics(step)
    assert {f"clip_ratio/{each}_mean" for each in ("low", "high", "region")} <= found.keys()
    return {name[11:-5]: value for name, value in found.items() if name.startswith("clip_ratio/") and value}


@pytest.mark.parametrize("name", CASES)
def test_clipped_are_the_tokens_that_the_formula_clips(name: str) -> None:
    objective, places = CASES[name]
    batch, logprobs = with_noise(batch_of(*RAGGED, *RAGGED), seed=3)
    noise = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    batch = batch.with_(rollout_logprobs=batch.old_logprobs + 0.3 * noise)
    step = measured(objective, batch, logprobs)
    compared = batch.rollout_logprobs if getattr(objective, "bypass", False) else batch.old_logprobs
    expected: Counter[str] = Counter()
    for b, mask in enumerate(batch.loss_mask):
        columns = [values[b][mask].tolist() for values in (logprobs, compared, step.batch.advantages)]
        expected.update(place for place in places(list(zip(*columns, strict=True))) if place)
    region = sum(expected.values())
    assert (region > 0) == (places is not never)
    expected |= {"region": region} if region else {}
    assert shares(step) == pytest.approx({place: n / batch.totals.tokens for place, n in expected.items()})
    states = token_record(step, objective, None).clip
    assert ((states == CLIP.index("low")) | (states == CLIP.index("high"))).sum() == region


@pytest.mark.parametrize("objective", [target(), target_essay(), tpo(), presets.reinforce(), presets.rloo()])
def test_an_objective_without_a_ratio_has_no_clipped_tokens(objective: Objective) -> None:
    """Two answers share their first two tokens, whose advantages cancel: a target has nothing to push there."""
    batch = one_group([[0.5, 0.5, 0.3], [0.5, 0.5, 0.4]], [1.0, -1.0], alike=True)
    step = measured(objective, batch, batch.old_logprobs)
    assert not [name for name in step_metrics(step) if name.startswith("clip_ratio/")]


def test_a_token_without_a_push_at_ratio_1_is_not_clipped() -> None:
    """Nothing has moved; a surrogate of one's own leaves out every second token."""

    def of_even_tokens(log_ratio, logprobs, advantages, batch):
        return log_ratio.exp() * advantages * (torch.arange(advantages.shape[1]) % 2)

    objective = replace(presets.grpo(beta=0.0), surrogate=of_even_tokens)
    batch = one_group([[0.5, 0.5, 0.3], [0.5, 0.5, 0.4]], [1.0, -1.0])
    assert shares(measured(objective, batch, batch.old_logprobs)) == {}
    assert shares(measured(objective, batch, batch.old_logprobs - 3.0 * batch.loss_mask)) == {}


def test_the_whole_answer_is_clipped_by_its_own_ratio_and_counts_by_its_advantage() -> None:
    """A good answer of which one token rose by 0.5 and one fell by 0.1 nats: its ratio is e^0.2. The bad one stayed."""
    batch = one_group([[0.5, 0.5], [0.5, 0.5]], [1.0, -1.0])
    moved = torch.tensor([[0.0, 0.5, -0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
    step = measured(presets.gspo(), batch, batch.old_logprobs + moved)
    assert shares(step) == {"high": 0.5, "region": 0.5}


def test_a_dual_clip_counts_apart_from_good_answers_that_rose() -> None:
    """A bad answer rose to ρ = e²."""
    batch = one_group([[0.1, 0.1], [0.1, 0.1]], [1.0, -1.0])
    moved = torch.tensor([[0.0, 0.0, 0.0], [0.0, 2.0, 2.0]], dtype=torch.float64)
    step = measured(presets.ppo(dual=3.0), batch, batch.old_logprobs + moved)
    assert shares(step) == {"dual": 0.5, "region": 0.5}


def test_with_bypass_the_direction_is_that_of_the_ratio_to_the_engine() -> None:
    """Of good tokens, πθ is 0.1 nats below π_old and 0.3 above the engine."""
    batch = one_group([[0.5, 0.5], [0.5, 0.5]], [1.0, -1.0])
    batch = batch.with_(rollout_logprobs=batch.old_logprobs - 0.4 * batch.loss_mask)
    moved = torch.tensor([[0.0, -0.1, -0.1], [0.0, -0.4, -0.4]], dtype=torch.float64)
    step = measured(replace(presets.grpo(beta=0.0), bypass=True), batch, batch.old_logprobs + moved)
    assert shares(step) == {"high": 0.5, "region": 0.5}
