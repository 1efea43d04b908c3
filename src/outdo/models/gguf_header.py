"""The header of a GGUF file, llama.cpp's format: what model it is, as a config.json, and where its weights are.

Only the header is read, in a fraction of a second: gguf's own reader makes an array of every token, for seconds. This
module needs neither torch nor transformers.
"""

import mmap
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from outdo.models.base_model import sha256_of
from outdo.utils.errors import ModelError
from outdo.utils.user_cache import user_cache

SUFFIX = ".gguf"
CONVERSION = 1
"""The folder of another conversion is not used: to be raised when what is written changes."""
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""The models that are read: the name in the file, which is transformers' model type as well, and the class."""
SPLITS = ("gpt-2", "qwen2", "smollm")
"""The ways to split a text before its bytes are merged that are known (`tokenizer.ggml.pre`)."""
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
"""The types of values in a header: numbers by their letter in `struct`, texts, and arrays."""
MOST = 1 << 24
"""More entries than any header has: a damaged count is refused before it is walked through."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of the file."""

    name: str  # in transformers
    shape: tuple[int, ...]  # as torch has it
    type: int  # of gguf.GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about its model."""

    config: dict[str, Any]  # of the folder that is made of it: the content of config.json
    tensors: dict[str, GgufTensor]  # by their names in the file
    stored: str  # the type of most weights: Q4_1, F16, ...


def is_gguf(name: str | Path) -> bool:
    """Return whether a model is a GGUF file, by its name."""
    return str(name).lower().endswith(SUFFIX)


def folder_of(file: Path) -> Path:
    """Return where the folder of a file is, or will be: it is named after the SHA-256 of the file."""
    return user_cache("gguf") / f"{sha256_of(file)}-{CONVERSION}"


def read_header(path: Path) -> GgufHeader:
    """Read the header of a file.

    Raises `ModelError` if the package gguf is not installed, if the file is damaged or no GGUF file, or if it holds a
    model or a tokenizer that cannot be converted exactly.
    """
    if find_spec("gguf") is None:
        raise ModelError(f'model {path}: a GGUF file needs the package gguf: pip install "outdo[gguf]"')
    try:
        stat = path.stat()
        return _read(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"model {path}: cannot be read: {error}") from error
    except (struct.error, UnicodeDecodeError, _DamagedError) as error:
        raise ModelError(
            f"model {path}: the file is damaged or cut off ({error}); copy or download it again"
        ) from error


class _DamagedError(Exception):
    """The header contradicts itself or the size of the file."""


@lru_cache(maxsize=8)
def _read(path: Path, size: int, modified: int) -> GgufHeader:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"model {path}: this is no GGUF file, which begins with the four letters GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            walk = _Walk(content)
            (version,) = walk.numbers("I")
            if version not in (2, 3):
                raise ModelError(f"model {path}: version {version} of GGUF; versions 2 and 3 are read")
            count, entries = walk.numbers("QQ")
            values = dict(walk.entry() for _ in range(walk.counted(entries)))
            read = [walk.tensor() for _ in range(walk.counted(count))]
            faults = [*_faults(values, read), *_surplus(values, read)]
            if faults:
                raise ModelError("\n".join(f"model {path}: {fault}" for fault in faults))
            stored = _check_sizes(read, walk.at, values.get("general.alignment", 32), size)
    tensors = {name: GgufTensor(_name_in_transformers(name), shape, type) for name, shape, type, _ in read}
    return GgufHeader(config=_config(values, tensors), tensors=tensors, stored=stored)


class _Walk:
    """A place in the header, which moves on with each value that is read."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 4

    def numbers(self, letters: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{letters}", self.content, self.at)
        self.at += struct.calcsize(f"<{letters}")
        return values

    def text(self) -> str:
        (length,) = self.numbers("Q")
        self.at += self.counted(length)
        if self.at > len(self.content):
            raise _DamagedError("it ends within a text")
        return self.content[self.at - length : self.at].decode()

    def counted(self, count: int) -> int:
        if count > MOST:
            raise _DamagedError(f"a count of {count:,}")
        return count

    def entry(self) -> tuple[str, Any]:
        key, (type,) = self.text(), self.numbers("I")
        return key, self.value(type)

    def value(self, type: int) -> Any:
        """Return a number or a text, and of an array only how many entries it has."""
        if type == TEXT:
            return self.text()
        if type in NUMBERS:
            return self.numbers(NUMBERS[type])[0]
        if type != ARRAY:
            raise _DamagedError(f"a value of the unknown type {type}")
        inner, count = self.numbers("IQ")
        self.counted(count)
        if inner in NUMBERS:
            self.at += count * struct.calcsize(f"<{NUMBERS[inner]}")
        else:
            for _ in range(count):
                self.value(inner) if inner == ARRAY else self.skip_text()
        return count

    def skip_text(self) -> None:
        (length,) = struct.unpack_from("<Q", self.content, self.at)
        self.at += 8 + length

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return name, shape, type and place of a tensor."""
        name, (dimensions,) = self.text(), self.numbers("I")
        if not 1 <= dimensions <= 4:
            raise _DamagedError(f"{name} has {dimensions} dimensions")
        shape = self.numbers("Q" * dimensions)
        type, offset = self.numbers("IQ")
        return name, shape[::-1], type, offset


