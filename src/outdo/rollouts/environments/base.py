"""`Environment`, the base class of what makes rollouts, and `GroupSampler`: the usual `sample` of the training loop."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.base import Engine, PolicyView
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Group, Prompt, Request, Rollout
from outdo.utils.errors import EngineError, UserError
from outdo.utils.text import counted
from outdo.utils.timing import span

LARGEST_LOGPROB = 1e-3
"""Log-probabilities are at most 0, but rounding may make them a little larger."""

NO_BASELINE = "no_baseline"
"""The status of a rollout whose group has no baseline."""


class Environment(ABC):
    """Runs episodes: it requests completions from an engine until each rollout is finished, and scores the rollout.

    An environment of your own inherits from it and has `rollouts`.
    """

    @abstractmethod
    def rollouts(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        n: int,
        sampling: SamplingParams,
        *,
        step: int,
        purpose: str,
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return `n` finished rollouts of each prompt.

        `step` and `purpose` key the random numbers. `failures` counts the rewards that failed in earlier calls of the
        same step; without it the failures of this call are counted alone.
        """

    def requests(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, *, step: int, purpose: str
    ) -> list[Request]:
        """Return the requests for `n` answers to each prompt, where each rollout is one answer.

        Partial rollouts continue these answers with newer weights. Raises `UserError` where a rollout is more.
        """
        raise UserError([f"partial rollouts: a rollout of {type(self).__name__} is more than one answer"])


class GroupSampler:
    """Samples a group of `group_size` rollouts of each question, by an engine, in an environment.

    With `greedy_baseline` it also samples one answer at temperature 0 to each question. The reward of that answer is
    the `baseline` of its group (ReMax, arXiv 2310.10505: the reward of the likeliest answer); the answer is not trained
    on. If it has no reward, its group has no baseline: the rollouts get the status `no_baseline`, which is counted like
    every other status and never trained on.

    `observe` gets the groups of every call, also those that dynamic sampling drops later.
    """

    def __init__(
        self,
        engine: Engine,
        environment: Environment,
        *,
        group_size: int,
        sampling: SamplingParams,
        greedy_baseline: bool = False,
        observe: Callable[[Sequence[Group]], None] = lambda groups: None,
    ) -> None:
        for piece, base in ((engine, Engine), (environment, Environment)):
            if not isinstance(piece, base):
                raise TypeError(f"{type(piece).__name__} does not inherit from outdo.{base.__name__}")
        if sampling.temperature == 0:
            raise ValueError("temperature 0 gives every question the same answer group_size times: nothing to compare")
        if group_size < 1:
            raise ValueError(f"group_size: expected 1 or more answers to a question, found {group_size}")
        self.engine = engine
        self.environment = environment
        self.group_size = group_size
        self.sampling = sampling
        self.greedy_baseline = greedy_baseline
        self.observe = observe
        self.earlier: Collection[int] = ()
        """Versions of the policy that may have sampled the first tokens of an answer: see `partial_rollouts`."""

    def __call__(
        self,
        policy: PolicyView,
        questions: Sequence[Prompt],
        *,
        step: int,
        purpose: str = "train",
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return one group per question.

        `purpose` keys the random numbers: a further call in the same step needs a purpose of its own, and the same
        `failures` as the first.
        """
        self.engine.check_inputs(questions)
        failures = failures or FailureCount()
        with span("sample"):
            self.engine.update_weights(policy)
        rollouts = partial(self.environment.rollouts, self.engine, questions, step=step, failures=failures)
        groups = rollouts(self.group_size, self.sampling, purpose=purpose)
        check_policy(groups, policy, earlier=self.earlier)
        self.observe(groups)
        if not self.greedy_baseline:
            return groups
        greedy = rollouts(1, replace(self.sampling, temperature=0.0), purpose=f"{purpose}/baseline")
        return [_add_baseline(group, answer.rollouts[0]) for group, answer in zip(groups, greedy, strict=True)]


def check_completions(requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    """Raise `EngineError` unless there is one completion per request, with possible tokens and log-probabilities."""
    if len(completions) != len(requests):
        raise EngineError(
            f"the engine returned {counted(len(completions), 'completion')} of {counted(len(requests), 'request')}"
        )
    for request, completion in zip(requests, completions, strict=True):
        wrong_ids = [token for token in completion.token_ids if token < 0]
        wrong_logprobs = [logprob for logprob in completion.logprobs if not -math.inf < logprob < LARGEST_LOGPROB]
        length, limit = len(completion.token_ids), request.max_tokens
        computed = len(request.token_ids) + length - 1  # no model computes the last token of an answer
        routed = None if completion.routes is None else len(completion.routes)
        for fault, found in (
            (f"the token {wrong_ids[:1]}", wrong_ids),
            (f"the log-probability {wrong_logprobs[:1]}", wrong_logprobs),
            (f"{length} tokens, and at most {limit} were requested", length > limit),
            (f"routes, and not of the {computed} tokens before its last", routed not in (None, computed)),
        ):
            if found:
                where = f"step {request.stream.step}, question {request.stream.prompt_id}"
                raise EngineError(f"{where}: the engine returned an answer with {fault}")


def check_policy(groups: Sequence[Group], policy: PolicyView, *, earlier: Collection[int] = ()) -> None:
    """Raise `EngineError` unless all tokens are in the policy's vocabulary, and sampled from its present weights.

    Answers may be of the `earlier` versions of the policy, too.
    """
    rows = policy.model.config.get_text_config().vocab_size  # an adapter may wrap the embedding itself
    for group in groups:
        for rollout in group.rollouts:
            if (largest := max(rollout.token_ids, default=0)) >= rows:
                raise EngineError(
                    f"question {group.prompt.id}: the engine returned the token {largest}, and the model has {rows}"
                )
            if rollout.policy_version not in (policy.version, *earlier):
                raise EngineError(
                    f"question {group.prompt.id}: the engine sampled from the weights after "
                    f"{counted(rollout.policy_version, 'optimiser step')}, and the policy has had {policy.version}"
                )


def _add_baseline(group: Group, greedy: Rollout) -> Group:
    if greedy.scored:
        return replace(group, baseline=greedy.reward)
    rollouts = (
        replace(rollout, reward=0.0, status=NO_BASELINE) if rollout.scored else rollout for rollout in group.rollouts
    )
    return replace(group, rollouts=tuple(rollouts), baseline=0.0)
