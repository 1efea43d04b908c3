"""A merged model is compared with its adapter: by the rounding of its weights, not by that of products."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from outdo.extras.quickstart.model import build
from outdo.models.adapter import trained_weights
from outdo.models.policy import Policy
from outdo.run.export.export import export, export_merged
from outdo.run.export.find_model import ModelRef, find_model
from outdo.testing import tiny_model
from outdo.utils.errors import UserError


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


def test_a_weight_that_is_too_large_for_a_dtype_is_not_exported_as_infinity(tmp_path: Path):
    model, tokenizer = tiny_model()
    with torch.no_grad():
        model.get_parameter("model.norm.weight")[3] = 1e5  # float16 ends at 65,504
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "trained")
    source = ModelRef(model=str(tmp_path / "trained"), name="run after step 1", step=1)
    with pytest.raises(
        UserError, match=r"--dtype float16: model.norm.weight holds 1 of 32 numbers that are not finite"
    ):
        export(source, tmp_path / "exported", dtype="float16")
    assert not (tmp_path / "exported").exists()
    assert load_file(export(source, tmp_path / "exported", dtype="bfloat16") / "model.safetensors")