def _faults(values: Mapping[str, Any], tensors: list[Any]) -> Iterator[str]:
    """Yield what cannot be converted exactly."""
    name = values.get("general.architecture")
    if name not in ARCHITECTURES:
        yield f"outdo cannot convert a model of the architecture {name!r}; it converts {', '.join(ARCHITECTURES)}"
        return
    required = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count", "context_length")
    if missing := [key for key in required if type(values.get(f"{name}.{key}")) is not int]:
        yield f"its header lacks {name}.{missing[0]}"
    if "token_embd.weight" not in {tensor[0] for tensor in tensors}:
        yield "it holds no embedding (token_embd.weight)"
    if values.get(f"{name}.rope.scaling.type", "none") != "none":
        yield "its positions are scaled (rope.scaling), which outdo cannot convert; use the original model folder"
    kind, split = values.get("tokenizer.ggml.model"), values.get("tokenizer.ggml.pre")
    if kind is None or not values.get("tokenizer.ggml.tokens"):
        yield "it holds no tokenizer; use the original model folder"
    elif kind != "gpt2" or not values.get("tokenizer.ggml.merges"):
        yield f"its tokenizer is of the kind {kind!r}, and outdo converts byte-level BPE ('gpt2') with its merges"
    elif split not in SPLITS:
        yield f"its tokenizer splits text in the way {split!r}, and outdo knows {', '.join(SPLITS)}"


def _surplus(values: Mapping[str, Any], tensors: list[Any]) -> Iterator[str]:
    """Yield a sentence if there are tensors that have no place in the model."""
    layers = values.get(f"{values.get('general.architecture')}.block_count", 0)
    unknown = [name for name, *_ in tensors if _name_in_transformers(name) == "" or _layer(name) >= layers]
    if unknown and values.get("general.architecture") in ARCHITECTURES:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        yield f"it holds {unknown[0]}{more}, which outdo cannot convert; use the original model folder"


def _name_in_transformers(name: str) -> str:
    """Return what transformers calls a tensor; empty if it is unknown."""
    stem, _, end = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if end not in ("weight", "bias"):
        return ""
    if layer is None:
        return f"{OUTSIDE[stem]}.{end}" if stem in OUTSIDE else ""
    return f"model.layers.{layer[1]}.{IN_LAYER[layer[2]]}.{end}" if layer[2] in IN_LAYER else ""


def _layer(name: str) -> int:
    return int(name.split(".")[1]) if re.match(r"blk\.\d+\.", name) else -1


def _check_sizes(tensors: list[Any], at: int, alignment: int, size: int) -> str:
    """Return the type that most weights have; refuse the file if one of them ends outside of it."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    start = -(-at // alignment) * alignment
    numbers: Counter[str] = Counter()
    for name, shape, type, offset in tensors:
        if type not in list(GGMLQuantizationType):
            raise _DamagedError(f"{name} is of the unknown type {type}")
        kind = GGMLQuantizationType(type)
        elements, bytes_each = GGML_QUANT_SIZES[kind]
        end = start + offset + prod(shape) // elements * bytes_each
        if shape[-1] % elements or end > size:
            raise _DamagedError(f"{name} ends at byte {end:,}, and the file has {size:,}")
        numbers[kind.name] += prod(shape)
    return numbers.most_common(1)[0][0]


def _config(values: Mapping[str, Any], tensors: Mapping[str, GgufTensor]) -> dict[str, Any]:
    name = values["general.architecture"]

    def of_model(key: str, default: Any = None) -> Any:
        return values.get(f"{name}.{key}", default)

    width, heads = of_model("embedding_length"), of_model("attention.head_count")
    config = {
        "architectures": [ARCHITECTURES[name]],
        "model_type": name,
        "dtype": "float32",
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": of_model("feed_forward_length"),
        "num_hidden_layers": of_model("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": of_model("attention.head_count_kv", heads),
        "head_dim": of_model("attention.key_length") or of_model("rope.dimension_count") or width // heads,
        "max_position_embeddings": of_model("context_length"),
        "rms_norm_eps": of_model("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": {"rope_type": "default", "rope_theta": of_model("rope.freq_base", 10000.0)},
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if name != "qwen2":  # whose attention always has biases
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors
    for token, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        config[f"{token}_token_id"] = values.get(f"tokenizer.ggml.{key}_token_id")
    return config
