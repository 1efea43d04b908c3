"""Define what a reward function receives and returns, and count the rewards that failed."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any, Protocol

from outdo.utils.errors import RewardError
from outdo.utils.text import counted, one_line
from outdo.utils.thinking import prefill_of

SCORE_KEYS = ("score", "reward")
"""The entry of a returned dict that is the reward: as in verl, as in Stanford's CS336."""

LARGEST_VALUE = 1e6
"""A reward beyond ±this is non-finite: in float32 a reward of 1e30 makes every other reward of its group vanish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardInput:
    """A question with one answer to it: everything that a reward may look at."""

    prompt: str | list[dict[str, Any]]
    """The question, as text or as chat messages, before the chat template is applied."""
    completion: str
    """What the policy wrote, as text: without the special tokens that frame a message, with those that are tags."""
    answer: Any
    """The reference: the value of the data's answer column, or `None` where there is none."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The columns of the row under their own names."""
    completion_ids: Sequence[int] = ()
    """The token ids of `completion`, including the end-of-sequence token."""
    rendered_prompt: str = ""
    """The prompt as the policy read it, after the chat template, with all special tokens; empty where nothing was
    rendered."""
    prefill: str = ""
    """What the prompt has written already of the answer, such as the `<think>` with which a template ends; see
    `outdo.utils.thinking.prefill_of`."""
    messages: Sequence[Mapping[str, Any]] = ()
    """In an episode of several turns, all messages after the prompt; `completion` is the last turn of the policy."""
    episode_ids: Sequence[int] = ()
    """The token ids of `messages`, with those that the environment wrote."""
    sampled_ids: Sequence[int] = ()
    """Those of them that the policy sampled."""

    @property
    def before(self) -> str | list[dict[str, Any]]:
        """The question, and in an episode of several turns all messages before the last one, which is `completion`."""
        if len(self.messages) < 2:
            return self.prompt
        question = [{"role": "user", "content": self.prompt}] if isinstance(self.prompt, str) else self.prompt
        return [*question, *map(dict, self.messages[:-1])]

    @property
    def answer_text(self) -> str:
        """The whole text of the answer, whoever has written it: the prefill and the completion."""
        return self.prefill + self.completion


class PromptWithReference(Protocol):
    """A question and its reference: `outdo.types.Prompt`, or `outdo.data.questions.Question`."""

    @property
    def text(self) -> str | Sequence[Mapping[str, Any]]: ...
    @property
    def answer(self) -> Any: ...
    @property
    def columns(self) -> Mapping[str, Any]: ...


def reward_input(
    prompt: PromptWithReference,
    completion: str,
    completion_ids: Sequence[int] = (),
    *,
    rendered_prompt: str = "",
    prefill: str | None = None,
    messages: Sequence[Mapping[str, Any]] = (),
    episode_ids: Sequence[int] = (),
    sampled_ids: Sequence[int] = (),
) -> RewardInput:
    """Return what a reward sees of one answer to a prompt. Chat messages are copied: a reward may change its own.

    Without a `prefill` it is that of the rendered prompt.
    """
    return RewardInput(
        prompt=prompt.text if isinstance(prompt.text, str) else [dict(message) for message in prompt.text],
        completion=completion,
        answer=prompt.answer,
        columns=prompt.columns,
        completion_ids=completion_ids,
        rendered_prompt=rendered_prompt,
        prefill=prefill_of(rendered_prompt, prompt.text) if prefill is None else prefill,
        messages=[dict(message) for message in messages],
        episode_ids=episode_ids,
        sampled_ids=sampled_ids,
    )


