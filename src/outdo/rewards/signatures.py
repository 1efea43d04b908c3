"""The three ways in which people write reward functions, behind one face.

A function is told apart by the names of its parameters alone, so functions written for TRL and verl run unchanged.
"""

import asyncio
import inspect
import threading
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from outdo.rewards.types import RewardInput, RewardOutput, Status, judged, judged_all, unscored
from outdo.utils.errors import UserError, did_you_mean

ACCEPTED_SIGNATURES = """\
  f(completion, answer)                        one completion; also prompt, or any column of the data by its name
  f(prompts, completions, **columns)           all completions at once, as in TRL
  f(data_source, solution_str, ground_truth, extra_info)   one completion, as in verl"""

TRAINER_ONLY = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
"""What TRL's trainer also passes, and only it can: a function may name these if they have a default."""


class Convention(StrEnum):
    """Whose way of calling a reward function expects; each is known by the one parameter it cannot do without."""

    trl = "completions"
    verl = "solution_str"
    plain = "completion"


ARGUMENTS = {
    Convention.trl: frozenset({"prompts", "completions", "completion_ids", "answer"}),
    Convention.verl: frozenset({"data_source", "solution_str", "ground_truth", "extra_info"}),
    Convention.plain: frozenset({"prompt", "completion", "completion_ids", "answer"}),
}
"""What a function can always ask for, whatever the data."""


