"""Medians, ratios, the roofline, and the baseline."""

import json

from benchmarks.suite import baseline
from benchmarks.suite.cases import CASES, Case, Shape
from benchmarks.suite.report import report_of
from benchmarks.suite.roofline import Weights, roofline
from benchmarks.suite.rounds import Result, TimedTurn

CASE = CASES["small-8x8"]
WEIGHTS = {"matrices": 100, "head": 10, "all": 120, "layers": 2, "attention": 8}


def turn(seconds: float | None, sampling: float | None = None, foreign: float = 0.0) -> TimedTurn:
    return TimedTurn(
        seconds=seconds, sampling=sampling, tokens=1, wall=seconds or sampling or 0, used=0.0, foreign=foreign
    )


def results(own: list[TimedTurn], theirs: list[TimedTurn]) -> dict[str, Result]:
    speed = TimedTurn(seconds=None, sampling=None, tokens=0, figures={"multiply": 1e9, "copy": 1e9})
    return {
        "outdo": Result(turns=own, about={"weights": WEIGHTS}, memory=100),
        "trl-tuned": Result(turns=theirs, memory=250),
        "machine": Result(turns=[speed]),
    }


def test_ratios_are_taken_round_by_round():
    report = report_of(CASE, results([turn(1.0), turn(2.0), turn(4.0)], [turn(3.0), turn(4.0), turn(12.0)]))
    own, theirs = report.entries
    assert own.ratio is None
    assert theirs.ratio is not None
    assert (theirs.ratio.low, theirs.ratio.median, theirs.ratio.high) == (2.0, 3.0, 3.0)
    assert theirs.memory_ratio == 2.5


def test_disturbed_rounds_are_left_out_where_enough_others_are_there():
    own = [turn(1.0), turn(9.0, foreign=9.0), turn(1.0)]
    report = report_of(CASE, results(own, [turn(2.0), turn(2.0), turn(2.0)]))
    assert report.entries[0].seconds is not None
    assert report.entries[0].seconds.high == 1.0
    assert report.entries[0].disturbed == 1
    assert report.entries[1].ratio is not None
    assert report.entries[1].ratio.low == 2.0


def test_the_roofline_equals_a_count_by_hand():
    shape = Shape(hidden=4, layers=2, heads=2, kv_heads=1, mlp=4, vocabulary=8)
    case = Case(name="by hand", about="", shape=shape, prompts=3, prompt_tokens=2, answers=(2, 3))
    found = roofline(case, Weights(**WEIGHTS))
    read = 2 + 1 + 2  # the prompt, and all but the last token of each answer
    pairs = (1 + 2) + 3 + (3 + 4)  # prompt; first answer's token; the second's two
    assert found.sampling == 3 * (2 * 100 * read + 2 * 10 * 5 + 4 * 2 * 8 * pairs)
    assert found.training == 3 * found.sampling
    assert found.sampling_bytes == 4 * 120 * 3


def test_the_baseline_tolerates_noise_but_neither_a_lost_optimisation_nor_one_operator_more():
    accepted = {"ratios": {"a": {"trl": {"step": 2.0}}}, "counts": {"operations": 10}}
    assert baseline.worse(accepted, {"ratios": {"a": {"trl": {"step": 1.21}}}, "counts": {"operations": 10}}) == []
    (ratio,) = baseline.worse(accepted, {"ratios": {"a": {"trl": {"step": 1.19}}}, "counts": {"operations": 9}})
    assert "2 x" in ratio
    assert "1.19 x" in ratio
    (count,) = baseline.worse(accepted, {"counts": {"operations": 11}})
    assert "from 10 to 11" in count


def test_accepting_one_case_keeps_the_others(tmp_path):
    path = tmp_path / "accepted.json"
    baseline.accept(path, {"versions": {}, "counts": {"operations": 1}, "ratios": {"a": {"trl": {"step": 1.0}}}})
    baseline.accept(path, {"versions": {}, "counts": {}, "ratios": {"b": {"trl": {"step": 2.0}}}})
    assert json.loads(path.read_text()) == {
        "versions": {},
        "counts": {"operations": 1},
        "ratios": {"a": {"trl": {"step": 1.0}}, "b": {"trl": {"step": 2.0}}},
    }
