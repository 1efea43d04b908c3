"""Sampling that runs ahead of training, by a fixed number of steps.

While the trainer computes step s, a thread lets the engine sample and score the batches of later steps. Which weights
sample which batch depends on the step alone and never on speed: no question is favoured because its answers are short,
and the tokens of a run are a function of its recipe.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import takewhile
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from outdo.extras.staleness.saved_groups import groups_of_state, state_of_groups
from outdo.extras.staleness.versions import staleness
from outdo.models.adapter import trained_weights
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.copies import PolicyOnFirstReplica, copied_policy
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.rollouts.in_turn import (
    KnownPrompts,
    QuestionCounts,
    RunQuestions,
    check_begun,
    with_metrics_of_questions,
)
from outdo.types import Prompt, Sampled
from outdo.utils.timing import span

Value = TypeVar("Value")

PATIENCE = 60.0
"""Seconds in which the thread has to end, after the engine and the rewards are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rollouts:
    sampled: Sampled
    data: Mapping[str, Any]  # the state of the questions, after all that were taken up to this batch
    asked: int  # questions, with those that dynamic sampling has taken besides
    seconds: float | None = None  # of sampling and scoring; None if they were read from a checkpoint


@dataclass(slots=True)
class _Batch:
    step: int  # that it is trained in
    policy: PolicyView | None  # what samples it; None when it is sampled, and on a replica that samples nothing
    rollouts: Future[_Rollouts] = field(default_factory=Future)

    @property
    def is_sampled(self) -> bool:
        return self.rollouts.done() and self.rollouts.exception() is None


