"""How many numbers the layers of a model keep of a sequence in sampling, from its configuration.

Attention keeps keys and values of each token. A layer with a state keeps as much of a long sequence as of a short one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups")
"""Names of the number of groups of heads that read one key in a Mamba 2 layer."""

BOTH = "hybrid"
"""The kind of a layer that has attention and a Mamba 2 layer."""


WITHOUT_ATTENTION = ("falcon_mamba", "mamba", "mamba2", "rwkv", "xlstm")
"""Types of models in which no layer attends."""

ATTEND_TWICE = ("diffllama", "dory", "longcat_flash")
"""Types of models whose layers call attention twice, each time with keys and values of its own."""


def sizes_of_layers(config: Mapping[str, Any], size: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return how many layers keep keys and values, how many numbers these are, and what the others keep.

    `size` has the sizes of the model by the names of `ModelFacts`.
    """
    layers = size["layers"]
    kinds = _layer_kinds(config, layers or 0)
    attending = [index for index, kind in enumerate(kinds) if _attends(kind)]
    numbers = [_keys_and_values(_of_layer(config, size, index), kinds[index]) for index in attending]
    return {
        "layers": layers or len(kinds) or None,  # Nemotron-H names the kinds alone
        "attention_layers": len(attending) if kinds else layers,
        "kv_numbers": None if None in numbers or not kinds else sum(number or 0 for number in numbers),
        "state_numbers": sum(_state_numbers(config, kind) for kind in kinds),
    }


def of_latent_keys(config: Mapping[str, Any]) -> int | None:
    """Return the size of a key where a layer computes keys and values from a latent vector, as DeepSeek does."""
    of_key: list[int] = [config.get(name) or 0 for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    return sum(of_key) if config.get("kv_lora_rank") and all(of_key) else None


def _attends(kind: str) -> bool:
    return ("attention" in kind and "linear" not in kind) or kind == BOTH


def _of_layer(config: Mapping[str, Any], size: Mapping[str, int | None], index: int) -> dict[str, Any]:
    """Return the configuration of a layer, with its heads and their size by one name each."""
    apart = {int(number): values for number, values in (config.get("per_layer_config") or {}).items()}
    of_model = {
        "num_attention_heads": size["heads"],
        "num_key_value_heads": size["kv_heads"],
        "head_dim": config.get("attention_head_dim") or size["head_dim"],  # Zamba's heads are as wide as two layers
    }
    return {**config, **of_model, **apart.get(index, {})}


def _keys_and_values(layer: Mapping[str, Any], kind: str) -> int | None:
    """Return how many numbers of keys and values an attention layer keeps of a token; None if that is not known."""
    heads, of_key = layer["num_key_value_heads"], layer["head_dim"]
    if latent := of_latent_keys(layer):  # outdo's cache and that of transformers keep what is computed of it
        heads, of_key = layer["num_attention_heads"], latent
    if not heads or not of_key:
        return None
    if layer.get("model_type") in ATTEND_TWICE or (
        layer.get("model_type") == "mimo_v2_flash" and kind == "sliding_attention"
    ):
        heads *= 2
    return heads * (of_key + (layer.get("v_head_dim") or of_key))


def _layer_kinds(config: Mapping[str, Any], layers: int) -> list[str]:
    """Return the kind of each layer, such as full_attention, linear_attention, conv or mamba."""
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(kinds, list):
        return [kind for kind in kinds if isinstance(kind, str)]
    if isinstance(pattern := config.get("block_types"), list) and pattern:  # RecurrentGemma
        return [str(pattern[index % len(pattern)]) for index in range(layers)]
    if attending := _attending_layers(config, layers):
        indices, other = attending
        return ["attention" if index in indices else other for index in range(layers)]
    if "mamba_d_ssm" in config:  # Falcon-H1
        return [BOTH] * layers
    return ["mamba" if config.get("model_type") in WITHOUT_ATTENTION else "attention"] * layers


def _attending_layers(config: Mapping[str, Any], layers: int) -> tuple[Sequence[int], str] | None:
    """Return the indices of the layers that attend, and the kind of the others, where the former alone are named."""
    indices, group = config.get("attn_layer_indices"), config.get("layer_group_size")
    numbers = _linear_attention(config).get("full_attn_layers")
    period, offset = config.get("attn_layer_period"), config.get("attn_layer_offset")
    if isinstance(indices, list):  # Bamba
        return indices, "mamba"
    if isinstance(numbers, list):  # Kimi Linear, as it is published
        return [number - 1 for number in numbers], "linear_attention"
    if isinstance(group, int) and group > 0:  # Ling 3.0, as it is published
        return range(group - 1, layers, group), "linear_attention"
    if isinstance(period, int) and isinstance(offset, int) and period > 0:  # Jamba
        return range(offset, layers, period), "mamba"
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
    if kind in ("mamba", "linear_attention", BOTH) and (inner := _width_of_first_mamba(config)):
        return inner * (size("state_size", "mamba_d_state") + size("conv_kernel", "mamba_d_conv"))
    if kind in ("mamba", "linear_attention", BOTH):
        heads = size("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
        of_head = size("mamba_head_dim", "mamba_d_head", "mamba_headdim", "head_dim")
        state, groups = size("ssm_state_size", "mamba_d_state", "state_size"), size(*GROUPS)
        before = max(0, size("conv_kernel", "mamba_d_conv") - 1)
        return heads * of_head * state + before * (heads * of_head + 2 * groups * state)
    return 0


def _width_of_first_mamba(config: Mapping[str, Any]) -> int:
    """Return the inner width of layers of the first Mamba, which have no heads; 0 of others."""
    if config.get("model_type") in ("falcon_mamba", "mamba"):
        return config.get("intermediate_size") or 0
    if config.get("model_type") in ("jamba", "zamba"):
        return (config.get("mamba_expand") or 0) * (config.get("hidden_size") or 0)
    return 0
