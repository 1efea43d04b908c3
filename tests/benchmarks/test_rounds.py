"""Implementations take turns in processes of their own, and every turn says who else was at work."""

import os
import time
from dataclasses import replace

import pytest

from benchmarks.suite import machine
from benchmarks.suite.cases import CASES, Case
from benchmarks.suite.implementations import IMPLEMENTATIONS
from benchmarks.suite.rounds import Running, TimedTurn, run_case
from benchmarks.suite.setting import Setting

TINY = replace(CASES["counts"], name="tiny", kind="step", prompts=2, prompt_tokens=4, answers=(5, 3))


def run(case: Case, *names: str, rounds: int = 1, measure: bool = False, said: list[str] | None = None):
    lines = [] if said is None else said
    implementations = [IMPLEMENTATIONS[name] for name in names]
    return run_case(Setting(case=case, threads=1), implementations, rounds=rounds, say=lines.append, measure=measure)


def test_a_setting_survives_the_trip_to_another_process():
    setting = Setting(case=TINY, threads=2, options={"record": True})
    assert Setting.loads(setting.dumps()) == setting


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("outdo", "generate"), marks=pytest.mark.release),
        pytest.param(("outdo-record", "trl-tuned", "static"), marks=pytest.mark.long),
    ],
)
def test_each_does_the_whole_work_one_at_a_time_and_every_other_round_goes_the_other_way_round(names):
    said: list[str] = []
    results = run(TINY, *names, rounds=2, said=said)
    turns = [line.rpartition(": ")[2] for line in said if "round" in line]
    assert turns[-2 * len(names) :] == [*names, *reversed(names)]
    assert {name: result.failed for name, result in results.items()} == dict.fromkeys(names, "")
    for name, result in results.items():
        whole = IMPLEMENTATIONS[name].part == "step"
        assert len(result.turns) == 2
        for turn in result.turns:
            assert turn.tokens == 2 * (5 + 3)
            assert turn.sampling is not None
            assert (turn.seconds is not None) == whole
            assert not whole or turn.seconds > turn.sampling
        assert result.memory is not None


@pytest.mark.long
def test_both_ways_to_score_a_vocabulary_run_and_say_their_memory():
    case = replace(CASES["vocabulary"], shape=replace(CASES["vocabulary"].shape, vocabulary=5000), tokens=1024)
    results = run(case, "outdo-scores", "plain-scores")
    chunked, plain = results["outdo-scores"], results["plain-scores"]
    assert (chunked.failed, plain.failed) == ("", "")
    assert plain.turns[0].tokens * plain.turns[0].times == chunked.turns[0].tokens == 1024


@pytest.mark.release
def test_an_implementation_that_fails_has_its_reason_and_the_others_continue():
    broken = replace(TINY, shape=replace(TINY.shape, vocabulary=1))
    results = run(broken, "outdo")
    assert "Error" in results["outdo"].failed
    assert not results["outdo"].turns


@pytest.mark.skipif(not machine.available(), reason="only Linux has /proc as it is read here")
def test_what_others_use_of_the_machine_is_not_counted_as_the_implementations():
    before = machine.used(os.getsid(0))
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
    assert machine.used(os.getsid(0)) - before >= 0.15
    assert machine.busy() > 0


def test_a_turn_is_disturbed_when_others_take_a_tenth_of_the_machine():
    cores = os.cpu_count() or 1
    turn = TimedTurn(seconds=1.0, sampling=None, tokens=1, wall=1.0, used=1.0, foreign=0.09 * cores)
    assert not turn.disturbed
    assert replace(turn, foreign=0.11 * cores).disturbed
    assert not replace(turn, foreign=None).disturbed


@pytest.mark.release
def test_waiting_implementations_do_not_compute():
    running = Running(IMPLEMENTATIONS["outdo"], Setting(case=TINY, threads=2))
    try:
        running.turn()
        before = machine.used(running.process.pid)
        time.sleep(0.5)
        assert machine.used(running.process.pid) - before < 0.1
    finally:
        running.close()
    assert running.process.returncode is not None
