"""A merged model is compared with its adapter: by the rounding of its weights, not by that of products."""

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outdo.extras.quickstart.model import build
from outdo.models.adapter import trained_weights
from outdo.models.policy import Policy
from outdo.run.export.export import export_merged
from outdo.run.export.find_model import find_model


def test_merged_weights_are_those_of_peft_and_differ_by_less_than_1e_5_nats(tmp_path: Path):
    base = build(tmp_path / "base", seed=0)
    policy = Policy.load(base, adapter=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    with torch.no_grad():
        for number, weight in enumerate(trained_weights(policy.model).values()):
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)) / 8)
    policy.save(tmp_path / "adapter")
    error = export_merged(find_model(str(tmp_path / "adapter")), tmp_path / "merged")
    assert 0 < error.weights < 1e-5
    assert error.weights < error.products / 2
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    expected = merged.merge_and_unload().state_dict()
    found = load_file(tmp_path / "merged/model.safetensors")
    assert all(weight.equal(expected[name]) for name, weight in found.items())
    (tmp_path / "usual").touch()
    modes = {path.stat().st_mode for path in (tmp_path / "merged").iterdir()}
    assert modes == {(tmp_path / "usual").stat().st_mode}
    rounded = export_merged(find_model(str(tmp_path / "adapter")), tmp_path / "rounded", dtype="bfloat16")
    assert rounded.weights > 100 * error.weights
