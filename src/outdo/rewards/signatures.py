"""Call a user's reward function by any of three signatures: that of TRL, that of verl, or a plain one.

The names of a function's parameters decide which signature it has, so functions written for TRL and verl run unchanged.
"""

import asyncio
import inspect
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from outdo.rewards.types import RewardInput, RewardOutput, Status, output_without_value, to_output, to_outputs
from outdo.utils.errors import UserError, did_you_mean

ACCEPTED_SIGNATURES = """\
  f(completion, answer)                        one completion; also prompt, or any column of the data by its name
  f(prompts, completions, **columns)           all completions at once, as in TRL
  f(data_source, solution_str, ground_truth, extra_info)   one completion, as in verl"""

TRAINER_ONLY = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
"""Arguments that only TRL's trainer can pass: a function may have these parameters if they have a default."""


class SignatureKind(StrEnum):
    """The signature of a reward function, with the parameter that identifies it."""

    trl = "completions"
    verl = "solution_str"
    plain = "completion"


ARGUMENTS = {
    SignatureKind.trl: frozenset({"prompts", "completions", "completion_ids", "answer"}),
    SignatureKind.verl: frozenset({"data_source", "solution_str", "ground_truth", "extra_info"}),
    SignatureKind.plain: frozenset({"prompt", "rendered_prompt", "completion", "completion_ids", "answer"}),
}
"""Parameters that a function can always have, whatever columns the data has."""


class EventLoop:
    """An event loop on a daemon thread of its own, so that it also works inside the running loop of a notebook."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="outdo rewards")
        self._thread.start()
        self.close = weakref.finalize(self, _stop, self._loop, self._thread)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for `awaitable` and return its result; an exception of it is raised here."""
        return asyncio.run_coroutine_threadsafe(_await(awaitable), self._loop).result()


async def _await(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as error:  # it would end the thread of the loop, and the caller would wait for ever
        raise RuntimeError(f"sys.exit({error})") from error


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=1.0)
    if not thread.is_alive():  # otherwise a call blocks the loop; the daemon thread ends with the process
        loop.close()


