"""The rollouts of a run: what it iterates over, and the plain case, in which sampling and training take turns."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from outdo.loop import in_turn
from outdo.models.policy import Policy
from outdo.rollouts.demonstrations import WithDemonstrations
from outdo.rollouts.engines.base import PolicyView
from outdo.rollouts.environments.base import GroupSampler
from outdo.rollouts.environments.dynamic_sampling import DynamicSampling
from outdo.types import Group, Prompt, Sampled

Value = TypeVar("Value")


RunSampler = GroupSampler | DynamicSampling | WithDemonstrations
"""What samples the groups of a step."""


class KnownPrompts(Protocol):
    """Prompts by their id."""

    def __getitem__(self, prompt_id: str, /) -> Prompt:
        """Return the prompt with an id. Raises `KeyError` if there is none."""
        ...


class RunQuestions(Protocol):
    """The source of questions. `position` is the number of questions that have been taken."""

    per_step: int
    position: int

    def __iter__(self) -> Iterator[Sequence[Prompt]]:
        """Yield the next `per_step` questions, without end."""
        ...

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

    def question_counts(self, *, after: int) -> dict[str, Any]:
        """Return what became of the questions up to step `after`: see `QuestionCounts.table`."""
        ...


class QuestionCounts:
    """What became of the questions up to a step: how many were trained, and how many were dropped, by the reason."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self._counts = Counter(counts or {})

    @classmethod
    def of_step(cls, groups: Sequence[Group], taken: int) -> "QuestionCounts":
        """Count the questions of one step, which trains `groups`; `taken` is how many it took from their source."""
        trained = sum(any(rollout.scored for rollout in group.rollouts) for group in groups)
        return cls({"trained": trained, "no_reward": len(groups) - trained, "no_advantage": taken - len(groups)})

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> "QuestionCounts":
        """Return the counts that the state of the rollouts holds."""
        table = state["ledger"]  # the name that it has in every checkpoint
        return cls({"trained": table["trained"], **table["why"]})

    def __add__(self, other: "QuestionCounts") -> "QuestionCounts":
        """Return the counts of the steps of both."""
        return QuestionCounts(self._counts + other._counts)

    def table(self, *, sampled: int = 0, unfinished: int = 0) -> dict[str, Any]:
        """Return what became of the questions up to a step, and of those for later steps.

        Each question that was `asked` is in one place: `trained`, `dropped` with the reason in `why`, or ahead:
        answered (`sampled`), or still with the engine (`unfinished`).
        """
        why = {name: count for name, count in self._counts.items() if name != "trained"}
        answered = self._counts.total() + sampled
        return {
            "asked": answered + unfinished,
            "answered": answered,
            "trained": self._counts["trained"],
            "dropped": sum(why.values()),
            "why": why,
        }


class InTurn:
    """The rollouts of a run whose steps are sampled by the weights that they train: `loop.in_turn`, and its state."""

    lag = 0

    def __init__(self, sampler: RunSampler, questions: RunQuestions, policy: Policy) -> None:
        self.sampler = sampler
        self.questions = questions
        self.policy = policy
        # After the newest step that is sampled, and the one before it, whose update may be interrupted.
        self._after: dict[int, tuple[Mapping[str, Any], QuestionCounts]] = {0: (questions.state(), QuestionCounts())}

    def __iter__(self) -> Iterator[tuple[int, Sampled]]:
        """Yield each step with its groups."""
        newest = max(self._after)
        taken = self.questions.position
        for step, sampled in in_turn(self.policy, self.questions, self.sampler, start=newest + 1):
            sampled = with_metrics_of_questions(sampled, self.questions)
            self.sampler.engine.sleep()
            _, counts = before = self._after[step - 1]
            counts += QuestionCounts.of_step(sampled.groups, self.questions.position - taken)
            taken = self.questions.position
            self._after = {step - 1: before, step: (self.questions.state(), counts)}
            yield step, sampled

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
        """Return what a checkpoint of step `after` holds: the state of the questions, and what became of them."""
        data, counts = self._after[after]
        return {"step": after, "lag": 0, "ahead": 0, "data": data, "ledger": counts.table()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state, also one of sampling ahead: later batches are sampled anew.

        Raises ValueError if it holds unfinished answers of partial rollouts.
        """
        check_begun(state, lag=0, ahead=0)
        self._after = {state["step"]: (state["data"], QuestionCounts.of_state(state))}
        self.questions.load_state(state["data"])

    def question_counts(self, *, after: int) -> dict[str, Any]:
        """Return what became of the questions up to step `after`: see `QuestionCounts.table`."""
        return self._after[after][1].table()


def with_metrics_of_questions(sampled: Sampled, source: RunQuestions) -> Sampled:
    """Return what was sampled in a step with the metrics of its questions."""
    more = source.metrics([group.prompt for group in sampled.groups])
    return replace(sampled, metrics={**sampled.metrics, **more})


def check_begun(state: Mapping[str, Any], *, lag: int, ahead: int) -> None:
    """Raise ValueError if a state holds unfinished answers of partial rollouts, and is loaded with another `lag`."""
    if state.get("begun") and (state["lag"], state["ahead"]) != (lag, ahead):
        raise ValueError("answers are unfinished: train.max_staleness and engine.partial_rollouts cannot change")
