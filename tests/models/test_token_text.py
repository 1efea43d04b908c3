"""Pieces and bytes of tokens, for each kind of tokenizer: nothing torn, nothing lost."""

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from outdo.extras.quickstart.model import ALPHABET, small_tokenizer
from outdo.models.token_text import TokenTexts
from outdo.testing import byte_bpe_tokenizer

TEXTS = ["What is 12 + 30? It is 42.", "Überraschung für 😀 und 日本語", "naïve café, e\u0301", "a\n\n  b\tc\x00"]
HARD = ["👩‍👩‍👧‍👦🇩🇪", "e\u0301 \u202eabc", "日本語\n\x00 😀", "\ufffd", "", " ", "\ufeff", "<s>", "a  b"]
TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(HARD + TEXTS)

steady = settings(deadline=None, derandomize=True, max_examples=60)


def byte_level() -> PreTrainedTokenizerFast:
    """Like GPT's, Qwen's and Llama 3's, with an added token that the byte alphabet cannot write."""
    tokenizer = byte_bpe_tokenizer(TEXTS, 300)
    tokenizer.add_tokens([AddedToken("<two words>"), AddedToken("日本")])
    return tokenizer


def sentencepiece(*, strips: bool) -> PreTrainedTokenizerFast:
    """Like Llama 2's, which drops the blank it puts before a text, or like Gemma's, which puts none."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz.é"]
    merges = [("▁", "a"), ("▁", "w"), ("i", "s")]
    vocabulary = {name: n for n, name in enumerate([*names, *("".join(merge) for merge in merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    prepend = [normalizers.Prepend("▁")] if strips else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def metaspace() -> PreTrainedTokenizerFast:
    """Like T5's: sentencepiece without bytes."""
    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(special_tokens=["<unk>"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def word_piece() -> PreTrainedTokenizerFast:
    """Like BERT's."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(special_tokens=["[UNK]"], show_progress=False))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def words() -> PreTrainedTokenizerFast:
    """One that says nothing of how its words are put together: blanks are put between them."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "What": 1, "is": 2, "it": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


TOKENIZERS = {
    "byte level": byte_level(),
    "byte fallback": sentencepiece(strips=False),
    "byte fallback, blank dropped": sentencepiece(strips=True),
    "metaspace": metaspace(),
    "word piece": word_piece(),
    "words": words(),
    "characters": small_tokenizer(ALPHABET),
}
every_tokenizer = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS.keys())
TOKEN_TEXTS = {name: TokenTexts(tokenizer) for name, tokenizer in TOKENIZERS.items()}
BYTE_LEVEL = TOKENIZERS["byte level"]


def decoded(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


@steady
@given(text=TEXT)
def test_pieces_join_to_the_text_and_bytes_to_its_utf8(text: str) -> None:
    for name, tokenizer in TOKENIZERS.items():
        ids = tokenizer.encode(text, add_special_tokens=False)
        whole = decoded(tokenizer, ids)
        assert "".join(TOKEN_TEXTS[name].pieces(ids)) == whole, name
        assert b"".join(TOKEN_TEXTS[name].bytes(ids)) == whole.encode(), name


@steady
@given(ids=st.lists(st.integers(0, len(BYTE_LEVEL) + 3)))
def test_pieces_of_any_byte_level_ids_join_to_the_decoded_text(ids: list[int]) -> None:
    token_texts = TOKEN_TEXTS["byte level"]
    assert "".join(token_texts.pieces(ids)) == decoded(BYTE_LEVEL, ids)
    assert b"".join(token_texts.bytes(ids)).decode("utf-8", "replace") == decoded(BYTE_LEVEL, ids)


@pytest.mark.parametrize(
    ("chunks", "pieces"),
    [
        ([b"\xe2", b"a"], ["\ufffd", "a"]),
        ([b"\xe2", b"\x82", b"<|end|>"], ["", "\ufffd", "<|end|>"]),
        ([b"\xe2", b"\x82"], ["", "\ufffd"]),
        ([b"\xff", b"\x80"], ["\ufffd", "\ufffd"]),
        ([b"\xf0\x9f", b"\x98\x80\xe2", b"b"], ["", "😀\ufffd", "b"]),
        ([b"\xef\xbf", b"\xbd"], ["", "\ufffd"]),
        ([b"\xe2", b"", b"a"], ["\ufffd", "", "a"]),
    ],
)
def test_invalid_utf8_is_marked_where_it_ends(chunks: list[bytes], pieces: list[str]) -> None:
    token_texts = TOKEN_TEXTS["byte level"]
    named = {token_texts.bytes([token_id])[0]: token_id for token_id in range(len(BYTE_LEVEL))}
    outside = len(BYTE_LEVEL)
    ids = [[named[bytes([byte])] for byte in chunk] or [outside] for chunk in chunks]
    got = iter(token_texts.pieces([each for chunk in ids for each in chunk]))
    assert ["".join(next(got) for _ in chunk) for chunk in ids] == pieces


@every_tokenizer
def test_an_id_outside_the_vocabulary_has_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    token_texts = TokenTexts(tokenizer)
    for outside in (len(tokenizer) + 5, 1 << 40, -1):
        assert token_texts.pieces([outside]) == [""]
        assert token_texts.bytes([0, outside, 1])[1] == b""
    ids = tokenizer.encode("is it", add_special_tokens=False)
    first, *rest = token_texts.pieces(ids)
    assert token_texts.pieces([ids[0], len(tokenizer) + 5, *ids[1:]]) == [first, "", *rest]


@every_tokenizer
@steady
@given(data=st.data())
def test_a_text_can_be_decoded_in_two_parts(tokenizer: PreTrainedTokenizerFast, data: st.DataObject) -> None:
    ids = tokenizer.encode("What is it? aw is, it 42.", add_special_tokens=False)
    cut = data.draw(st.integers(0, len(ids)))
    token_texts = TokenTexts(tokenizer)
    assert token_texts.pieces(ids[:cut]) + token_texts.pieces(ids[cut:], after=ids[:cut]) == token_texts.pieces(ids)


def test_spaces_are_placed_as_in_the_text_for_each_kind_of_tokenizer() -> None:
    def pieces(name: str, text: str) -> list[str]:
        return TOKEN_TEXTS[name].pieces(TOKENIZERS[name].encode(text, add_special_tokens=False))

    assert pieces("byte fallback, blank dropped", "a wis") == ["a", " w", "is"]
    assert pieces("words", "What is it") == ["What", " is", " it"]
    assert "".join(pieces("word piece", "What is 42.")) == "What is 42."
    assert re.sub(r"\W", "", "".join(pieces("metaspace", "What is it"))) == "Whatisit"
    assert pieces("characters", "1+2=") == ["1", "+", "2", "="]
