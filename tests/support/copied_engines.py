"""An engine with its own copy of the weights, which can get each fault that a delivery may have."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from engine_cases import fresh
from transformers import PreTrainedTokenizerBase

from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.models.adapter import has_adapter
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.errors import EngineLostError

Prompts = set[tuple[int, ...]]


def separate(engine: "CopyingEngine") -> RemoteEngine:
    """The engine as a run opens it, with the bound for float32."""
    return RemoteEngine(lambda _: engine, fresh(), Proof(FLOAT32))


class CopyingEngine(Engine):
    """Samples from a copy of the weights. `fault` is what is wrong with its deliveries after the first:

    - `no load`: it ignores weights, the first ones too
    - `same id`: it takes a new adapter for the one that it has
    - `in place`: new weights, but keys and values of every prompt that it has read are still used
    - `prefix cache`: the same for a single prompt
    - `tied head`: the output head keeps the weights of the first delivery
    - `wrong tensor`: two tensors of the same shape are exchanged
    - `temperature`: log-probabilities are reported at temperature 1

    `losses` are how often the next calls of `generate` fail, as a process that has ended does.
    """

    def __init__(self, policy: Policy, fault: str = "", *, losses: int = 0) -> None:
        self.fault = fault
        self.losses = losses
        self.calls: list[str] = []
        self._version = -1
        self._now = BuiltinEngine(_copy(policy))
        self._before = self._now  # with the weights of the last delivery
        self._read: Prompts = set()

    @property
    def version(self) -> int:
        return self._version

    def update_weights(self, policy: PolicyView) -> None:
        self.calls.append("update")
        is_first, self._version = self._version < 0, policy.version
        if self.fault == "no load" or (self.fault == "same id" and not is_first):
            return
        self._before, self._now = self._now, BuiltinEngine(_copy(policy))
        if is_first:
            return
        own, earlier = (dict(engine.policy.model.named_parameters()) for engine in (self._now, self._before))
        with torch.no_grad():
            if self.fault == "tied head":
                own["lm_head.weight"].copy_(earlier["lm_head.weight"])
            if self.fault == "wrong tensor":
                first, second = (own[f"model.layers.{layer}.self_attn.k_proj.weight"] for layer in (0, 1))
                kept = first.clone()
                first.copy_(second)
                second.copy_(kept)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        self.calls.append("generate")
        if self.losses and requests[0].stream.purpose != "proof":
            self.losses -= 1
            raise EngineLostError("it has ended")
        answers = [self._engine_for(request).generate([request], sampling)[0] for request in requests]
        self._read |= {request.token_ids for request in requests}
        if self.fault == "temperature":
            answers = [self._unscaled(*each) for each in zip(requests, answers, strict=True)]
        return [replace(answer, policy_version=self._version) for answer in answers]

    def _engine_for(self, request: Request) -> BuiltinEngine:
        cached = request.token_ids in self._read and (
            self.fault == "in place" or (self.fault == "prefix cache" and request.stream.prompt_id == "3")
        )
        return self._before if cached else self._now

    def _unscaled(self, request: Request, answer: Completion) -> Completion:
        (scores,) = self._now.score([[*request.token_ids, *answer.token_ids]])
        return replace(answer, logprobs=tuple(scores[-len(answer.token_ids) :]))

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return self._now.score(sequences)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._now.tokenizer

    def restart(self) -> None:
        self.calls.append("restart")
        self._version, self._read = -1, set()


def _copy(policy: PolicyView) -> Policy:
    copied = copy.deepcopy(policy.model)
    if not has_adapter(copied):
        copied.lm_head.weight = torch.nn.Parameter(copied.lm_head.weight.clone())  # tied no longer
    return Policy(copied, policy.tokenizer)
