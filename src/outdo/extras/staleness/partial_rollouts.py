"""Partial rollouts: sampling ahead in which the weights of an answer change while it is sampled.

Newer weights continue an answer at fixed places: with a lag of n steps, the first 1 / n of its `max_tokens` are sampled
by the weights after step s - 1 - n, the next by those after s - n, and the last by those after s - 2. So with each
version of the weights the engine gets, in one call, the last part of one batch, the part before the last of the batch
after it, and so on, down to the first part of the newest one.

Partial rollouts: Kimi k1.5, arXiv 2501.12599; PipelineRL, arXiv 2509.19128; AReaL, arXiv 2505.24298. In AReaL and
PipelineRL an answer goes on with newer weights wherever it is when they arrive; here speed decides nothing.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from outdo.extras.staleness.asynchronous import AsynchronousRollouts
from outdo.extras.staleness.partial_completions import PresampledEngine, continue_completions
from outdo.extras.staleness.saved_groups import groups_of_state, state_of_groups
from outdo.extras.staleness.versions import token_versions
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.engines.copies import PolicyOnFirstReplica
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import KnownPrompts, RunQuestions
from outdo.types import Completion, Group, Prompt, Request, Rollout
from outdo.utils.rng import Stream


@dataclass(frozen=True, slots=True)
class _Begun:
    """A batch whose answers are not all finished."""

    questions: Sequence[Prompt]
    completions: Mapping[Stream, Completion]  # as far as they are sampled


class PartialRollouts(AsynchronousRollouts):
    """An `AsynchronousRollouts` whose answers newer weights continue. Their last part is sampled one step ahead.

    What dynamic sampling asks besides, and greedy baselines, are sampled by the weights of the last part alone. The
    rollouts of the environment are single answers. The engine of `sampler` becomes a `PresampledEngine`.
    """

    def __init__(
        self,
        sampler: GroupSampler | DynamicSampling,
        questions: RunQuestions,
        policy: Policy,
        *,
        lag: int,
        last: int,
        first_replica: PolicyOnFirstReplica | None = None,
    ) -> None:
        super().__init__(sampler, questions, policy, lag=lag, last=last, first_replica=first_replica)
        assert lag > 1, "one part is an undivided answer"
        self.ahead = 1
        self.groups = sampler.sampler if isinstance(sampler, DynamicSampling) else sampler
        self.engine = self.groups.engine = PresampledEngine(self.groups.engine)
        self._begun: dict[int, dict[int, _Begun]] = {}  # by step: the later batches when that batch was finished

    def _begin(self, policy: PolicyView, step: int) -> Sequence[Prompt]:
        """Finish the answers of a step, and continue those of later ones in the same call; return its questions."""
        self.engine.update_weights(policy)
        known = self._begun.get(step - 1, {})
        steps = range(step, min(step + self.lag - 1, max(step, self.last)) + 1)
        begun = {number: known[number] if number in known else self._first_questions() for number in steps}
        for number in steps:
            self.engine.check_inputs(begun[number].questions)
        requests = {number: self._requests(begun[number].questions, number) for number in steps}
        limits = [self._limit(number - step) for number in steps for _ in requests[number]]
        completions = ChainMap(*(dict(of_step.completions) for of_step in begun.values()))
        completions = continue_completions(
            self.engine.engine, policy, self.groups.sampling, [*chain(*requests.values())], completions, limits
        )
        of_steps = {number: _completed(begun[number].questions, requests[number], completions) for number in steps}
        finished = of_steps.pop(step)
        self.engine.completions = dict(finished.completions)
        self.groups.earlier = set(chain(*map(token_versions, finished.completions.values())))
        self._begun[step] = of_steps
        return finished.questions

    def _first_questions(self) -> _Begun:
        return _Begun(self.questions.take(self.questions.per_step), {})

    def _requests(self, questions: Sequence[Prompt], step: int) -> list[Request]:
        groups = self.groups
        return groups.environment.requests(questions, groups.group_size, groups.sampling, step=step, purpose="train")

    def _limit(self, steps: int) -> int:
        """Return how many tokens an answer may have when it is sampled by the weights for a batch `steps` earlier."""
        return -(-self.groups.sampling.max_tokens * (self.lag - steps) // self.lag)

    def _forget(self, *, before: int) -> None:
        super()._forget(before=before)
        for step in [number for number in list(self._begun) if number < before - 1]:
            del self._begun[step]

    def _begun_after(self, step: int) -> int:
        return len(self._begun.get(step, {}))

    # ------------------------------------------------------------------------------------------------- the checkpoint

    def _state(self, after: int) -> dict[str, Any]:
        state = super()._state(after)
        newest, known = _newest(state), self.questions.known()
        begun = self._begun.get(newest, {})
        return {**state, "begun": [{"step": step, **self._state_of(step, begun[step], known)} for step in begun]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `AsynchronousRollouts.load_state`."""
        super().load_state(state)
        known = self.questions.known()
        begun = {saved["step"]: self._begun_of(saved, known) for saved in state.get("begun", ())}
        self._begun = {_newest(state): begun}

    def _state_of(self, step: int, begun: _Begun, known: KnownPrompts) -> dict[str, Any]:
        """Return unfinished answers as groups of rollouts that have no text and no reward yet."""
        size = self.groups.group_size
        completions = [begun.completions[request.stream] for request in self._requests(begun.questions, step)]
        groups = [
            Group(prompt=prompt, rollouts=tuple(map(_as_rollout, completions[index * size : (index + 1) * size])))
            for index, prompt in enumerate(begun.questions)
        ]
        return state_of_groups(groups, known)

    def _begun_of(self, state: Mapping[str, Any], known: KnownPrompts) -> _Begun:
        groups = groups_of_state(state, known)
        questions = [group.prompt for group in groups]
        completions = [_as_completion(rollout) for group in groups for rollout in group.rollouts]
        requests = self._requests(questions, state["step"])
        return _Begun(
            questions, {one.stream: completion for one, completion in zip(requests, completions, strict=True)}
        )


def _completed(
    questions: Sequence[Prompt], requests: Sequence[Request], completions: Mapping[Stream, Completion]
) -> _Begun:
    return _Begun(questions, {request.stream: completions[request.stream] for request in requests})


def _newest(state: Mapping[str, Any]) -> int:
    """Return the step of the last batch that a state holds as finished."""
    return max([state["step"], *(saved["step"] for saved in state["sampled"])])


def _as_rollout(completion: Completion) -> Rollout:
    return Rollout(
        token_ids=completion.token_ids,
        loss_mask=(True,) * len(completion.token_ids),
        logprobs=completion.logprobs,
        text="",
        reward=0.0,
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        versions=completion.versions,
        routes=completion.routes,
    )


def _as_completion(rollout: Rollout) -> Completion:
    return Completion(
        token_ids=rollout.token_ids,
        logprobs=rollout.logprobs,
        finish_reason=rollout.finish_reason,
        policy_version=rollout.policy_version,
        versions=rollout.versions,
        routes=rollout.routes,
    )
