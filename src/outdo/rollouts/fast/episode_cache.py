"""What layers keep of episodes that wait for their environment, so that the next turn reads only what is new.

They are a copy of what the engine would compute again, bit for bit on a CPU in float32. So an episode may lose them at
any time: what does not fit is not cached, and the next turn reads the whole episode again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outdo.rollouts.engines.limits import EPISODE_CACHE_BYTES
from outdo.rollouts.engines.sequences import SequenceState
from outdo.rollouts.fast.layer_caches import RowState
from outdo.types import Request
from outdo.utils.rng import Stream


@dataclass(frozen=True, slots=True)
class CachedEpisode:
    """The last turn of an episode, with what layers keep of all tokens up to the one before its last."""

    turn: SequenceState
    states: Sequence[RowState]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens that `states` are about."""
        return (*self.turn.request.token_ids, *self.turn.token_ids[:-1])

    @property
    def size(self) -> int:
        """Bytes of `states`."""
        return sum(tensor.numel() * tensor.element_size() for state in self.states for tensor in state)

    def continues(self, request: Request) -> bool:
        """Return whether a request goes on after the tokens of this turn, with the same prompt before the first one."""
        known = self.token_ids
        same_prompt = request.prompt_length == len(self.turn.prompt)
        return same_prompt and len(known) < len(request.token_ids) and request.token_ids[: len(known)] == known


class EpisodeCache:
    """The cached episodes, by their names; at most `most` bytes of what layers keep."""

    def __init__(self, most: int = EPISODE_CACHE_BYTES) -> None:
        self.most = most
        self.size = 0
        self._episodes: dict[Stream, CachedEpisode] = {}

    def __len__(self) -> int:
        return len(self._episodes)

    def cached_tokens(self, request: Request) -> int:
        """Return how many tokens of a request need not be read."""
        cached = None if request.episode is None else self._episodes.get(request.episode)
        return len(cached.token_ids) if cached and cached.continues(request) else 0

    def take(self, request: Request) -> CachedEpisode | None:
        """Remove and return the cached episode of a request; None if the request does not continue it."""
        if request.episode is None or (cached := self._remove(request.episode)) is None:
            return None
        return cached if cached.continues(request) else None

    def keep(self, cached: CachedEpisode) -> None:
        """Keep a turn in place of an earlier one of its episode, unless there is no room for it.

        Nothing makes room for it: episodes take turns, so that the one that waits longest is the next to go on.
        """
        episode = cached.turn.request.episode
        assert episode is not None
        self._remove(episode)
        if self.size + cached.size <= self.most:
            self._episodes[episode] = cached
            self.size += cached.size

    def drop(self, episodes: Iterable[Stream] | None = None) -> None:
        """Drop some episodes, or all."""
        for episode in list(self._episodes) if episodes is None else episodes:
            self._remove(episode)

    def _remove(self, episode: Stream) -> CachedEpisode | None:
        cached = self._episodes.pop(episode, None)
        self.size -= 0 if cached is None else cached.size
        return cached
