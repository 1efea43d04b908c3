"""The memory that `outdo check` estimates is what a real model takes on a processor."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "real_memory.py"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
@pytest.mark.parametrize("way", ["all weights", "LoRA", "LoRA on nf4", "long prompts", "32 answers", "critic"])
def test_the_estimate_is_within_25_percent_of_the_peak(
    smollm2: Path, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    script = runpy.run_path(str(SCRIPT), run_name="imported")
    script["prepare"](tmp_path)
    found = script["measure"](str(smollm2), way, tmp_path)
    assert found["estimate"] == pytest.approx(found["measured"], rel=0.25)
