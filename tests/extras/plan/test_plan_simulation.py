"""The simulation of engines and of the loop: known cases by hand, and properties for any lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.extras.plan.simulation import DEVICE_HOURS, RESTART, Loop, goodput, replay, sampling, simulate

pytestmark = pytest.mark.release

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40).map(lambda each: np.array(each, dtype=float))


def second(running, cached):
    """One second for a step, whatever runs."""
    return 1.0 + 0 * running


def loaded(running, cached):
    return 0.01 + 0.002 * running + 1e-5 * cached


def loop(lengths: np.ndarray, batch: int, **changes: object) -> Loop:
    settings = {"prompt": 5.0, "slots": 64, "engines": 1, "step": loaded, "training": 3.0, "update": 0.5}
    settings |= {"staleness": 0.0, "lengths": lengths, "batch": batch}
    return Loop(**(settings | changes))  # type: ignore[arg-type]


def test_three_answers_take_the_time_that_one_adds_up_by_hand():
    """1 to 2 tokens: three run; to 4: two; to 7: one. The cache holds prompts of 10 and what was generated."""
    found = replay(np.array([2.0, 4.0, 7.0]), 10.0, 8, lambda running, cached: running + cached)
    assert found.seconds == 2 * (3 + 3 * 11) + 2 * (2 + 2 * 13) + 3 * (1 + 15.5)


def test_a_waiting_answer_starts_when_another_has_ended():
    found = replay(np.array([2.0, 4.0, 7.0]), 0.0, 2, second)
    assert found.seconds == 9  # the third starts at 2


@given(LENGTHS)
def test_with_room_for_all_an_engine_takes_as_many_steps_as_its_longest_answer(lengths):
    assert replay(lengths, 0.0, 64, second).seconds == pytest.approx(lengths.max())


@given(LENGTHS, st.integers(1, 8), st.integers(1, 8))
def test_more_engines_never_take_longer(lengths, few, more):
    one, several = (sampling(lengths, 5.0, n, 64, loaded).seconds for n in (few, few * more))
    assert several <= one * 1.000001


@given(LENGTHS, st.integers(1, 16))
def test_staleness_0_is_the_synchronous_sum(lengths, slots):
    found = simulate(loop(lengths, len(lengths), slots=slots))
    alone = replay(lengths, 5.0, slots, loaded).seconds
    assert found.seconds == pytest.approx(alone + 3.0 + 0.5, rel=1e-9)
    assert found.trainer_idle == pytest.approx(alone + 0.5, rel=1e-9)
    assert found.oldest == 0


@given(LENGTHS, st.booleans(), st.integers(1, 4), st.integers(1, 24))
def test_no_answer_is_older_than_the_staleness_that_is_allowed_in_order(lengths, whole, staleness, slots):
    batch = len(lengths) if whole else max(1, len(lengths) // 3)
    assert simulate(loop(lengths, batch, slots=slots, staleness=float(staleness))).oldest <= staleness


def test_the_first_answers_to_end_are_trained_on_unless_order_is_kept():
    lengths = np.array([1000.0, 1, 1, 1])
    free, ordered = (
        simulate(loop(lengths, 2, staleness=4.0, in_order=kept, step=second, update=0.0), steps=4, warm_up=0)
        for kept in (False, True)
    )
    assert ordered.seconds == pytest.approx((1000 + 4 * 3.0) / 4)  # the first batch waits for its long answer
    assert free.seconds == pytest.approx((1 + 4 * 3.0) / 4)  # no batch does


def test_failures_cost_what_a_simulated_run_loses():
    step, devices, every = 60.0, 16_000, 10
    random = np.random.default_rng(0)
    now = kept = 0.0
    for apart in random.exponential(DEVICE_HOURS * 3600 / devices, 4000):
        kept += apart // (every * step) * (every * step)  # steps after the newest checkpoint are lost
        now += apart + RESTART
    assert goodput(step, devices, every) == pytest.approx(kept / now, abs=0.005)
    assert goodput(step, 1, every) > 0.999
    assert goodput(step, devices, 200) < goodput(step, devices, every)
