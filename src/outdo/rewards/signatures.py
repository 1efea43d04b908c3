"""Call a user's reward function by any of five signatures: those of TRL, verl (two) and CS336, or a plain one.

The names of a function's parameters decide which signature it has, so functions written for TRL, verl or CS336
run unchanged.
"""

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic, sleep
from typing import Any

from outdo.rewards.failures import output_of_error
from outdo.rewards.options import ARGUMENTS, SignatureKind, kind_of, reward_mistakes
from outdo.rewards.types import DEADLINE, RewardInput, RewardOutput, Status, output_without_value, to_output, to_outputs
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.event_loop import EventLoop
from outdo.utils.imports import Signature, signature_of_object

ACCEPTED_SIGNATURES = """\
  f(completion, answer)                        one completion; also prompt, or any column of the data by its name
  f(prompts, completions, **columns)           all completions at once, as in TRL
  f(data_source, solution_str, ground_truth, extra_info)   one completion, as in verl
  f(data_sources, solution_strs, ground_truths, extra_infos)   all completions at once, as in verl's batch form
  f(response, ground_truth)                    one completion, as in Stanford's CS336"""

TRAINER_ONLY = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
"""Arguments that only TRL's trainer can pass: a function may have these parameters if they have a default."""


ONLY_BY_NAME = frozenset({"prefill", "prefills"})
"""Arguments that a function gets only if it names them: other libraries have none of them, and what is in `**columns`
may be taken for a column."""


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A user's reward function, called by the signature it was written for."""

    name: str
    function: Callable[..., Any]
    kind: SignatureKind
    takes: Signature
    asynchronous: bool
    options: Mapping[str, Any]
    """Arguments that are the same for every completion; they win over columns of the same name."""
    timeout: float | None
    """Seconds for each call of an asynchronous function of one completion; `None`: no limit."""

    @property
    def scores_batches(self) -> bool:
        """True if one call scores many completions: as a batch, or as asynchronous calls that run concurrently."""
        return self.asynchronous or self.kind.takes_batches

    @cached_property
    def loop(self) -> EventLoop:
        """The event loop of asynchronous calls; the first call starts it."""
        return EventLoop()

    def score(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score completions; if the call for one completion raises, only that completion has failed.

        Raises:
            Exception, SystemExit: whatever a function that takes all completions in one call raises.
        """
        if self.kind.takes_batches:
            arguments = _trl_arguments(inputs) if self.kind is SignatureKind.trl else _verl_batch_arguments(inputs)
            returned = self._await_result(self.function(**self._select_arguments(arguments)))
            return to_outputs(returned, len(inputs), self.name)
        if self.asynchronous:
            return self.loop.run(self._score_concurrently(inputs))
        return [self._score_one(sample) for sample in inputs]

    def _score_one(self, sample: RewardInput) -> RewardOutput:
        try:
            return to_output(self._await_result(self.function(**self._arguments(sample))), self.name)
        except (Exception, SystemExit) as error:
            return output_of_error(error, self.name)

    async def _score_one_async(self, sample: RewardInput) -> RewardOutput:
        try:
            return to_output(await self.function(**self._arguments(sample)), self.name)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return output_of_error(error, self.name)

    async def _score_concurrently(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        tasks = [asyncio.create_task(self._score_one_async(sample)) for sample in inputs]
        _, late = await asyncio.wait(tasks, timeout=self.timeout)
        for task in late:
            task.cancel()
        timed_out = output_without_value(
            Status.timed_out, f"{self.name} had no answer after {self.timeout} s", self.name
        )
        return [timed_out if task in late else task.result() for task in tasks]

    def _await_result(self, returned: Any) -> Any:
        """Wait for an awaitable: a lambda that calls a coroutine returns one without being asynchronous itself."""
        return self.loop.run(returned) if inspect.isawaitable(returned) else returned

    def _arguments(self, sample: RewardInput) -> dict[str, Any]:
        of_kind = {SignatureKind.verl: _verl_arguments, SignatureKind.cs336: _cs336_arguments}
        return self._select_arguments(of_kind.get(self.kind, _plain_arguments)(sample))

    def _select_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**given, **self.options}
        missing = sorted({*self.takes.required} - arguments.keys())
        if missing:
            similar = did_you_mean(missing[0], list(given))
            raise TypeError(f"{self.name} needs {', '.join(missing)}; the data has {', '.join(given)}{similar}")
        named = self.takes.parameters
        accepted = (arguments.keys() - ONLY_BY_NAME) | set(named) if self.takes.accepts_any else named
        return {name: value for name, value in arguments.items() if name in accepted}


def wrap_function(
    function: Any, name: str, *, options: Mapping[str, Any] | None = None, timeout: float | None = None
) -> RewardFunction:
    """Find out which signature `function` has. `options` and `timeout` are those of `Adapted`.

    Raises:
        UserError: it is not callable, has none of the accepted signatures (the message lists them), or does not take
            the options (the message offers the nearest name).
    """
    if not callable(function):
        raise UserError([f"the reward {name} is not a function but of type {type(function).__name__}"])
    if isinstance(function, type):
        raise UserError([f"the reward {name} is a class: give an instance that can be called, or a function"])
    takes = signature_of_object(function, name)
    kind = kind_of(takes)
    if kind is None:
        shown, similar = _written_parameters(function), _similar_parameter(takes)
        known = f"has no known signature{similar}; known are:\n{ACCEPTED_SIGNATURES}"
        raise UserError([f"the reward {name}{shown} {known}"])
    if only := ", ".join(sorted(TRAINER_ONLY.intersection(takes.required))):
        raise UserError([f"the reward {name} needs {only}, which only TRL's trainer can pass: give it a default"])
    options, of_any_type = options or {}, replace(takes, defaults={})  # a message with a value may show a secret
    if wrong := list(reward_mistakes(name, options, of_any_type)):
        raise UserError(wrong)
    return RewardFunction(
        name=name,
        function=function,
        kind=kind,
        takes=takes,
        asynchronous=any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))),  # noqa: B004
        options=options,
        timeout=timeout,
    )


def _written_parameters(function: Any) -> str:
    """Return the parameters of a function as in its source, without defaults, one of which may be a secret."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no parameters that can be read
        return ""
    empty = inspect.Parameter.empty
    names = [parameter.replace(default=empty, annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=names, return_annotation=inspect.Signature.empty))


def _similar_parameter(takes: Signature) -> str:
    """Return `"; did you mean X?"` for a parameter that is nearly one that identifies a signature."""
    return next(filter(None, (did_you_mean(name, list(SignatureKind)) for name in takes.parameters)), "")


Call = Callable[[Sequence[RewardInput], float], list[RewardOutput] | RewardOutput]
"""Scores completions until a time of `monotonic`: one output for each, or a single failure of the whole call."""

RETRY_AFTER = (1.0, 4.0, 16.0)
"""Seconds before completions that are `unavailable` are scored again, for the first time, the second time ..."""
JOIN_AFTER = 0.25
"""Seconds after which a second caller scores too, and again for each further one: short work needs no other process."""


def score_all(
    callers: Sequence[Call],
    inputs: Sequence[RewardInput],
    name: str,
    *,
    in_one_call: bool,
    retry_one_by_one: Callable[[RewardOutput], bool] = lambda _: True,
    interrupt: Callable[[], None] = lambda: None,
) -> list[RewardOutput]:
    """Score all completions by as few calls as possible, by the reward `name`.

    If `retry_one_by_one` returns True for the failure of a whole call, each completion gets a call of its own, so that
    only the faulty ones fail; otherwise all have failed. Calls for one completion are shared among the `callers`, which
    run concurrently; `interrupt` ends the calls that run if this thread is interrupted. What is `unavailable` is scored
    again (`RETRY_AFTER`). What the `DEADLINE` leaves has timed out.
    """
    deadline = DEADLINE.get()

    def score(inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        if in_one_call and len(inputs) > 1:
            result = callers[0](inputs, deadline)
            if isinstance(result, list):
                return result
            if result.status is Status.unavailable or not retry_one_by_one(result):
                return [result] * len(inputs)
        return _score_one_by_one(callers, inputs, name, deadline, interrupt)

    outputs = score(inputs)
    for seconds in RETRY_AFTER:
        again = [index for index, output in enumerate(outputs) if output.status is Status.unavailable]
        if not again or monotonic() + seconds >= deadline:
            break
        sleep(seconds)
        for index, output in zip(again, score([inputs[index] for index in again]), strict=True):
            outputs[index] = output
    return outputs


def _score_one_by_one(
    callers: Sequence[Call], inputs: Sequence[RewardInput], name: str, deadline: float, interrupt: Callable[[], None]
) -> list[RewardOutput]:
    late = output_without_value(Status.timed_out, "the time for the rewards of this step was used up", name)
    outputs = [late] * len(inputs)
    left = deque(range(len(inputs)))
    ended = threading.Event()

    def work(call: Call, begin_after: float) -> None:
        if begin_after and ended.wait(begin_after):
            return
        while monotonic() < deadline:
            try:
                index = left.popleft()
            except IndexError:  # another caller took the last
                return
            result = call([inputs[index]], deadline)
            outputs[index] = result if isinstance(result, RewardOutput) else result[0]

    first, *others = callers
    if not others:
        work(first, 0)
        return outputs
    with ThreadPoolExecutor(len(others)) as threads:
        tasks = [threads.submit(work, call, JOIN_AFTER * number) for number, call in enumerate(others, 1)]
        try:
            work(first, 0)
        except BaseException:
            left.clear()
            interrupt()
            raise
        finally:
            ended.set()
        for task in tasks:
            task.result()
    return outputs


def _plain_arguments(sample: RewardInput) -> dict[str, Any]:
    return {
        **sample.columns,
        "prompt": sample.prompt,
        "rendered_prompt": sample.rendered_prompt,
        "prefill": sample.prefill,
        "completion": sample.completion,
        "completion_ids": list(sample.completion_ids),
        "sampled_ids": list(sample.sampled_ids or sample.completion_ids),
        "messages": list(sample.messages) or sample.columns.get("messages", []),
        "answer": sample.answer,
    }


def _cs336_arguments(sample: RewardInput) -> dict[str, Any]:
    return {**_plain_arguments(sample), "response": sample.completion, "ground_truth": sample.answer}


def _verl_arguments(sample: RewardInput) -> dict[str, Any]:
    columns = sample.columns
    return {
        "data_source": columns.get("data_source", ""),
        "solution_str": sample.completion,
        "ground_truth": _verl_reference(sample),
        "extra_info": columns.get("extra_info") or {},
    }


def _verl_batch_arguments(inputs: Sequence[RewardInput]) -> dict[str, Any]:
    """Return the arguments of verl's function of one completion as lists; their names end with an s there."""
    arguments = [_verl_arguments(sample) for sample in inputs]
    return {f"{name}s": [of_one[name] for of_one in arguments] for name in ARGUMENTS[SignatureKind.verl]}


def _verl_reference(sample: RewardInput) -> Any:
    """Return the reference that verl gives to a function, whatever column of the row is the answer here."""
    row = sample.columns.get("reward_model")
    return row["ground_truth"] if isinstance(row, Mapping) and "ground_truth" in row else sample.answer


def _trl_arguments(inputs: Sequence[RewardInput]) -> dict[str, Any]:
    """Return the columns as lists, the answer under `answer`.

    Completions are messages if the prompts are, and in an episode of several turns. Then their token ids are those of
    all of these messages, with the results of tools, as in TRL. A last message of the assistant with which the prompt
    goes on is in the completion, as in TRL, and not in the prompt.
    """
    names = dict.fromkeys(name for sample in inputs for name in sample.columns)
    return {
        **{name: [sample.columns.get(name) for sample in inputs] for name in names},
        "answer": [sample.answer for sample in inputs],
        "prompts": [sample.prompt[:-1] if _continued(sample) else sample.prompt for sample in inputs],
        "completions": [_trl_completion(sample) for sample in inputs],
        "completion_ids": [list(sample.episode_ids or sample.completion_ids) for sample in inputs],
        "prefills": [sample.prefill for sample in inputs],
    }


def _trl_completion(sample: RewardInput) -> str | list[Any]:
    if sample.messages:
        return list(sample.messages)
    if isinstance(sample.prompt, str):
        return sample.completion
    return [{"role": "assistant", "content": _continued(sample) + sample.completion}]


def _continued(sample: RewardInput) -> str:
    """Return the text of the prompt's last message if it is the assistant's, and the prompt goes on with it."""
    last = sample.prompt[-1] if sample.prompt and not isinstance(sample.prompt, str) else {}
    content = str(last.get("content") or "") if last.get("role") == "assistant" else ""
    return content if content.strip() and content.strip() in sample.prefill and not sample.messages else ""
