"""The chat completions protocol: read a request, and write the answer as one JSON object or as a stream of chunks.

Messages are read into one form, whatever the client writes: `content` is a text, the arguments of a call are an object,
and the result of a tool has the name of its function. Two messages with equal `message_key` are the same message.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.data.formats import arguments_of
from outdo.models.prompt_encoding import Message, Tool

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""The roles of the protocol, and those that chat templates know."""

LIMITS = ("max_tokens", "max_completion_tokens")
"""The old and the new name of the largest number of tokens of an answer."""

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
"""Settings of sampling that a run has too."""

NEUTRAL = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}}
"""Settings that would change the probabilities of tokens, and the value with which they do not."""


MOST_STOPS = 16
"""Stop texts of a call; each token that is sampled is compared with all of them."""


class CallError(ValueError):
    """A request that cannot be answered. The message is for the author of the agent; `status` is that of HTTP."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_request", status: int = 400):
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status

    def body(self) -> dict[str, Any]:
        """Return the error as the protocol writes it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A request for one answer to `messages`."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    may_call: bool = True  # whether calls of tools are read in the answer
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    wanted: Mapping[str, Any] = field(default_factory=dict)  # settings of sampling that the request has
    model: str = "policy"
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    return_token_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """The answer to a call: the message, why it ended, and the tokens that the engine sampled."""

    id: str
    model: str
    message: Message
    finish_reason: str  # stop · length · tool_calls
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    tokens: Sequence[str] = ()  # the text of each token, if log-probabilities are wanted
    show_token_ids: bool = False

    def body(self) -> dict[str, Any]:
        """Return the answer as one object, as `stream = false` wants it."""
        choice = {"index": 0, "message": _written(self.message), "finish_reason": self.finish_reason}
        choice |= {"logprobs": self._logprobs()} | ({"token_ids": list(self.token_ids)} if self.show_token_ids else {})
        body = {**self._head("chat.completion"), "choices": [choice], "usage": self._usage()}
        return body | ({"prompt_token_ids": list(self.prompt_ids)} if self.show_token_ids else {})

    def chunks(self, *, usage: bool) -> Iterator[dict[str, Any]]:
        """Yield the answer as the chunks of a stream: the whole message, its end, and the usage if it is wanted."""
        head = self._head("chat.completion.chunk")
        delta = _written(self.message)
        for index, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = index
        shown = {"token_ids": list(self.token_ids)} if self.show_token_ids else {}
        first = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": self._logprobs(), **shown}
        yield {**head, "choices": [first]} | ({"prompt_token_ids": list(self.prompt_ids)} if shown else {})
        yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": self.finish_reason}]}
        if usage:
            yield {**head, "choices": [], "usage": self._usage()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": 0, "model": self.model}  # equal runs write equal answers

    def _usage(self) -> dict[str, int]:
        read, sampled = len(self.prompt_ids), len(self.token_ids)
        return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}

    def _logprobs(self) -> dict[str, Any] | None:
        if not self.tokens:
            return None
        pairs = zip(self.tokens, self.logprobs, strict=True)
        content = [
            {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
            for text, logprob in pairs
        ]
        return {"content": content, "refusal": None}


def read_call(body: Any) -> ChatCall:
    """Return the request in `body`, the parsed JSON. Raises `CallError` for what no answer could be trained for."""
    if not isinstance(body, Mapping):
        raise CallError("expected a JSON object")
    body = {name: value for name, value in body.items() if value is not None}
    _check_answerable(body)
    options = body.get("stream_options")
    return ChatCall(
        messages=_read_messages(body.get("messages")),
        tools=_read_tools(body.get("tools", [])),
        may_call=body.get("tool_choice") != "none",
        max_tokens=min((body[name] for name in LIMITS if name in body), default=None),
        stop=_read_stop(body.get("stop", ())),
        wanted={name: body[name] for name in (*SAMPLING, *NEUTRAL) if name in body},
        model=str(body.get("model", "policy")),
        stream=bool(body.get("stream")),
        stream_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        logprobs=bool(body.get("logprobs")),
        return_token_ids=bool(body.get("return_token_ids")),
    )


def _check_answerable(body: Mapping[str, Any]) -> None:
    """Raise `CallError` if a request wants another kind of answer than one that is sampled freely."""
    if body.get("n", 1) != 1:
        raise CallError("n: one call has one answer; call again for another one", param="n")
    form = body.get("response_format", {"type": "text"})
    if not isinstance(form, Mapping) or form.get("type") != "text":
        raise CallError("response_format: answers are sampled freely; leave it out", param="response_format")
    if body.get("tool_choice", "auto") not in ("auto", "none"):
        raise CallError('tool_choice: expected "auto" or "none"; no call is forced', param="tool_choice")
    for name in LIMITS:
        if not isinstance(limit := body.get(name, 1), int) or limit < 1:
            raise CallError(f"{name}: expected a whole number of 1 or more", param=name)


def message_key(message: Message) -> str:
    """Return a text that is equal for equal messages.

    The reasoning of an answer and the ids of its calls do not count: clients leave the first out, and some write the
    second anew.
    """
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return json.dumps([message["role"], message.get("name"), message["content"], calls], sort_keys=True)


def _read_messages(messages: Any) -> list[Message]:
    if not isinstance(messages, list) or not messages:
        raise CallError("messages: expected a list of messages", param="messages")
    names: dict[Any, str] = {}  # of the functions that the calls so far have named, by the id of the call
    read: list[Message] = []
    for message in messages:
        role = _read_role(message)
        one: dict[str, Any] = {"role": role, "content": _read_content(message.get("content"))}
        if role == "assistant":
            one |= _read_answer(message)
            names |= {call["id"]: call["function"]["name"] for call in one.get("tool_calls", ())}
        if role == "tool":
            call = _optional_text(message, "tool_call_id")
            one |= {"name": names.get(call) or _optional_text(message, "name") or "tool", "tool_call_id": call}
        read.append(one)
    if read[-1]["role"] == "assistant":
        raise CallError("messages: the last one is the assistant's; nothing is continued", param="messages")
    return read


def _read_role(message: Any) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise CallError(f"messages: expected a role of {', '.join(ROLES)} in {str(message)[:100]}", param="messages")
    return ROLES[role]


def _optional_text(message: Mapping[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise CallError(f"messages: {name}: expected a text, found {str(value)[:100]}", param="messages")
    return value


def _read_content(content: Any) -> str:
    """Return the text of a message: a text, parts of text, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        raise CallError("messages: the model reads text alone", param="messages")
    return "".join(texts)


def _read_answer(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reasoning and the calls of an assistant's message."""
    options: dict[str, Any] = {}
    if isinstance(thought := message.get("reasoning_content") or message.get("reasoning"), str):
        options["reasoning_content"] = thought
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise CallError("messages: tool_calls: expected a list of calls", param="messages")
        options["tool_calls"] = [_read_function_call(call) for call in calls]
    return options


def _read_function_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise CallError("messages: a call of a tool needs a function with a name", param="messages")
    function = {"name": function["name"], "arguments": arguments_of(function.get("arguments") or {})}
    return {"id": _optional_text(call, "id"), "type": "function", "function": function}


def _read_tools(tools: Any) -> list[Tool]:
    if not isinstance(tools, list) or not all(
        isinstance(tool, Mapping)
        and isinstance(tool.get("function"), Mapping)
        and isinstance(tool["function"].get("name"), str)
        for tool in tools
    ):
        raise CallError('tools: expected a list of {"type": "function", "function": {"name": ...}}', param="tools")
    return tools


def _read_stop(stop: Any) -> tuple[str, ...]:
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) and text for text in texts):
        raise CallError("stop: expected a text or a list of texts", param="stop")
    if len(texts) > MOST_STOPS:
        raise CallError(f"stop: expected at most {MOST_STOPS} texts, found {len(texts)}", param="stop")
    return tuple(texts)


def _written(message: Message) -> dict[str, Any]:
    """Return an answer as the protocol writes it: arguments are texts, and an answer of calls alone has no content."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    written = {**message, "content": message["content"] or (None if calls else "")}
    return written | ({"tool_calls": calls} if calls else {})
