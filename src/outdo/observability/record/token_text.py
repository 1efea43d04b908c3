"""What each token spells, as text and as bytes: no character is torn, and nothing of the text is lost or added.

A byte-level or byte-fallback token is some bytes, and may be a part of a character only. Any other token is text, which
may depend on the token before it: WordPiece puts a blank between words, and drops it before a full stop.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How a vocabulary with byte fallback names a byte."""


class Spelling:
    """How `tokenizer` spells, special tokens included. What has been spelled once is looked up.

    Ids stand for a part of a text; `after` are the tokens before them, where a text does not begin with them. An id
    outside of the vocabulary, which a model with a padded embedding can sample, spells nothing.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        decoders = _decoders(tokenizer)
        self._read = _reader(decoders)
        self._drops_first_blank = any(each["type"] == "Strip" and each["start"] for each in decoders)
        self._token = lru_cache(maxsize=None)(self._token)
        self._bytes_of = lru_cache(maxsize=None)(self._bytes_of)
        self._text_of = lru_cache(maxsize=1 << 20)(self._text_of)

    def pieces(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> list[str]:
        """The text of each token; joined, they are the text of `ids`.

        A character torn over several tokens belongs to the one that completes it, and the others get "". What is no
        UTF-8 becomes U+FFFD, and belongs to the token where it ends.
        """
        return self._texts(ids, after) if self._read is None else _characters(self.bytes(ids, after=after))

    def both(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> tuple[list[str], list[bytes]]:
        """Pieces and bytes, in the time of one."""
        if self._read is None:
            texts = self._texts(ids, after)
            return texts, [text.encode() for text in texts]
        raw = self.bytes(ids, after=after)
        return _characters(raw), raw

    def _token(self, token_id: int) -> str | None:
        """Its name in the vocabulary."""
        inside = 0 <= token_id < 1 << 32  # beyond, the tokenizer's own number overflows
        name: Any = self._tokenizer.convert_ids_to_tokens(token_id) if inside else None
        return name

    def _bytes_of(self, token_id: int) -> bytes:
        token = self._token(token_id)
        assert self._read is not None
        return b"" if token is None else self._read(token)

    def _texts(self, ids: Sequence[int], after: Sequence[int]) -> list[str]:
        before = next((each for each in reversed(after) if self._token(each) is not None), None)
        texts: list[str] = []
        for token_id in ids:
            text = self._text_of(before, token_id)
            texts.append(text or "")
            before = before if text is None else token_id
        return texts

    def _text_of(self, before: int | None, token_id: int) -> str | None:
        """What a token adds to a text that ends with `before`, or begins here; None of one that is no token."""
        if self._token(token_id) is None:
            return None
        if before is None:
            return self._decode([token_id])
        return self._decode([before, token_id])[len(self._decode([before])) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    # The last of the class: from here on, its name hides that of the type.
    def bytes(self, ids: Sequence[int], *, after: Sequence[int] = ()) -> list[bytes]:
        """The bytes of each token; joined, they are the text of `ids` in UTF-8."""
        if self._read is None:
            return [text.encode() for text in self._texts(ids, after)]
        spelled = list(map(self._bytes_of, ids))
        if self._drops_first_blank and not any(map(self._bytes_of, after)):
            first = next((n for n, some in enumerate(spelled) if some), None)
            if first is not None:
                spelled[first] = spelled[first].removeprefix(b" ")
        return spelled


# ----------------------------------------------------------------------------------------- from a vocabulary to bytes


def _decoders(tokenizer: Any) -> list[dict[str, Any]]:
    """The steps by which the tokenizer makes text of its vocabulary, as its `tokenizer.json` says them."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    return [] if decoder is None else list(_flat(json.loads(decoder.__getstate__())))


def _flat(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
    for each in decoder.get("decoders", ()):
        yield from _flat(each)


def _reader(decoders: Sequence[dict[str, Any]]) -> Callable[[str], bytes] | None:
    """From a token's name to its bytes; None where a vocabulary holds texts."""
    kinds = {each["type"] for each in decoders}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" not in kinds:
        return None
    replaced = [(each["pattern"]["String"], each["content"]) for each in decoders if each["type"] == "Replace"]

    def with_byte_fallback(token: str) -> bytes:
        if byte := BYTE.fullmatch(token):
            return bytes.fromhex(byte[1])
        for mark, text in replaced:  # "▁" stands for a blank
            token = token.replace(mark, text)
        return token.encode()

    return with_byte_fallback


def _byte_table() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    GPT-2's: bytes that can be seen in Latin-1 are themselves, the others are the characters from U+0100 on.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(seen))
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


_BYTES = _byte_table()


def _byte_level(token: str) -> bytes:
    """A name with any other character in it is an added token's, and means itself."""
    return bytes(map(_BYTES.__getitem__, token)) if _BYTES.keys() >= set(token) else token.encode()


# ------------------------------------------------------------------------------------------------ from bytes to text


def _characters(chunks: Sequence[bytes]) -> list[str]:
    """The characters that each chunk completes. Joined, they are what all of the chunks decode to."""
    alone = list(map(_whole, chunks))
    if None not in alone:
        return alone  # pyright: ignore[reportReturnType]
    pieces: list[str] = []
    torn, last = b"", 0  # the beginning of a character, and the chunk it reaches into
    for n, (chunk, whole) in enumerate(zip(chunks, alone, strict=True)):
        if whole is not None and not torn:
            pieces.append(whole)
            continue
        if torn and _breaks_off(torn, chunk[:1]):
            pieces[last] += "\ufffd"
            torn = b""
        text, used = codecs.utf_8_decode(torn + chunk, "replace")
        torn = (torn + chunk)[used:]
        pieces.append(text)
        last = n if chunk else last
    if torn:
        pieces[last] += "\ufffd"
    return pieces


@lru_cache(maxsize=1 << 18)
def _whole(chunk: bytes) -> str | None:
    try:
        return chunk.decode()
    except UnicodeDecodeError:
        return None


def _breaks_off(torn: bytes, byte: bytes) -> bool:
    """Whether a character that `torn` begins cannot go on with `byte`."""
    together = torn + byte
    return codecs.utf_8_decode(together, "replace")[0].startswith("\ufffd") and together != "\ufffd".encode()
