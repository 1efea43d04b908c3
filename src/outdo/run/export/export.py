"""Export a trained model as an ordinary model folder, with a model card that has its results before and after."""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.adapter import merged
from outdo.models.adapter_targets import give_own_head, shares_head
from outdo.models.finite import non_finite_weight
from outdo.models.inspect_folder import EITHER, REWARD_MODEL, ModelFacts, inspect_folder
from outdo.models.layers import layers_of
from outdo.models.loading import load_classifier, load_model, load_tokenizer, other_parts_of, save_model
from outdo.models.logprobs import sequence_logprobs
from outdo.models.rounding import probe_tokens
from outdo.run.export.find_model import ModelRef
from outdo.run.export.model_card import card
from outdo.run.folder.model_folder import save_model_folder
from outdo.utils.errors import ModelError, UserError

SEQUENCES = 8
"""Fixed sequences of 64 tokens on which a merged model is compared with its adapter."""

MOST_ROUNDING = 1e-4
"""Nats by which the rounding of merged weights to float32 may change a log-probability. It changes some 1e-6 in small
models; where products in float32 move it more, it may be as much as they do."""


class MergeError(NamedTuple):
    """How far a merged model is from its adapter, as the largest difference of a log-probability in nats."""

    weights: float  # with float64 products: only the rounding of the merged weights
    products: float  # by how much float32 products change the log-probabilities of the adapter itself


def export(source: ModelRef, folder: Path, *, dtype: str = "source", licence: str | None = None) -> Path:
    """Write the checkpoint's model and tokenizer into `folder`, which must be empty or new, and `README.md`.

    A checkpoint is in float32, the dtype of training. `dtype` is that of the exported weights, such as bfloat16;
    source is the dtype of the model that the run started from; of an unfinished fine-tuning it is float32, as of one
    that has ended. The export of an adapter is the adapter, in float32.

    Raises `UserError` if `folder` is not empty, if the source's dtype is not known, or if a weight is too large for
    `dtype`.
    """
    _check_target(folder)
    facts = inspect_folder(source.model, EITHER)
    if source.step is None:
        way = "--merge makes a whole model of an adapter" if facts.adapter else "a model folder needs no export"
        raise UserError([f"{source.name}: not a run folder; {way}"])
    if facts.adapter and dtype != "source":
        raise UserError([f"--dtype {dtype}: an adapter is exported in float32; with --merge the model has this dtype"])
    wanted = dtype if facts.adapter else exported_dtype(source, dtype)

    def write(aside: Path) -> None:
        _write_model(Path(source.model), aside, wanted, is_adapter=facts.adapter is not None)
        if source.recipe:
            text = card(source, is_adapter=facts.adapter is not None, licence=licence)
            (aside / "README.md").write_text(text, encoding="utf-8")

    save_model_folder(folder, write)
    return folder


def exported_dtype(source: ModelRef, dtype: str) -> str:
    """Return the dtype in which a whole model is exported: `dtype`, or for "source" that of what the run started from.

    Raises `UserError` if that is not known.
    """
    if dtype != "source":
        return dtype
    facts = inspect_folder(source.model, EITHER)
    if facts.adapter:  # the base of the adapter, into which it is merged
        return facts.dtype or "float32"
    return _source_dtype(source.recipe.model) if source.recipe else "float32"


def export_merged(source: ModelRef, folder: Path, *, dtype: str = "source", licence: str | None = None) -> MergeError:
    """Merge the adapter of a run or of an adapter folder into its base, in float32, and write the whole model.

    `dtype` is that of the written weights, as in `export`. Returns how far the written model is from the adapter on
    `SEQUENCES` fixed sequences. It is computed in float64: two models that are equal but for the order of their
    products differ in float32 by more than the rounding of the merged weights.

    Raises `UserError` if `folder` is not empty, if there is no adapter, if the merged model is another one, or if a
    weight is too large for `dtype`.
    """
    _check_target(folder)
    facts = inspect_folder(source.model)
    if facts.adapter is None:
        raise UserError([f"--merge: {source.name} has no adapter"])
    wanted = exported_dtype(source, dtype)
    adapter = load_model(facts)
    expected = _logprobs(adapter)
    products = _largest(_logprobs(adapter, torch.float32) - expected)
    del adapter
    model = _converted(_merged(facts, expected, max(MOST_ROUNDING, products)), wanted)

    def write(aside: Path) -> None:
        save_model(model, aside, other_parts_of(facts, model))
        load_tokenizer(facts, stop_token_ids=(0,)).save_pretrained(aside)
        if source.recipe is not None:
            (aside / "README.md").write_text(card(source, licence=licence), encoding="utf-8")

    save_model_folder(folder, write)
    return MergeError(weights=_largest(_logprobs(load_model(folder)) - expected), products=products)


