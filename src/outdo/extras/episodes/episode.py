"""The user's side of an episode: a class that answers the policy's turns, or a list of functions that it can call.

    class Guess:                                     # one object for each episode
        def __init__(self, highest=100): ...         # options of the recipe
        def begin(self, prompt): ...                 # may return text for the last message of the prompt, or messages
        def reply(self, message): ...                # -> Reply, a str (a user's message) or None (nothing to say)
        def final_reward(self): ...                  # when the episode has ended, for whatever reason
        @staticmethod
        def group_rewards(episodes): ...             # when all episodes of a question have ended, for each of them
        def close(self): ...

Every method is optional, and may be asynchronous. With `tools`, a list of functions, outdo calls the functions itself
and gives the policy their results; `reply` then gets the turns without calls.
"""

import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from time import monotonic, perf_counter
from typing import Any

from outdo.extras.episodes.template import Parsed, Template, call_id
from outdo.extras.episodes.tools import LateError, ToolBox, ToolError
from outdo.models.prompt_encoding import Message
from outdo.types import FinishReason, Prompt
from outdo.utils.errors import MachineError
from outdo.utils.event_loop import EventLoop
from outdo.utils.text import counted, text_or_json

ROLES = ("user", "tool", "system")
"""The roles of messages that an environment may send."""

COUNTS = ("tools/calls", "tools/unknown", "tools/unparsed", "tools/raised", "tools/timed_out")
"""What is counted in an episode that has tools: the calls, and those of them that failed in each way."""

LONGEST_ERROR = 300
"""Characters of an error message that the policy reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What an environment answers to a turn of the policy. Without messages, text and tokens the episode ends.

    `done` says that the episode is over, whatever ended the turn: its state is terminal. An environment that only has
    nothing to say does not know whether the turn was complete; such an episode ends for the reason of its last turn.
    """

    messages: Sequence[Message] = ()  # of a user or a tool
    text: str = ""  # follows the turn as it is, without the chat template, in place of messages
    token_ids: Sequence[int] = ()  # the same as tokens
    reward: float | None = None  # of this turn, added to the reward of the episode; None: it has none
    done: bool = False
    truncated: bool = False  # the episode ends here, although the environment would have gone on; also with `done`

    @property
    def ends(self) -> bool:
        """Whether the episode ends with this turn."""
        return self.done or self.truncated or not (self.messages or self.text or self.token_ids)

    def finish_reason(self, turn: FinishReason) -> FinishReason:
        """Return why an episode ended that ends with this reply to a turn, which itself ended for the reason `turn`."""
        if self.truncated:
            return FinishReason.turns
        return FinishReason.stop if self.done else turn


