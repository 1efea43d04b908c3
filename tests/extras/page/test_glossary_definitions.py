"""Every metric is what its entry says: a second implementation of each, and runs of steps that it has to agree with."""

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import fresh
from metric_definitions import Case, Method, defined, words
from toys import rollout

from outdo.algorithms.advantages import compute_advantages, gae, group_standardised, per_token, remax
from outdo.algorithms.objectives import presets, surrogates
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.corrections import truncate
from outdo.algorithms.objectives.ratios import sequence
from outdo.algorithms.objectives.target.objective import target
from outdo.algorithms.objectives.weights import token_mean
from outdo.algorithms.requirements import requirements_of
from outdo.algorithms.vocabulary_divergences import forward_kl
from outdo.extras.page import glossary
from outdo.extras.record.movement import movement_metrics
from outdo.extras.record.tokens import token_record
from outdo.extras.record.transfer import Transfer
from outdo.models.bundle import Models
from outdo.models.critic import own_model
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import BatchSizes
from outdo.models.teacher import Teacher
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.hints import Hints
from outdo.run.evaluation.evaluation import Evaluation
from outdo.run.metrics.metrics import step_metrics
from outdo.run.metrics.mismatch import correction_metrics
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step

TESTS = Path(__file__).parents[2]
LR = 1e-2
STANDARDISED = per_token(group_standardised)

Numbers = Mapping[str, float]

WALL_TIME = "wall time, of which only the sum can be known"
PROCESSES = "what processes and machines measured of themselves"
INTERVALS = "an interval is right if it covers the truth: its coverage is simulated"
SETS = "the same numbers, of a part of the questions"
OF_THE_MODEL = "log-probabilities of a model that reads other text or other weights"
LEARNT = "what a model measured while it learnt"

COVERED = {
    "seconds tokens_per_second time/environment time/sample time/reward time/old time/reference time/teachers "
    "time/values time/forward time/backward time/optimiser time/record time/copy time/idle": (
        WALL_TIME,
        "run/test_profile.py::test_the_spans_of_every_step_add_up_to_its_seconds",
    ),
    "time/evaluate time/save": (
        WALL_TIME,
        "run/test_profile.py::test_an_evaluation_is_counted_in_its_own_line_and_a_checkpoint_in_the_next",
    ),
    "time/wait time/ahead": (
        WALL_TIME,
        "run/test_ahead_runs.py::test_each_step_is_sampled_by_the_weights_that_the_lag_says",
    ),
    "loss/environment": (
        "log-probabilities of tokens that the policy did not sample",
        "models/test_echo.py::test_the_gradient_is_that_of_the_objective_and_of_the_mean_log_probability",
    ),
    "demonstrations/ratio": (
        "questions whose answers the policy did not sample",
        "rollouts/test_demonstrations.py::test_a_share_of_the_questions_is_demonstrated_and_the_rest_is_sampled",
    ),
    "staleness/mean staleness/max": (
        "the versions of the weights of an engine that runs ahead",
        "extras/staleness/test_asynchronous.py::test_staleness_counts_no_token_that_an_environment_wrote",
    ),
    "seconds_without_processor": (
        PROCESSES,
        "utils/test_processor_wait.py::"
        "test_it_is_what_all_threads_waited_of_what_they_computed_and_waited_since_the_last_call",
    ),
    "replicas/slowest replicas/slowest_ratio": (
        PROCESSES,
        "cli/test_chosen_replicas.py::test_check_and_train_say_how_many_there_are_and_the_run_folder_has_the_number",
    ),
    "engine/delivery_seconds engine/delivery_bytes engine/proof_seconds": (
        PROCESSES,
        "extras/remote_engines/test_builtin_processes.py::test_each_delivery_replaces_the_weights_and_is_measured",
    ),
    "engine/restarts": (
        PROCESSES,
        "extras/remote_engines/test_builtin_processes.py::"
        "test_a_process_that_ends_or_hangs_is_replaced_and_the_answers_stay_the_same",
    ),
    "judge/requests judge/cached judge/repeated judge/input_tokens judge/output_tokens judge/cost judge/total_cost": (
        "what an endpoint reports",
        "extras/judge/test_judge.py::test_tokens_and_price_are_summed",
    ),
    "eval/greedy_low eval/greedy_high eval/sampled_low eval/sampled_high eval/*_reward_low eval/*_reward_high": (
        INTERVALS,
        "cli/test_eval.py::test_with_one_answer_each_the_interval_is_wilsons",
    ),
    "eval/questions eval/*/questions eval/*/mean eval/*/greedy eval/*/greedy_low eval/*/greedy_high eval/*/sampled "
    "eval/*/sampled_low eval/*/sampled_high": (
        SETS,
        "run/test_held_out_sets.py::test_each_set_has_its_own_numbers_and_they_add_up",
    ),
    "reads/mean reads/questions reads/* eval/reads/mean eval/reads/questions eval/reads/* "
    "reads_ratio/mean reads_ratio/* eval/reads_ratio/mean eval/reads_ratio/*": (
        OF_THE_MODEL,
        "extras/record/test_measure.py::test_metrics_are_means_over_words_and_over_the_places_that_most_questions_have",
    ),
    "eval/start_logprob eval/drift": (
        OF_THE_MODEL,
        "extras/record/test_drift.py::test_it_is_the_mean_over_the_tokens_of_the_first_answer_to_each_question",
    ),
    "reward_model/label reward_model/accuracy": (
        LEARNT,
        "rewards/test_reward_model.py::test_labels_and_rewards_are_separate",
    ),
    "reward_model/fresh reward_model/replayed reward_model/fitted reward_model/loss": (
        LEARNT,
        "rewards/test_reward_model.py::test_replay_is_a_share_of_all_comparisons_of_a_refresh",
    ),
    "data/level data/level/*": (
        "the state of a curriculum",
        "data/test_curriculum.py::test_the_level_of_a_step_is_that_of_its_questions",
    ),
    "coefficient/*": (
        "the state of a controller",
        "run/test_family_runs.py::test_high_entropy_tokens_alone_are_pushed_and_the_bonus_follows_its_target",
    ),
    "value/grad_norm": (
        "of the critic's own weights; the norm is computed as grad_norm is",
        "models/test_critic.py::test_a_clipped_value_has_no_gradient",
    ),
    "target/unreachable": (
        "what a rule asks for, before it is bounded: only the rule knows it",
        "algorithms/test_progress.py::test_a_clip_bound_above_probability_one_is_unreachable",
    ),
}
"""Entries without a second implementation: why there is none, and the test that compares them with something else."""


