"""An engine around another one, which does what its subclass does not do."""

from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from outdo.rollouts.engines.base import Engine, EpisodeT, Item, PolicyView
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Prompt, Request
from outdo.utils.rng import Stream


class WrappedEngine(Engine):
    """Asks `engine` for everything. A subclass overrides what it does otherwise, and hides nothing else."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    @property
    def version(self) -> int:
        return self.engine.version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.engine.tokenizer

    def update_weights(self, policy: PolicyView) -> None:
        self.engine.update_weights(policy)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        return self.engine.generate(requests, sampling)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self.engine.score(sequences)

    @property
    def returns_experts(self) -> bool:
        return self.engine.returns_experts

    @property
    def reads_inputs(self) -> bool:
        return self.engine.reads_inputs

    def check_inputs(self, prompts: Sequence[Prompt]) -> None:
        self.engine.check_inputs(prompts)

    @property
    def choice(self) -> SamplingChoice | None:
        return self.engine.choice

    @property
    def delivered_bytes(self) -> int:
        return self.engine.delivered_bytes

    def notes(self) -> list[str]:
        return self.engine.notes()

    @property
    def completed(self) -> tuple[int, int] | None:
        return self.engine.completed

    def divide_episodes(
        self, groups: Sequence[Item], play: Callable[[Engine, Sequence[Item]], list[EpisodeT]]
    ) -> list[EpisodeT]:
        return self.engine.divide_episodes(groups, play)

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        self.engine.end_episodes(episodes)

    def metrics(self) -> dict[str, float]:
        return self.engine.metrics()

    def sleep(self) -> bool:
        return self.engine.sleep()

    def health(self) -> None:
        self.engine.health()

    def restart(self) -> None:
        self.engine.restart()

    def close(self) -> None:
        self.engine.close()