class AsynchronousRollouts:
    """The rollouts of a run that samples the batch of each step `lag` steps before it is trained, one or more.

    The batch of step s is sampled with the weights after step s - 1 - `lag`, or with the first weights. A thread
    samples one batch after the other, each with a copy of the trained weights that is kept until then: at most
    `lag` + 1 copies exist at once.

    Of several replicas the first one samples ahead, for all of them: its thread exchanges nothing with the others. In
    the main threads, all replicas copy the weights together where a step begins, and get the answers of the step.

    Args:
        sampler: samples and scores the answers to the questions of a step.
        questions: where these come from, and those that `sampler` takes besides.
        policy: what is trained.
        lag: the number of steps.
        last: the last step; batches after it are not sampled.
        first_replica: the policy as the first of several replicas has it; None for one process.
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
        self.sampler = sampler
        self.questions = questions
        self.policy = policy
        self.lag = lag
        self.ahead = lag  # the steps before its own in which the answers of a batch are finished
        self.last = last
        self.first_replica = first_replica
        self._samples = first_replica is None or first_replica.world.first
        self._engine_lock = Lock()  # of the engine and the rewards
        self._step = 0  # the newest that `train` has got
        self._batches: dict[int, _Batch] = {}  # by step: that one, and those ahead of it
        self._versions: dict[int, int] = {}  # of the policy, after each of the last steps
        self._data: Mapping[str, Any] = questions.state()  # after the batches that are no longer kept
        self._counts = QuestionCounts()  # of the questions of these batches
        self._queue: SimpleQueue[_Batch | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="outdo sampling", daemon=True)
        self._is_stopped = False

    # ------------------------------------------------------------------------------------------------------- the loop

    def __iter__(self) -> Iterator[tuple[int, Sampled]]:
        """Yield each step with its groups, when they are sampled.

        Raises the error of the thread at the first step that has no answers because of it, and `EngineError` if the
        weights of a step are more than `lag` steps behind.
        """
        while True:
            step = self._step + 1
            self._forget(before=step)
            self._versions[step - 1] = self.policy.version
            self._request(step)
            with span("wait"):
                rollouts = self._received(self._batches[step])
            self._step = step
            yield step, self._with_ages(rollouts, step)

    def _with_ages(self, rollouts: _Rollouts, step: int) -> Sampled:
        """Add how far the weights of the answers are behind, and how long the thread has sampled."""
        sampled = rollouts.sampled
        ages = staleness(sampled.groups, self._versions, step=step, lag=self.lag)
        mean = sum(age * count for age, count in ages.items()) / max(1, ages.total())
        metrics = {"staleness/mean": mean, "staleness/max": float(max(ages, default=0))}
        metrics |= {} if rollouts.seconds is None else {"time/ahead": rollouts.seconds}
        return replace(sampled, metrics={**sampled.metrics, **metrics})

    def with_engine(self, work: Callable[[PolicyView], Value]) -> Value:
        """Return what `work` returns for the newest weights; nothing else uses the engine and the rewards meanwhile.

        If one replica samples for all, it works for all.
        """

        def alone(policy: PolicyView) -> Value:
            with self._engine_lock:
                return work(policy)

        return alone(self.policy) if self.first_replica is None else self.first_replica.with_policy(alone)

    def wait(self) -> None:
        """Wait until each requested batch is sampled, or one has failed, where this process samples them."""
        for batch in self._batches.values() if self._samples else ():
            if batch.rollouts.exception() is not None:
                return

    def stop(self) -> None:
        """Let the thread begin no further batch; what it waits for has to be closed by others."""
        self._is_stopped = True
        self._queue.put(None)

    def join(self) -> None:
        """Wait for the end of the thread after `stop`."""
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    # ----------------------------------------------------------------------------------------------------- the batches

    def _request(self, step: int) -> None:
        """Request every batch that the weights before `step` have to sample."""
        first = max([step, *(known + 1 for known in self._batches)])
        due = range(first, min(step + self.ahead, max(step, self.last)) + 1)
        if due:
            with span("copy"):
                weights = self._copied()
            self._batches |= {due_step: _Batch(due_step, weights) for due_step in due}
        if self._samples:
            for due_step in due:
                self._queue.put(self._batches[due_step])
            if self._thread.ident is None:
                self._thread.start()

    def _copied(self) -> PolicySnapshot | None:
        return copied_policy(self.policy) if self.first_replica is None else self.first_replica.copied()

    def _received(self, batch: _Batch) -> _Rollouts:
        """Wait for the answers of a batch, on all replicas."""
        if self.first_replica is None:
            return batch.rollouts.result()
        known = self.questions.known()

        def state() -> tuple[dict[str, Any], float | None]:
            return _state_of(batch, known), batch.rollouts.result().seconds

        own_state, seconds = self.first_replica.call(state)
        if not batch.rollouts.done():
            batch.rollouts.set_result(replace(_rollouts_of(own_state, known), seconds=seconds))
        return batch.rollouts.result()

    def _work(self) -> None:
        """Sample one batch after the other, in the thread.

        After an error it ends: the next batch would get the questions that belong to the one that failed.
        """
        while not self._is_stopped and (batch := self._queue.get()) is not None:
            try:
                self._sample(batch)
            except BaseException as error:  # `train` raises it where it needs this batch
                batch.rollouts.set_exception(error)
                return

    def _begin(self, policy: PolicyView, step: int) -> Sequence[Prompt]:
        """Return the questions of a step, which `sampler` samples next with this policy."""
        return self.questions.take(self.questions.per_step)

    def _forget(self, *, before: int) -> None:
        """Keep no batch of the steps before a step but their counts and their place in the data."""
        for step in [step for step in self._batches if step < before]:
            batch = self._batches.pop(step)
            self._counts += _counts(batch)
            self._data = batch.rollouts.result().data
        self._versions = {step: version for step, version in self._versions.items() if step >= before - 1 - self.lag}

    def _sample(self, batch: _Batch) -> None:
        assert batch.policy is not None
        with self._engine_lock:
            started = perf_counter()
            questions = self._begin(batch.policy, batch.step)
            taken = self.questions.position
            sampled = Sampled.of(self.sampler(batch.policy, questions, step=batch.step))
            asked = len(questions) + self.questions.position - taken
            sampled = with_metrics_of_questions(sampled, self.questions)
            seconds = perf_counter() - started
        rollouts = _Rollouts(sampled=sampled, data=self.questions.state(), asked=asked, seconds=seconds)
        batch.rollouts.set_result(rollouts)
        batch.policy = None

    # ------------------------------------------------------------------------------------------------- the checkpoint

    def state(self, *, after: int) -> dict[str, Any]:
        """Return what a checkpoint of step `after` holds: the newest finished step, or the one before it.

        These are the answers for later steps, the weights for those that are not sampled yet, the state of the
        questions and what became of them. After `wait` all are sampled, and the state does not depend on speed.
        Replicas with parts of the trained weights, which write a checkpoint together, have to call it together.
        """
        if self.first_replica is not None and self.policy.optimiser.is_sharded:
            return self.first_replica.call(lambda: self._state(after))
        return self._state(after)

    def _state(self, after: int) -> dict[str, Any]:
        ahead = [(batch, batch.policy) for batch in self._batches.values() if after < batch.step <= after + self.ahead]
        sampled = [batch for batch, _ in takewhile(lambda pair: pair[0].is_sampled, ahead)]
        waiting = [(batch.step, policy) for batch, policy in ahead[len(sampled) :] if policy is not None]
        known = self.questions.known()
        versions = {step: version for step, version in self._versions.items() if after - self.lag <= step < after}
        return {
            "step": after,
            "lag": self.lag,
            "ahead": self.ahead,
            "data": self._finished(after)[0],
            "ledger": self.question_counts(after=after),
            "versions": versions,
            "sampled": [_state_of(batch, known) for batch in sampled],
            "waiting": [{"step": step, "version": policy.version} for step, policy in waiting],
            "weights": {policy.version: trained_weights(policy.model) for _, policy in waiting},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state. With another `lag` all batches after its step are sampled anew.

        Raises ValueError if it holds unfinished answers of partial rollouts, and this object would not continue them.
        """
        check_begun(state, lag=self.lag, ahead=self.ahead)
        is_same = (state["lag"], state["ahead"]) == (self.lag, self.ahead)
        self._step, data = state["step"], state["data"]
        self._data, self._versions = data, dict(state["versions"]) if is_same else {}
        self._counts = QuestionCounts.of_state(state)
        self._batches = {}
        if is_same:
            known = self.questions.known()
            for saved in state["sampled"]:
                rollouts = _rollouts_of(saved, known)
                self._batches[saved["step"]] = _Batch(saved["step"], None)
                self._batches[saved["step"]].rollouts.set_result(rollouts)
                data = rollouts.data
            policies = {version: self._copy_with(weights, version) for version, weights in state["weights"].items()}
            for saved in state["waiting"]:
                self._batches[saved["step"]] = _Batch(saved["step"], policies[saved["version"]])
                self._queue.put(self._batches[saved["step"]])
        self.questions.load_state(data)

    def question_counts(self, *, after: int) -> dict[str, Any]:
        """Return what became of the questions up to step `after`, and how many are ahead: see `QuestionCounts`."""
        _, counts = self._finished(after)
        ahead = [batch for batch in self._batches.values() if after < batch.step <= after + self.ahead]
        sampled = [batch for batch in ahead if batch.is_sampled]
        unfinished = len(ahead) - len(sampled) + self._begun_after(sampled[-1].step if sampled else after)
        return counts.table(
            sampled=sum(batch.rollouts.result().asked for batch in sampled),
            unfinished=unfinished * self.questions.per_step,
        )

    def _begun_after(self, step: int) -> int:
        """Return how many later batches were begun when that of `step` was finished."""
        return 0

    def _finished(self, after: int) -> tuple[Mapping[str, Any], QuestionCounts]:
        """Return the state of the questions after the batch of step `after`, and the counts of all up to it."""
        data, counts = self._data, self._counts
        for batch in self._batches.values():
            if batch.step <= after:
                counts += _counts(batch)
                data = batch.rollouts.result().data
        return data, counts

    @torch.no_grad()
    def _copy_with(self, weights: Mapping[str, Tensor], version: int) -> PolicySnapshot | None:
        """Return a copy of the policy with saved weights."""
        if (copied := self._copied()) is None:
            return None
        for name, weight in trained_weights(copied.model).items():
            weight.copy_(weights[name])
        return replace(copied, version=version)


def _counts(batch: _Batch) -> QuestionCounts:
    """Return what became of the questions of a batch."""
    rollouts = batch.rollouts.result()
    return QuestionCounts.of_step(rollouts.sampled.groups, rollouts.asked)


def _state_of(batch: _Batch, known: KnownPrompts) -> dict[str, Any]:
    rollouts = batch.rollouts.result()
    groups = state_of_groups(rollouts.sampled.groups, known)
    counted = {"data": rollouts.data, "asked": rollouts.asked}
    return {"step": batch.step, **counted, "metrics": {**rollouts.sampled.metrics}, **groups}


def _rollouts_of(state: Mapping[str, Any], known: KnownPrompts) -> _Rollouts:
    sampled = Sampled(groups=groups_of_state(state, known), metrics=state["metrics"])
    return _Rollouts(sampled=sampled, data=state["data"], asked=state["asked"])