def prompt(number: int) -> Prompt:
    return Prompt(id=str(number), text="?", token_ids=(3 + 2 * number, 4 + 2 * number))


def answer(tokens: Sequence[int], reward: float, text: str, **more: Any) -> Rollout:
    return rollout(len(tokens), reward, token_ids=tuple(tokens), text=text, **more)


def of_parts(*parts: float | None) -> dict[str, Any]:
    return {"reward_parts": dict(zip(("sum", "form"), parts, strict=True))}


FAILED = {"status": "failed", "right": None}
CUT = {"finish_reason": FinishReason.length}

ANSWERS = [
    Group(
        prompt=prompt(0),
        baseline=0.5,
        rollouts=(
            answer((20, 21, 22, 23), 1.0, "It is four, it is four.", right=True),
            answer((20, 21, 24), 0.25, "it is five", right=False),
            answer((20, 21, 24), 0.75, "it is five", right=False, **CUT),
            answer((30,), 0.0, "", **FAILED),
            answer((31, 32, 33, 34, 35, 36), 0.0, " ", right=False),
        ),
    ),
    Group(  # equal rewards
        prompt=prompt(1),
        baseline=1.0,
        rollouts=tuple(answer((40 + n, 41, 42), 1.0, "It is, four: yes", right=True) for n in range(3)),
    ),
    Group(  # only the reward varies
        prompt=prompt(2),
        baseline=0.0,
        rollouts=(
            answer((50, 51), 0.0, "no", right=False, finish_reason=FinishReason.abort),
            answer((52, 53, 54), 5.0, "no no no no", right=False),
        ),
    ),
    Group(  # the first question again
        prompt=prompt(0),
        baseline=0.5,
        rollouts=(
            answer((20, 25), 0.5, "it is four", right=True, **CUT),
            answer((20, 21, 26, 27), 0.0, "it is five", right=False),
            answer((28, 29), 0.25, "four or five"),  # no verdict
        ),
    ),
    Group(prompt=prompt(3), baseline=0.0, rollouts=(answer((60, 61), 0.0, "x", **FAILED),)),
]

