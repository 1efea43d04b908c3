"""Limits of the model code, in a module that needs no torch, so that costs can be estimated from them."""

MISMATCH = 0.01
"""Nats by which two computations of a log-probability in float32 may differ. No rounding makes them differ by more."""

LOGIT_BYTES = {"cpu": 8 * 2**20, "mps": 256 * 2**20, "cuda": 256 * 2**20}
"""Bytes of logits that exist at a time, by the type of the device. A processor is fastest while they stay in its
cache, an accelerator at large products."""

SUM_BYTES = {"cpu": 32 * 2**20, "mps": 256 * 2**20, "cuda": 256 * 2**20}
"""Bytes of the logits that a sum over the vocabulary gets at a time, by the type of the device. It may make some ten
tensors of that size."""

LOGIT_COLUMNS = 256
"""The smallest number of columns of the vocabulary whose logits are computed at a time, whatever their bytes."""

DIVISIBLE_WEIGHTS = ("float32", "bfloat16")
"""How the frozen weights of a model that is divided among replicas may be stored."""

DIVISIBLE_LORA = frozenset(
    {
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern"),
    }
)
"""Options of LoRA that a divided model allows. Others read, change or train weights of the base."""

CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""How the names of LoRA's initialisations begin that change the weights under the adapter."""

PACKED_BYTES = 2**30
"""Bytes of linear layers up to which a processor samples from a copy in the order in which oneDNN reads them. Larger
models are not copied, not even for a while."""
