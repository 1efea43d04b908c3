"""Test the training loop: what happens in a step, in which order, and steps that have nothing to learn from."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytest
import torch
from engine_cases import fresh, tokens
from torch import Tensor

from outdo.algorithms.advantages import gae, group_standardised, per_token
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.page.notebook import show
from outdo.loop import Sampler, in_turn, train
from outdo.models.bundle import Models
from outdo.models.completion_text import completion_text
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import BatchSizes
from outdo.rewards import load_reward
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.run.metrics.metrics import step_metrics
from outdo.testing import ScriptedEngine
from outdo.types import Completion, FinishReason, Prompt, Request, Sampled, Step
from outdo.utils.errors import EngineError
from outdo.utils.rng import Stream

ADVANTAGE = per_token(group_standardised)
SAMPLING = SamplingParams(max_tokens=12)
QUESTIONS = [Prompt(id=str(i), text=f"question {i}", token_ids=tokens(4 + i, i), answer="yes") for i in range(2)]


def data() -> Iterator[list[Prompt]]:
    while True:
        yield QUESTIONS


def yes_or_no(request: Request) -> str:
    return "yes" if request.stream.sample % 2 == 0 else "no"


def is_correct(completion: str, answer: str) -> float:
    return float(completion == answer)


def small(**work: int) -> Policy:
    return fresh(
        optimiser=OptimiserSettings(lr=1e-5), batch_sizes=BatchSizes(**work)
    )  # a small learning rate, so that no token is clipped


def rollouts(script: Callable[[Request], str] = yes_or_no, reward: Callable[..., object] = is_correct) -> GroupSampler:
    return GroupSampler(ScriptedEngine(script), SingleTurn(load_reward(reward)), group_size=4, sampling=SAMPLING)


def loop(
    models: Models, prompts: Iterable[Sequence[Prompt]], sample: Sampler, *method: Any, start: int = 1, **how: Any
) -> Iterator[Step]:
    """The loop with sampling in turn."""
    return train(models, in_turn(models.policy, prompts, sample, start=start), *method, **how)


def weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


# ------------------------------------------------------------------------------------------------------------ the loop


def test_a_step_contains_its_groups_batch_and_updates():
    policy, rollout = small(), rollouts()
    steps = list(islice(loop(Models(policy), data(), rollout, ADVANTAGE, grpo(beta=0)), 3))
    assert [step.index for step in steps] == [1, 2, 3]
    assert [len(step.updates) for step in steps] == [1, 1, 1]
    assert policy.version == 3
    first = steps[0]
    assert [group.prompt.id for group in first.groups] == ["0", "1"]
    assert [each.text for each in first.groups[0].rollouts] == ["yes", "no", "yes", "no"]
    assert first.batch.rewards.tolist() == [1, 0] * 4
    assert torch.equal(first.batch.advantages > 0, first.batch.loss_mask & (first.batch.rewards > 0)[:, None])
    assert first.update.tokens["push"].shape == first.batch.token_ids.shape
    assert torch.equal(first.update.tokens["policy_push"], first.update.tokens["push"])  # no other term
    assert "pushed up" in show(first, policy.tokenizer)
    assert {each.policy_version for each in steps[2].groups[0].rollouts} == {2}
    assert {request.stream for request in rollout.engine.requests[:8]} == {
        Stream("train", 1, prompt.id, sample) for prompt in QUESTIONS for sample in range(4)
    }
    assert rollout.engine.requests[-1].stream == Stream("train", 3, "1", 3)


def test_training_increases_the_reward():
    policy = fresh(optimiser=OptimiserSettings(lr=3e-3))

    def low_token_share(completions: list[str], completion_ids: list[list[int]], **columns: object) -> list[float]:
        return [sum(token < 132 for token in ids) / len(ids) for ids in completion_ids]

    rollout = GroupSampler(BuiltinEngine(), SingleTurn(load_reward(low_token_share)), group_size=8, sampling=SAMPLING)
    steps = islice(loop(Models(policy), data(), rollout, ADVANTAGE, grpo(beta=0)), 25)
    rewards = [float(step.batch.rewards.mean()) for step in steps]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1


def test_the_loop_ends_when_its_data_ends_and_the_first_step_index_can_be_set():
    steps = loop(Models(small()), [QUESTIONS] * 2, rollouts(), ADVANTAGE, grpo(beta=0), start=41)
    assert [step.index for step in steps] == [41, 42]


def test_the_loop_computes_no_step_before_the_caller_requests_it():
    """After a break, the weights are those of the last step that the caller received."""
    policy = small()
    for step in loop(Models(policy), data(), rollouts(), ADVANTAGE, grpo(beta=0)):
        if step.index == 2:
            break
    assert policy.version == 2


# ------------------------------------------------------------------------------------------------------------- passes


@pytest.mark.parametrize(
    ("passes", "minibatches", "separate"), [(1, 1, False), (2, 1, True), (1, 2, True), (3, 2, True)]
)
def test_old_logprobs_are_computed_only_if_a_ratio_can_differ_from_1(passes, minibatches, separate):
    policy = small(minibatches=minibatches)
    steps = loop(Models(policy), data(), rollouts(), ADVANTAGE, grpo(beta=0), passes=passes)
    before = frozen(policy)
    step = next(steps)
    assert (len(step.updates), policy.version) == (passes, passes * minibatches)
    assert (step.batch.old_logprobs is not None) == separate
    if separate:
        torch.testing.assert_close(step.batch.old_logprobs, before.logprobs(step.batch), rtol=0, atol=1e-6)
        assert step.update.tokens["log_ratio"].abs().max() > 1e-5


def test_early_stopping_ends_the_passes_of_only_its_own_step():
    seen = []

    def after_two(batch, passes):
        seen.append(passes[-1].metrics["loss"])
        return "twice" if len(seen) == 2 else ""

    policy = small()
    steps = loop(Models(policy), data(), rollouts(), ADVANTAGE, grpo(beta=0), passes=5, stop=after_two)
    done = [(len(step.updates), step.stopped) for step in islice(steps, 2)]
    assert done == [(2, "twice"), (5, "maximum")]
    assert (policy.version, len(seen)) == (7, 7)


# ------------------------------------------------------------------------------------------------------ the reference


def test_the_reference_is_the_policy_at_the_last_sync():
    policy = small()
    models = Models.of(policy, grpo(beta=0.1), refresh_every=2)
    start, reference = weights(policy.model), models.reference.forward.model
    after = []
    for step in islice(loop(models, data(), rollouts(), ADVANTAGE, grpo(beta=0.1)), 4):
        after.append(weights(policy.model))
        expected = {1: start, 2: after[-1], 3: after[1] if step.index == 3 else None, 4: after[-1]}[step.index]
        assert torch.equal(weights(reference), expected), step.index
    assert not torch.equal(after[1], start)


def test_without_sync_the_reference_stays_unchanged():
    policy = small()
    models = Models.of(policy, grpo(beta=0.1))
    start = weights(policy.model)
    (first, second) = islice(loop(models, data(), rollouts(), ADVANTAGE, grpo(beta=0.1)), 2)
    assert torch.equal(weights(models.reference.forward.model), start)
    assert float(first.update.metrics["loss/divergence"]) == pytest.approx(0, abs=1e-8)
    assert float(second.update.metrics["loss/divergence"]) > 1e-6
    assert all(not weight.requires_grad for weight in models.reference.forward.model.parameters())


def test_the_function_that_makes_an_objective_is_no_objective():
    with pytest.raises(TypeError, match=r"found the function grpo; did you mean grpo\(\)\?"):
        Models.of(small(), grpo)  # type: ignore[arg-type]


def test_a_group_without_answers_is_refused():
    environment = SingleTurn(load_reward("exact"))
    with pytest.raises(ValueError, match="group_size: expected 1 or more answers to a question, found 0"):
        GroupSampler(BuiltinEngine(), environment, group_size=0, sampling=SamplingParams(max_tokens=4))


def test_an_engine_or_an_environment_that_inherits_from_nothing_is_told_what_to_inherit():
    class Alike:
        tokenizer = update_weights = generate = rollouts = None

    sampling = SamplingParams(max_tokens=4)
    with pytest.raises(TypeError, match=r"Alike does not inherit from outdo\.Engine"):
        GroupSampler(Alike(), SingleTurn(load_reward("exact")), group_size=2, sampling=sampling)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Alike does not inherit from outdo\.Environment"):
        GroupSampler(BuiltinEngine(), Alike(), group_size=2, sampling=sampling)  # type: ignore[arg-type]


def test_missing_models_are_reported_before_sampling():
    def no_rollout(policy, questions, *, step):
        raise AssertionError("sampled")

    assert Models.of(small(), grpo(beta=0)).reference is None  # no more than is needed
    with pytest.raises(ValueError, match=r"needs a reference and a critic: `Models.of\(policy, objective, "):
        loop(Models(small()), data(), no_rollout, gae, grpo(beta=0.1))  # at once: no step was asked for


# ------------------------------------------------------------------------------------- steps with nothing to learn from


def always_none(completion: str, answer: str) -> None:
    """Return no reward for any answer."""


def test_a_step_without_rewards_updates_nothing_but_is_counted():
    policy = small()
    before = weights(policy.model)
    steps = loop(Models(policy), data(), rollouts(reward=always_none), ADVANTAGE, grpo(beta=0), passes=3)
    found = list(islice(steps, 2))
    assert [(step.index, step.update, len(step.updates)) for step in found] == [(1, None, 0), (2, None, 0)]
    assert found[0].batch.totals.tokens == 0
    assert not found[0].batch.scored.any()
    assert torch.equal(weights(policy.model), before)
    assert policy.version == 0


def test_a_step_without_groups_is_counted():
    policy = small()

    def no_groups_in_step_2(policy, questions, *, step):
        return rollouts()(policy, questions, step=step) if step != 2 else []

    found = list(islice(loop(Models(policy), data(), no_groups_in_step_2, ADVANTAGE, grpo(beta=0)), 3))
    assert [(step.index, len(step.updates), len(step.groups)) for step in found] == [(1, 1, 2), (2, 0, 0), (3, 1, 2)]
    assert found[1].update is None
    assert policy.version == 2


def test_equal_answers_change_no_weight():
    """The optimiser's momentum from an earlier step changes none either."""
    policy = small()

    def equal_in_step_2(request: Request) -> str:
        return yes_or_no(request) if request.stream.step == 1 else "yes"

    steps = loop(Models(policy), data(), rollouts(equal_in_step_2), ADVANTAGE, grpo(beta=0))
    next(steps)
    before = weights(policy.model)
    step = next(steps)
    assert (len(step.updates), step.update.metrics["updates/empty"]) == (1, 1.0)
    assert torch.equal(weights(policy.model), before)