TOOLS = dict.fromkeys(("tools/calls", "tools/unknown", "tools/unparsed", "tools/raised", "tools/timed_out"), 0)
AGENT = dict.fromkeys(
    ("agents/calls", "agents/forks", "agents/forked_tokens", "agents/overridden", "agents/unparsed"), 1
)

EPISODES = [
    Group(
        prompt=prompt(0),
        rollouts=(
            answer(
                (20, 21, 90, 91, 22),
                1.0,
                "four",
                mask=(True, True, False, False, True),
                right=True,
                counts=TOOLS | {"tools/calls": 2, "tools/raised": 1, "engine/tokens_read": 9, "environments/a": 1},
                tool_seconds={"add": (0.5, 0.25)},
                **of_parts(1.0, 0.5),
            ),
            answer(
                (20, 21, 92, 93, 94, 95, 23),
                0.5,
                "five",
                mask=(True, True, False, False, False, False, True),
                right=False,
                counts=TOOLS | {"tools/calls": 3, "tools/unparsed": 1, "engine/tokens_read": 12, "environments/b": 1},
                tool_seconds={"add": (1.0,), "find": ()},
                finish_reason=FinishReason.turns,
                **of_parts(0.0, None),
            ),
            answer(
                (20, 24, 25),
                0.0,
                "",
                mask=(True, True, True),
                counts=TOOLS | {"engine/tokens_read": 5, "environments/a": 1},
                finish_reason=FinishReason.abort,
                **FAILED,
            ),
            answer(
                (26, 27, 96, 28),
                0.25,
                "six",
                mask=(True, True, False, True),
                forks=((4, 2),),  # the third token follows the first
                right=False,
                counts=TOOLS | {"tools/calls": 1, "engine/tokens_read": 6, "environments/b": 1},
                **of_parts(0.0, 1.0),
            ),
        ),
    ),
    Group(
        prompt=prompt(1),
        rollouts=(
            answer((40, 97, 41), 1.0, "seven", mask=(True, False, True), right=True, counts=AGENT),
            answer((40, 97, 41), 0.0, "seven", mask=(True, False, True), right=False, counts=AGENT),
            answer((40, 98, 99, 42), 0.0, "eight", mask=(True, False, False, True), right=False, counts=AGENT, **CUT),
        ),
    ),
]


LONG = Group(
    prompt=prompt(7),
    baseline=0.5,
    rollouts=(
        answer(tuple(range(20, 32)), 1.0, "a long answer", right=True),
        answer((5,), 0.0, "no", right=False),
        answer(tuple(range(30, 41)), 0.0, "a wrong one", right=False),
    ),
)
"""Answers with more tokens than an opening has."""


def with_hints(group: Group) -> Group:
    """The group with a hint for every second answer."""
    hints = [None if place % 2 else (7, 8, 9) for place in range(len(group.rollouts))]
    answers = [replace(answer, teacher_prompt=hint) for answer, hint in zip(group.rollouts, hints, strict=True)]
    return replace(group, rollouts=tuple(answers))


