"""Tell thinking from the answer in the text of a turn, whoever wrote the tag that begins the thinking.

| tags | written by |
|---|---|
| `<think>` ... `</think>` | DeepSeek-R1, Qwen3, GLM-4.5, MiniMax, SmolLM3 and others |
| `<thinking>`, `<thought>`, `<reasoning>`, `<seed:think>` | EXAONE Deep, Seed-OSS, formats of prompts |
| `[THINK]` ... `[/THINK]` | Magistral |
| `◁think▷` ... `◁/think▷` | Kimi |
| `<|begin_of_thought|>` ... `<|end_of_thought|>` | Sky-T1, OpenThinker |
| `<|START_THINKING|>` ... `<|END_THINKING|>` | Command A Reasoning |
| `<|channel>thought` ... `<channel|>` | Gemma 4 |
| `<|channel|>analysis` ... `<|channel|>final<|message|>` | gpt-oss: the answer is what stands in its channel `final` |

A model may leave out the tag that begins its thinking, as its prompt ends with it (`prefill_of`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

MARKS = (
    "[THINK]",
    "[/THINK]",
    "◁think▷",
    "◁/think▷",
    "<|begin_of_thought|>",
    "<|end_of_thought|>",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    "<|channel>thought",
    "<channel|>",
    "<|channel|>analysis<|message|>",
    "<|channel|>final<|message|>",
)
"""The tags of thinking that are not in angle brackets alone: tokenizers have their parts as special tokens."""

_NAME = r"(?:think|thinking|thought|reasoning|seed:think)"
_START = re.compile(
    rf"<{_NAME}\s*>|(?-i:\[THINK\])|◁think▷|<\|(?:begin_of_thought|START_THINKING)\|>|<\|channel>thought\b"
    r"|<\|channel\|>(?:analysis|commentary)\b(?:(?!<\|message\|>|<\|channel\|>).)*(?:<\|message\|>)?",
    re.IGNORECASE | re.DOTALL,
)
_END = re.compile(
    rf"</{_NAME}\s*>|(?-i:\[/THINK\])|◁/think▷|<\|(?:end_of_thought|END_THINKING)\|>|<channel\|>"
    r"|<\|channel\|>final\b(?:(?!<\|message\|>|<\|channel\|>).)*<\|message\|>",
    re.IGNORECASE | re.DOTALL,
)
_OPENED_AT_END = re.compile(
    rf"(?:(?:{_START.pattern}|{_END.pattern}|<answer\s*>)\s*)+\Z|```(?:python3?|py)[ \t]*\n\Z|\\boxed\{{\s*\Z",
    re.IGNORECASE | re.DOTALL,
)
_LONGEST_END = 1000
"""Characters of a prompt that `prefill_of` looks at, before what is a message."""


def without_thinking(text: str) -> str:
    """Return what follows the last thinking of a text, up to thinking that does not end; `text` begins with a prefill.

    That is everything after the last tag that ends thinking, before a tag that begins some.
    """
    return split_thinking(text)[1]


def split_thinking(text: str) -> tuple[str, str]:
    """Return the thinking of a text, without its tags, and what follows it; see `without_thinking`."""
    end = 0
    for match in _END.finditer(text):
        end = match.end()
    begins = _START.search(text, end)
    answer = text[end : begins.start() if begins else None]
    thoughts = (text[:end], text[begins.end() :] if begins else "")
    plain = (_END.sub("", _START.sub("", thought)).strip() for thought in thoughts)
    return "\n".join(filter(None, plain)), answer


def opens_thinking(prefill: str) -> bool:
    """Return whether what the prompt has written of an answer begins thinking, and does not end it."""
    *_, end = [0, *(match.end() for match in _END.finditer(prefill))]
    return _START.search(prefill, end) is not None


def prefill_of(rendered: str, question: str | Sequence[Mapping[str, Any]] = "") -> str:
    r"""Return what a prompt has written already of the answer to it: it belongs to the answer, as a prefill.

    `rendered` is the prompt as the policy reads it. The prefill is the content of the last message of the `question` if
    that is the assistant's and the prompt ends with it; and before it, or at the end of the prompt, the tags that only
    white space follows: those of thinking, `<answer>`, a fence such as "```python", and `\boxed{`.
    """
    last = question[-1] if question and not isinstance(question, str) else {}
    content = str(last.get("content") or "").strip() if last.get("role") == "assistant" else ""
    begins = rendered.rfind(content) if content and rendered.rstrip().endswith(content) else len(rendered)
    opened = _OPENED_AT_END.search(rendered[max(0, begins - _LONGEST_END) : begins])
    return (opened[0] if opened else "") + rendered[begins:]
