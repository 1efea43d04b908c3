"""The calls of one episode of an agent as conversations of exact tokens.

Every answer is a node of a tree. A call whose messages begin with those of an earlier call and its answer continues it:
the tokens of that call and of its answer are kept as they are, and only the messages that follow are encoded. Any other
call begins a further conversation, with all of its messages rendered; only what is sampled in it is trained.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from outdo.extras.agents.chat import NEUTRAL, CallError, ChatAnswer, ChatCall, message_key
from outdo.extras.episodes.conversation import TOKENS_READ
from outdo.extras.episodes.template import Template, call_id
from outdo.models.completion_text import completion_text
from outdo.models.prompt_encoding import Message, Tool
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, FinishReason, Request
from outdo.utils.errors import ModelError
from outdo.utils.rng import Stream
from outdo.utils.text import counted

COUNTS = ("agents/calls", "agents/forks", "agents/forked_tokens", "agents/overridden", "agents/unparsed")
"""What is counted in an episode of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The largest numbers of an episode; tokens are those of one conversation."""

    calls: int
    tokens: int  # after its first prompt, with everything that the agent writes
    turn_tokens: int | None = None  # of one answer
    prompt: int | None = None  # of its first prompt
    context: int | None = None  # of the model


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """An answer that was sampled."""

    parent: "Node | None"  # the answer that this call continues
    tools: str  # of the call, as JSON
    keys: tuple[str, ...]  # of all messages, with the answer
    messages: Sequence[Message]
    token_ids: tuple[int, ...]  # all tokens before the answer
    completion: Completion
    finish_reason: FinishReason  # of the completion; but `stop` for an answer as long as its call asked for
    text: str
    prefill: str  # see `RewardInput.prefill`

    @property
    def path(self) -> "list[Node]":
        """The answers of the conversation up to this one."""
        return [*(self.parent.path if self.parent else ()), self]

    @property
    def sampled(self) -> int:
        """The number of tokens that were sampled in the conversation up to here."""
        return sum(len(node.completion.token_ids) for node in self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A call with its tokens, before it is sampled."""

    call: ChatCall
    template: Template
    parent: Node | None
    request: Request
    limit: int  # tokens that the run allows for the answer, whatever the call asks for


