"""A penalty for completions whose length comes near the limit."""

from collections.abc import Sequence


def overlong(completion: str, sampled_ids: Sequence[int], *, max_tokens: int, cache: int) -> float:
    """Return the soft overlong punishment, to be added to another reward; DAPO (arXiv 2503.14476) equation 13.

        0                  where n <= L - C
        ((L - C) - n) / C  where L - C < n <= L: from 0 down to -1
        -1                 where n > L

    with n the number of tokens that the policy sampled, including end-of-sequence tokens: of an episode those of all
    turns, without what the environment wrote. L = `max_tokens`; C = `cache`, the number of tokens before L with a
    penalty. With C = 0 there is no penalty up to L. This is TRL's form. verl, OpenRLHF and AReaL multiply by a factor
    (here the reward's weight) and differ beyond L: OpenRLHF stops at -factor as well, verl and AReaL continue to
    decrease. No answer is longer than L while L is the token limit of sampling. All of them count the results of tools
    as well, so that what a tool writes is punished.

    Raises:
        ValueError: C is negative or more than L.
    """
    if not 0 <= cache <= max_tokens:
        raise ValueError(f"cache = {cache} must lie between 0 and max_tokens = {max_tokens}")
    over = len(sampled_ids) - (max_tokens - cache)
    if over <= 0:
        return 0.0
    return -1.0 if over > cache else -over / cache
