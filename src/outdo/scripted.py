"""An engine that says what it is told: for fast tests of environments, rewards and loops, without a model."""

from collections.abc import Callable, Iterator, Sequence

from transformers import PreTrainedTokenizerBase

from outdo.engines.base import SamplingParams, Weights
from outdo.errors import EngineError
from outdo.types import Completion, FinishReason, Request

Answer = str | Sequence[int] | Completion


class ScriptedEngine:
    """Answers request after request from `script`: its items in order, or what it returns for the request.

    An answer is a text, which is encoded and gets the end-of-sequence token; token ids, given as they are; or a
    `Completion`, handed on untouched. Texts and ids are cut at the token limits like any answer, and each of their
    tokens reports the log-probability `logprob`. `requests` holds everything that was asked, in order.
    """

    def __init__(
        self,
        script: Sequence[Answer] | Callable[[Request], Answer],
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        logprob: float = -1.0,
    ) -> None:
        self.script = script if callable(script) else _in_order(script)
        self.tokenizer = tokenizer  # where None, that of the policy that is loaded
        self.logprob = logprob
        self.version = 0
        self.requests: list[Request] = []

    def load(self, policy: Weights) -> None:
        """Take note of the policy's version, and of its tokenizer where none was given."""
        self.version = policy.version
        self.tokenizer = self.tokenizer or policy.tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without special tokens."""
        return str(self._tokenizer().decode(list(token_ids), skip_special_tokens=True))

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        """The next answer of the script for each request. Raises `EngineError` when the script has come to its end."""
        return [self._complete(request, sampling) for request in requests]

    def _complete(self, request: Request, sampling: SamplingParams) -> Completion:
        self.requests.append(request)
        answer = self.script(request)
        if isinstance(answer, Completion):
            return answer
        if isinstance(answer, str):
            tokenizer = self._tokenizer()
            answer = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        limit = min(request.max_tokens, sampling.max_tokens)
        return Completion(
            token_ids=tuple(answer[:limit]),
            logprobs=(self.logprob,) * len(answer[:limit]),
            finish_reason=FinishReason.length if len(answer) > limit else FinishReason.stop,
            policy_version=self.version,
        )

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        if self.tokenizer is None:
            raise ValueError("a text needs a tokenizer: give the engine one, or call `load(policy)` first")
        return self.tokenizer


def _in_order(answers: Sequence[Answer]) -> Callable[[Request], Answer]:
    rest: Iterator[Answer] = iter(answers)

    def following(request: Request) -> Answer:
        for answer in rest:
            return answer
        raise EngineError(f"the script has {len(answers)} answers, and one more was asked: {request.stream}")

    return following