def clipped(low: float, high: float, dual: float | None = None) -> Callable[[float, float, float], float]:
    def surrogate(ratio: float, advantage: float, _: float) -> float:
        lesser = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
        return lesser if dual is None or advantage >= 0 else max(lesser, dual * advantage)

    return surrogate


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A step to be trained."""

    objective: Any
    method: Method
    groups: Sequence[Group] = tuple(ANSWERS)
    advantage: Any = STANDARDISED
    passes: int = 1
    minibatches: int = 1


CLIP = {"surrogate": clipped(0.2, 0.2), "clip": (0.2, 0.2)}
ALL = ComposedObjective(
    surrogate=surrogates.clip(low=0.2, high=0.2),
    correction=truncate(high=1.02),
    beta=0.1,
    entropy_bonus=0.05,
    weight=token_mean,
)
SCENARIOS = {
    "one update": Scenario(objective=presets.grpo(beta=0.1), method=Method(**CLIP, weight="mean", beta=0.1)),
    "minibatches": Scenario(
        objective=ALL, method=Method(**CLIP, beta=0.1, eta=0.05, cap=1.02), passes=3, minibatches=3
    ),
    "episodes": Scenario(
        objective=ALL, method=Method(**CLIP, beta=0.1, eta=0.05, cap=1.02), groups=tuple(EPISODES), passes=2
    ),
    "bypass": Scenario(
        objective=replace(ALL, bypass=True),
        method=Method(**CLIP, beta=0.1, eta=0.05, cap=1.02, bypass=True),
        passes=2,
    ),
    "whole answers": Scenario(
        objective=replace(presets.dapo(clip_high=0.2), level=sequence),
        method=Method(**CLIP, answer=True),
        passes=3,
    ),
    "dual": Scenario(
        objective=presets.ppo(clip_low=0.05, clip_high=0.05, dual=1.05),
        method=Method(surrogate=clipped(0.05, 0.05, 1.05), clip=(0.05, 0.05), dual=1.05),
        passes=4,
        minibatches=4,
    ),
    "cispo": Scenario(
        objective=presets.cispo(), method=Method(surrogate=lambda ratio, a, logp: min(ratio, 5.0) * a * logp), passes=2
    ),
    "remax": Scenario(
        objective=presets.remax(),
        advantage=remax,
        method=Method(surrogate=lambda ratio, a, logp: a * logp, weight="sum", ratio=False),
    ),
    "targets": Scenario(objective=target(), method=Method(surrogate=lambda *_: math.nan, ratio=False), passes=3),
    "critic": Scenario(objective=presets.ppo(), advantage=gae, method=Method(**CLIP), passes=2),
    "teacher": Scenario(
        objective=replace(ALL, correction=None, teacher_beta=0.5, teacher_divergence=forward_kl(top=5)),
        groups=[with_hints(group) for group in (*ANSWERS, LONG)],
        method=Method(**CLIP, beta=0.1, eta=0.05, teacher_beta=0.5),
        passes=2,
        minibatches=2,
    ),
}


def with_engine(policy: Policy, groups: Sequence[Group]) -> list[Group]:
    """The answers, with log-probabilities of an engine that differ a little from the policy's."""
    batch = Batch.from_groups(groups)
    noise = 0.1 * torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(7))
    rows = iter((policy.logprobs(batch) + noise).tolist())

    def changed(answer: Rollout) -> Rollout:
        row = next(rows)[2:]
        return replace(answer, logprobs=tuple(row[t] * own for t, own in enumerate(answer.loss_mask)))

    return [replace(group, rollouts=tuple(map(changed, group.rollouts))) for group in groups]


def gradient_norm(batch: Batch, push: torch.Tensor) -> float:
    """The norm of Σ push ∇log π over the tokens of a batch, by Hugging Face's own forward pass."""
    model = fresh().model
    logits = model(input_ids=batch.token_ids, attention_mask=batch.attention_mask.long()).logits[:, :-1]
    logprobs = logits.log_softmax(-1).gather(-1, batch.token_ids[:, 1:, None]).squeeze(-1)
    (logprobs * push[:, 1:]).where(batch.loss_mask[:, 1:], 0.0).sum().backward()
    return math.sqrt(sum(float(each.grad.square().sum()) for each in model.parameters() if each.grad is not None))


@cache
def trained(name: str) -> tuple[Case, dict[str, float]]:
    """Train a step; return it and its metrics."""
    how = SCENARIOS[name]
    policy = fresh(batch_sizes=BatchSizes(minibatches=how.minibatches), optimiser=OptimiserSettings(lr=LR))
    required = requirements_of(how.advantage, how.objective)
    reference = frozen(Policy(*tiny_model(seed=1))) if required.reference else None
    critic = own_model(policy, lr=1e-2) if required.values else None
    teachers = [Teacher.of(frozen(Policy(*tiny_model(seed=2))), reads_hint=True)] if required.needs_teacher else []
    others = {"reference": reference, "critic": critic, "teachers": teachers}
    models = Models.of(policy, how.objective, advantage=how.advantage, **others)
    groups = with_engine(policy, how.groups)
    if not required.baselines:
        groups = [replace(group, baseline=None) for group in groups]
    batch = models.score(Batch.from_groups(groups), required, passes=how.passes)
    batch = how.objective.prepare(compute_advantages(how.advantage, batch))
    updates, values = [], None
    for _ in range(how.passes):
        values = None if models.critic is None else models.critic.values(batch)
        updates.append(models.update(batch, how.objective))
    step = Step(index=1, sampled=Sampled(groups=groups), batch=batch, updates=updates)
    new = policy.logprobs(batch)
    found = step_metrics(step) | correction_metrics(step, how.objective)
    found |= movement_metrics(token_record(step, how.objective, new), batch)
    first = how.passes * how.minibatches == 1 and not how.method.eta
    case = Case(
        step=step,
        method=replace(how.method, lr=LR),
        minibatches=how.minibatches,
        new_logprobs=new,
        values=values,
        first_gradient=gradient_norm(batch, updates[0].tokens["push"]) if first else None,
    )
    return case, found


