"""The sizes of a model that memory and time depend on: of a folder, of a published model, or of a number of weights."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.kept_numbers import of_latent_keys
from outdo.run.check.cost import share_in_layers
from outdo.utils.errors import ModelError, UserError, did_you_mean

TABLE = Path(__file__).with_name("shapes.toml")
BFLOAT16 = 2
"""Bytes of a weight in an engine, and of a number in its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model."""

    name: str
    parameters: float
    active: float  # weights that compute one token: fewer than all in a mixture of experts
    layers: int
    hidden: int
    heads: int
    head_dim: int
    kv_heads: int
    vocab: int
    attention: int  # layers with keys and values
    cached: int  # numbers of keys and values of one token in one attention layer
    outside: float  # weights outside of layers: embedding and head
    matrices: tuple[tuple[int, int], ...] = ()  # rows and columns of those in layers; empty if they are not known
    experts: int = 1
    experts_per_token: int = 1

    @property
    def cache_bytes(self) -> float:
        """Bytes of keys and values of one token, in bf16."""
        return BFLOAT16 * self.attention * self.cached

    def touched(self, tokens: Any) -> Any:
        """Return the weights that a forward pass of so many tokens reads, if each token chooses experts at random."""
        if self.experts == 1:
            return self.parameters + 0 * tokens
        share = self.experts_per_token / self.experts
        routed = (self.parameters - self.active) / (1 - share)  # weights of all experts
        return self.parameters - routed * (1 - share) ** tokens

    def forward_flops(self, position: float) -> float:
        """Return the FLOPs of a forward pass for one token of sequences with `position` tokens before it on average."""
        return 2 * self.active + 4 * self.attention * self.heads * self.head_dim * position

    @property
    def facts(self) -> ModelFacts:
        """The same sizes as `outdo check` reads them from a folder."""
        return ModelFacts(
            name=self.name,
            folder=None,
            architecture=None,
            model_type=None,
            parameters=round(self.parameters),
            dtype="bfloat16",
            layer_matrices=self.matrices,
            hidden_size=self.hidden,
            layers=self.layers,
            attention_layers=self.attention,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocab,
            kv_numbers=2 * self.attention * self.kv_heads * self.head_dim,
            max_positions=None,
        )


@cache
def known_shapes() -> Mapping[str, Shape]:
    """Return the models of shapes.toml by name."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return {name: _shape(name, sizes) for name, sizes in table.items()}


def _shape(name: str, sizes: Mapping[str, Any]) -> Shape:
    """Return the shape of a model whose head has weights of its own, unless its sizes say that it is `tied`."""
    sizes = dict(sizes)
    derived = {
        "outside": (1 if sizes.pop("tied", False) else 2) * sizes["vocab"] * sizes["hidden"],
        "active": sizes["parameters"],
        "attention": sizes["layers"],
        "cached": 2 * sizes["kv_heads"] * sizes["head_dim"],
    }
    sizes = {**derived, **sizes}
    if sizes["active"] == sizes["parameters"] and sizes["attention"] == sizes["layers"]:
        sizes.setdefault("matrices", _matrices(sizes))
    return Shape(name=name, **sizes)


