"""Lengths, memory and seconds by hand-computed numbers, and properties that no numbers may break."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.config.recipe import Recipe
from outdo.planning import memory, timing
from outdo.planning.hardware import card_named
from outdo.planning.lengths import Lengths
from outdo.planning.shapes import known_shapes
from outdo.planning.timing import Ranks, training_time
from outdo.planning.workload import Workload, workload_of

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


def test_the_mean_of_uncut_lengths_is_that_of_a_log_normal():
    lengths = Lengths(500, 10**9, 0.8)
    assert lengths.location == pytest.approx(math.log(500) - 0.8**2 / 2, abs=1e-6)


def test_a_decoding_step_reads_weights_and_cache_or_computes():
    """7.616e9 weights in bf16, and 100 answers of 1,000 tokens with 28 layers × 2 × 4 heads × 128 numbers."""
    bytes_ = 2 * 7.616e9 + 100 * 1000 * 2 * 28 * 2 * 4 * 128
    step = timing.decode_step(SEVEN, H100, width=1, running=100.0, cached=100_000.0)
    assert step == pytest.approx(bytes_ / 3.35e12 + timing.DECODE_HOST)
    many = timing.decode_step(SEVEN, H100, width=1, running=4000.0, cached=0.0)
    assert many == pytest.approx(4000 * 2 * 7.616e9 / 989e12 + timing.DECODE_HOST)


def test_an_engine_of_several_devices_divides_bytes_and_waits_for_all_reduces():
    one = timing.decode_step(SEVEN, H100, width=1, running=1.0, cached=0.0) - timing.DECODE_HOST
    four = timing.decode_step(SEVEN, H100, width=4, running=1.0, cached=0.0) - timing.DECODE_HOST
    assert four == pytest.approx(one / 4 + 2 * 28 * 12e-6)


def test_training_takes_three_forward_passes_and_four_with_checkpointing():
    lengths = np.full(16, 1000.0)
    flops = 16 * 1000 * (2 * 7.616e9 + 4 * 28 * 28 * 128 * 500)
    alone = Ranks(devices=1)
    assert training_time(SEVEN, H100, work(), alone, 0.5, lengths).training == pytest.approx(3 * flops / (0.5 * 989e12))
    recomputed = training_time(SEVEN, H100, work(checkpointing=True, scorings=1.0), alone, 0.5, lengths)
    assert recomputed.training == pytest.approx(4 * flops / (0.5 * 989e12))
    assert recomputed.scoring == pytest.approx(flops / (0.5 * 989e12))


def test_a_critic_is_scored_and_trained_like_the_policy():
    lengths = np.full(16, 1000.0)
    alone, both = (training_time(SEVEN, H100, work(critics=n), Ranks(devices=1), 0.5, lengths) for n in (0, 1))
    assert both.training == pytest.approx(2 * alone.training)
    assert both.scoring == pytest.approx(alone.training / 3)


def test_more_devices_than_answers_train_no_faster():
    lengths = np.full(16, 1000.0)
    sixteen, many = (
        training_time(SEVEN, H100, work(), Ranks(devices=n, gathered=False), 0.5, lengths) for n in (16, 64)
    )
    assert many.training - many.gathering > 0.99 * (sixteen.training - sixteen.gathering)


def test_a_pipeline_waits_for_its_first_micro_batch():
    """Four micro-batches in four stages take seven times one of them, instead of four."""
    lengths = np.full(16, 1000.0)
    settings = {"micro_batch_tokens": 4000}
    plain = training_time(SEVEN, H100, work(**settings), Ranks(devices=4, sequence=4, gathered=False), 0.5, lengths)
    piped = training_time(SEVEN, H100, work(**settings), Ranks(devices=4, pipeline=4, gathered=False), 0.5, lengths)
    assert piped.training - piped.gathering == pytest.approx(7 / 4 * (plain.training - plain.gathering))


def test_gathering_counts_only_what_arithmetic_does_not_hide():
    lengths = np.full(16, 1000.0)
    hidden = training_time(SEVEN, H100, work(), Ranks(devices=8, shards=8), 0.5, lengths)
    shown = training_time(SEVEN, H100, work(), Ranks(devices=16, shards=16), 0.5, lengths)
    reduced = 4 * 7.616e9 * 7 / 8 / 450e9
    assert hidden.gathering == pytest.approx(reduced)
    assert shown.gathering > 4 * 7.616e9 * 15 / 16 / 50e9


def test_an_update_is_bytes_by_bandwidth():
    assert timing.update_seconds(SEVEN, H100, 0.5, devices=8) == pytest.approx(2 * 7.616e9 / (0.5 * 450e9))
    assert timing.update_seconds(SEVEN, H100, 0.5, devices=16) == pytest.approx(2 * 7.616e9 / (0.5 * 50e9))
    assert timing.update_seconds(SEVEN, H100, 0.5, adapter=0.01, devices=16) == pytest.approx(0.01 * 15.232e9 / 25e9)


def test_a_trainer_keeps_sixteen_bytes_a_weight_shared_by_its_shards():
    kept = memory.kept_by(SEVEN, RECIPE, reference=False, critic=False, adapter=0.0)
    assert sum(kept.values()) == 16 * 7_616_000_000
    parts = memory.trainer_memory(SEVEN, work(checkpointing=True), shards=8, kept=kept)
    assert parts["weights"] == 4 * 7_616_000_000 // 8
    assert parts["activations while training"] == 2 * (28 + 30) * 16384 * 3584
    assert parts["layers gathered"] == round(2 * 2 * 7.616e9 / 28)


def test_an_adapter_keeps_frozen_weights_and_sixteen_bytes_for_its_own():
    kept = memory.kept_by(SEVEN, RECIPE, reference=False, critic=False, adapter=0.01)
    assert sum(kept.values()) == 2 * 7_616_000_000 + 16 * 76_160_000


@given(st.floats(1, 2000), st.floats(1, 8), st.sampled_from([1, 2, 4, 8]), st.integers(1, 32768))
def test_more_memory_never_fits_less(size, factor, width, limit):
    small, large = (card_named("H100", {"memory": each}) for each in (size, size * factor))
    load = work(lengths=Lengths(limit / 2 + 0.5, limit))
    for taken in (0, 10**10):
        assert memory.slots(SEVEN, small, load, width, taken) <= memory.slots(SEVEN, large, load, width, taken)
        assert memory.fits_one_answer(SEVEN, small, load, width, taken) <= memory.fits_one_answer(
            SEVEN, large, load, width, taken
        )


@given(st.integers(0, 8), st.integers(0, 8))
def test_more_shards_never_take_more_of_a_device(first, second):
    kept = memory.kept_by(SEVEN, RECIPE, reference=True, critic=False, adapter=0.0)
    few, many = sorted((2 ** (first + 1), 2 ** (second + 1)))
    less = memory.trainer_memory(SEVEN, work(), shards=many, kept=kept)
    assert sum(less.values()) <= sum(memory.trainer_memory(SEVEN, work(), shards=few, kept=kept).values()) + 8


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
