"""Every command that trains or samples by a seed lets torch use only deterministic algorithms: docs/reproducibility.md.

`outdo train` has tests of its own.
"""

import io
import json

import pytest
import torch

OF_CPU = ("--device", "cpu")
ANSWERS = ("--max-tokens", "2", *OF_CPU)
STEP = ("--steps", "1", "--batch", "1", *OF_CPU)


@pytest.mark.parametrize("command", ["chat", "eval", "generate", "sft", "reward-model"])
def test_a_command_computes_by_deterministic_algorithms(command, outdo, model, sums, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\n"))
    pairs, out = tmp_path / "pairs.jsonl", tmp_path / "out"
    pairs.write_text("".join(json.dumps({"prompt": each, "chosen": "a", "rejected": "b"}) + "\n" for each in "12"))
    arguments = {
        "chat": ANSWERS,
        "eval": ("--data", sums, "--limit", "1", *ANSWERS),
        "generate": ("--data", sums, "--out", out, "--limit", "1", *ANSWERS),
        "sft": ("--data", sums, "--out", out, *STEP),
        "reward-model": ("--data", pairs, "--out", out, *STEP),
    }
    torch.set_deterministic_debug_mode("default")
    done = outdo(command, model, *arguments[command])
    assert done.status == 0, done.error
    assert torch.get_deterministic_debug_mode() == 2
