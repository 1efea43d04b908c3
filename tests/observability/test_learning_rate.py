"""The rule of `outdo tune lr`: the largest rate within bounds whose reward rises enough."""

from dataclasses import replace

import pytest

from outdo.observability.learning_rate import Suggestion, Trial, draw, suggest, trial_of

GOOD = Trial(rate=1e-6, steps=4, wanted=4, refused=0, gain=0.1, reward=0.5, step_kl=0.001, clipped=0.01, entropy=0.9)


def test_numbers_are_of_the_later_half_of_the_steps():
    lines = [
        {"reward": 0.0, "entropy": 2.0, "step_kl": 9.0},
        {"reward": 0.25, "entropy": 2.0, "step_kl": 9.0},
        {"reward": 0.5, "entropy": 1.0, "step_kl": 0.25, "updates/refused": 1.0},
        {"reward": 1.0, "entropy": 1.0, "step_kl": 0.75, "clip_ratio/region_mean": 0.5},
    ]
    assert trial_of(1e-6, lines, 5) == Trial(
        rate=1e-6, steps=4, wanted=5, refused=1, gain=0.625, reward=0.75, step_kl=0.5, clipped=0.5, entropy=0.5
    )
    nothing = trial_of(1e-6, [], 5)
    assert (nothing.gain, nothing.entropy, nothing.step_kl) == (None, None, None)
    assert nothing.faults == ["only 0 of 5 steps were done"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"steps": 3}, "only 3 of 4 steps"),
        ({"refused": 2}, "2 updates were not finite"),
        ({"step_kl": 0.011}, "a step moves the policy by 0.011 nats"),
        ({"clipped": 0.21}, "21% of the tokens are clipped"),
        ({"entropy": 0.1}, "the entropy became 0.1 times"),
        ({"entropy": 3.5}, "the entropy became 3.5 times"),
    ],
)
def test_a_rate_beyond_a_bound_is_not_suggested(change, told):
    beyond = replace(GOOD, rate=1e-5, gain=0.15, **change)
    assert told in beyond.faults[0]
    found = suggest([GOOD, beyond])
    assert found.rate == 1e-6
    assert f"at 1e-05, {beyond.faults[0]}" in found.reason


def test_the_largest_rate_with_half_of_the_largest_gain_is_suggested():
    rates = [replace(GOOD, rate=rate, gain=gain) for rate, gain in ((1e-7, 0.01), (1e-6, 0.1), (1e-5, 0.06))]
    assert suggest([*rates, replace(GOOD, rate=1e-4, gain=0.04)]).rate == 1e-5
    assert "at 0.0001, the reward changed by +0.040" in suggest([*rates, replace(GOOD, rate=1e-4, gain=0.04)]).reason
    assert "a higher one may do as well" in suggest(rates).reason


def test_nothing_is_suggested_without_a_reason():
    falling = [replace(GOOD, rate=rate, gain=gain) for rate, gain in ((1e-7, 0.0), (1e-6, -0.1), (1e-5, None))]
    assert suggest(falling).rate is None
    assert "the reward rose with no rate within bounds, the largest of which is 1e-05" in suggest(falling).reason
    none_within = suggest([replace(GOOD, step_kl=1.0), replace(GOOD, rate=1e-7, clipped=0.9)])
    assert none_within.rate is None
    assert "at 1e-07, 90% of the tokens are clipped" in none_within.reason


def test_the_picture_is_the_same_file_for_the_same_trials(tmp_path):
    pytest.importorskip("matplotlib")
    trials = [replace(GOOD, clipped=None), replace(GOOD, rate=1e-5, clipped=None, step_kl=None, gain=0.2)]
    for name in ("a.svg", "b.svg"):
        draw(trials, Suggestion(1e-6, ""), tmp_path / name)
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text()
    assert "<svg" in (tmp_path / "a.svg").read_text()
