"""Small models of the families of causal language models that transformers has, with one layer of each kind."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 264
LARGEST = 20_000_000
"""Weights of a model that counts as small."""

SIZES: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "attention_hidden_size"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "dim_ff", "ffn_hidden_size"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "intermediate_size_mlp", "mlp_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers", "num_layers_per_stack"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "global_head_dim", "swa_head_dim", "mamba_head_dim"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank", "mamba_dt_rank", "laurel_rank"), 16),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads", "index_n_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "num_expert_group", "topk_group", "n_shared_experts", "o_groups"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "mamba_d_state", "state_size", "mamba_d_head"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "context_length"), 512),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_n_groups"), 8),
    "mamba_d_ssm": 64,
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1),
    "rotary_dim": 4,
    "vocab_size": VOCABULARY,
    "vocab_size_per_layer_input": VOCABULARY,
    "sliding_window": 8,
    "initializer_range": 0.2,
    "is_decoder": True,
}
"""Numbers of a small model, by the names that configurations have for them."""

ALTERNATIVES: tuple[Mapping[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4, "head_dim": 8},  # as many as of queries
    {"n_groups": 1, "num_heads": 8, "head_dim": 8, "mamba_n_groups": 1},
)
"""Numbers that are tried one after the other beside these."""

_WINDOWED = {"layer_types": ["sliding_attention", "full_attention"]}
_CONVOLUTIONS = {"layer_types": ["conv", "full_attention"]}
_HYBRID = {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4, "attention_hidden_size": 64}
_INDEXED = {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8}
_NOTE = {
    "layer_types": ["indexed_attention", "sliding_attention"],
    "mlp_layer_types": ["dense", "sparse"],
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "per_layer_config": {1: {"num_attention_heads": 8, "num_key_value_heads": 8}},
}
_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}

SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere2_moe": {"mlp_layer_types": ["dense", "sparse"]},
    "cohere_compass_text": {**_WINDOWED, "rope_parameters": {"sliding_attention": _ROPE, "full_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0}},
    "dots1": _WINDOWED,
    "dots3_note": _NOTE,
    "dots3_note_text": _NOTE,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "laguna": _WINDOWED,
    "lfm2": _CONVOLUTIONS,
    "lfm2_moe": _CONVOLUTIONS,
    "mellum": _WINDOWED,
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse"],
    },
    "moshi": {"audio_vocab_size": 64},
    "qwen4_exp": {**_INDEXED, "indexer_compress_ratio": 2},
    "qwen4_exp_text": {**_INDEXED, "indexer_compress_ratio": 2},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [16, 32]},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": _HYBRID,
    "zamba2": _HYBRID,
    "zaya": {"num_experts_per_tok": 1},
}
"""What the configuration of a family needs beside these, where its default lacks a kind of layer or a size."""

MOST_KINDS = 4
"""Values of a list in a configuration that names kinds of layers; more are numbers of layers."""


def small(family: str) -> PreTrainedModel:
    """Return a small model of a family, with one layer of each kind. Raises the last error where none can be built."""
    whole = CONFIG_MAPPING[family]()
    text = whole.get_text_config(decoder=True)
    default = whole if text.model_type == whole.model_type else text
    names = {*default.to_dict(), *default.attribute_map}
    last: Exception = ValueError("no way to build it")
    for alternative in ALTERNATIVES:
        numbers = {**SIZES, **alternative}
        sizes = {name: number for name, number in numbers.items() if name in names}
        for part, config in default.sub_configs.items():
            if isinstance(config, type) and issubclass(config, PretrainedConfig):
                sizes[part] = {name: numbers[name] for name in config().to_dict() if name in numbers}
        try:
            kinds = _kinds_of_layers(default, sizes)
            return _built(family, default, {**sizes, **kinds, **SPECIAL.get(family, {})})
        except Exception as error:  # the next alternative may do
            last = error
    raise last


def _built(family: str, default: Any, sizes: Mapping[str, Any]) -> PreTrainedModel:
    config = type(default)(**sizes, eos_token_id=0, pad_token_id=1, bos_token_id=2)
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    make = AutoModelForCausalLM.from_config if known else kind._from_config
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in make(config).parameters())
    if weights > LARGEST:
        raise ValueError(f"its configuration has other names for some sizes, and {weights / 1e6:.0f} million weights")
    torch.manual_seed(0)
    model = make(config, dtype=torch.float32).eval()
    model(input_ids=torch.arange(5, 15)[None], use_cache=False)
    return model


def _kinds_of_layers(default: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return one layer of each kind, where a configuration has lists of what its layers are.

    A layer with sizes of its own gets twice those of the others. Where the last layers read the keys of earlier ones,
    there is each kind of both.
    """
    layers = getattr(default, "num_hidden_layers", 0)
    lists = {name: values for name, values in vars(default).items() if _names_kinds(values, layers)}
    apart = {int(index): tuple(names) for index, names in default.to_dict().get("per_layer_config", {}).items()}
    if not (lists or apart):
        return {}
    kinds = {(*(values[index] for values in lists.values()), apart.get(index, ())): index for index in range(layers)}
    chosen = sorted(kinds.values())
    shared = {"num_kv_shared_layers": len(chosen)} if getattr(default, "num_kv_shared_layers", 0) else {}
    chosen *= 1 + bool(shared)
    larger = {new: {name: 2 * sizes[name] for name in apart[old]} for new, old in enumerate(chosen) if old in apart}
    return {
        **{name: [values[index] for index in chosen] for name, values in lists.items()},
        **({"per_layer_config": larger} if larger else {}),
        **shared,
        "num_hidden_layers": len(chosen),
    }


def _names_kinds(values: Any, layers: int) -> bool:
    """Return whether a value of a configuration names a few kinds, one for each of its layers."""
    return isinstance(values, (list, tuple)) and len(values) == layers and 1 < len({*map(str, values)}) <= MOST_KINDS


def phrase(error: Exception) -> str:
    """Return the first line of an error, cut after a phrase."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 110 else f"{text[:107]}..."
