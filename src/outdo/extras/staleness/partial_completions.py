"""Answers that are sampled in parts, each with newer weights than the one before.

A part is an ordinary request: the tokens so far belong to its prompt, and its random numbers go on where those of the
part before ended. So with equal weights the parts of an answer are the tokens of the undivided one. Keys and values of
the tokens so far are computed again, with the weights that continue them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from outdo.extras.staleness.versions import token_versions
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import StopRule
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.rollouts.environments.base import check_completions
from outdo.types import Completion, FinishReason, Request
from outdo.utils.errors import EngineError
from outdo.utils.rng import Stream
from outdo.utils.text import counted


class PresampledEngine(WrappedEngine):
    """An engine that has some completions already, by the stream of their requests. It returns each of them once."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.completions: dict[Stream, Completion] = {}

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        unknown = [request for request in requests if request.stream not in self.completions]
        sampled = iter(self.engine.generate(unknown, sampling) if unknown else ())
        return [
            self.completions.pop(request.stream) if request.stream in self.completions else next(sampled)
            for request in requests
        ]


def continue_completions(
    engine: Engine,
    policy: PolicyView,
    sampling: SamplingParams,
    requests: Sequence[Request],
    so_far: Mapping[Stream, Completion],
    limits: Sequence[int],
) -> dict[Stream, Completion]:
    """Continue answers in one call of the engine, each up to its limit of tokens; return them by stream.

    `so_far` are those that were begun, each up to a smaller limit than now. One that ended by itself, or at the end of
    the policy's context, is returned as it is.

    Raises `EngineError` if the engine does not sample from the weights of `policy`.
    """
    rule = StopRule(policy, sampling)
    goes_on = [
        (request, limit)
        for request, limit in zip(requests, limits, strict=True)
        if _is_open(request, so_far.get(request.stream), rule.context)
    ]
    parts = [_rest(request, so_far.get(request.stream), limit) for request, limit in goes_on]
    sampled = engine.generate(parts, sampling) if parts else []
    check_completions(parts, sampled)
    completions = dict(so_far)
    for (request, _), completion in zip(goes_on, sampled, strict=True):
        if completion.policy_version != policy.version:
            raise EngineError(
                f"question {request.stream.prompt_id}: the engine sampled from the weights after "
                f"{counted(completion.policy_version, 'optimiser step')}, and the policy has had {policy.version}"
            )
        before = so_far.get(request.stream)
        completions[request.stream] = completion if before is None else _joined(request, before, completion, rule)
    return {request.stream: completions[request.stream] for request in requests}


def _is_open(request: Request, before: Completion | None, context: int | None) -> bool:
    """Return whether an answer goes on after the tokens that it has."""
    if before is None:
        return True
    tokens = len(before.token_ids)
    has_room = context is None or len(request.token_ids) + tokens < context
    return before.finish_reason is FinishReason.length and tokens < request.max_tokens and has_room


def _rest(request: Request, before: Completion | None, limit: int) -> Request:
    """Return the request for the tokens of an answer after those that it has, up to `limit` tokens in all."""
    tokens = () if before is None else before.token_ids
    return replace(
        request,
        token_ids=request.token_ids + tokens,
        position=request.position + len(tokens),
        max_tokens=limit - len(tokens),
    )


def _joined(request: Request, before: Completion, after: Completion, rule: StopRule) -> Completion:
    """Return both parts as one answer. It ends at a stop string that began in the first part."""
    length = _stop_across(before, after, rule)
    more, reason = after.token_ids, after.finish_reason
    if length is not None:
        more, reason = more[:length], FinishReason.stop
    routes = None
    if before.routes is not None and after.routes is not None:
        routes = torch.cat([before.routes, after.routes[len(before.routes) :]])
        routes = routes[: len(request.token_ids) + len(before.token_ids) + len(more) - 1]
    return Completion(
        token_ids=before.token_ids + more,
        logprobs=before.logprobs + after.logprobs[: len(more)],
        finish_reason=reason,
        policy_version=after.policy_version,
        versions=token_versions(before) + (after.policy_version,) * len(more),
        routes=routes,
    )


def _stop_across(before: Completion, after: Completion, rule: StopRule) -> int | None:
    """Return how many tokens of the second part belong to the answer if a stop string began in the first part.

    The engine looks for stop strings in what it samples alone. None if there is none of these.
    """
    tokens = (*before.token_ids[-rule.tail :], *after.token_ids)
    first = len(tokens) - len(after.token_ids)
    for length in range(1, min(len(after.token_ids), rule.tail) + 1) if rule.stop else ():
        text = rule.tokenizer.decode(list(tokens[max(0, first + length - rule.tail) : first + length]))
        if any(stop in text for stop in rule.stop):
            return length
    return None
