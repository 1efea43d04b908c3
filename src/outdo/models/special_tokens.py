"""Encode special tokens that stand in text as ordinary text: `<|im_end|>` in a question ends no turn.

A tokenizer reads the text of a special token as that token wherever it stands, and a chat template writes messages and
its own tokens into one text. So before the chat template runs, `hide` replaces the special tokens in the messages by
characters that occur nowhere else. Those in the rendered text are then the template's own, and `encode` tells the two
apart. The tokenizer itself encodes text without special tokens.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from secrets import token_hex
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from outdo.utils.errors import ModelError

Hidden = Mapping[str, str]
"""Characters, and the special tokens that they stand for."""

PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
"""Unicode gives these characters no meaning."""


def special_tokens_of(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the special tokens of a tokenizer, longer ones first."""
    return _special_tokens(tokenizer, *_key(tokenizer))


def special_tokens_in(tokenizer: PreTrainedTokenizerBase, value: Any) -> list[str]:
    """Return the special tokens whose text occurs in the strings of a value, each once, in their order."""
    pattern = _pattern(tokenizer)
    return list(dict.fromkeys(token for text in _strings(value) for token in pattern.findall(text)))


def hide(tokenizer: PreTrainedTokenizerBase, value: Any, *, beside: Any = ()) -> tuple[Any, Hidden]:
    """Return a value with a character in place of each special token in its strings, and what these characters mean.

    The value is a string, or lists and mappings with strings in them. The characters occur neither in the value, nor in
    `beside`, nor in the chat template. A value without special tokens is returned unchanged, with an empty mapping.
    """
    tokens = special_tokens_in(tokenizer, value)
    if not tokens:
        return value, {}
    around = "".join(_strings([value, beside, tokenizer.chat_template]))
    candidates = map(chr, chain(*PRIVATE_USE))
    free = (mark for mark in candidates if mark not in around and _in_json(mark) not in around)
    characters = dict(zip(tokens, islice(free, len(tokens)), strict=False))
    if len(characters) < len(tokens):
        raise ModelError("the text has special tokens, and so many characters of private use that none is free")
    pattern = _pattern(tokenizer)
    hidden = _mapped(value, lambda text: pattern.sub(lambda match: characters[match[0]], text))
    return hidden, {character: token for token, character in characters.items()}


def encode(tokenizer: PreTrainedTokenizerBase, text: str, hidden: Hidden, *, where: str = "the text") -> list[int]:
    """Return the token ids of a text in which the `hidden` special tokens are ordinary text; no BOS or EOS is added.

    Raises `ModelError`, in which `where` names the text, if the tokenizer cannot encode a special token as ordinary
    text.
    """
    if not hidden:
        return list(tokenizer.encode(text, add_special_tokens=False))
    return encode_with_places(tokenizer, text, hidden, where)[0]


def encode_with_places(
    tokenizer: PreTrainedTokenizerBase, text: str, hidden: Hidden, where: str
) -> tuple[list[int], list[Sequence[int]]]:
    """Return the token ids of `encode`, and for each of them the places in `text` of the characters in it."""
    plain = _plain(tokenizer, *_key(tokenizer))
    if plain is None:
        raise _not_plain(where, hidden)
    split = re.compile(f"({'|'.join(map(re.escape, [*plain.names, *hidden, *map(_in_json, hidden)]))})")
    meanings = {**plain.names, **hidden, **{_in_json(character): token for character, token in hidden.items()}}
    parts: list[str] = []
    places: list[int] = []
    start = 0
    for part in split.split(text):
        written = meanings.get(part, part)
        parts.append(written)
        places += range(start, start + len(part)) if written == part else [start] * len(written)
        start += len(part)
    encoded = plain.tokenizer.encode("".join(parts), add_special_tokens=False)
    if plain.controls(encoded.ids) != plain.controls(tokenizer.encode(text, add_special_tokens=False)):
        raise _not_plain(where, hidden)
    return encoded.ids, [places[begin : max(end, begin + 1)] for begin, end in encoded.offsets]


# ------------------------------------------------------------------------------------------------------ the tokenizers


@dataclass(frozen=True, slots=True)
class _Plain:
    """A tokenizer whose special tokens have other names, so that it reads their usual text as ordinary text."""

    tokenizer: Tokenizer
    names: Mapping[str, str]  # of the special tokens, longer ones first
    ids: Collection[int]  # of the special tokens, but the unknown token

    def controls(self, token_ids: Sequence[int]) -> list[int]:
        """Return the special tokens among some token ids."""
        return [token for token in token_ids if token in self.ids]


@lru_cache(maxsize=4)
def _plain(tokenizer: PreTrainedTokenizerBase, *key: Any) -> _Plain | None:
    """Return the tokenizer with other names of its special tokens, None if it cannot be. `key` is that of `_key`.

    Nobody can write these names into a text, because they are chosen at random. The token ids do not depend on them.
    """
    tokens = _special_tokens(tokenizer, *key)
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):  # it is written in Python
        return None
    secret = token_hex(16)
    names = {token: f"\ue000{secret}:{index}\ue001" for index, token in enumerate(tokens)}
    saved = json.loads(backend.to_str()) | {"post_processor": None}  # which would add special tokens, or trim offsets
    _rename(saved, names)
    try:
        renamed = Tokenizer.from_str(json.dumps(saved | {"truncation": None, "padding": None}))
    except Exception:  # what the library raises; another part of the tokenizer needs the names
        return None
    if any(renamed.token_to_id(name) != backend.token_to_id(token) for token, name in names.items()):
        return None
    ids = [backend.token_to_id(token) for token in tokens if token != tokenizer.unk_token]
    return _Plain(renamed, names, frozenset(token_id for token_id in ids if token_id is not None))


def _rename(saved: dict[str, Any], names: Mapping[str, str]) -> None:
    """Give tokens other names in a tokenizer as `Tokenizer.to_str` writes it."""
    for added in saved["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    model = saved["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in vocabulary.items()}
    else:  # of a Unigram model
        model["vocab"] = [[names.get(token, token), score] for token, score in vocabulary]
    if model.get("unk_token"):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])


def _not_plain(where: str, hidden: Hidden) -> ModelError:
    return ModelError(
        f"{where} has the special token {next(iter(hidden.values()))}, which this tokenizer cannot encode as ordinary "
        "text; remove it, or let it be a special token (in a recipe: data.special_tokens = true)"
    )


def _key(tokenizer: PreTrainedTokenizerBase) -> tuple[int, tuple[str, ...]]:
    """Return what changes when a tokenizer gets further special tokens."""
    return len(tokenizer), tuple(tokenizer.all_special_tokens)


@lru_cache(maxsize=4)
def _special_tokens(tokenizer: PreTrainedTokenizerBase, *key: Any) -> tuple[str, ...]:
    """Return the special tokens, longer ones first. Not all of them have a role that `all_special_tokens` lists."""
    added: Mapping[int, Any] = tokenizer.added_tokens_decoder
    special = {token.content for token in added.values() if token.special} | set(tokenizer.all_special_tokens)
    return tuple(sorted(special - {""}, key=lambda token: (-len(token), token)))


def _pattern(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    return _pattern_of(_special_tokens(tokenizer, *_key(tokenizer)))


@lru_cache(maxsize=4)
def _pattern_of(tokens: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


# ---------------------------------------------------------------------------------------------------------- the values


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings of a value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Any) -> Any:
    """Return a value with all its strings changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value


def _in_json(character: str) -> str:
    """Return how JSON in ASCII writes a character, as in the arguments of a call."""
    return json.dumps(character)[1:-1]