class EventLoop:
    """An event loop on a daemon thread of its own, so that it also works inside a notebook's running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="outdo rewards")
        self._thread.start()
        self.close = weakref.finalize(self, _stop, self._loop, self._thread)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Wait for `awaitable` and return its result; what it raises is raised here."""
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except SystemExit as leaving:  # would end the loop's thread, and leave the caller waiting for ever
        raise RuntimeError(f"sys.exit({leaving})") from leaving


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=1.0)
    if not thread.is_alive():  # else a call blocks the loop; the daemon thread ends with the process
        loop.close()


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A user's function, called in the way it was written for."""

    name: str
    function: Callable[..., Any]
    convention: Convention
    accepts: frozenset[str] | None
    """The parameters it names; `None` where it takes any (`**columns`)."""
    requires: frozenset[str]
    """Those of them without a default."""
    asynchronous: bool
    options: Mapping[str, Any]
    """Arguments that are the same for every completion; they win over columns of the same name."""
    timeout: float | None
    """Seconds for each call of an asynchronous function that takes one completion; `None`: no limit."""

    @property
    def together(self) -> bool:
        """Whether one call takes many completions: a batch, or asynchronous calls that wait at the same time."""
        return self.asynchronous or self.convention is Convention.trl

    @cached_property
    def loop(self) -> EventLoop:
        """Where asynchronous calls run; started by the first."""
        return EventLoop()

    def call(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score `answered`; what a call for one completion raises is the verdict of that completion.

        Raises:
            Exception, SystemExit: whatever a function that takes all completions in one call raises.
        """
        if self.convention is Convention.trl:
            returned = self._result(self.function(**self._wanted(_trl_arguments(answered))))
            return judged_all(returned, len(answered), self.name)
        if self.asynchronous:
            return self.loop.run(self._all_waiting(answered))
        return [self._one(sample) for sample in answered]

    def _one(self, sample: RewardInput) -> RewardOutput:
        try:
            return self._judged(self._result(self.function(**self._arguments(sample))))
        except (Exception, SystemExit) as error:
            return failure(error, self.name)

    async def _one_waiting(self, sample: RewardInput) -> RewardOutput:
        try:
            return self._judged(await self.function(**self._arguments(sample)))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            return failure(error, self.name)

    async def _all_waiting(self, answered: Sequence[RewardInput]) -> list[RewardOutput]:
        tasks = [asyncio.create_task(self._one_waiting(sample)) for sample in answered]
        _, late = await asyncio.wait(tasks, timeout=self.timeout)
        for task in late:
            task.cancel()
        timed_out = unscored(Status.timed_out, f"{self.name} had no answer after {self.timeout} s", self.name)
        return [timed_out if task in late else task.result() for task in tasks]

    def _result(self, returned: Any) -> Any:
        """What a function returned, or what it promised: a lambda that calls a coroutine returns an awaitable."""
        return self.loop.run(returned) if inspect.isawaitable(returned) else returned

    def _judged(self, returned: Any) -> RewardOutput:
        if self.convention is Convention.verl and isinstance(returned, Mapping):
            if "score" not in returned:
                return unscored(Status.failed, f'{self.name} returned a dict without "score"', self.name)
            returned = returned["score"]
        return judged(returned, self.name)

    def _arguments(self, sample: RewardInput) -> dict[str, Any]:
        return self._wanted(_verl_arguments(sample) if self.convention is Convention.verl else _plain_arguments(sample))

    def _wanted(self, given: Mapping[str, Any]) -> dict[str, Any]:
        arguments = {**given, **self.options}
        missing = sorted(self.requires - arguments.keys())
        if missing:
            raise TypeError(f"{self.name} needs {', '.join(missing)}; the data has {', '.join(given)}")
        return {name: value for name, value in arguments.items() if self.accepts is None or name in self.accepts}


def adapt(
    function: Any, name: str, *, options: Mapping[str, Any] | None = None, timeout: float | None = None
) -> Adapted:
    """Find out how `function` wants to be called. `options` and `timeout` are those of `Adapted`.

    Raises:
        UserError: it is not callable, has none of the accepted signatures (the message lists them), or does not take
            the options (the nearest name is offered).
    """
    if not callable(function):
        raise UserError([f"the reward {name} is not a function but of type {type(function).__name__}"])
    parameters = _parameters(function)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    requires = frozenset(p.name for p in named.values() if p.default is p.empty)
    convention = next((known for known in Convention if known.value in named), None)
    if convention is None:
        shown = ", ".join(map(str, parameters))
        raise UserError([f"the reward {name}({shown}) has no known signature; known are:\n{ACCEPTED_SIGNATURES}"])
    if requires & TRAINER_ONLY:
        only = ", ".join(sorted(requires & TRAINER_ONLY))
        raise UserError([f"the reward {name} needs {only}, which only TRL's trainer can pass: give it a default"])
    accepts = None if any(p.kind is p.VAR_KEYWORD for p in parameters) else frozenset(named)
    options = options or {}
    if wrong := list(_wrong_options(name, options, ARGUMENTS[convention], accepts)):
        raise UserError(wrong)
    return Adapted(
        name=name,
        function=function,
        convention=convention,
        accepts=accepts,
        requires=requires,
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


def spread(
    call: Callable[[Sequence[RewardInput]], list[RewardOutput] | RewardOutput],
    answered: Sequence[RewardInput],
    *,
    together: bool,
    repeat: Callable[[RewardOutput], bool],
) -> list[RewardOutput]:
    """Score all `answered` by as few calls as the function wants and its failures allow.

    `call` returns one verdict for each, or a single failure of the whole call. Where `repeat` says so of that failure,
    each completion gets a call of its own, so that only the guilty ones fail; otherwise it is the verdict of all.
    """
    if together and len(answered) > 1:
        outcome = call(answered)
        if isinstance(outcome, list):
            return outcome
        if not repeat(outcome):
            return [outcome] * len(answered)
    alone = [call([sample]) for sample in answered]
    return [outcome if isinstance(outcome, RewardOutput) else outcome[0] for outcome in alone]


def failure(error: BaseException, name: str) -> RewardOutput:
    """The verdict of a completion for which the reward raised `error`: what it was, and in which line of whose file."""
    try:
        said = str(error)
    except Exception as worse:
        said = f"its message raised {type(worse).__name__}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return unscored(Status.failed, f"{type(error).__name__}: {said[:200]}{where}", name)


def _ours(filename: str) -> bool:
    return Path(filename).parent == Path(__file__).parent


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # some functions written in C tell nothing about themselves
        return []


def _plain_arguments(sample: RewardInput) -> dict[str, Any]:
    own = {"prompt": sample.prompt, "completion": sample.completion, "completion_ids": list(sample.completion_ids)}
    return {**sample.columns, **own, "answer": sample.answer}


def _verl_arguments(sample: RewardInput) -> dict[str, Any]:
    columns = sample.columns
    return {
        "data_source": columns.get("data_source", ""),
        "solution_str": sample.completion,
        "ground_truth": sample.answer,
        "extra_info": columns.get("extra_info") or {},
    }


def _trl_arguments(answered: Sequence[RewardInput]) -> dict[str, Any]:
    """The columns as lists, the answer under `answer`; completions are messages where the prompts are."""
    names = _ordered(name for sample in answered for name in sample.columns)
    return {
        **{name: [sample.columns.get(name) for sample in answered] for name in names},
        "answer": [sample.answer for sample in answered],
        "prompts": [sample.prompt for sample in answered],
        "completions": [_trl_completion(sample) for sample in answered],
        "completion_ids": [list(sample.completion_ids) for sample in answered],
    }


def _trl_completion(sample: RewardInput) -> str | list[dict[str, str]]:
    if isinstance(sample.prompt, str):
        return sample.completion
    return [{"role": "assistant", "content": sample.completion}]


def _ordered(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