def transferred() -> tuple[Numbers, Numbers]:
    """The third of three steps: the question 0 comes back with another mean reward, 2 with the same, 3 has none."""
    steps = [ANSWERS[:2], [ANSWERS[2], ANSWERS[4]], [ANSWERS[3], ANSWERS[2], ANSWERS[1], ANSWERS[4]]]
    steps[2][2] = replace(ANSWERS[1], prompt=prompt(5))
    seen: dict[str, list[float]] = {}
    transfer = Transfer()
    for number, groups in enumerate(steps, 1):
        found = transfer.observe(number, groups)
        means = {group.prompt.id: [each.reward for each in group.rollouts if each.status == "ok"] for group in groups}
        for question, rewards in means.items():
            if rewards:
                seen.setdefault(question, []).append(sum(rewards) / len(rewards))
    again = {question: values for question, values in seen.items() if len(values) > 1}
    rises = [values[-1] - values[-2] for values in again.values()]
    here = [len(seen[question]) for question, rewards in means.items() if rewards]
    return found, {
        "transfer": sum(rises) / len(rises),
        "transfer/prompts": len(again),
        "transfer/changed": sum(rise != 0 for rise in rises),
        "transfer/followed": sum(rise > 0 for rise in rises) / sum(rise != 0 for rise in rises),
        "transfer/visits": sum(here) / len(here),
    }


def sampled_dynamically() -> tuple[Numbers, Numbers]:
    """Three questions, of which two teach nothing; a further round brings one that does and one that does not."""
    with_parts = tuple(replace(each, reward_parts={"sum": each.reward / 2}) for each in ANSWERS[1].rollouts)
    alike = replace(ANSWERS[1], rollouts=with_parts)
    first, second = [ANSWERS[0], alike, ANSWERS[4]], [ANSWERS[2], replace(alike, prompt=prompt(6))]
    rounds = iter([first, second])

    class Questions:
        def take(self, count: int) -> list[Prompt]:
            return [prompt(9)] * count

    sampler: Any = lambda *_, **__: next(rounds)  # noqa: E731
    asked = [group.prompt for group in first]
    how = DynamicSampling(sampler, Questions(), advantage=STANDARDISED, rounds=1)
    policy: Any = None
    sampled = how(policy, asked, step=1)
    everything = [each for group in first + second for each in group.rollouts]
    dropped = [each for group in (first[1], first[2], second[1]) for each in group.rollouts]
    scored = [each.reward for each in everything if each.status == "ok"]
    right = [each.right for each in everything if each.status == "ok" and each.right is not None]
    parts = [each.reward_parts["sum"] for each in everything if each.reward_parts]
    return sampled.metrics, {
        "dynamic_sampling/right": sum(right) / len(right),
        "dynamic_sampling/rewards/sum/mean": sum(parts) / len(parts),
        "dynamic_sampling/rounds": 1,
        "dynamic_sampling/dropped": 3,
        "dynamic_sampling/missing": 1,
        "dynamic_sampling/dropped_tokens": sum(sum(each.loss_mask) for each in dropped),
        "dynamic_sampling/reward": sum(scored) / len(scored),
    }