def _matrices(sizes: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the matrices in the layers of a dense model: those of attention, and three of a feed-forward layer."""
    hidden = sizes["hidden"]
    query, keys = sizes["heads"] * sizes["head_dim"], sizes["kv_heads"] * sizes["head_dim"]
    attention = ((query, hidden), (keys, hidden), (keys, hidden), (hidden, query))
    rest = (sizes["parameters"] - sizes["outside"]) / sizes["layers"] - 2 * hidden * (query + keys)
    width = max(0, round(rest / (3 * hidden)))
    return (*attention, (width, hidden), (width, hidden), (hidden, width)) * sizes["layers"]


def shape_of(model: str) -> tuple[Shape, list[str]]:
    """Return the shape of a folder, of a published model or of a size such as `7B`, and what was assumed.

    Raises `UserError` if `model` is none of these, with the nearest name.
    """
    known = known_shapes()
    name = model.lower().rsplit("/", 1)[-1].removesuffix("-instruct").removesuffix("-base")
    size = re.fullmatch(r"(\d+(?:\.\d+)?)([mbt])", name)
    folder = Path(model).expanduser()
    if folder.exists():
        return _of_folder(model)
    if name in known:
        return known[name], []
    if size:
        return _of_size(model, float(size[1]) * {"m": 1e6, "b": 1e9, "t": 1e12}[size[2]])
    try:
        return _of_folder(model)
    except ModelError as error:
        hint = did_you_mean(name, list(known))
        unknown = f"model {model}: no folder, no size such as 7B, and no model that the plan knows{hint}"
        raise UserError([unknown, *([str(error)] if "/" in model else [])]) from None


def _of_size(model: str, parameters: float) -> tuple[Shape, list[str]]:
    """Return a dense model with so many weights, as deep and wide as the published one of the nearest size."""
    if not 1e5 <= parameters <= 1e14:
        raise UserError([f"model {model}: expected a size from 100000 weights (0.1M) to 100T"])
    dense = [shape for shape in known_shapes().values() if shape.experts == 1 and shape.attention == shape.layers]
    near = min(dense, key=lambda shape: abs(shape.parameters / parameters - 1))
    outside = min(near.outside, parameters)
    sized = replace(near, name=model, parameters=parameters, active=parameters, outside=outside, matrices=())
    return sized, [f"model {model}: a dense model with the layers and heads of {near.name}"]


def _of_folder(model: str) -> tuple[Shape, list[str]]:
    """Return the shape of a model folder or of a downloaded model of the Hub."""
    facts = inspect_folder(model)
    sizes: dict[str, Any] = {
        "parameters": facts.parameters,
        "layers": facts.layers,
        "attention": facts.attention_layers,
        "hidden": facts.hidden_size,
        "heads": facts.heads,
        "head_dim": facts.head_dim,
        "kv_heads": facts.kv_heads,
        "vocab": facts.vocab_size,
        **_cached(facts),
    }
    missing = [name for name, value in sizes.items() if value is None]
    if missing:
        raise UserError([f"model {model}: its files do not tell {', '.join(missing)}; give --model a size such as 7B"])
    sizes |= {"outside": (facts.parameters or 0) * (1 - share_in_layers(facts)), "matrices": facts.layer_matrices}
    experts, per_token, routed = _experts(facts)
    if experts == 1:
        return _shape(facts.name, sizes), []
    active = facts.parameters - routed * (1 - per_token / experts) if facts.parameters else 0
    mixture = {"active": active, "experts": experts, "experts_per_token": per_token}
    return _shape(facts.name, sizes | mixture), []


def _cached(facts: ModelFacts) -> dict[str, int | None]:
    """Return the numbers of keys and values of one token in one attention layer of an engine, and their heads.

    An engine keeps the latent vector of which a layer computes them, and what is rotated, whole on each device.
    """
    config = _text_config(facts)
    if of_latent_keys(config):
        return {"cached": config["kv_lora_rank"] + config["qk_rope_head_dim"], "kv_heads": 1}
    return {"cached": facts.kv_numbers and facts.kv_numbers // (facts.attention_layers or 1)}


def _text_config(facts: ModelFacts) -> dict[str, Any]:
    config = json.loads((facts.folder / "config.json").read_text(encoding="utf-8")) if facts.folder else {}
    return config | config.get("text_config", {})  # of a model that reads images as well


def _experts(facts: ModelFacts) -> tuple[int, int, int]:
    """Return the experts of a layer, those that compute one token, and the weights of all experts."""
    config = _text_config(facts)
    experts = config.get("num_experts") or config.get("n_routed_experts") or config.get("num_local_experts") or 1
    per_token, width = config.get("num_experts_per_tok") or experts, config.get("moe_intermediate_size")
    width = width or config.get("intermediate_size") or 0
    if experts == 1 or not facts.layers or not facts.hidden_size:
        return 1, 1, 0
    dense = config.get("first_k_dense_replace") or 0
    return experts, per_token, 3 * experts * width * facts.hidden_size * (facts.layers - dense)
