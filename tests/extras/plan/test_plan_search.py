"""The search over layouts: what fits is found, what does not is named, and more of anything is never worse."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.config.recipe import Recipe
from outdo.extras.plan.hardware import cluster_named
from outdo.extras.plan.memory import ENGINE_SHARE
from outdo.extras.plan.problem import Problem
from outdo.extras.plan.reward_models import planned_rewards, reward_work
from outdo.extras.plan.search import Option, plan, settings_of
from outdo.extras.plan.shapes import known_shapes
from outdo.extras.plan.workload import workload_of
from outdo.run.check import cost
from outdo.utils.errors import UserError

pytestmark = pytest.mark.release

CARD = cluster_named("1xH100", ()).card


def problem(
    gpus: str, model: str = "qwen2.5-7b", *card: str, more: Mapping[str, object] | None = None, **train: object
) -> Problem:
    given_ = {"prompts": 64, "group_size": 8, "gradient_checkpointing": True} | train
    recipe = Recipe.model_validate(
        {"model": "-", "data": {"path": "-"}, "train": given_, "sampling": {"max_tokens": 2048}, **(more or {})}
    )
    shape = known_shapes()[model]
    rewards = planned_rewards(recipe, shape)[0]
    return Problem(
        shape=shape,
        cluster=cluster_named(gpus, card),
        work=replace(workload_of(recipe, shape.facts)[0], rewards=reward_work(rewards, recipe)),
        recipe=recipe,
        reference=False,
        rewards=rewards,
    )


def options(asked: Problem, staleness: float = 0) -> dict[str, Option]:
    """The best option of each kind."""
    found = plan(asked, staleness=staleness).options
    return {option.prediction.layout.kind: option for option in reversed(found)}


def test_a_small_model_has_replicas_and_a_large_one_is_sharded():
    small = plan(problem("8xH100", "qwen2.5-0.5b"), staleness=0)
    assert {option.prediction.layout.kind for option in small.options} == {"replicas", "sharded", "together"}
    large = plan(problem("8xH100"), staleness=0)
    assert {option.prediction.layout.kind for option in large.options} == {"sharded", "together"}
    assert "replicas: 1" in large.refused[0]
    assert "Adam's two moments" in large.refused[0]


def test_what_does_not_fit_is_named_with_a_way_out():
    with pytest.raises(UserError, match=r"activations while training.*\n.*gradient_checkpointing=true it fits"):
        plan(problem("1xH100", "qwen2.5-3b", gradient_checkpointing=False))
    with pytest.raises(UserError, match=r"replicas: .* GiB on each device"):
        plan(problem("1xH100", "llama-3.1-405b"))


def test_one_trainer_and_one_engine_are_compared_and_the_plan_names_their_settings():
    options = plan(problem("2xH100", "qwen2.5-0.5b"), staleness=2).options
    (apart,) = [each.prediction.layout for each in options if each.prediction.layout.kind == "apart"]
    assert (apart.trainers, apart.samplers) == (1, 1)
    settings_ = {each.prediction.layout.kind: settings_of(each.prediction.layout, CARD) for each in options}
    assert settings_ == {
        "replicas": "cluster.replicas=2",
        "sharded": "cluster.replicas=2 cluster.shard=true",
        "together": None,
        "apart": """engine='{name = "vllm", python = "..."}' train.max_staleness=2""",
    }


def test_on_one_device_an_engine_may_sleep_while_the_policy_trains():
    """Awake it has its weights and its cache beside what the trainer keeps; asleep only a little of the device."""
    found = options(problem("1xH100", "qwen2.5-0.5b"))["together"]
    layout, parts = found.prediction.layout, found.trainer
    kept = {name: size for name, size in parts.items() if not name.endswith(cost.PHASES)}
    assert parts[cost.ENGINE] == cost.ASLEEP
    assert layout.taken == sum(kept.values())
    assert parts["weights of the engine while sampling"] == 2 * 494_000_000
    assert {name for name in parts if name.endswith("while training")} == {
        "gradients while training",
        "activations while training",
        "a chunk of logits while training",
    }
    share = math.floor(100 * (ENGINE_SHARE - layout.taken / CARD.memory)) / 100
    assert settings_of(layout, CARD) == (
        f"""engine='{{name = "vllm", python = "...", sleep = true, gpu_memory_utilization = {share:g}}}'"""
    )
    assert found.prediction.update == pytest.approx(4 * 0.494)


IN_MAIN_MEMORY = "cluster.replicas=2 cluster.shard='{offload = true}'"


def test_parts_in_main_memory_are_proposed_where_they_are_what_makes_a_model_fit():
    """16 bytes of 14.77e9 weights do not fit two devices; layers, activations and whole weights to sample do."""
    asked = problem("2xH100", "qwen2.5-14b")
    found = options(asked)["sharded"]
    assert settings_of(found.prediction.layout, CARD) == IN_MAIN_MEMORY
    assert found.main_memory == {
        "weights": 4 * 14_770_000_000,
        "gradients while training": 4 * 14_770_000_000,
        "Adam's two moments": 8 * 14_770_000_000,
    }
    assert not {"weights", "gradients while training", "Adam's two moments"} & found.trainer.keys()
    assert found.prediction.update == pytest.approx(4 * 14.77e9 * (1 / (0.4 * 450e9) + 1 / 2 / 64e9))
    said = "replicas that divide their models: only with parts in main memory; otherwise 1"
    assert any(each.startswith(said) for each in plan(asked, staleness=0).refused)
    assert options(problem("32xH100", "qwen2.5-14b"))["sharded"].main_memory == {}


def test_shared_sequences_are_proposed_where_activations_are_what_does_not_fit():
    """Two bytes of 28 × 30 × 3584 numbers for 16,384 tokens are 99 GB. Eight devices do not divide 28 heads."""
    asked = problem("8xH100", gradient_checkpointing=False)
    found = options(asked)["sharded"]
    settings_ = "cluster.replicas=8 cluster.shard=true attention='{name = \"ulysses\", replicas = 4}'"
    assert settings_of(found.prediction.layout, CARD) == settings_
    assert found.trainer["activations while training"] == 2 * 28 * 30 * 4096 * 3584
    said = "replicas that divide their models: only if 4 share each sequence; otherwise "
    assert any(each.startswith(said) for each in plan(asked, staleness=0).refused)
    assert options(problem("8xH100"))["sharded"].prediction.layout.sequence == 1


def test_as_many_devices_share_a_sequence_as_the_recipe_says():
    two = {"cluster": {"replicas": 2}, "attention": "ulysses"}
    found = options(problem("4xH100", "qwen2.5-0.5b", more=two), staleness=1)
    assert {each.prediction.layout.sequence for each in found.values()} == {2}
    alone, shared = (options(problem("4xH100", "qwen2.5-0.5b", more=more))["replicas"].trainer for more in ({}, two))
    assert alone["activations while training"] == 2 * shared["activations while training"]
    with pytest.raises(UserError, match="divide neither these devices nor the attention heads"):
        plan(problem("3xH100", "qwen2.5-0.5b", more=two), staleness=0)


def test_the_base_of_an_adapter_is_divided_and_the_adapter_is_whole():
    """Each device has a fourth of 2 bytes a weight, and receives all of them to sample; an engine gets the adapter."""
    asked = problem("4xH100", "qwen2.5-14b", adapter="lora")
    found, share = options(asked, staleness=1), asked.work.adapter
    sharded = found["sharded"]
    assert settings_of(sharded.prediction.layout, CARD) == "cluster.replicas=4 cluster.shard=true"
    assert sharded.trainer["frozen weights"] == 2 * 14_770_000_000 // 4
    assert sharded.trainer["gradients while training"] == 4 * round(share * 14.77e9)
    assert sharded.trainer["weights of the engine while sampling"] == 2 * 14_770_000_000
    assert sharded.prediction.update == pytest.approx(2 * 14.77e9 / (0.4 * 450e9))
    assert found["apart"].prediction.update == pytest.approx(share * 2 * 14.77e9 / (0.4 * 450e9))  # the adapter alone
    width = (13.213e9 / 48 - 2 * 5120 * (5120 + 1024)) / (3 * 5120)
    sides = 2 * (5120 + 5120) + 2 * (1024 + 5120) + 3 * (5120 + width)
    assert share == pytest.approx(8 * sides * 48 / 14.77e9, rel=1e-3)


def test_reward_models_are_kept_scored_and_refreshed():
    """4 bytes of a frozen weight; 12 more of one that learns, and the activations of 16 prompts at most."""
    frozen = {"name": "reward_model", "path": "qwen2.5-0.5b"}
    learns = frozen | {"labels": "exact", "every": 2, "steps": 4, "batch": 8}
    plain, scored, learned = (
        options(problem("4xH100", "qwen2.5-0.5b", more={"rewards": each})) for each in ("exact", frozen, learns)
    )
    weights = 494_000_000
    assert "reward models" not in plain["replicas"].trainer
    assert scored["replicas"].trainer["reward models"] == 4 * weights
    assert scored["sharded"].trainer["reward models"] == weights
    kept = learned["replicas"].trainer
    assert kept["gradients and moments of reward models"] == 12 * weights
    tokens = 8 * (512 + 2048 + 1)  # of the answers to one prompt
    rows = 3 * 896 + 2 * 128 + 2 * 4864  # of the matrices of a layer
    activations = 4 * 24 * (2 * rows + 3 * 896) * tokens
    assert kept["activations of a reward model while rewarding"] == pytest.approx(activations, rel=1e-3)
    whole, parts = (each.prediction for each in (scored["replicas"], scored["sharded"]))
    flops = 2 * weights * problem("4xH100").work.tokens
    assert whole.rewards == pytest.approx(15 * flops / (0.33 * 989e12), rel=0.01)
    assert parts.rewards == pytest.approx(whole.rewards / 4)
    refreshed = 4 * 8 / (2 * 64)  # of the prompts of a step
    assert learned["replicas"].prediction.rewards == pytest.approx(whole.rewards * (1 + 3 * refreshed))


@settings(deadline=None, max_examples=12)
@given(st.sampled_from([16, 24, 80, 512]), st.sampled_from([1.0, 1.5, 4.0]))
def test_more_memory_never_makes_a_possible_layout_impossible(devices, factor):
    small = plan(problem(f"{devices}xH100"), staleness=0)
    large = plan(problem(f"{devices}xH100", "qwen2.5-7b", f"memory={80 * factor}"), staleness=0)
    kinds = [{option.prediction.layout.kind for option in each.options} for each in (small, large)]
    assert kinds[0] <= kinds[1]


@pytest.mark.parametrize("devices", [4, 32, 256, 2048, 10_000])
def test_a_larger_cluster_with_a_larger_batch_trains_more_tokens(devices):
    """Weak scaling: the same answers for each device."""
    less, more = (
        plan(problem(f"{n}xH100", "qwen2.5-1.5b", prompts=2 * n), staleness=0) for n in (devices // 2, devices)
    )
    tokens = [each.best.tokens_a_day * 2 * n for each, n in ((less, devices // 2), (more, devices))]
    assert tokens[1] > 1.2 * tokens[0]
