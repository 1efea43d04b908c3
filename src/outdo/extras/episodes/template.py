"""The chat template of a model during an episode: the tokens that follow a turn, and the calls that a turn contains.

A turn that the policy sampled is never rendered or tokenised again. The messages that follow it are rendered after a
stand-in for it, and only what the template writes after the stand-in's end-of-turn token is kept. So the tokens of an
episode are exactly those that the policy sampled, and between them those of the environment's messages.

This is exact if the template writes the same text after every turn. `Template.properties` tries it, and four other
properties that differ between models.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.extras.episodes.call_formats import CALL_FORMATS, find_calls, marks_thinking, split_thought
from outdo.models.completion_text import rendered_text
from outdo.models.prompt_encoding import (
    WITHOUT_ENVIRONMENT_TOOLS,
    Message,
    Tool,
    encode_continuation,
    encode_prompt,
    render,
)
from outdo.models.special_tokens import Hidden, encode, hide
from outdo.types import Completion
from outdo.utils.errors import ModelError
from outdo.utils.thinking import opens_thinking, prefill_of, split_thinking

MARK, QUESTION = "outdo-stand-in", "outdo-question"
"""Texts that stand for a turn of the policy and for a question."""

WHERE = "an episode"

LONGEST_PREFILL = 64
"""Tokens at the end of a prompt that may be the beginning of a turn, such as `<think>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """What a chat template does with a conversation of several turns.

    Only `independent` is needed for any episode, and `parallel` for turns with several calls. The others do not matter
    here, because no turn is rendered again; they tell where a program that renders the whole conversation again would
    train on tokens that the policy has not sampled.
    """

    keeps_prefix: bool  # what it writes up to a call stays the same when the result follows
    keeps_thinking: bool  # the thinking of a turn stays when a user's message follows
    json_arguments: bool  # the arguments of a call stay JSON: `true`, and not `True`
    independent: bool  # what it writes after a turn does not depend on that turn
    parallel: bool  # several calls and their results are all written

    def describe(self, *, tools: bool) -> str:
        """Return a line with each property that applies, with `tools` or without, and yes or no."""
        with_tools = {
            "prefix kept at a tool result": self.keeps_prefix,
            "arguments stay JSON": self.json_arguments,
            "results of parallel calls": self.parallel,
        }
        facts = {"thinking kept at a user's message": self.keeps_thinking} | (with_tools if tools else {})
        facts["the same text after every turn"] = self.independent
        return "; ".join(f"{label}: {'yes' if holds else 'no'}" for label, holds in facts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A turn of the policy as a message, and a sentence for each of its calls that cannot be read."""

    message: dict[str, Any]  # role, content, and where there are any, reasoning_content and tool_calls
    faults: Sequence[str] = ()
    text: str = ""  # of the turn as it was sampled, without the token that ends it
    completion: Completion | None = None  # the turn itself


class Template:
    """The chat template of `tokenizer`, with `tools` in every prompt.

    `end_ids` are the tokens that end a turn. Special tokens in messages, texts and tools are ordinary text, unless
    `special_tokens` is true. Raises `ModelError` if there is no chat template, if the tools are not
    read by it, or if no known format reads the calls that it writes.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        end_ids: Collection[int],
        tools: Sequence[Tool] = (),
        system: str | None = None,
        special_tokens: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = tools
        self.system = system
        self.special_tokens = special_tokens
        self._end_ids = frozenset(end_ids)
        self.ends = {str(tokenizer.decode([token])): token for token in sorted(end_ids)}
        self.prompt([{"role": "user", "content": QUESTION}])
        self._has_schema = getattr(tokenizer, "response_template", None) is not None
        self.call_format = None if self._has_schema or not tools else self._find_format()

    def with_tools(self, tools: Sequence[Tool]) -> "Template":
        """Return the same template with other tools in every prompt."""
        how: dict[str, Any] = {"end_ids": self._end_ids, "system": self.system, "special_tokens": self.special_tokens}
        return Template(self.tokenizer, tools=tools, **how)

    def prompt(self, messages: Sequence[Message], *, where: str = WHERE) -> list[int]:
        """Return the token ids of a conversation, with the opening of the policy's first turn."""
        if not self.tokenizer.chat_template:
            raise ModelError(f"{where} needs a model with a chat template, and this tokenizer has none")
        return encode_prompt(
            self.tokenizer,
            messages,
            system=self.system,
            tools=self.tools,
            special_tokens=self.special_tokens,
            without_tools=WITHOUT_ENVIRONMENT_TOOLS,
            where=where,
        )

    def following(self, turn: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Return the token ids between a sampled turn and the next one, which the policy does not sample.

        They are `messages`, all of them one text, and the opening of the next turn. If `turn` does not end with the
        template's end-of-turn token (it is truncated, or ended at a stop string), that token comes first. Raises
        `ModelError` if the template does not say exactly what follows.
        """
        hidden: Hidden = {}
        if not self.special_tokens:
            messages, hidden = hide(self.tokenizer, messages, beside=(self.system, self.tools))
        end, text = self._after(messages)
        ids = encode(self.tokenizer, str(self.tokenizer.decode([end])) + text, hidden)
        if ids[:1] != [end]:
            raise ModelError("the end-of-turn token of the chat template is not one token of the tokenizer")
        return ids[1:] if list(turn[-1:]) == [end] else ids

    def following_text(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a turn as it is."""
        return encode_continuation(self.tokenizer, text, special_tokens=self.special_tokens)

    def prefill(self, before: Sequence[int], messages: str | Sequence[Message] = ()) -> str:
        """Return what the prompt has written already of a turn; `before` are all token ids before it.

        `messages` are those before it, if the last one may be the assistant's, with which the prompt goes on.
        """
        end = before if messages else before[-LONGEST_PREFILL:]
        return prefill_of(rendered_text(self.tokenizer, end), messages)

    def parse(self, turn: Sequence[int], before: Sequence[int]) -> Parsed:
        """Return the message that the token ids of a turn are; `before` are all token ids before them."""
        ids = list(turn[:-1] if turn and turn[-1] in self._end_ids else turn)
        text = str(self.tokenizer.decode(ids, skip_special_tokens=False))
        if self._has_schema:
            return self._parse_by_schema(ids, text, before)
        prefill = self.prefill(before)
        said = prefill + text if opens_thinking(prefill) else text
        calls, faults = [], []
        if self.call_format and marks_thinking(self.call_format):
            thought, content = split_thought(self.call_format, said)
        else:
            thought, content = split_thinking(said)
        if self.call_format:
            content, calls, faults = find_calls(self.call_format, content, self.tools)
        message = {"role": "assistant", "content": content.strip()}
        message |= {"reasoning_content": thought} if thought else {}
        return Parsed(message=message | ({"tool_calls": calls} if calls else {}), faults=faults, text=text)

    @cached_property
    def properties(self) -> Properties:
        """The properties of the template, found by rendering short conversations."""
        name = self.tools[0]["function"]["name"] if self.tools else "tool"
        results = [_result(name, content, index) for index, content in enumerate(("one", "two"))]
        user = {"role": "user", "content": "Go on."}
        thinking: Message = {"role": "assistant", "content": f"<think>\n{MARK}\n</think>\n\nYes."}
        if self.call_format and marks_thinking(self.call_format):  # it is not a part of the text
            thinking = {"role": "assistant", "content": "Yes.", "reasoning_content": MARK, "thinking": MARK}
        flag = _stand_in(results[:1], arguments={"flag": True, "text": MARK})
        return Properties(
            keeps_prefix=_holds(lambda: self._keeps_prefix(results[:1])),
            keeps_thinking=_holds(lambda: MARK in self._render([thinking, user])),
            json_arguments=_holds(lambda: "True" not in (text := self._written(flag)) and "true" in text),
            independent=_holds(lambda: self._is_independent(results[:1] if self.tools else [user])),
            parallel=_holds(lambda: bool(self._after(results)) and self._written(_stand_in(results)).count(MARK) > 1),
        )

    @property
    def notes(self) -> list[str]:
        """What the properties are, and what follows from them for a server that renders the conversation again."""
        notes = [f"chat template: {self.properties.describe(tools=bool(self.tools))}"]
        if not self.properties.keeps_thinking:
            notes.append(
                "chat template: a server with this template will not show the policy its earlier thinking after a "
                "user's next message; here the policy reads it, because no turn is rendered again"
            )
        return notes

    def check(self) -> None:
        """Raise `ModelError`, with the reason, if an episode with this template would not be exact."""
        self._after(
            [_result(self.tools[0]["function"]["name"], "one", 0)]
            if self.tools
            else [{"role": "user", "content": "Go on."}]
        )
        if not self.properties.independent:
            raise ModelError("the model's chat template writes other text after a turn, depending on that turn")

    # ------------------------------------------------------------------------------------------------ what follows

    def _after(self, messages: Sequence[Message], said: str = "") -> tuple[int, str]:
        """Return the end-of-turn token of the stand-in for a turn, and the text after it."""
        turn = _stand_in(messages, said)
        before, after = self._render([turn], open_turn=False), self._render([turn, *messages])
        if MARK not in before:
            raise ModelError("the model's chat template leaves out what the assistant called or answered")
        closing, tail = before.rpartition(MARK)[2], after.rpartition(MARK)[2]
        if before.count(MARK) != after.count(MARK) or not tail.startswith(closing):
            raise ModelError("the model's chat template changes a turn when messages follow it")
        start, length, end = max(
            ((closing.rfind(text), len(text), token) for text, token in self.ends.items()), default=(-1, 0, 0)
        )
        rest = tail[len(closing) :]
        if start >= 0:
            text = closing[start + length :] + rest
        else:  # the role of the next message ends the turn, as in GLM
            end, text = self._split_end(rest.lstrip())
        _check_kept(messages, text)
        return end, text

    def _split_end(self, text: str) -> tuple[int, str]:
        """Return the end-of-turn token that a text begins with, and the text after it."""
        for written, token in self.ends.items():
            if text.startswith(written):
                return token, text.removeprefix(written)
        raise ModelError("the model's chat template does not end the assistant's turn with an end-of-turn token")

    def _render(self, messages: Sequence[Message], *, open_turn: bool = True) -> str:
        """Return the text of a conversation that begins with the stand-in for a question."""
        conversation = [{"role": "user", "content": QUESTION}, *messages]
        return render(self.tokenizer, conversation, self.tools, WHERE, open_turn=open_turn)

    def _written(self, turn: Message) -> str:
        """Return the text of a turn alone."""
        text = self._render([turn], open_turn=False).rpartition(QUESTION)[2]
        return text.removeprefix(self._render([]).rpartition(QUESTION)[2])

    def _keeps_prefix(self, results: Sequence[Message]) -> bool:
        turn = _stand_in(results)
        return self._render([turn, *results]).startswith(self._render([turn], open_turn=False))

    def _is_independent(self, messages: Sequence[Message]) -> bool:
        variants = ("", "Yes.\n\n", "First line\nsecond line ", "<think>\nI think.\n</think>\n\nYes. ")
        return len({self._after(messages, said) for said in variants}) == 1

    # ----------------------------------------------------------------------------------------------------- parsing

    def _parse_by_schema(self, ids: Sequence[int], text: str, before: Sequence[int]) -> Parsed:
        """Parse a turn by the tokenizer's own description of its format."""
        try:
            tools: Any = [dict(tool) for tool in self.tools] or None
            message: Any = self.tokenizer.parse_response(list(ids), prefix=list(before), tools=tools)
        except Exception as error:  # a turn may be anything, and so may what its parser raises
            fault = f"the call is not valid: {error}"
            return Parsed(message={"role": "assistant", "content": text}, faults=[fault], text=text)
        return Parsed(message={**message, "role": "assistant", "content": message.get("content") or ""}, text=text)

    def _find_format(self) -> str:
        """Return the first format that reads back a call that the template writes."""
        name = self.tools[0]["function"]["name"]
        arguments = {"text": MARK}
        written = self._written(_stand_in([{"role": "tool", "name": name}], arguments=arguments))
        for end in self.ends:
            written = written.rpartition(end)[0] or written
        for form in CALL_FORMATS:
            if [read["function"] for read in find_calls(form, written, self.tools)[1]] == [
                {"name": name, "arguments": arguments}
            ]:
                return form
        raise ModelError(
            "the model's chat template writes tool calls in a format that outdo cannot read "
            f"({', '.join(CALL_FORMATS)}), and its tokenizer has no `response_template` that describes it"
        )


def _stand_in(messages: Sequence[Message], said: str = "", arguments: Mapping[str, Any] | None = None) -> Message:
    """Return the turn that `messages` answer: with a call for each result of a tool, or else a text."""
    names = [str(message.get("name", "tool")) for message in messages if message["role"] == "tool"]
    if not names:
        return {"role": "assistant", "content": said + MARK}
    arguments = arguments or {"text": said + MARK}
    functions = [{"name": name, "arguments": arguments} for name in names]
    calls = [
        {"id": call_id(index), "type": "function", "function": function} for index, function in enumerate(functions)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(name: str, content: str, index: int) -> Message:
    """Return the result of a turn's call."""
    return {"role": "tool", "name": name, "tool_call_id": call_id(index), "content": content}


def call_id(index: int) -> str:
    """Return the id of a turn's call: nine letters and digits, which Mistral's template wants."""
    return f"call{index:05}"


def _check_kept(messages: Sequence[Message], text: str) -> None:
    """Raise `ModelError` unless the text has the content of all messages, in their order."""
    end = 0
    for message in messages:
        content = str(message["content"]).strip()
        starts = [text.find(form, end) for form in (content, json.dumps(content, ensure_ascii=False)[1:-1])]
        if max(starts) < 0:
            raise ModelError(f"the model's chat template leaves out a message of the role {message['role']}")
        end = min(start for start in starts if start >= 0) + len(content)


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except ModelError:
        return False
