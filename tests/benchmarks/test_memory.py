"""The memory that `outdo check` estimates is what training takes on a processor."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "memory.py"
SETTINGS = ["train.group_size=8", "sampling.max_tokens=16"]


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Peak, estimate and checkpoint of each way, of a model with 15 million weights."""
    script = runpy.run_path(str(SCRIPT), run_name="imported")
    folder = tmp_path_factory.mktemp("memory")
    script["prepare"](folder, 384, 8)
    return {way: script["measure"](folder, way, SETTINGS) for way in ("full", "LoRA", "QLoRA")}


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is read from /proc")
def test_the_estimate_is_within_15_percent_of_the_peak_and_an_adapter_takes_little(memory: dict[str, dict[str, Any]]):
    for way, found in memory.items():
        assert found["estimate"] == pytest.approx(found["measured"], rel=0.15), way
    full, lora, qlora = (memory[way] for way in ("full", "LoRA", "QLoRA"))
    assert lora["measured"] < 0.6 * full["measured"]  # activations are the same
    assert qlora["measured"] < lora["measured"]
    assert lora["checkpoint"] <= 0.25 * full["checkpoint"]
