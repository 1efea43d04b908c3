"""Limits of the engines, in a module that needs no torch, so that costs can be estimated from them."""

SEQUENCES_AT_A_TIME = 256
"""How many sequences the built-in engine samples at a time in each process."""

PREFILL_TOKENS = 4096
"""Tokens of prompts that the built-in engine reads in one forward pass, unless a single prompt is longer: so a few
hundred long prompts take no more memory than a few."""

EPISODE_CACHE_BYTES = 2**30
"""Bytes of keys and values that the built-in engine caches in each process for the next turns of episodes."""

CPU_BLOCK, ACCELERATOR_BLOCK = 64, 512
"""Tokens of a block: the cache of keys and values grows by blocks, and attention sums over blocks."""

HOST_READS_EVERY = 8
"""Tokens of each answer that an accelerator samples before the host looks at them."""