class Player:
    """One episode: it calls the user's object and tools, each with a deadline, and counts what the tools did.

    `timeout` is the longest time of one call, in seconds. What the user's object raises is raised; what a tool raises
    becomes a message to the policy.
    """

    def __init__(self, episode: Any, tools: ToolBox, *, timeout: float) -> None:
        self.episode = episode
        self.tools = tools
        self.timeout = timeout
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0) if tools.schemas else {})
        self.seconds: dict[str, list[float]] = {name: [] for name in tools.names}  # of each call of each tool

    def begin(self, prompt: Prompt) -> str | list[Message] | tuple[int, ...]:
        """Return what the episode adds to its prompt: text for its last message, or further messages.

        Token ids are the prompt itself.
        """
        if (token_ids := self._method("begin_with_tokens", prompt)) is not None:  # of tinker; see tinker.py
            return token_ids
        of_row = replace(
            prompt, text=own_copy(prompt.text), answer=own_copy(prompt.answer), columns=own_copy(prompt.columns)
        )
        added = self._method("begin", of_row) or ()
        return added if isinstance(added, str) else [_checked(message) for message in added]

    def answer(self, turn: Parsed) -> Reply:
        """Return the answer to a turn: the results of its calls, or the reply of the user's object."""
        if hasattr(self.episode, "reply_to_tokens"):
            return self._method("reply_to_tokens", turn.completion)
        if hasattr(self.episode, "reply_to_text"):  # it is another library's; see adapt.py
            return _to_reply(self._method("reply_to_text", turn.text))
        calls = turn.message.get("tool_calls") or []
        if not calls and not turn.faults:
            return _to_reply(self._method("reply", turn.message))
        results = [self._result(call["function"]) for call in calls] + [
            self._failed("unparsed", fault) for fault in turn.faults
        ]
        return Reply(messages=[result | {"tool_call_id": call_id(index)} for index, result in enumerate(results)])

    def begin_group(self, episodes: Sequence[Any], prompt: Prompt, template: Template) -> None:
        """Prepare the objects of a group, of which that of this player is the first."""
        self._method("begin_group", episodes, prompt, template)

    def group_rewards(self, episodes: Sequence[Any]) -> list[Any] | None:
        """Return a reward for each of a group's objects, compared with each other; None if the class gives none.

        Raises `TypeError` if there are not as many.
        """
        rewards = self._method("group_rewards", episodes)
        if rewards is not None and len(rewards) != len(episodes):
            number = counted(len(rewards), "reward")
            raise TypeError(f"group_rewards returned {number} for {counted(len(episodes), 'episode')}")
        return rewards

    def final_reward(self) -> Any:
        """Return the final reward of the user's object; None if it gives none."""
        return self._method("final_reward")

    def close(self) -> None:
        """Close the user's object."""
        self._method("close")

    def _method(self, name: str, *arguments: Any) -> Any:
        method = getattr(self.episode, name, None)
        return None if method is None else call_within(self.timeout, method, *arguments)

    def _result(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Return the message with the result of a call, or with what is wrong with it."""
        name, arguments = str(call["name"]), call.get("arguments") or {}
        self.counts["tools/calls"] += 1
        try:
            tool = self.tools.find(name, arguments)
            with self._timed(name):
                content = text_or_json(call_within(self.timeout + tool.grace, tool.function, **arguments))
        except ToolError as error:
            return self._failed(error.metric, str(error), name, printed=error.printed)
        except LateError as error:
            return self._failed("timed_out", str(error), name)
        except (MachineError, *self.tools.lost):  # what the tool needs is lost: no fault of the policy's
            raise
        except Exception as error:  # the policy learns from what its call raised
            return self._failed("raised", f"{type(error).__name__}: {error}", name)
        return {"role": "tool", "name": name, "content": content}

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Measure a call of a tool, however it ends."""
        began = perf_counter()
        try:
            yield
        finally:
            self.seconds[name].append(perf_counter() - began)

    def _failed(self, metric: str, reason: str, name: str | None = None, *, printed: str = "") -> dict[str, Any]:
        self.counts["tools/calls"] += name is None
        self.counts[f"tools/{metric}"] += 1
        name = name or next(iter(self.tools.schemas))["function"]["name"]
        error = f"error: {' '.join(reason.split())[:LONGEST_ERROR]}"
        return {"role": "tool", "name": name, "content": f"{printed}\n{error}" if printed else error}


def call_within(seconds: float, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call a function, plain or asynchronous, and return its result. Raises `LateError` after `seconds`.

    A plain function that is late cannot be ended; its thread goes on without anybody waiting for it, and ends with the
    process at the latest.
    """
    outcome: Future[Any] = Future()

    def work() -> None:
        try:
            result = function(*arguments, **keywords)
            outcome.set_result(_loop().run(result, timeout=seconds) if inspect.isawaitable(result) else result)
        except BaseException as error:
            outcome.set_exception(as_exception(error))

    began = monotonic()
    threading.Thread(target=work, daemon=True, name="outdo environment").start()
    in_time = wait([outcome], seconds).done
    # An asynchronous function that is cancelled at the deadline may end by it before this thread has noticed.
    cancelled = in_time and isinstance(outcome.exception(), TimeoutError) and monotonic() - began >= seconds
    if cancelled or not in_time:
        raise LateError(f"{getattr(function, '__name__', 'the call')} had no result after {seconds:g} s")
    return outcome.result()


def as_exception(error: BaseException) -> Exception:
    """Return what a user's function raised as an `Exception`: `sys.exit` and `KeyboardInterrupt` there end no run."""
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


@cache
def _loop() -> EventLoop:
    """Return the event loop of asynchronous methods and tools; they may share a session."""
    return EventLoop()


def _to_reply(value: Any) -> Reply:
    """Return what `reply` returned as a `Reply`. Raises `TypeError` if it is none."""
    if value is None:
        return Reply()
    reply = Reply(messages=[_user(value)]) if isinstance(value, str) else value
    if not isinstance(reply, Reply):
        raise TypeError(f"reply returned {type(value).__name__}; expected Reply, a str or None")
    if sum(map(bool, (reply.messages, reply.text, reply.token_ids))) > 1:
        raise TypeError("reply returned several of messages, text and token_ids; only one of them can follow a turn")
    for message in reply.messages:
        _checked(message)
    return reply


def row_of(prompt: Prompt) -> dict[str, Any]:
    """Return the columns of the row, with its `prompt` and `answer`; the caller may change them."""
    return own_copy({"prompt": prompt.text, "answer": prompt.answer, **prompt.columns})


def own_copy(value: Any) -> Any:
    """Return a value with lists and tables of its own.

    The samples of a question share its row, also in later epochs: an episode that changes its own changes no other's.
    """
    if isinstance(value, Mapping):
        return {name: own_copy(item) for name, item in value.items()}
    return [own_copy(item) for item in value] if isinstance(value, list | tuple) else value


async def awaited(value: Any) -> Any:
    """Return the value, or what it is awaited for."""
    return await value if inspect.isawaitable(value) else value


def number(value: Any) -> Any:
    """Return the number in a tensor or an array with one element, and everything else as it is."""
    return value.item() if hasattr(value, "item") else value


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _checked(message: Any) -> Message:
    if (
        not isinstance(message, Mapping)
        or message.get("role") not in ROLES
        or not isinstance(message.get("content"), str)
    ):
        expected = f'{{"role": {" or ".join(ROLES)}, "content": text}}'
        raise TypeError(f"expected messages such as {expected}, found {str(message)[:100]}")
    return message
