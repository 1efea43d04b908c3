"""Encode prompts as token ids: plain text, a template, or the model's own chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

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
    """Return the token ids of a prompt: exactly what the policy reads; the prompt is never tokenised again.

    - Messages go through the tokenizer's chat template once, with the opening of the assistant's turn added.
    - A string becomes one user message if the tokenizer has a chat template; otherwise it is tokenised as it is.
    - `template`, for base models, is text with `{prompt}` in it (and `{system}`, if there is one). It replaces any chat
      template, and needs prompts that are strings.
    - `system` becomes the first message, unless the prompt has a system message of its own.

    Special tokens are added once. A chat template writes its own, so no others are added to its text. Other text gets
    those that the tokenizer always adds (a BOS, for example), but no EOS at the end, because the answer follows.

    `where` names the prompt in errors ("train.jsonl, row 3"). Raises `ModelError` if the chat template refuses the
    prompt, if there is none and one is needed, or if there is no token; `UserError` if `template` lacks a field.
    """
    if template is not None or (isinstance(prompt, str) and not tokenizer.chat_template):
        ids = _encode_text(tokenizer, _fill_template(prompt, system, template, where))
    else:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(each) for each in prompt]
        if system is not None and (not messages or messages[0].get("role") != "system"):
            messages = [{"role": "system", "content": system}, *messages]
        ids = tokenizer.encode(_render(tokenizer, messages, where), add_special_tokens=False)
    if not ids:
        raise ModelError(f"{where} has no tokens, and a model cannot answer nothing")
    return ids


def _fill_template(prompt: str | Sequence[Message], system: str | None, template: str | None, where: str) -> str:
    if not isinstance(prompt, str):
        raise UserError([f"{where} is a list of messages, and a prompt template takes text; leave the template out"])
    values = {"{prompt}": prompt} | ({} if system is None else {"{system}": system})
    text = "{prompt}" if template is None else template
    if missing := [field for field in values if field not in text]:
        what = "the prompt template" if template is not None else "without a chat template or a prompt template there"
        raise UserError([f"{what} has no place for {' and '.join(missing)}"])
    before, _, after = text.partition("{prompt}")
    for field, value in values.items():
        if field != "{prompt}":
            before, after = before.replace(field, value), after.replace(field, value)
    return before + prompt + after.replace("{prompt}", prompt)


def _encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Encode with the tokenizer's own special tokens, without an EOS that it adds at the end."""
    ids: list[int] = tokenizer.encode(text)
    plain: list[int] = tokenizer.encode(text, add_special_tokens=False)
    eos_added = ids[-1:] == [tokenizer.eos_token_id] and ids[-len(plain) :] != plain
    return ids[:-1] if eos_added else ids


def _render(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], where: str) -> str:
    if not tokenizer.chat_template:
        raise ModelError(
            f"{where} is a list of messages, and the model's tokenizer has no chat template for them; "
            "use a chat model, or prompts that are strings"
        )
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{where}: the model's chat template refused it: {_first_line(error)}") from error
    assert isinstance(text, str)
    return text
