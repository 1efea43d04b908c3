"""The rollouts of a run: what it iterates over, and the plain case, in which sampling and training take turns."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from outdo.loop import in_turn
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.types import Group, Prompt, Sampled

Value = TypeVar("Value")


class KnownPrompts(Protocol):
    """Prompts by their id."""

    def __getitem__(self, prompt_id: str, /) -> Prompt:
        """Return the prompt with an id. Raises `KeyError` if there is none."""
        ...


class RunQuestions(Protocol):
    """The source of questions. `position` is the number of questions that have been taken."""

    per_step: int
    position: int

    def take(self, count: int) -> Sequence[Prompt]:
        """Return the next `count` questions."""
        ...

    def known(self) -> KnownPrompts:
        """Return all questions by their id."""
        ...

    def metrics(self, questions: Sequence[Prompt]) -> Mapping[str, float]:
        """Return metrics of the questions of a step."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the position, and what else decides which questions are taken next."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class RunRollouts(Protocol):
    """The rollouts of a run, which can be saved and continued."""

    lag: int  # steps between the sampling and the training of a batch

    def __iter__(self) -> Iterator[tuple[int, Sampled]]:
        """Yield each step with its groups, for `loop.train`."""
        ...

    def with_engine(self, work: Callable[[PolicyView], Value]) -> Value:
        """Return what `work` returns for the newest weights; nothing else uses the engine and the rewards meanwhile."""
        ...

    def wait(self) -> None:
        """Wait until everything that was requested is sampled, or has failed."""
        ...

    def stop(self) -> None:
        """Begin nothing further."""
        ...

    def join(self) -> None:
        """Wait for the end of what `stop` has stopped, after the engine and the rewards are closed."""
        ...

    def state(self, *, after: int) -> dict[str, Any]:
        """Return what a checkpoint of step `after` holds: the newest finished step, or the one before it."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        ...

    def ledger(self, *, after: int) -> dict[str, Any]:
        """Return what became of the questions up to step `after`: see `ledger_of`."""
        ...


@dataclass(frozen=True, slots=True)
class Account:
    """The state of the questions after a step, and how many of all up to it were trained or dropped, by the reason."""

    data: Mapping[str, Any]
    counts: Counter[str]


class InTurn:
    """The rollouts of a run whose steps are sampled by the weights that they train: `loop.in_turn`, with an account."""

    lag = 0

    def __init__(self, sampler: GroupSampler | DynamicSampling, questions: RunQuestions, policy: Policy) -> None:
        self.sampler = sampler
        self.questions = questions
        self.policy = policy
        self._step = 0  # the newest that is sampled
        # Of that step and the one before it: the update of a step that is sampled may be interrupted.
        self._accounts = {0: Account(questions.state(), Counter())}

    def __iter__(self) -> Iterator[tuple[int, Sampled]]:
        """Yield each step with its groups."""
        return in_turn(self.policy, self._batches(), self._sample, start=self._step + 1)

    def _batches(self) -> Iterator[Sequence[Prompt]]:
        while True:
            yield self.questions.take(self.questions.per_step)

    def _sample(self, policy: Policy, questions: Sequence[Prompt], *, step: int) -> Sampled:
        sampled, asked = sample_counted(self.sampler, self.questions, policy, questions, step=step)
        self.sampler.engine.sleep()
        before = self._accounts[step - 1]
        after = Account(self.questions.state(), before.counts + counts_of(sampled.groups, asked))
        self._accounts = {step - 1: before, step: after}
        self._step = step
        return sampled

    def with_engine(self, work: Callable[[PolicyView], Value]) -> Value:
        """Return what `work` returns for the newest weights."""
        result = work(self.policy)
        self.sampler.engine.sleep()
        return result

    def wait(self) -> None:
        """Return at once: nothing is requested beforehand."""

    def stop(self) -> None:
        """Do nothing: no step begins before it is asked for."""

    def join(self) -> None:
        """Return at once."""

    def state(self, *, after: int) -> dict[str, Any]:
        """Return what a checkpoint of step `after` holds: the state of the questions and the `ledger`."""
        ledger = self.ledger(after=after)
        return {"step": after, "lag": 0, "ahead": 0, "data": self._accounts[after].data, "ledger": ledger}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, also one of sampling ahead: later batches are sampled anew.

        Raises ValueError if it holds unfinished answers of partial rollouts.
        """
        check_begun(state, lag=0, ahead=0)
        self._step = state["step"]
        self._accounts = {self._step: Account(state["data"], counts_of_ledger(state["ledger"]))}
        self.questions.load_state(state["data"])

    def ledger(self, *, after: int) -> dict[str, Any]:
        """Return what became of the questions up to step `after`: see `ledger_of`."""
        return ledger_of(self._accounts[after].counts)


def sample_counted(
    sampler: GroupSampler | DynamicSampling,
    source: RunQuestions,
    policy: PolicyView,
    questions: Sequence[Prompt],
    *,
    step: int,
) -> tuple[Sampled, int]:
    """Sample the groups of a step; return them, and how many questions that took from their source."""
    before = source.position
    sampled = Sampled.of(sampler(policy, questions, step=step))
    asked = len(questions) + source.position - before  # with those that dynamic sampling has taken besides
    more = source.metrics([group.prompt for group in sampled.groups])
    return replace(sampled, metrics={**sampled.metrics, **more}), asked


def counts_of(groups: Sequence[Group], asked: int) -> Counter[str]:
    """Return what became of the questions of a step."""
    trained = sum(any(rollout.scored for rollout in group.rollouts) for group in groups)
    return Counter(trained=trained, no_reward=len(groups) - trained, no_advantage=asked - len(groups))


def ledger_of(counts: Mapping[str, int], *, sampled: int = 0, unfinished: int = 0) -> dict[str, Any]:
    """Return what became of the questions up to a step, and of those for later steps.

    Each question that was `asked` is in one place: `trained`, `dropped` with the reason in `why`, or ahead: answered
    (`sampled`), or still with the engine (`unfinished`).
    """
    why = {name: count for name, count in counts.items() if name != "trained"}
    answered = sum(counts.values()) + sampled
    return {
        "asked": answered + unfinished,
        "answered": answered,
        "trained": counts.get("trained", 0),
        "dropped": sum(why.values()),
        "why": why,
    }


def counts_of_ledger(ledger: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of which a ledger was made."""
    return Counter({"trained": ledger["trained"], **ledger["why"]})


def check_begun(state: Mapping[str, Any], *, lag: int, ahead: int) -> None:
    """Raise ValueError if a state holds unfinished answers of partial rollouts, and is loaded with another `lag`."""
    if state.get("begun") and (state["lag"], state["ahead"]) != (lag, ahead):
        raise ValueError("answers are unfinished: train.max_staleness and engine.partial_rollouts cannot change")