def _merged(facts: ModelFacts, expected: Tensor, most: float) -> PreTrainedModel:
    """Return a whole model whose log-probabilities of the fixed sequences are at most `most` nats from the expected.

    An adapter of the head alone, or of the embedding, cannot be merged into a weight that both share: the head of the
    merged model has one of its own then. Raises `UserError` if the adapter cannot be merged in this way either.
    """
    assert facts.adapter is not None
    model = merged(load_model(base := replace(facts, adapter=None)), facts.adapter)
    difference = _largest(_logprobs(model) - expected)
    if not difference < most and shares_head(untied := load_model(base)):
        give_own_head(untied)
        model = merged(untied, facts.adapter)
        difference = _largest(_logprobs(model) - expected)
    if not difference < most:
        other = f"the merged model differs from the adapter by {difference:.2g} nats"
        raise UserError([f"--merge: {other}; this adapter cannot be merged"])
    return model


def _check_target(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError([f"{folder}: exists and is not empty; choose a new folder"])


def _largest(differences: Tensor) -> float:
    return float(differences.abs().max())


@torch.no_grad()
def _logprobs(model: PreTrainedModel, dtype: torch.dtype = torch.float64) -> Tensor:
    """Compute the log-probabilities [S, T] of fixed sequences with products in `dtype`."""
    vocabulary = model.config.get_text_config().vocab_size
    tokens = torch.tensor(probe_tokens(vocabulary))
    token_ids = (tokens + 11 * torch.arange(SEQUENCES)[:, None]) % vocabulary  # [S, T]
    with _computing_in(dtype, model):
        return sequence_logprobs(model(input_ids=token_ids, use_cache=False).logits, token_ids)


@contextmanager
def _computing_in(dtype: torch.dtype, model: PreTrainedModel) -> Iterator[None]:
    """Convert the float32 weights of a model while it computes, those of the layers only one layer at a time."""
    layers = layers_of(model)
    in_layers = {module for layer in layers for module in layer.modules()}
    others = [module for module in model.modules() if module not in in_layers]
    before = [layer.register_forward_pre_hook(lambda module, _: _convert(module.modules(), dtype)) for layer in layers]
    after = [
        layer.register_forward_hook(lambda module, *_: _convert(module.modules(), torch.float32)) for layer in layers
    ]
    _convert(others, dtype)
    try:
        yield
    finally:
        _convert(others, torch.float32)
        for hook in (*before, *after):
            hook.remove()


def _convert(modules: Iterable[nn.Module], dtype: torch.dtype) -> None:
    for module in modules:
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)


def _source_dtype(model: str) -> str:
    """Return the dtype of the model that a run started from. Raises `UserError` if it cannot be read any more."""
    try:
        dtype = inspect_folder(model).dtype
    except ModelError:
        dtype = None
    if dtype is None:
        raise UserError(
            [f"export: the dtype of {model}, which the run started from, cannot be read; choose one: --dtype"]
        )
    return dtype


def _write_model(checkpoint: Path, folder: Path, dtype: str, *, is_adapter: bool) -> None:
    """Copy model and tokenizer of a checkpoint into `folder`, with the weights of a whole model in `dtype`."""
    facts = inspect_folder(checkpoint, EITHER)
    converted = not is_adapter and facts.dtype != dtype
    for path in sorted(checkpoint.iterdir()):
        is_weights = ".safetensors" in path.name
        if path.is_file() and path.name != "manifest.json" and not (converted and is_weights):
            shutil.copy2(path, folder / path.name)
    if converted:
        gives_reward = (facts.architecture or "").endswith(REWARD_MODEL.endings)
        model = _converted(load_classifier(facts) if gives_reward else load_model(facts), dtype)
        save_model(model, folder, other_parts_of(facts, model))


def _converted(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    """Return a model with weights in `dtype`. Raises `UserError` if one is too large for it: it would be infinite."""
    model = model.to(getattr(torch, dtype))  # pyright: ignore[reportArgumentType]
    if fault := non_finite_weight(model):
        raise UserError([f"--dtype {dtype}: {fault} in this dtype; bfloat16 has the range of float32"])
    return model