# ------------------------------------------------------------------------------------------- what a sampler returns


def test_a_sampler_returns_groups_with_metrics_or_a_plain_list():
    def sample(policy, questions, *, step):
        groups = rollouts()(policy, questions, step=step)
        return Sampled(groups=groups, metrics={"my/metric": float(step)}) if step == 1 else groups

    first, second = islice(loop(Models(small()), data(), sample, ADVANTAGE, grpo(beta=0)), 2)
    assert [group.prompt.id for step in (first, second) for group in step.groups] == ["0", "1"] * 2
    assert step_metrics(first)["my/metric"] == 1.0
    assert second.sampled.metrics == {}


# -------------------------------------------------------------------------------------------------- the scripted engine


def requests(count: int, limit: int = 99) -> list[Request]:
    return [Request(token_ids=(5,), stream=Stream("t", 1, "q", i), max_tokens=limit) for i in range(count)]


def test_scripted_answers_are_used_in_order_across_calls_and_running_out_is_an_error():
    engine = ScriptedEngine(["one", (7, 8), "three"], small().tokenizer)
    texts = [
        completion_text(engine.tokenizer, x.token_ids)
        for call in (2, 1)
        for x in engine.generate(requests(call), SAMPLING)
    ]
    assert texts == ["one", completion_text(engine.tokenizer, (7, 8)), "three"]
    assert len(engine.requests) == 3
    with pytest.raises(EngineError, match=r"the script has 3 answers, and one more was asked: .*prompt_id='q'"):
        engine.generate(requests(1), SAMPLING)


def test_a_scripted_text_ends_with_the_end_token_and_is_cut_at_the_token_limits():
    engine = ScriptedEngine(lambda request: "yes", small().tokenizer, logprob=-0.5)
    (whole,), (cut,) = engine.generate(requests(1), SAMPLING), engine.generate(requests(1, limit=2), SAMPLING)
    assert (whole.token_ids[-1], len(whole.token_ids), whole.finish_reason) == (0, 4, FinishReason.stop)
    assert (cut.token_ids, cut.finish_reason) == (whole.token_ids[:2], FinishReason.length)
    assert whole.logprobs == (-0.5,) * 4
    (shorter,) = engine.generate(requests(1), SamplingParams(max_tokens=3))
    assert shorter.token_ids == whole.token_ids[:3]


def test_a_scripted_completion_is_returned_unchanged_and_a_text_needs_a_tokenizer():
    given = Completion(token_ids=(7,), logprobs=(-3.0,), finish_reason=FinishReason.abort, policy_version=9)
    assert ScriptedEngine([given]).generate(requests(1), SAMPLING) == [given]
    with pytest.raises(ValueError, match="give the engine one, or call"):
        ScriptedEngine(["yes"]).generate(requests(1), SAMPLING)
