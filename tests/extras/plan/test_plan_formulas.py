"""Lengths, memory and seconds by hand-computed numbers, and properties that no numbers may break."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.config.recipe import Recipe
from outdo.extras.plan import memory, timing
from outdo.extras.plan.hardware import card_named
from outdo.extras.plan.lengths import Lengths
from outdo.extras.plan.shapes import known_shapes
from outdo.extras.plan.timing import Ranks, training_time
from outdo.extras.plan.workload import RewardWork, Workload, workload_of

pytestmark = pytest.mark.release

SEVEN = known_shapes()["qwen2.5-7b"]
H100 = card_named("H100")
RECIPE = Recipe.model_validate({"model": "-", "data": {"path": "-"}})


def work(**changes: object) -> Workload:
    settings = {"prompts": 4, "group": 4, "prompt_tokens": 0.0, "lengths": Lengths(1000, 1000), "checkpointing": False}
    return Workload(**(settings | changes))  # type: ignore[arg-type]


@given(st.floats(10, 900), st.floats(0.1, 2.0))
def test_cut_lengths_have_the_mean_that_was_asked_for(mean, spread):
    lengths = Lengths(mean, 1000, spread)
    drawn = lengths.sample(20000)
    assert drawn.mean() == pytest.approx(mean, rel=0.02, abs=0.6)
    assert drawn.max() <= 1000
    assert np.mean(drawn == 1000) == pytest.approx(lengths.cut, abs=0.01)


def test_a_decoding_step_reads_weights_and_cache_or_computes():
    """7.616e9 weights in bf16, and 100 answers of 1,000 tokens with 28 layers × 2 × 4 heads × 128 numbers."""
    bytes_ = 2 * 7.616e9 + 100 * 1000 * 2 * 28 * 2 * 4 * 128
    step = timing.decode_step(SEVEN, H100, width=1, running=100.0, cached=100_000.0)
    assert step == pytest.approx(bytes_ / 3.35e12 + timing.DECODE_HOST)
    many = timing.decode_step(SEVEN, H100, width=1, running=4000.0, cached=0.0)
    assert many == pytest.approx(4000 * 2 * 7.616e9 / 989e12 + timing.DECODE_HOST)


def test_a_decoding_step_is_as_slow_as_the_host_starts_it():
    """28 layers of 0.885 ms, unless the device needs longer: at a fourth of its roofline it is four times as slow."""
    reached = timing.Fractions(training=1.0, decode=0.25, update=1.0, launch=0.885e-3)
    assert reached.decoding(0.006, 28) == pytest.approx(28 * 0.885e-3)
    assert reached.decoding(0.007, 28) == pytest.approx(0.028)
    both = reached.decoding(np.array([0.006, 0.007]), 28)
    assert both == pytest.approx([28 * 0.885e-3, 0.028])


def test_training_takes_three_forward_passes_and_four_with_checkpointing():
    lengths = np.full(16, 1000.0)
    flops = 16 * 1000 * (2 * 7.616e9 + 4 * 28 * 28 * 128 * 500)
    alone = Ranks(trainers=1)
    assert training_time(SEVEN, H100, work(), alone, 0.5, lengths).training == pytest.approx(3 * flops / (0.5 * 989e12))
    recomputed = training_time(SEVEN, H100, work(checkpointing=True, scorings=1.0), alone, 0.5, lengths)
    assert recomputed.training == pytest.approx(4 * flops / (0.5 * 989e12))
    assert recomputed.scoring == pytest.approx(flops / (0.5 * 989e12))


def test_a_pipeline_waits_for_its_first_micro_batch():
    """Four micro-batches in four stages take seven times one of them, instead of four."""
    lengths = np.full(16, 1000.0)
    settings = {"micro_batch_tokens": 4000}
    plain = training_time(SEVEN, H100, work(**settings), Ranks(trainers=4, sequence=4, gathered=False), 0.5, lengths)
    piped = training_time(SEVEN, H100, work(**settings), Ranks(trainers=4, pipeline=4, gathered=False), 0.5, lengths)
    assert piped.training - piped.gathering == pytest.approx(7 / 4 * (plain.training - plain.gathering))


def test_gathering_counts_only_what_arithmetic_does_not_hide():
    lengths = np.full(16, 1000.0)
    hidden = training_time(SEVEN, H100, work(), Ranks(trainers=8, shards=8), 0.5, lengths)
    shown = training_time(SEVEN, H100, work(), Ranks(trainers=16, shards=16), 0.5, lengths)
    reduced = 4 * 7.616e9 * 7 / 8 / 450e9
    assert hidden.gathering == pytest.approx(reduced)
    assert shown.gathering > 4 * 7.616e9 * 15 / 16 / 50e9


EIGHT = {"trainers": 8, "shards": 8, "gathered_bytes": 4}


def test_parts_in_main_memory_go_through_the_bus_in_each_micro_batch():
    """Two gatherings of an eighth of 4 bytes a weight and its gradients, beyond the arithmetic; then the optimiser."""
    lengths = np.full(16, 8.0)
    here, there = (
        training_time(SEVEN, H100, work(), Ranks(**EIGHT, offload=offload), 0.5, lengths) for offload in (False, True)
    )
    arithmetic = 3 * 2 * 8 * (2 * 7.616e9 + 4 * 28 * 28 * 128 * 4) / (0.5 * 989e12)
    assert here.training - here.gathering == pytest.approx(arithmetic)
    gathering = 4 * 7.616e9 * 7 / 8 / 450e9
    assert here.gathering == pytest.approx(3 * gathering - arithmetic)  # the sum of gradients is hidden by nothing
    moved = 3 * 4 * 7.616e9 / 8 / 64e9
    assert there.gathering - here.gathering == pytest.approx(moved + timing.HOST_STEP * 7.616e9 / 8)


def test_devices_that_share_sequences_exchange_tokens_for_heads():
    """Of 28 heads of queries and results and 4 of keys and values, each device has a fourth, and sends 3 of 4 parts."""
    four, fourteen = (timing.exchanged_bytes(SEVEN, work(), Ranks(trainers=28, sequence=n)) for n in (4, 14))
    assert four == pytest.approx(2 * 28 * (2 * 28 + 2 * 4) * 128 / 4 * 3 / 4)
    assert fourteen == pytest.approx(2 * 28 * (2 * 28 + 2 * 28) * 128 / 14 * 13 / 14)  # 4 heads are repeated 7 times
    assert timing.exchanged_bytes(SEVEN, work(precise=True), Ranks(trainers=4, sequence=4)) == 2 * four
    lengths = np.full(16, 1000.0)
    found = training_time(SEVEN, H100, work(scorings=1.0), Ranks(trainers=4, sequence=4), 0.5, lengths)
    exchanges = 16_000 * four / 450e9
    reduced = 2 * 3 / 4 * 4 * 7.616e9 / 450e9
    assert found.gathering == pytest.approx(2 * exchanges + reduced)
    assert found.scoring == pytest.approx((found.training - found.gathering) / 3 + exchanges)


def test_reward_models_compute_in_float32_on_one_device_unless_they_are_divided():
    asked = work(rewards=(RewardWork(2e9, True), RewardWork(1e9, False)))
    seconds = 16_000 * 15 / (0.5 * 989e12)
    assert timing.reward_seconds(H100, asked, 0.5, 1) == pytest.approx(3e9 * seconds)
    assert timing.reward_seconds(H100, asked, 0.5, 4) == pytest.approx(1.5e9 * seconds)


def test_an_update_is_bytes_by_bandwidth():
    assert timing.update_seconds(SEVEN, H100, 0.5, devices=8) == pytest.approx(2 * 7.616e9 / (0.5 * 450e9))
    assert timing.update_seconds(SEVEN, H100, 0.5, devices=16) == pytest.approx(2 * 7.616e9 / (0.5 * 50e9))
    assert timing.update_seconds(SEVEN, H100, 0.5, adapter=0.01, devices=16) == pytest.approx(0.01 * 15.232e9 / 25e9)


def test_a_trainer_keeps_sixteen_bytes_a_weight_shared_by_its_shards():
    kept = memory.model_states_of(SEVEN, RECIPE, reference=False, critic=False, adapter=0.0)
    assert sum(kept.values()) == 16 * 7_616_000_000
    eighth = memory.model_states_of(SEVEN, RECIPE, reference=False, critic=False, adapter=0.0, shards=8)
    assert eighth["weights"] == 4 * 7_616_000_000 // 8
    parts = memory.trainer_memory(SEVEN, work(checkpointing=True), model_states=eighth, gathered=7)
    assert parts["activations while training"] == 2 * (28 + 30) * 16384 * 3584
    assert parts["layers gathered while training"] == 7
    assert sum(parts.values()) - sum(eighth.values()) - 7 == 2 * (28 + 30) * 16384 * 3584 + 2 * 256 * 2**20


def test_the_step_of_a_recipe_has_its_scorings_and_says_what_it_assumes():
    settings = {"train": {"objective": "grpo", "minibatches": 4}, "sampling": {"max_tokens": 1000}}
    recipe = Recipe.model_validate({"model": "-", "data": {"path": "-"}, **settings, "record": {"every": 0}})
    step, assumed = workload_of(recipe, SEVEN.facts)
    assert step.scorings == 2  # old log-probabilities, and the reference of GRPO's KL
    assert step.lengths.mean == 400
    assert len(assumed) == 2
    measured, assumed = workload_of(recipe, SEVEN.facts, mean=250, prompt=100, spread=1.1)
    assert (measured.lengths.mean, measured.lengths.spread, measured.tokens) == (250, 1.1, 32 * 8 * 350)
    assert assumed == []
