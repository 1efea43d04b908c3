"""Which modules an adapter is on: all linear layers but those on which it does not work, which are refused by name."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn

from benchmarks.family_models import small
from outdo.models.adapter import adapter_config, attach, attach_saved, save_adapter, trained_weights
from outdo.models.adapter_targets import left_out_note
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import fit_adapter
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError

TOKENS = torch.arange(5, 15)[None]

LEFT_OUT = {
    **dict.fromkeys(("mamba", "falcon_mamba"), ("dt_proj", "out_proj")),
    **dict.fromkeys(("mamba2", "falcon_h1", "nemotron_h"), ("out_proj",)),
    "jamba": ("dt_proj",),
    **dict.fromkeys(("bamba", "granitemoehybrid", "zamba", "zamba2"), ()),
    **dict.fromkeys(("llama4_text", "phimoe"), ("router",)),
}
"""What LoRA on all linear layers leaves out, by family."""

OF_OTHER_LAYERS = "adapter_list"
"""Zamba 2 has weights beside the layer that all share, and a layer has those of the others too."""


@pytest.mark.parametrize(("family", "left_out"), LEFT_OUT.items())
def test_lora_is_on_all_linear_layers_of_a_family_but_those_on_which_it_does_not_work(
    family: str, left_out: tuple[str, ...]
):
    model, config = small(family), adapter_config("lora", r=2)
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    note = left_out_note(model, config)
    attach(model, config)
    model(input_ids=TOKENS, use_cache=False).logits.square().sum().backward()
    trained = trained_weights(model)
    on = {name.partition(".lora_")[0] for name in trained}
    assert {name.rpartition(".")[2] for name in linear - on} == {"lm_head", *left_out}
    assert not [name for name, weight in trained.items() if weight.grad is None and OF_OTHER_LAYERS not in name]
    assert bool(note) == bool(left_out)
    assert all(end in note for end in left_out)


@pytest.mark.parametrize(("family", "end"), [(family, end) for family, ends in LEFT_OUT.items() for end in ends])
def test_a_module_on_which_lora_does_not_work_is_refused_by_name(family: str, end: str):
    with pytest.raises(ModelError, match=rf"lora does not work on \S*\.{end} of a {family} model; leave {end} out of"):
        attach(small(family), adapter_config("lora", target_modules=[end]))


def test_what_is_left_out_is_so_in_a_saved_adapter_too(tmp_path: Path):
    model, again = small("mamba"), small("mamba")
    attach(model, adapter_config("lora", r=2, init_lora_weights=False))
    save_adapter(model, tmp_path)
    attach_saved(again, tmp_path)
    with_peft = PeftModel.from_pretrained(small("mamba"), str(tmp_path))
    expected = model(input_ids=TOKENS, use_cache=False).logits
    assert torch.equal(again(input_ids=TOKENS, use_cache=False).logits, expected)
    assert torch.allclose(with_peft(input_ids=TOKENS, use_cache=False).logits, expected, atol=1e-5)


def test_an_adapter_is_tried_on_a_model_before_it_is_loaded_with_a_note(tmp_path: Path):
    tiny_model(tmp_path, arch="mamba")
    fit = fit_adapter(inspect_folder(tmp_path), adapter_config("lora", r=2))
    assert fit.weights
    assert fit.notes == [
        "adapter: on all linear layers but dt_proj, out_proj, where lora does not work in a mamba model"
    ]
    with pytest.raises(ModelError, match=r"leave out_proj out of its targets"):
        fit_adapter(inspect_folder(tmp_path), adapter_config("lora", target_modules=["in_proj", "out_proj"]))
