"""Recognise the errors that mean that memory does not suffice. Works without torch."""

OUT_OF_MEMORY = (
    "memory does not suffice. Less is needed with a smaller `train.micro_batch_tokens`, `sampling.max_tokens` "
    "or `train.prompts`, with `train.gradient_checkpointing = true`, or with a smaller model"
)

SIGNS = ("DefaultCPUAllocator: can't allocate memory", "DefaultCPUAllocator: not enough memory", "out of memory")
"""What the messages of torch contain that has no class for running out of memory on a CPU."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory does not suffice, on a CPU or on an accelerator."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
