"""The search over layouts: what fits is found, what does not is named, and more of anything is never worse."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outdo.config.recipe import Recipe
from outdo.planning.hardware import cluster_named
from outdo.planning.layout import Layout
from outdo.planning.search import Problem, plan, settings_of
from outdo.planning.shapes import known_shapes
from outdo.planning.workload import workload_of
from outdo.utils.errors import UserError


def problem(gpus: str, model: str = "qwen2.5-7b", *card: str, **train: object) -> Problem:
    given_ = {"prompts": 64, "group_size": 8, "gradient_checkpointing": True} | train
    recipe = Recipe.model_validate(
        {"model": "-", "data": {"path": "-"}, "train": given_, "sampling": {"max_tokens": 2048}}
    )
    shape = known_shapes()[model]
    return Problem(
        shape=shape,
        cluster=cluster_named(gpus, card),
        work=workload_of(recipe, shape.facts)[0],
        recipe=recipe,
        reference=False,
    )


def test_a_small_model_has_replicas_and_a_large_one_is_sharded():
    small = plan(problem("8xH100", "qwen2.5-0.5b"), staleness=0)
    assert {option.prediction.layout.kind for option in small.options} == {"replicas", "sharded", "together"}
    large = plan(problem("8xH100"), staleness=0)
    assert {option.prediction.layout.kind for option in large.options} == {"sharded", "together"}
    assert "replicas: 1" in large.refused[0]
    assert "Adam's two moments" in large.refused[0]


def test_divided_replicas_gather_whole_weights_to_sample():
    """Each receives 4 bytes of all weights, and holds them beside its eighth of weights, gradients and moments."""
    asked = problem("8xH100")
    sharded = next(each for each in plan(asked, staleness=0).options if each.prediction.layout.kind == "sharded")
    assert sharded.trainer["weights of the engine while sampling"] == 4 * 7_616_000_000
    assert sharded.trainer["weights"] == 4 * 7_616_000_000 // 8
    assert sharded.prediction.update == pytest.approx(4 * 7.616e9 / (0.4 * 450e9))
    kinds = {each.prediction.layout.kind for each in plan(problem("64xH100", "qwen2.5-32b"), staleness=0).options}
    assert "sharded" not in kinds  # 131 GB of weights do not fit one device


def test_every_option_fits_into_its_devices():
    asked = problem("32xH100")
    for option in plan(asked, staleness=2).options:
        layout = option.prediction.layout
        assert sum(option.trainer.values()) <= asked.cluster.card.memory * 1.5  # sampling and training alternate
        assert sum(option.engine.values()) <= asked.cluster.card.memory
        assert layout.trainers + (layout.samplers if layout.kind == "apart" else 0) <= asked.cluster.devices
        assert layout.trainers % layout.shards == 0


def test_one_device_has_one_layout():
    found = plan(problem("1xH100", "qwen2.5-0.5b"), staleness=4)
    assert [option.prediction.layout.kind for option in found.options] == ["replicas"]


def test_what_does_not_fit_is_named_with_a_way_out():
    with pytest.raises(UserError, match=r"activations while training.*\n.*\n.*gradient_checkpointing=true it fits"):
        plan(problem("8xH100", gradient_checkpointing=False))
    with pytest.raises(UserError, match=r"replicas: .* GiB on each device"):
        plan(problem("1xH100", "llama-3.1-405b"))


def test_an_engine_that_does_not_fit_is_named():
    with pytest.raises(UserError, match=r"an engine: .* GiB of weights and an answer of"):
        plan(problem("4xH100", "llama-3.1-405b", "memory=110", adapter="lora", micro_batch_tokens=2560))


def test_without_staleness_no_layout_runs_ahead():
    options = plan(problem("16xH100"), staleness=0).options
    assert all(option.prediction.layout.staleness == 0 and option.prediction.oldest == 0 for option in options)


def test_one_trainer_and_one_engine_are_compared_and_the_plan_names_their_settings():
    options = plan(problem("2xH100", "qwen2.5-0.5b"), staleness=2).options
    (apart,) = [each.prediction.layout for each in options if each.prediction.layout.kind == "apart"]
    assert (apart.trainers, apart.samplers) == (1, 1)
    settings_ = {each.prediction.layout.kind: settings_of(each.prediction.layout) for each in options}
    assert settings_ == {
        "replicas": "cluster.replicas=2",
        "sharded": "cluster.replicas=2 cluster.shard=true",
        "together": None,
        "apart": """engine='{name = "vllm", python = "..."}' train.max_staleness=2""",
    }


def test_the_plan_names_the_settings_of_several_trainers_beside_one_engine():
    split = Layout(kind="apart", trainers=4, samplers=2, width=2, shards=4, staleness=1)
    engine = 'engine=\'{name = "vllm", python = "...", tensor_parallel_size = 2}\''
    assert settings_of(split) == f"cluster.replicas=4 cluster.shard=true {engine} train.max_staleness=1"
    assert settings_of(replace(split, shards=1)) == f"cluster.replicas=4 {engine} train.max_staleness=1"
    assert settings_of(replace(split, samplers=4)) is None  # two engines
    assert settings_of(replace(split, shards=2)) is None  # replicas of divided models


def test_cost_of_failures_grows_with_the_cluster():
    small, large = (plan(problem(f"{n}xH100", prompts=n), staleness=0).best for n in (16, 4096))
    assert large.goodput < small.goodput


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
