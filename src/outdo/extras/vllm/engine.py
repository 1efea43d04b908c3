"""The engine that samples by vLLM: its requests and their results, in the form that vLLM has.

vLLM runs in an environment of its own: as a process that this engine starts with the interpreter of that environment
(`process.py`), or as a server elsewhere (`http.py`). Nothing of vLLM is imported here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.extras.remote_engines.remote import TIMEOUT
from outdo.extras.vllm.base import Server
from outdo.extras.vllm.http import HttpServer
from outdo.extras.vllm.process import ProcessServer
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import StopRule
from outdo.types import Completion, FinishReason, Request
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.rng import stream_key
from outdo.utils.world import World

FINISH_REASONS = {"stop": FinishReason.stop, "length": FinishReason.length}


def open_vllm(policy: Policy, world: World, **options: Any) -> Callable[[PolicyView], Engine]:
    """Return what makes the engine beside a run, with `options` of `vllm`."""
    return partial(vllm, **options)


def vllm(
    policy: PolicyView,
    *,
    seed: int = 0,
    python: str | None = None,
    url: str | None = None,
    served_model: str | None = None,
    folder: str | None = None,
    timeout: float = TIMEOUT,
    sleep: bool = False,
    **options: Any,
) -> Engine:
    """Return an engine that samples by vLLM; it has no weights before the first `update_weights`.

    With `python`, the interpreter of an environment that has vLLM, it is a process of its own, and `options` are those
    of `vllm.LLM`; with `sleep` the trainer has its memory between two samplings. With `url` it is a server that runs
    already; `served_model` is the name of the model there, and `folder` one that it shares with the trainer, for
    weights.
    """
    if python is not None:
        server: Server = ProcessServer(str(Path(python).expanduser()), options, timeout=timeout, sleeps=sleep)
    else:
        assert url is not None
        shared = None if folder is None else Path(folder).expanduser()
        server = HttpServer(url, model=served_model, timeout=timeout, folder=shared)
    return VllmEngine(server, policy, seed=seed)


class VllmEngine(Engine):
    """Samples by a `Server`. `seed` is the seed of the run."""

    returns_experts = False

    def __init__(self, server: Server, policy: PolicyView, *, seed: int = 0) -> None:
        self.server = server
        self.policy = policy
        self.seed = seed
        self._version: int | None = None

    @property
    def version(self) -> int:
        if self._version is None:
            raise EngineError("the engine has no weights yet: call `update_weights(policy)` first")
        return self._version

    def notes(self) -> list[str]:
        return self.server.notes()

    def update_weights(self, policy: PolicyView) -> None:
        """Deliver the weights of this policy."""
        self.policy, self._version = policy, None
        self.delivered_bytes = self.server.update(policy)
        self._version = policy.version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.policy.tokenizer

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per request, in the same order. The seed of a request is that of its stream."""
        if not requests:
            return []
        rule = StopRule(self.policy, sampling)
        asked = [
            {
                "token_ids": list(request.token_ids),
                "seed": self._seed_of(request),
                "max_tokens": rule.max_new_tokens(request),
            }
            for request in requests
        ]
        how = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(rule.stop_ids),
            "skip_special_tokens": False,  # a text in `stop` may be that of a special token
        }
        response = self.server.generate(asked, how)
        with _reading("answers"):
            return [self._completion(answer, response["version"]) for answer in response["answers"]]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability, at temperature 1, of each token after the first of each sequence."""
        response = self.server.score([list(sequence) for sequence in sequences])
        with _reading("scores"):
            return [[float(score) for score in scores] for scores in response["scores"]]

    def sleep(self) -> bool:
        return self.server.sleep()

    def health(self) -> None:
        """Raise `EngineError` unless the server answers."""
        self.server.health()

    def restart(self) -> None:
        self._version = None
        self.server.restart()

    def close(self) -> None:
        """End the process, if there is one."""
        self.server.close()

    def _seed_of(self, request: Request) -> int:
        """Return 63 bits: a request that continues an episode has another seed than the one before it."""
        key = stream_key(self.seed, request.stream)
        if request.position:
            key = stream_key(key, request.stream._replace(sample=request.position))
        return key >> 1

    def _completion(self, answer: Mapping[str, Any], version: int) -> Completion:
        return Completion(
            token_ids=tuple(int(token) for token in answer["token_ids"]),
            logprobs=tuple(float(logprob) for logprob in answer["logprobs"]),
            finish_reason=FINISH_REASONS.get(str(answer["finish_reason"]), FinishReason.abort),
            policy_version=version,
        )


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn an error while a response is read into `EngineLostError`: it has another form than was asked for."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise EngineLostError(f"the engine returned no valid {what}: {error!r}") from error