class Session:
    """The calls of one episode, whose random numbers are those of `stream`.

    `template_of` returns the chat template with the given tools. The random numbers of a call are keyed by the tokens
    before it: they depend neither on the time at which it arrives, nor on the calls that the agent makes meanwhile.
    """

    def __init__(
        self,
        stream: Stream,
        template_of: Callable[[Sequence[Tool]], Template],
        sampling: SamplingParams,
        limits: SessionLimits,
    ) -> None:
        self.stream = stream
        self.sampling = sampling
        self.limits = limits
        self.nodes: list[Node] = []
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
        self.ended_by: FinishReason | None = None  # the limit that ended the episode, or the engine
        self._template_of = template_of
        self._asked: Counter[str] = Counter()  # how often each prompt was answered

    def prepare(self, call: ChatCall) -> Prepared | ChatAnswer:
        """Return the request of a call to the engine; an empty answer if a limit leaves no room for one.

        Raises `CallError` if the call cannot be answered, and for each call after the limit of calls has been reached.
        """
        if self.ended_by is FinishReason.turns:
            raise CallError(f"the episode has had its {counted(self.limits.calls, 'call')}", code="episode_ended")
        self.counts["agents/calls"] += 1
        self.counts["agents/overridden"] += any(not self._is_sampled_so(*wanted) for wanted in call.wanted.items())
        if self.counts["agents/calls"] > self.limits.calls:
            self.ended_by = FinishReason.turns
            return _nothing(call)
        try:
            template = self._template_of(call.tools)
            parent, token_ids = self._tokens_before(call, template)
        except ModelError as error:
            raise CallError(f"the model's chat template cannot write these messages: {error}") from error
        room = self._room(token_ids, parent)
        if room < 1:
            self.ended_by = FinishReason.length
            return _nothing(call)
        digest = hashlib.blake2b(repr(token_ids).encode(), digest_size=8).hexdigest()
        stream = self.stream._replace(purpose=f"{self.stream.purpose}/{digest}/{self._asked[digest]}")
        self._asked[digest] += 1
        limit = min(room, self.limits.turn_tokens or room)
        request = Request(
            token_ids=token_ids,
            stream=stream,
            max_tokens=min(limit, call.max_tokens or limit),
            prompt_length=_prompt_length(token_ids, parent),
            episode=self.stream,
        )
        return Prepared(call=call, template=template, parent=parent, request=request, limit=limit)

    def record(self, prepared: Prepared, completion: Completion) -> ChatAnswer:
        """Keep what the engine sampled, and return it as the answer to the call."""
        call, request = prepared.call, prepared.request
        tokenizer = prepared.template.tokenizer
        message = self._message(prepared, completion)
        keys = tuple(map(message_key, [*call.messages, message]))
        as_wanted = completion.finish_reason is FinishReason.length and request.max_tokens < prepared.limit
        node = Node(
            parent=prepared.parent,
            tools=_key(call.tools),
            keys=keys,
            messages=[*call.messages, message],
            token_ids=request.token_ids,
            completion=completion,
            finish_reason=FinishReason.stop if as_wanted else completion.finish_reason,
            text=completion_text(tokenizer, completion.token_ids),
            prefill=prepared.template.prefill(request.token_ids, call.messages),
        )
        self.nodes.append(node)
        if completion.tokens_read is not None:
            self.counts[TOKENS_READ] += completion.tokens_read
        if completion.finish_reason is FinishReason.abort:
            self.ended_by = FinishReason.abort
        reason = "stop" if completion.finish_reason is FinishReason.stop else "length"
        return ChatAnswer(
            id=f"chatcmpl-{request.stream.purpose.rpartition('/')[0].rpartition('/')[2]}",
            model=call.model,
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else reason,
            prompt_ids=request.token_ids,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            tokens=[str(tokenizer.decode([token])) for token in completion.token_ids] if call.logprobs else (),
            show_token_ids=call.return_token_ids,
        )

    def ends(self) -> list[Node]:
        """Return the last answer of each conversation, the one with the most sampled tokens first.

        The order does not depend on that of the calls. Counts the other conversations, and the tokens that were sampled
        in them alone.
        """
        parents = {id(node.parent) for node in self.nodes}
        ends = [node for node in self.nodes if id(node) not in parents]
        ends.sort(key=lambda node: (node.sampled, node.token_ids, node.completion.token_ids), reverse=True)
        every = sum(len(node.completion.token_ids) for node in self.nodes)
        self.counts["agents/forks"] = max(0, len(ends) - 1)
        self.counts["agents/forked_tokens"] = every - ends[0].sampled if ends else 0
        return ends

    # ---------------------------------------------------------------------------------------------------- one call

    def _is_sampled_so(self, name: str, value: Any) -> bool:
        """Return whether a setting of a call is that of the run, or changes nothing."""
        return value == {**NEUTRAL, **asdict(self.sampling)}.get(name)

    def _tokens_before(self, call: ChatCall, template: Template) -> tuple[Node | None, tuple[int, ...]]:
        """Return the answer that a call continues, if there is one, and all tokens before the new answer."""
        if (node := self._earlier(call)) is not None and template.properties.independent:
            sampled = node.completion.token_ids
            try:
                following = template.following(sampled, call.messages[len(node.keys) :])
                return node, (*node.token_ids, *sampled, *following)
            except ModelError:  # the tokens between the two are not certain: a further conversation, which is counted
                pass
        return None, tuple(template.prompt(call.messages, where="the call"))

    def _earlier(self, call: ChatCall) -> Node | None:
        """Return the answer with the most messages that a call begins with, if it adds none of the policy to them."""
        keys, tools = tuple(map(message_key, call.messages)), _key(call.tools)
        earlier = [node for node in self.nodes if node.tools == tools and keys[: len(node.keys)] == node.keys]
        node = max(earlier, key=lambda node: (len(node.keys), node.completion.token_ids), default=None)
        added = () if node is None else call.messages[len(node.keys) :]
        return None if any(message["role"] == "assistant" for message in added) else node

    def _room(self, token_ids: Sequence[int], parent: Node | None) -> int:
        """Return how many tokens the answer may have."""
        prompt = _prompt_length(token_ids, parent)
        if self.limits.prompt is not None and prompt > self.limits.prompt:
            return 0
        longest = prompt + self.limits.tokens
        return min(longest, self.limits.context or longest) - len(token_ids)

    def _message(self, prepared: Prepared, completion: Completion) -> dict[str, Any]:
        """Return what was sampled as a message: with its calls if all of them can be read, or else as text."""
        call, before = prepared.call, prepared.request.token_ids
        parsed = prepared.template.parse(completion.token_ids, before)
        self.counts["agents/unparsed"] += bool(parsed.faults) and call.may_call
        if parsed.faults or (parsed.message.get("tool_calls") and not call.may_call):
            parsed = self._template_of(()).parse(completion.token_ids, before)
        message = {**parsed.message, "content": _before(parsed.message["content"], call.stop)}
        if calls := message.get("tool_calls"):
            turn = len(prepared.parent.path) if prepared.parent else 0
            message["tool_calls"] = [{**made, "id": call_id(100 * turn + n)} for n, made in enumerate(calls)]
        return message


def _prompt_length(token_ids: Sequence[int], parent: Node | None) -> int:
    """Return the number of tokens before the first answer of the conversation."""
    return len(token_ids) if parent is None else len(parent.path[0].token_ids)


def _before(text: str, stop: Sequence[str]) -> str:
    """Return the text before the first of the stop texts."""
    return text[: min([start for stop_text in stop if (start := text.find(stop_text)) >= 0], default=len(text))]


def _nothing(call: ChatCall) -> ChatAnswer:
    """Return the answer for which there is no room."""
    message = {"role": "assistant", "content": ""}
    return ChatAnswer(
        id="chatcmpl-nothing",
        model=call.model,
        message=message,
        finish_reason="length",
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
    )


def _key(tools: Sequence[Tool]) -> str:
    """Return a text that is equal for tools that a prompt writes in the same way."""
    return json.dumps([dict(tool) for tool in tools])
