"""`make bench` as it is typed."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.suite.cases import CASES, USUAL
from benchmarks.suite.implementations import IMPLEMENTATIONS, OWN
from benchmarks.suite.implementations import USUAL as USUAL_IMPLEMENTATIONS

ACCEPTED = Path(__file__).parent / "accepted.json"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.suite", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_cases_and_implementations_are_listed_without_loading_torch():
    program = "import sys; from benchmarks.suite.__main__ import app; app(['--list'], standalone_mode=False)"
    program += "; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    for name in (*CASES, *IMPLEMENTATIONS):
        assert name in done.stdout


def test_the_tables_name_only_what_there_is():
    assert set(USUAL) <= CASES.keys()
    assert all(each.about and ":" in each.run for each in IMPLEMENTATIONS.values())
    assert {*OWN.values(), *itertools.chain(*USUAL_IMPLEMENTATIONS.values())} <= IMPLEMENTATIONS.keys()


def test_all_mistakes_are_reported_at_once_before_anything_is_timed(tmp_path):
    files = ["--plot", "a.jpg", "--gate", str(tmp_path / "none"), "--json", str(tmp_path / "no/a")]
    done = bench("small-8x9", "--against", "trl-tunned", *files)
    assert done.returncode == 2
    near = ("did you mean small-8x8?", "did you mean trl-tuned?")
    for words in (*near, ".svg or .png", "expected a file", "there is no folder"):
        assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.release
def test_the_benchmark_fails_when_a_count_has_grown(tmp_path):
    gate, accepted = tmp_path / "gate.json", tmp_path / "accepted.json"
    known = json.loads(ACCEPTED.read_text())
    known["counts"]["update/operations"] -= 1
    gate.write_text(json.dumps(known))
    files = ["--gate", str(gate), "--accept", str(accepted), "--json", str(tmp_path / "all.json")]
    closed = bench("counts", *files)
    assert closed.returncode == 1
    assert "update/operations grew" in closed.stderr
    assert "decode/operations" not in closed.stderr
    assert "--accept" in closed.stderr
    counts = json.loads((tmp_path / "all.json").read_text())["cases"][0]["counts"]
    assert json.loads(accepted.read_text())["counts"] == counts
    assert counts["update/operations"] == known["counts"]["update/operations"] + 1
