"""A reward for the length of a completion: none is lost before it comes near its limit."""

from collections.abc import Sequence


def overlong(completion: str, completion_ids: Sequence[int], *, max_tokens: int, cache: int) -> float:
    """Soft overlong punishment, to be added to a reward of the answer; DAPO (arXiv 2503.14476) equation 13.

        0                  where n <= L - C
        ((L - C) - n) / C  where L - C < n <= L: from 0 down to -1
        -1                 where n > L

    with n the sampled tokens, the end-of-sequence token included; L = `max_tokens`, C = `cache`, the last tokens before
    L. With C = 0 nothing is taken off up to L. This is TRL's form. verl, OpenRLHF and AReaL multiply by a factor (here
    the reward's weight) and differ beyond L, where no answer comes while L is the sampling's own limit: OpenRLHF stops
    at -factor as well, verl and AReaL go on down.

    Raises:
        ValueError: C is negative or more than L.
    """
    if not 0 <= cache <= max_tokens:
        raise ValueError(f"cache = {cache} must lie between 0 and max_tokens = {max_tokens}")
    over = len(completion_ids) - (max_tokens - cache)
    if over <= 0:
        return 0.0
    return -1.0 if over > cache else -over / cache
