"""Adapters of the embedding and of the head, which may share a weight: they train, load and merge, or are refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from outdo.extras.vllm.weights import write_weights
from outdo.models.adapter import adapter_config, on_same_base, save_adapter, set_base, trained_weights
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import fit_adapter, load_model
from outdo.models.policy import Policy
from outdo.run.export.export import export_merged
from outdo.run.export.find_model import ModelRef
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError, UserError

TOKENS = torch.arange(40).view(2, 20) + 2
Q, HEAD, EMBEDDING = ["q_proj"], ["q_proj", "lm_head"], ["q_proj", "embed_tokens"]
BOTH = ["q_proj", "embed_tokens", "lm_head"]
SHARED = "does not work beside the target lm_head, which shares its weight with model.embed_tokens"

ADAPTERS: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "layers": ("lora", {}, ""),
    "head": ("lora", {"target_modules": HEAD}, ""),
    "embedding": ("lora", {"target_modules": EMBEDDING}, ""),
    "both": ("lora", {"target_modules": BOTH}, ""),
    "dora of the head": ("lora", {"target_modules": HEAD, "use_dora": True}, ""),
    "rslora of both": ("lora", {"target_modules": BOTH, "use_rslora": True}, ""),
    "parameter of the head": ("lora", {"target_parameters": ["lm_head.weight"]}, ""),
    "ia3 of the head": ("ia3", {"target_modules": ["k_proj", "lm_head"], "feedforward_modules": []}, ""),
    "loha of the head": ("loha", {"target_modules": HEAD}, ""),
    "whole head": ("lora", {"target_modules": Q, "modules_to_save": ["lm_head"]}, ""),
    "whole embedding": ("lora", {"target_modules": Q, "modules_to_save": ["embed_tokens"]}, ""),
    "both whole": ("lora", {"target_modules": Q, "modules_to_save": ["embed_tokens", "lm_head"]}, ""),
    "trained tokens": ("lora", {"target_modules": Q, "trainable_token_indices": [3, 4]}, ""),
    "trained tokens of the head": ("lora", {"target_modules": Q, "trainable_token_indices": {"lm_head": [3]}}, ""),
    "trained tokens alone": ("trainable_tokens", {"token_indices": [3, 4]}, ""),
    "tokens beside the head": (
        "lora",
        {"target_modules": HEAD, "trainable_token_indices": [3]},
        "trainable_token_indices",
    ),
    "pissa of the head": ("lora", {"target_modules": HEAD, "init_lora_weights": "pissa"}, "init_lora_weights"),
    "olora of the head": ("lora", {"target_modules": HEAD, "init_lora_weights": "olora"}, "init_lora_weights"),
    "tied layers": ("lora", {"target_modules": HEAD, "ensure_weight_tying": True}, "ensure_weight_tying"),
}
"""The method and options of an adapter, and a part of the sentence that refuses it where the weight is shared."""


@pytest.fixture(scope="module", params=[True, False], ids=["shared", "apart"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose head has the weight of its embedding, and one whose head has its own."""
    _, tokenizer = tiny_model()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=request.param,
    )
    folder = tmp_path_factory.mktemp("base")
    for part in (AutoModelForCausalLM.from_config(config), tokenizer):
        part.save_pretrained(folder)
    return folder


def shares(folder: Path) -> bool:
    """Whether the head of the model in a folder has the weight of its embedding."""
    return json.loads((folder / "config.json").read_text())["tie_word_embeddings"]


@torch.no_grad()
def logprobs(model: PreTrainedModel) -> Tensor:
    return model(input_ids=TOKENS, use_cache=False).logits.double().log_softmax(-1)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_of_embedding_or_head_trains_loads_and_merges_or_is_refused(base: Path, name: str, tmp_path: Path):
    method, options, refusal = ADAPTERS[name]
    config = adapter_config(method, **options)
    if refusal and shares(base):
        for load in (lambda: Policy.load(base, adapter=config), lambda: fit_adapter(inspect_folder(base), config)):
            with pytest.raises(ModelError, match=f"{refusal}.* {SHARED}"):
                load()
        return
    policy = Policy.load(base, adapter=config)
    before = logprobs(load_model(base))
    changes_base = options.get("init_lora_weights", True) is not True
    torch.testing.assert_close(logprobs(policy.model), before, rtol=0, atol=1e-6 if changes_base else 0)
    on_same_base(policy.model)  # the reference
    optimiser = torch.optim.Adam(trained_weights(policy.model).values(), lr=0.03)
    for _ in range(2):
        optimiser.zero_grad()
        policy.model(input_ids=TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        optimiser.step()
    trained = logprobs(policy.model)
    assert (trained - before).abs().max() > 1e-3
    folder = tmp_path / "adapter"
    set_base(policy.model, str(base), None)
    save_adapter(policy.model, folder)
    policy.tokenizer.save_pretrained(folder)
    assert torch.equal(logprobs(load_model(folder)), trained)
    export_merged(ModelRef(model=str(folder), name="adapter"), tmp_path / "merged")
    for whole in ("merged", "delivered"):
        if whole == "delivered":  # to vLLM
            (tmp_path / whole).mkdir()
            write_weights(policy, tmp_path / whole, as_adapter=False)
            policy.tokenizer.save_pretrained(tmp_path / whole)
        model = load_model(tmp_path / whole)
        assert (logprobs(model) - trained).abs().max() < 1e-5
        assert shares(base) or not shares(tmp_path / whole)
    if name == "layers":
        assert shares(tmp_path / "merged") == shares(base)


def test_an_adapter_that_cannot_be_merged_is_refused_and_nothing_is_written(tmp_path: Path):
    """PEFT merges no bias of an adapter into a layer without one."""
    model, tokenizer = tiny_model()
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "base")
    policy = Policy.load(tmp_path / "base", adapter=adapter_config("lora", target_modules=Q, lora_bias=True))
    policy.save(tmp_path / "adapter")
    with pytest.raises((ModelError, UserError), match="merge"):
        export_merged(ModelRef(model=str(tmp_path / "adapter"), name="adapter"), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize(
    ("method", "options"), [("lora", {"trainable_token_indices": [3, 4]}), ("trainable_tokens", {"token_indices": [3]})]
)
def test_trained_tokens_need_an_embedding_in_float32(base: Path, method: str, options: dict[str, Any]):
    config = adapter_config(method, **options)
    for load in (
        lambda: Policy.load(base, adapter=config, weights="bfloat16"),
        lambda: fit_adapter(inspect_folder(base), config, weights="bfloat16"),
    ):
        with pytest.raises(
            ModelError, match='trained tokens need an embedding in float32, not bfloat16: weights = "fl'
        ):
            load()
