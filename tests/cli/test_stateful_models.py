"""A run of a model whose layers have a state, by the command."""

import json
from pathlib import Path

import pytest
from command_cases import SMALL, Command

from outdo.testing import tiny_model


@pytest.mark.parametrize("arch", ["qwen3_5_text", pytest.param("bamba", marks=pytest.mark.release)])
def test_a_run_shares_prompts_and_samples_by_continuous_batching(outdo: Command, sums: Path, tmp_path: Path, arch: str):
    """Sampler and trainer agree in each step; after the first, weights are others than those that were compared."""
    tiny_model(tmp_path / arch, arch=arch)
    data = (f"data.path={sums}", "data.eval_rows=4", "attention=shared")
    done = outdo("train", f"model={tmp_path / arch}", f"run={tmp_path / 'run'}", *data, *SMALL)
    assert done.status == 0, done.error
    notes = (tmp_path / "run/start.txt").read_text()
    assert "attention: shared" in notes
    assert "model.generate" not in notes  # of which a run warns
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    differences = [line["sampling/sampling_logp_difference/max"] for line in lines if line["step"]]
    assert len(differences) == 2
    assert max(differences) < 1e-4
