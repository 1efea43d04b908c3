"""Find the text and the bytes of each token, without splitting a character and without losing or adding text.

A byte-level or byte-fallback token is a sequence of bytes, and can be only a part of a character. Any other token is
text, which can depend on the token before it: WordPiece puts a space between words, but not before a full stop.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""The name of a byte in a vocabulary with byte fallback."""


class TokenTexts:
    """Decodes single tokens with `tokenizer`, including special tokens, and caches the results.

    The ids are a part of a text; `after` are the tokens before them, if any. An id outside the vocabulary, which a
    model with a padded embedding can sample, has no text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoders = _decoders(tokenizer)
        self._to_bytes = _bytes_function(decoders)
        self._strips_first_space = any(decoder["type"] == "Strip" and decoder["start"] for decoder in decoders)
        self._token_name = lru_cache(maxsize=None)(self._token_name)
        self._bytes_of = lru_cache(maxsize=None)(self._bytes_of)
        self._text_of = lru_cache(maxsize=1 << 20)(self._text_of)

    def pieces(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> list[str]:
        """Return the text of each token; joined, they are the text of `ids`.

        A character that is split over several tokens belongs to the token that completes it, and the others get "".
        Invalid UTF-8 becomes U+FFFD, and belongs to the token where it ends.
        """
        return self._texts(ids, after) if self._to_bytes is None else _characters(self.bytes(ids, after=after))

    def pieces_and_bytes(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> tuple[list[str], list[bytes]]:
        """Return pieces and bytes, in the time of one of them."""
        if self._to_bytes is None:
            texts = self._texts(ids, after)
            return texts, [text.encode() for text in texts]
        raw = self.bytes(ids, after=after)
        return _characters(raw), raw

    def _token_name(self, token_id: int) -> str | None:
        """Return the name of a token in the vocabulary."""
        inside = 0 <= token_id < 1 << 32  # larger ids overflow in the tokenizer
        name: Any = self._tokenizer.convert_ids_to_tokens(token_id) if inside else None
        return name

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._token_name(token_id)
        assert self._to_bytes is not None
        return b"" if token is None else self._to_bytes(token)

    def _texts(self, ids: Sequence[int], after: Sequence[int]) -> list[str]:
        before = next((token for token in reversed(after) if self._token_name(token) is not None), None)
        texts: list[str] = []
        for token_id in ids:
            text = self._text_of(before, token_id)
            texts.append(text or "")
            before = before if text is None else token_id
        return texts

    def _text_of(self, before: int | None, token_id: int) -> str | None:
        """Return what a token adds to a text that ends with `before`, or begins here; None for an unknown id."""
        if self._token_name(token_id) is None:
            return None
        if before is None:
            return self._decode([token_id])
        return self._decode([before, token_id])[len(self._decode([before])) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    # The last method of the class: below it, its name hides the type `bytes`.
    def bytes(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> list[bytes]:
        """Return the bytes of each token; joined, they are the text of `ids` in UTF-8."""
        if self._to_bytes is None:
            return [text.encode() for text in self._texts(ids, after)]
        spelled = list(map(self._bytes_of, ids))
        if self._strips_first_space and not any(map(self._bytes_of, after)):
            first = next((n for n, some in enumerate(spelled) if some), None)
            if first is not None:
                spelled[first] = spelled[first].removeprefix(b" ")
        return spelled


# ----------------------------------------------------------------------------------------- from a vocabulary to bytes


def _decoders(tokenizer: Any) -> list[dict[str, Any]]:
    """Return the steps by which the tokenizer turns its vocabulary into text, as in its `tokenizer.json`."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return [] if decoder is None else list(_flat(json.loads(decoder.__getstate__())))


def _flat(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
    for part in decoder.get("decoders", ()):
        yield from _flat(part)


def _bytes_function(decoders: Sequence[dict[str, Any]]) -> Callable[[str], bytes] | None:
    """Return the function from a token's name to its bytes; None if the vocabulary holds texts."""
    kinds = {part["type"] for part in decoders}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" not in kinds:
        return None
    replaced = [(part["pattern"]["String"], part["content"]) for part in decoders if part["type"] == "Replace"]

    def with_byte_fallback(token: str) -> bytes:
        if byte := BYTE.fullmatch(token):
            return bytes.fromhex(byte[1])
        for mark, text in replaced:  # "▁" stands for a space
            token = token.replace(mark, text)
        return token.encode()

    return with_byte_fallback


def _byte_table() -> dict[str, int]:
    """Return the byte for each character of a byte-level vocabulary.

    This is GPT-2's table: visible bytes of Latin-1 stand for themselves, the characters from U+0100 on for the others.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(seen))
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTES = _byte_table()


def _byte_level(token: str) -> bytes:
    """Return the bytes of a name. A name with any other character belongs to an added token and stands for itself."""
    return bytes(map(_BYTES.__getitem__, token)) if _BYTES.keys() >= set(token) else token.encode()


# ------------------------------------------------------------------------------------------------ from bytes to text


def _characters(chunks: Sequence[bytes]) -> list[str]:
    """Return the characters that each chunk completes. Joined, they are the decoded text of all chunks."""
    alone = list(map(_decoded_or_none, chunks))
    if None not in alone:
        return alone  # pyright: ignore[reportReturnType]
    pieces: list[str] = []
    incomplete, last = b"", 0  # the beginning of an incomplete character, and the last chunk with a part of it
    for n, (chunk, whole) in enumerate(zip(chunks, alone, strict=True)):
        if whole is not None and not incomplete:
            pieces.append(whole)
            continue
        if incomplete and _cannot_continue(incomplete, chunk[:1]):
            pieces[last] += "\ufffd"
            incomplete = b""
        text, used = codecs.utf_8_decode(incomplete + chunk, "replace")
        incomplete = (incomplete + chunk)[used:]
        pieces.append(text)
        last = n if chunk else last
    if incomplete:
        pieces[last] += "\ufffd"
    return pieces


@lru_cache(maxsize=1 << 18)
def _decoded_or_none(chunk: bytes) -> str | None:
    try:
        return chunk.decode()
    except UnicodeDecodeError:
        return None


def _cannot_continue(incomplete: bytes, byte: bytes) -> bool:
    """Return whether a character that begins with `torn` cannot continue with `byte`."""
    together = incomplete + byte
    return codecs.utf_8_decode(together, "replace")[0].startswith("\ufffd") and together != "\ufffd".encode()