class Status(StrEnum):
    """The outcome of scoring a completion. Only `ok` has a value; the others are counted and never trained on.

    `unavailable` is a failure of what the reward needs, such as a service that does not answer: the completion is
    scored again before it counts as a failure.
    """

    ok = "ok"
    not_applicable = "not_applicable"
    failed = "failed"
    timed_out = "timed_out"
    non_finite = "non_finite"
    unavailable = "unavailable"

    @property
    def is_failure(self) -> bool:
        """True if the reward should have returned a value and did not."""
        return self not in (Status.ok, Status.not_applicable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOutput:
    """The reward of one completion, or the reason why there is none."""

    value: float
    """The reward: finite, and 0.0 if `status` is not ok (a placeholder that every mean leaves out)."""
    status: Status
    """Whether `value` is a reward, and if not, why."""
    parts: Mapping[str, float | None]
    """The value of each reward function by its name, before weights; `None` if it returned none."""
    reason: str = ""
    """One line that explains a failure; empty if there was none."""
    right: bool | None = None
    """Whether the answer is right; `None` if the reward gives no verdict. See `outdo.rewards.right`."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or (self.status is not Status.ok and self.value != 0.0):
            raise ValueError(f"a reward with the status {self.status} cannot have the value {self.value}")


def output_without_value(status: Status, reason: str, name: str) -> RewardOutput:
    """Return an output without a value; `reason` is shortened to one line of at most 300 characters."""
    return RewardOutput(value=0.0, status=status, parts={name: None}, reason=" ".join(reason[:1000].split())[:300])


def to_output(value: object, name: str) -> RewardOutput:
    """Convert what the reward function `name` returned for one completion.

    Of a dict its `"score"` counts, or else its `"reward"`. `None` is not applicable, True and False are 1 and 0 and
    also a verdict (`right`), numbers and zero-dimensional arrays are their value, NaN, infinities and anything beyond
    ±`LARGEST_VALUE` are non-finite, and everything else has failed.
    """
    if value is None:
        return output_without_value(Status.not_applicable, "", name)
    if isinstance(value, Mapping):
        if not (keys := [key for key in SCORE_KEYS if key in value]):
            wanted = " or ".join(f'"{key}"' for key in SCORE_KEYS)
            return output_without_value(Status.failed, f"{name} returned a dict without {wanted}", name)
        value = value[keys[0]]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # type: ignore[attr-defined]
    if not isinstance(value, int | float):
        reason = f"{name} returned {_type_with_article(value)}; expected a number, a bool or None"
        return output_without_value(Status.failed, reason, name)
    if not abs(value) <= LARGEST_VALUE:
        what = f"{float(value)}" if isinstance(value, float) else "an integer too large"
        return output_without_value(
            Status.non_finite, f"{name} returned {what}, out of range (±{LARGEST_VALUE:g})", name
        )
    right = value if isinstance(value, bool) else None
    return RewardOutput(value=float(value), status=Status.ok, parts={name: float(value)}, right=right)


def to_outputs(values: object, count: int, name: str) -> list[RewardOutput]:
    """Convert what the reward function `name` returned for `count` completions at once.

    A wrong number of values is a failure of all of them: no value is repeated to fill the list.
    """
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        got = f"{_type_with_article(values)} for {counted(count, 'completion')}"
    elif getattr(values, "ndim", 1) == 0:
        got = f"1 value for {counted(count, 'completion')}"
    else:
        rewards = list(values)  # type: ignore[call-overload]
        if len(rewards) == count:
            return [to_output(reward, name) for reward in rewards]
        got = f"{counted(len(rewards), 'value')} for {counted(count, 'completion')}"
    return [output_without_value(Status.failed, f"{name} returned {got}; expected a list of {count}", name)] * count


def _type_with_article(value: object) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


DEADLINE: ContextVar[float] = ContextVar("DEADLINE", default=math.inf)
"""When the rewards of a step must be finished, in seconds of `time.monotonic`; what is left then has timed out."""


class FailureCount:
    """Counts the failed rewards of one training step and their time, over all the sampling calls of that step.

    One call may sample a single question, as in dynamic sampling: if that question is broken, all rewards of the call
    fail, but few of the step's.
    """

    def __init__(self) -> None:
        self.rewards = 0
        self.seconds = 0.0
        self.failed: list[tuple[RewardOutput, RewardInput]] = []

    @contextmanager
    def within(self, budget: float) -> Iterator[None]:
        """Add the seconds of the rewards that are called here, and end them when the step has used up `budget`."""
        started = monotonic()
        token = DEADLINE.set(started + budget - self.seconds)
        try:
            yield
        finally:
            DEADLINE.reset(token)
            self.seconds += monotonic() - started

    def check(self, outputs: Sequence[RewardOutput], inputs: Sequence[RewardInput], max_share: float) -> None:
        """Add the rewards of a call; at most `max_share` (0 to 1) of all may have failed, timed out or been non-finite.

        Raises:
            RewardError: there are more; the message has the counts and the first such completion, its status and
                reason.
        """
        self.rewards += len(outputs)
        self.failed += [pair for pair in zip(outputs, inputs, strict=True) if pair[0].status.is_failure]
        if len(self.failed) <= max_share * self.rewards:
            return
        by_status = Counter(output.status for output, _ in self.failed)
        counts = ", ".join(f"{count} {status}" for status, count in by_status.items())
        output, failed_input = self.failed[0]
        raise RewardError(
            f"{len(self.failed)} of {self.rewards} rewards of this step have no value ({counts}); "
            f"allowed are {max_share:.0%}.\n"
            f"The first: {output.status}: {one_line(output.reason)}\n"
            f"Its completion: {one_line(failed_input.completion)}"
        )
