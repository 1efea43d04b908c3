"""Decode what people read of tokens: the text of a completion, and the text of a prompt.

Special tokens are of two kinds. Some frame a message: they end it, begin it with its role, or pad it. A completion is
read without them. Others are tags that the policy writes as a part of its text, such as `<think>`, `</answer>`,
`<tool_call>`, `[THINK]` and gpt-oss's `<|channel|>`, in those tokenizers that declare them as special tokens. A
completion has them.

transformers leaves out both kinds (`skip_special_tokens=True`), and so do TRL and verl: there `<think>18</think>` with
special tags is read as `18`.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.prompt_encoding import render
from outdo.models.special_tokens import special_tokens_in, special_tokens_of
from outdo.utils.errors import ModelError
from outdo.utils.thinking import MARKS

_TAG = re.compile(r"</?[A-Za-z][A-Za-z_:.-]*>|\[/?[A-Z][A-Z_]*\]")
_KNOWN_TAG = re.compile(r"</?(?:(?:seed:)?think|thinking|thought|reasoning|answer|tool_call)>", re.IGNORECASE)
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def completion_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of what a policy sampled, without the special tokens that frame a message; tags stay."""
    tags, frame = _tags_and_frame(
        tokenizer, len(tokenizer), tuple(tokenizer.all_special_tokens), str(tokenizer.chat_template)
    )
    if tags.isdisjoint(token_ids):
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))
    return str(tokenizer.decode([token for token in token_ids if token not in frame], skip_special_tokens=False))


def rendered_text(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Return the text of a prompt as the policy reads it, with all special tokens."""
    ids = list(token_ids)
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def left_out(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the special tokens that `completion_text` leaves out."""
    return [token for token in special_tokens_of(tokenizer) if token not in _tags(tokenizer)]


@lru_cache(maxsize=4)
def _tags_and_frame(tokenizer: PreTrainedTokenizerBase, *key: object) -> tuple[frozenset[int], frozenset[int]]:
    """Return the ids of the special tokens that are tags, and of all others. `key` is what they depend on."""
    tags = _tags(tokenizer)
    return _ids(tokenizer, tags), _ids(tokenizer, set(special_tokens_of(tokenizer)) - tags)


def _ids(tokenizer: PreTrainedTokenizerBase, tokens: Collection[str]) -> frozenset[int]:
    ids: Any = tokenizer.convert_tokens_to_ids(list(tokens))
    return frozenset(token_id for token_id in ids if token_id is not None)


def _tags(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the special tokens that are a part of the text of a completion."""
    tokens = special_tokens_of(tokenizer)
    known = {token for token in tokens if _KNOWN_TAG.fullmatch(token) or any(token in mark for mark in MARKS)}
    others = {token for token in tokens if _TAG.fullmatch(token)} - known
    others -= _framing(tokenizer) if others else set()
    return (known | others) - {getattr(tokenizer, role, None) for role in _ROLES}


def _framing(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the special tokens that the chat template writes around a user's message."""
    if not tokenizer.chat_template:
        return set()
    try:
        text = render(tokenizer, [{"role": "user", "content": "Hello."}], (), "a message", open_turn=False)
    except ModelError:  # a template that refuses this one message frames others in ways that are not known
        return set()
    return set(special_tokens_in(tokenizer, text))
