"""Model folders made of GGUF files: weights dequantised to float32, config and tokenizer, kept in the user's cache.

A file is converted once. Its folder is a model like any other, which everything else of outdo, and vLLM, reads. Where
this file changes what is written, `CONVERSION` has to change as well.
"""

import json
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from outdo.models.gguf_header import GgufHeader, folder_of, read_header
from outdo.utils.errors import ModelError
from outdo.utils.user_cache import locked

if TYPE_CHECKING:
    from gguf import GGUFReader

NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Tokens with a role: their names in tokenizer_config.json and in a GGUF file."""
CONTROL, USER_DEFINED = 3, 4
"""Types of tokens that are never split: those that control the model, and others."""
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How the tokenizers of Qwen2 and Qwen3 split a text."""


def converted(file: Path, *, weights: bool = True) -> Path:
    """Return the model folder of a GGUF file; make it if this is the first time.

    Without `weights` it may have none, only the config and the tokenizer. It appears whole or not at all. Of several
    processes one converts, and the others wait.

    Raises `ModelError` if the file cannot be converted exactly, or the folder cannot be written.
    """
    header, folder = read_header(file), folder_of(file)
    if not weights and not folder.is_dir():
        folder = folder.with_name(f"{folder.name}-tokenizer")
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_suffix(".lock")):
            if not folder.is_dir():
                _convert(file, header, folder, weights=weights)
    except OSError as error:
        raise ModelError(f"model {file}: its folder {folder} cannot be written: {error}") from error
    return folder


def _convert(file: Path, header: GgufHeader, folder: Path, *, weights: bool) -> None:
    from gguf import GGUFReader

    aside = Path(mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        reader = GGUFReader(file)
        if weights:
            save_file(_weights(file, reader, header), aside / "model.safetensors", metadata={"format": "pt"})
        _write(aside / "config.json", header.config)
        ends = {key: value for key, value in header.config.items() if key.endswith("token_id") and value is not None}
        _write(aside / "generation_config.json", ends)
        _save_tokenizer(reader, aside)
        aside.chmod(0o755)  # mkdtemp lets nobody else read
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# --------------------------------------------------------------------------------------------------------- the weights


def _weights(file: Path, reader: "GGUFReader", header: GgufHeader) -> dict[str, np.ndarray]:
    from gguf import dequantize

    weights: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        known = header.tensors[tensor.name]
        try:
            weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False).reshape(known.shape)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(
                f"model {file}: {tensor.name} is stored as {kind}, which gguf cannot dequantise"
            ) from error
        if header.config["model_type"] == "llama" and ".attn_q." in tensor.name:
            weight = in_halves(weight, header.config["num_attention_heads"])
        if header.config["model_type"] == "llama" and ".attn_k." in tensor.name:
            weight = in_halves(weight, header.config["num_key_value_heads"])
        weights[known.name] = np.ascontiguousarray(weight)
    return weights


def in_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return a weight whose rows, in each head, are ordered as transformers rotates them.

    llama.cpp rotates neighbours (2i, 2i + 1) of Llama, transformers rotates (i, i + half). Other models are stored as
    transformers has them.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


# ------------------------------------------------------------------------------------------------------- the tokenizer


def _save_tokenizer(reader: "GGUFReader", folder: Path) -> None:
    def value(key: str, default: Any = None) -> Any:
        field = reader.get_field(f"tokenizer.{key}")
        return default if field is None else field.contents()

    tokens: list[str] = value("ggml.tokens")
    named = {name: value(f"ggml.{key}_token_id") for name, key in NAMED.items()}
    special: dict[str, Any] = {name: tokens[token] for name, token in named.items() if token is not None}
    merges = [tuple(merge.split(" ", 1)) for merge in value("ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    _set_split(tokenizer, value("ggml.pre"))
    types = value("ggml.token_type", [])
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL, special=True))
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED, special=False))
    if value("ggml.add_bos_token", False) and "bos_token" in special:
        first = special["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, tokens.index(first))]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", special | {"tokenizer_class": "PreTrainedTokenizerFast"})
    if template := value("chat_template"):
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _added(tokens: list[str], types: list[int], kind: int, *, special: bool) -> list[AddedToken]:
    return [
        AddedToken(token, normalized=False, special=special)
        for token, type in zip(tokens, types, strict=False)
        if type == kind
    ]


def _set_split(tokenizer: Any, name: str) -> None:
    """Split a text, before its bytes are merged, as it was split where the merges were learned."""
    parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=name != "qwen2")]
    if name == "smollm":
        parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if name == "qwen2":
        parts.insert(0, pre_tokenizers.Split(Regex(QWEN2), behavior="isolated"))
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.decoder = decoders.ByteLevel()