@dataclass(frozen=True, kw_only=True)
class RewardFunction:
    """A user's reward function, called by the signature it was written for."""

    name: str
    function: Callable[..., Any]
    kind: SignatureKind
    accepts: frozenset[str] | None
    """The names of its parameters; `None` if it takes any (`**columns`)."""
    required: frozenset[str]
    """The parameters without a default."""
    asynchronous: bool
    options: Mapping[str, Any]
    """Arguments that are the same for every completion; they win over columns of the same name."""
    timeout: float | None
    """Seconds for each call of an asynchronous function of one completion; `None`: no limit."""

    @property
    def scores_batches(self) -> bool:
        """True if one call scores many completions: as a batch, or as asynchronous calls that run concurrently."""
        return self.asynchronous or self.kind is SignatureKind.trl

    @cached_property
    def loop(self) -> EventLoop:
        """The event loop of asynchronous calls; the first call starts it."""
        return EventLoop()

    def score(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score completions; if the call for one completion raises, only that completion has failed.

        Raises:
            Exception, SystemExit: whatever a function that takes all completions in one call raises.
        """
        if self.kind is SignatureKind.trl:
            returned = self._await_result(self.function(**self._select_arguments(_trl_arguments(inputs))))
            return to_outputs(returned, len(inputs), self.name)
        if self.asynchronous:
            return self.loop.run(self._score_concurrently(inputs))
        return [self._score_one(sample) for sample in inputs]

    def _score_one(self, sample: RewardInput) -> RewardOutput:
        try:
            return self._to_output(self._await_result(self.function(**self._arguments(sample))))
        except (Exception, SystemExit) as error:
            return output_of_error(error, self.name)

    async def _score_one_async(self, sample: RewardInput) -> RewardOutput:
        try:
            return self._to_output(await self.function(**self._arguments(sample)))
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

    def _to_output(self, returned: Any) -> RewardOutput:
        if self.kind is SignatureKind.verl and isinstance(returned, Mapping):
            if "score" not in returned:
                return output_without_value(Status.failed, f'{self.name} returned a dict without "score"', self.name)
            returned = returned["score"]
        return to_output(returned, self.name)

    def _arguments(self, sample: RewardInput) -> dict[str, Any]:
        given = _verl_arguments(sample) if self.kind is SignatureKind.verl else _plain_arguments(sample)
        return self._select_arguments(given)

    def _select_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**given, **self.options}
        missing = sorted(self.required - arguments.keys())
        if missing:
            raise TypeError(f"{self.name} needs {', '.join(missing)}; the data has {', '.join(given)}")
        return {name: value for name, value in arguments.items() if self.accepts is None or name in self.accepts}


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
    parameters = _parameters(function)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    required = frozenset(p.name for p in named.values() if p.default is p.empty)
    kind = next((kind for kind in SignatureKind if kind.value in named), None)
    if kind is None:
        shown = ", ".join(map(str, parameters))
        raise UserError([f"the reward {name}({shown}) has no known signature; known are:\n{ACCEPTED_SIGNATURES}"])
    if required & TRAINER_ONLY:
        only = ", ".join(sorted(required & TRAINER_ONLY))
        raise UserError([f"the reward {name} needs {only}, which only TRL's trainer can pass: give it a default"])
    accepts = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else frozenset(named)
    options = options or {}
    if wrong := list(_wrong_options(name, options, ARGUMENTS[kind], accepts)):
        raise UserError(wrong)
    return RewardFunction(
        name=name,
        function=function,
        kind=kind,
        accepts=accepts,
        required=required,
        asynchronous=any(map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))),  # noqa: B004
        options=options,
        timeout=timeout,
    )


def _wrong_options(
    name: str, options: Mapping[str, Any], given: frozenset[str], accepts: frozenset[str] | None
) -> Iterator[str]:
    known = sorted((accepts or frozenset()) - given)
    for option in options:
        if option in given:
            yield f"the reward {name}: {option} belongs to the completion and cannot be an option"
        elif accepts is not None and option not in accepts:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            hint = did_you_mean(option, [*known, "weight"]) or f"; {takes}"
            yield f"the reward {name} has no option {option!r}{hint}"


def score_all(
    call: Callable[[Sequence[RewardInput]], list[RewardOutput] | RewardOutput],
    inputs: Sequence[RewardInput],
    *,
    in_one_call: bool,
    retry_one_by_one: Callable[[RewardOutput], bool],
) -> list[RewardOutput]:
    """Score all completions by as few calls as possible.

    `call` returns one output for each, or a single failure of the whole call. If `retry_one_by_one` returns True for
    that failure, each completion gets a call of its own, so that only the faulty ones fail; otherwise all have failed.
    """
    if in_one_call and len(inputs) > 1:
        result = call(inputs)
        if isinstance(result, list):
            return result
        if not retry_one_by_one(result):
            return [result] * len(inputs)
    results = [call([sample]) for sample in inputs]
    return [result if isinstance(result, RewardOutput) else result[0] for result in results]


def output_of_error(error: BaseException, name: str) -> RewardOutput:
    """Return the output of a completion for which the reward raised `error`, with the error's file and line."""
    try:
        message = str(error)
    except Exception as second:
        message = f"its message raised {type(second).__name__}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_own_file(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return output_without_value(Status.failed, f"{type(error).__name__}: {message[:200]}{where}", name)


def _is_own_file(filename: str) -> bool:
    return Path(filename).parent == Path(__file__).parent


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C have no signature
        return []


def _plain_arguments(sample: RewardInput) -> dict[str, Any]:
    return {
        **sample.columns,
        "prompt": sample.prompt,
        "rendered_prompt": sample.rendered_prompt,
        "completion": sample.completion,
        "completion_ids": list(sample.completion_ids),
        "answer": sample.answer,
    }


def _verl_arguments(sample: RewardInput) -> dict[str, Any]:
    columns = sample.columns
    return {
        "data_source": columns.get("data_source", ""),
        "solution_str": sample.completion,
        "ground_truth": sample.answer,
        "extra_info": columns.get("extra_info") or {},
    }


def _trl_arguments(inputs: Sequence[RewardInput]) -> dict[str, Any]:
    """Return the columns as lists, the answer under `answer`; completions are messages if the prompts are."""
    names = dict.fromkeys(name for sample in inputs for name in sample.columns)
    return {
        **{name: [sample.columns.get(name) for sample in inputs] for name in names},
        "answer": [sample.answer for sample in inputs],
        "prompts": [sample.prompt for sample in inputs],
        "completions": [_trl_completion(sample) for sample in inputs],
        "completion_ids": [list(sample.completion_ids) for sample in inputs],
    }


def _trl_completion(sample: RewardInput) -> str | list[dict[str, str]]:
    if isinstance(sample.prompt, str):
        return sample.completion
    return [{"role": "assistant", "content": sample.completion}]
