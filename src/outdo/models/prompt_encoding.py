"""Prompts as token ids: plain text, a template, or the model's own chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import (
    PreTrainedTokenizerBase,
)

from outdo.models.device import _first_line
from outdo.utils.errors import ModelError, UserError

Message = Mapping[str, Any]  # {"role": "user", "content": "..."}


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str | Sequence[Message],
    *,
    system: str | None = None,
    template: str | None = None,
    where: str = "the prompt",
) -> list[int]:
    """The token ids of one prompt: exactly what the policy reads, and never tokenised again.

    - Messages go through the tokenizer's chat template once, with the opening of the assistant's turn added.
    - A string is one user message if the tokenizer has a chat template, and is taken as it stands if it has none.
    - `template`, for base models, is text with `{prompt}` in it (and `{system}`, if there is one). It replaces any chat
      template, and needs prompts that are strings.
    - `system` becomes the first message, unless the prompt brings a system message of its own.

    Special tokens are added once. A chat template writes its own, so that its text is tokenised without any more; other
    text gets what the tokenizer always adds (a BOS, say), with no EOS after it, since the answer is still to come.

    `where` names the prompt in errors ("train.jsonl, row 3"). Raises `ModelError` if the chat template refuses the
    prompt, if there is none and one is needed, or if no token comes out; `UserError` if `template` lacks a field.
    """
    if template is not None or (isinstance(prompt, str) and not tokenizer.chat_template):
        ids = _encode_text(tokenizer, _plain(prompt, system, template, where))
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
        if system is not None and (not messages or messages[0].get("role") != "system"):
            messages = [{"role": "system", "content": system}, *messages]
        ids = tokenizer.encode(_render(tokenizer, messages, where), add_special_tokens=False)
    if not ids:
        raise ModelError(f"{where} has no tokens, and a model cannot answer nothing")
    return ids


def _plain(prompt: str | Sequence[Message], system: str | None, template: str | None, where: str) -> str:
    if not isinstance(prompt, str):
        raise UserError([f"{where} is a list of messages, and a prompt template takes text; leave the template out"])
    wanted = {"{prompt}": prompt} | ({} if system is None else {"{system}": system})
    text = "{prompt}" if template is None else template
    if absent := [field for field in wanted if field not in text]:
        what = "the prompt template" if template is not None else "without a chat template or a prompt template there"
        raise UserError([f"{what} has no place for {' and '.join(absent)}"])
    before, _, after = text.partition("{prompt}")
    for field, value in wanted.items():
        if field != "{prompt}":
            before, after = before.replace(field, value), after.replace(field, value)
    return before + prompt + after.replace("{prompt}", prompt)


def _encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """With the tokenizer's own special tokens, but for an EOS that it put at the end and the text does not have."""
    ids: list[int] = tokenizer.encode(text)
    bare: list[int] = tokenizer.encode(text, add_special_tokens=False)
    added = ids[-1:] == [tokenizer.eos_token_id] and ids[-len(bare) :] != bare
    return ids[:-1] if added else ids


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], where: str) -> str:
    if not tokenizer.chat_template:
        raise ModelError(
            f"{where} is a list of messages, and the model's tokenizer has no chat template to write them with; "
            "use a chat model, or prompts that are strings"
        )
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{where}: the model's chat template refused it: {_first_line(error)}") from error
    assert isinstance(text, str)
    return text
