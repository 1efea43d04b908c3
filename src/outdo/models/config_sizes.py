"""What the configuration of a model says about its sizes, whatever the names are in its architecture."""

from collections.abc import Mapping
from typing import Any

from outdo.models.kept_numbers import of_latent_keys, sizes_of_layers

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


def sizes_of(config: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the sizes of a model by the names of `ModelFacts`; those of the heads follow from others by default.

    A size that is no positive whole number is added to `problems`.
    """
    size: dict[str, Any] = {fact: _size(config, names, problems) for fact, names in SIZES.items()}
    heads = size["heads"]
    if heads and size["hidden_size"]:
        size["head_dim"] = of_latent_keys(config) or size["head_dim"] or size["hidden_size"] // heads
    size["max_positions"] = unchanged_positions(config) or size["max_positions"]
    size["kv_heads"] = size["kv_heads"] or heads
    return size | sizes_of_layers(config, size)


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