def evaluated() -> tuple[Numbers, Numbers]:
    """Two questions with three answers each; one answer has no reward."""
    groups = [replace(ANSWERS[0], rollouts=ANSWERS[0].rollouts[1:4]), ANSWERS[1]]
    parts = [
        replace(
            group, rollouts=tuple(replace(each, **of_parts(1.0, float(n))) for n, each in enumerate(group.rollouts))
        )
        for group in groups
    ]
    rewards = [[each.reward for each in group.rollouts if each.status == "ok"] for group in parts]
    right = [[each.right for each in group.rollouts if each.right is not None] for group in parts]
    first_words = [words(each.text)[:16] for group in parts for each in group.rollouts]
    expected = {
        "": sum(sum(each) / len(each) for each in right) / 2,
        "_low": math.nan,  # these ends are simulated in tests/run
        "_high": math.nan,
        "_reward": sum(sum(each) / len(each) for each in rewards) / 2,
        "_reward_low": math.nan,
        "_reward_high": math.nan,
        "_rewards/sum/mean": 1.0,
        "_rewards/form/mean": 1.0,
        "_without_verdict": sum(each.right is None for group in parts for each in group.rollouts),
        "_without_reward": sum(each.status != "ok" for group in parts for each in group.rollouts),
        "_answers": 6,
        "_distinct_words": len({word for each in first_words for word in each}) / sum(map(len, first_words)),
    }
    found = {f"eval/{kind}": value for kind, value in Evaluation(groups=parts, k=3).metrics("sampled").items()}
    greedy = Evaluation(groups=parts, k=3).metrics("greedy")
    found |= {f"eval/{kind}": value for kind, value in greedy.items()}
    return found, {f"eval/{kind}{name}": value for kind in ("sampled", "greedy") for name, value in expected.items()}


def repeating_the_hint() -> tuple[Numbers, Numbers]:
    """The hint says "it is four", and so do some answers; one question says it itself."""
    hint = "{prompt}\nSay: it is four! {answer} is it."
    asked = replace(ANSWERS[3], prompt=replace(ANSWERS[3].prompt, text="Why do you say it is four?"))
    groups = [ANSWERS[0], ANSWERS[1], asked]
    spoken = [[word for word in words(each.text) if word.isalnum()] for group in groups for each in group.rollouts]
    owners = [group is asked for group in groups for _ in group.rollouts]
    texts = [(" ".join(each), said_before) for each, said_before in zip(spoken, owners, strict=True)]
    expected = sum("it is four" in text and not said_before for text, said_before in texts) / len(texts)
    assert 0 < expected < 1
    hints = Hints(hint, lambda prompt, text: (1,), lambda token_ids: "")
    return hints.metrics(groups), {"teacher/repeats_hint_ratio": expected}


OTHERS: dict[str, Callable[[], tuple[Numbers, Numbers]]] = {
    "transfer": transferred,
    "dynamic sampling": sampled_dynamically,
    "evaluation": evaluated,
    "hints": repeating_the_hint,
}


@cache
def both(name: str) -> tuple[Numbers, Numbers]:
    """Return the metrics of a case, and what they are by their entries; NaN where that is not known."""
    if name in OTHERS:
        return OTHERS[name]()
    case, found = trained(name)
    return found, defined(case)


@pytest.mark.parametrize("name", [*SCENARIOS, *OTHERS])
def test_metrics_are_what_their_entries_say(name: str) -> None:
    found, expected = both(name)
    known = {metric: value for metric, value in expected.items() if not math.isnan(value)}
    assert sorted(known.keys() - found.keys()) == []
    assert sorted(found.keys() - expected.keys()) == []
    assert {metric: found[metric] for metric in known} == pytest.approx(known, rel=2e-4, abs=2e-6)


def pattern_of(metric: str) -> str | None:
    """Return the name of the entry of a metric, with its *."""
    for each in glossary.entries():
        head, star, tail = each.name.partition("*")
        if metric == each.name or (star and metric.startswith(head) and metric.endswith(tail)):
            return each.name
    return None


def test_every_entry_has_a_second_implementation_or_a_reason_and_another_test() -> None:
    defined_here = set()
    for name in (*SCENARIOS, *OTHERS):
        found, expected = both(name)
        defined_here |= {pattern_of(metric) for metric in found if not math.isnan(expected.get(metric, math.nan))}
    covered = {name for names in COVERED for name in names.split()}
    entries = {each.name for each in glossary.entries()}
    assert sorted(entries - defined_here - covered) == []
    assert sorted(covered & defined_here) == []
    assert sorted(covered - entries) == []


@pytest.mark.parametrize("names", COVERED)
def test_what_has_no_second_implementation_is_covered_by_another_test(names: str) -> None:
    reason, where = COVERED[names]
    assert reason
    file, _, test = where.partition("::")
    functions = [each for each in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(each, ast.FunctionDef)]
    assert test in [each.name for each in functions]
