"""What the configuration of a model says about its sizes, whatever the names are in its architecture."""

from collections.abc import Mapping, Sequence
from typing import Any

SIZES = {  # fact: the names it has in the config.json of various architectures
    "hidden_size": ("hidden_size", "n_embd", "d_model", "emb_dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_decoder_layers"),
    "heads": (
        *("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
        *("decoder_attention_heads", "num_decoder_attention_heads"),
    ),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "vocab_size": ("vocab_size",),
    "max_positions": (
        *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
        "model_max_length",  # Kimi Linear, Ling 3.0
        "max_target_positions",  # Whisper
        "context_length",  # RWKV
    ),
}

GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")
"""Names of the number of groups of heads that read one key in a Mamba 2 layer."""

BOTH = "hybrid"
"""The kind of a layer that has attention and a Mamba 2 layer."""


def sizes_of(config: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the sizes of a model by the names of `ModelFacts`; those of the heads follow from others by default.

    A size that is no positive whole number is added to `problems`.
    """
    size: dict[str, Any] = {fact: _size(config, names, problems) for fact, names in SIZES.items()}
    heads = size["heads"]
    if heads and size["hidden_size"]:
        size["head_dim"] = size["head_dim"] or size["hidden_size"] // heads
    size["max_positions"] = unchanged_positions(config) or size["max_positions"]
    size["kv_heads"] = size["kv_heads"] or heads
    return size | _sizes_of_layers(config, size["layers"])


def _sizes_of_layers(config: Mapping[str, Any], layers: int | None) -> dict[str, int | None]:
    """Return how many of the layers keep keys and values, and what the others keep."""
    if not (kinds := _layer_kinds(config, layers or 0)):
        return {"attention_layers": layers, "state_numbers": 0}
    attending = [kind for kind in kinds if ("attention" in kind and "linear" not in kind) or kind == BOTH]
    return {
        "layers": layers or len(kinds),  # Nemotron-H names the kinds alone
        "attention_layers": len(attending),
        "state_numbers": sum(_state_numbers(config, kind) for kind in kinds),
    }


def _layer_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer, such as full_attention, linear_attention, conv or mamba; empty: all attend."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list):
        return [kind for kind in kinds if isinstance(kind, str)]
    if attending := _attending_layers(config, layers):
        indices, other = attending
        return ["attention" if index in indices else other for index in range(layers)]
    if "mamba_d_ssm" in config:  # Falcon-H1
        return [BOTH] * layers
    return ["mamba"] * layers if config.get("model_type") == "mamba2" else []


def _attending_layers(config: Mapping[str, Any], layers: int) -> tuple[Sequence[int], str] | None:
    """Return the indices of the layers that attend, and the kind of the others, where the former alone are named."""
    indices, group = config.get("attn_layer_indices"), config.get("layer_group_size")
    numbers = _linear_attention(config).get("full_attn_layers")
    if isinstance(indices, list):  # Bamba
        return indices, "mamba"
    if isinstance(numbers, list):  # Kimi Linear, as it is published
        return [number - 1 for number in numbers], "linear_attention"
    if isinstance(group, int) and group > 0:  # Ling 3.0, as it is published
        return range(group - 1, layers, group), "linear_attention"
    return None


def _linear_attention(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration, with what Kimi Linear, as it is published, has in one of its own for linear layers."""
    inner = config.get("linear_attn_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _state_numbers(config: Mapping[str, Any], kind: str) -> int:
    """Return how many numbers a layer of a kind keeps of a sequence, beside keys and values; 0 of an unknown layer.

    That is what `outdo.models.fast` keeps: the last inputs of a convolution, and a matrix in each head.
    """

    def size(*names: str) -> int:
        return next((value for name in names if isinstance(value := linear.get(name), int)), 0)

    linear = _linear_attention(config)

    if kind == "conv":  # LFM2
        return (size("conv_L_cache") - 1) * size("hidden_size")
    if kind == "linear_attention" and "linear_num_value_heads" in config:  # a gated delta net
        keys, heads = size("linear_num_key_heads"), size("linear_num_value_heads")
        of_key, of_value = size("linear_key_head_dim"), size("linear_value_head_dim")
        before = max(0, size("linear_conv_kernel_dim") - 1)
        return heads * of_key * of_value + before * (2 * keys * of_key + heads * of_value)
    if kind == "linear_attention" and linear.keys() & {"linear_num_heads", "short_conv_kernel_size"}:  # Kimi's
        width = size("linear_head_dim", "head_dim")
        before = max(0, size("linear_conv_kernel_dim", "short_conv_kernel_size") - 1)
        return size("linear_num_heads", "num_heads", "num_attention_heads") * width * (width + 3 * before)
    if kind in ("mamba", "linear_attention", BOTH):
        heads = size("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
        of_head = size("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
        state, groups = size("ssm_state_size", "mamba_d_state", "state_size"), size(*GROUPS)
        before = max(0, size("conv_kernel", "mamba_d_conv") - 1)
        return heads * of_head * state + before * (heads * of_head + 2 * groups * state)
    return 0


def unchanged_positions(config: Mapping[str, Any]) -> int | None:
    """Return for how many positions rotary embeddings of the kind "longrope" have their short factors; None: not there.

    transformers takes the long factors for all rows of a batch as soon as one is longer. Then the log-probabilities of
    a sequence depend on the others of its batch, and cached keys have other frequencies than the queries that read
    them. So these models are trained within their original context.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return None
    kinds = [rope, *(part for part in rope.values() if isinstance(part, Mapping))]  # by layer type, in some models
    if not (long := [part for part in kinds if part.get("rope_type", part.get("type")) in ("longrope", "su")]):
        return None
    original = config.get("original_max_position_embeddings")
    return original or min(part.get("original_max_position_embeddings") or 0 for part in long) or None


def _size(config: Mapping[str, Any], names: tuple[str, ...], problems: list[str]) -> int | None:
    key = next((name for name in names if config.get(name) is not None), None)
    if key is None:
        return None
    value = config[key]
    if type(value) is not int or value < 1:
        problems.append(f"config.json: {key} should be a positive whole number, not {value!r}")
        return None
    return value
