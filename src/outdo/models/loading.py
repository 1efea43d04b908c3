"""Load tokenizers and models from a folder or the hub, ready to be trained.

Everything is inspected before it is loaded. Weights come from safetensors, and no code is run but that of transformers.
Models are loaded in float32 with dropout off.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from outdo.models.adapter import attach, attach_saved, check_divisible, saved_config, trained_weights
from outdo.models.adapter_targets import left_out_note
from outdo.models.base_model import BaseModel, check_base
from outdo.models.base_weights import Weights, loading_options, prepare
from outdo.models.config_sizes import sizes_of
from outdo.models.download import MODEL_FILES, TOKENIZER_FILES, files_of
from outdo.models.inspect_folder import (
    EITHER,
    LANGUAGE_MODEL,
    REWARD_MODEL,
    Kind,
    ModelFacts,
    inspect_folder,
)
from outdo.models.text_part import OtherParts, auto_class, left_out, with_public_class
from outdo.models.weight_faults import weight_faults
from outdo.utils.errors import ModelError
from outdo.utils.hub_names import is_local
from outdo.utils.packages import explained
from outdo.utils.text import counted, first_line
from outdo.utils.world import ALONE, World

if TYPE_CHECKING:
    from peft import PeftConfig

HEAD = "score"
"""The name of the head of a reward model."""


# ------------------------------------------------------------------------------------------------------- the tokenizer


def load_tokenizer(
    model: str | Path | ModelFacts, *, stop_token_ids: Sequence[int] = (), kind: Kind = LANGUAGE_MODEL
) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model folder or hub model, or of one that has been inspected already.

    Rules for what it may lack:

    - No end-of-sequence token: refused, since answers would never end, unless `stop_token_ids` say what ends them.
    - No padding token: the end token stands in (or the first stop token). Padding is arithmetic only: masks count
      lengths and never look for the padding id, so that padding = end, as in many models, loses no trained end token.
    - More tokens than the model's embedding has rows: refused.

    Raises `ModelError` with the reason.
    """
    facts = _inspected(model, kind)
    name, folder = facts.name, files_of(facts, TOKENIZER_FILES)
    if facts.adapter and (facts.adapter / "tokenizer_config.json").is_file():
        name, folder = str(facts.adapter), facts.adapter
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a broken file may raise a bare Exception, OSError, KeyError, ...
        raise ModelError(f"the tokenizer of {name} cannot be read: {first_line(error)}") from error
    if tokenizer.eos_token_id is None and not stop_token_ids:
        raise ModelError(
            f"the tokenizer of {name} has no end-of-sequence token, so no answer would ever end; "
            "set eos_token in its tokenizer_config.json, or give stop_token_ids (in a recipe: sampling.stop)"
        )
    if tokenizer.pad_token_id is None:
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else stop_token_ids[0]
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(end)
    _check_rows(tokenizer, facts.vocab_size or inspect_folder(facts.name, _kind_of_base(facts, kind)).vocab_size, name)
    return tokenizer


def _check_rows(tokenizer: PreTrainedTokenizerBase, rows: int | None, name: str) -> None:
    if rows is None:
        return
    beyond = sorted((index, token) for token, index in tokenizer.get_vocab().items() if index >= rows)
    if beyond:
        index, token = beyond[0]
        raise ModelError(
            f"the tokenizer of {name} has {counted(len(beyond), 'token')} that its model does not have: {token!r} has "
            f"the id {index}, and the embedding has {rows} rows; resize the embedding, or use the model's own tokenizer"
        )


# ----------------------------------------------------------------------------------------------------------- the model


def load_model(
    model: str | Path | ModelFacts,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    *,
    weights: Weights = "float32",
    world: World = ALONE,
) -> PreTrainedModel:
    """A causal language model, ready to be trained: weights in `dtype`, every dropout at 0.

    Of an adapter folder it is the base model with the adapter attached: only the adapter, in float32, is to be trained.
    With `weights` other than float32 the base is stored in fewer bytes, and frozen.
    In a `world` that divides models, each process reads its part of the weights.

    The model is in evaluation mode, which stops no gradient; dropout is off in its config as well, so that a later
    `model.train()` (gradient checkpointing asks for it) changes nothing.

    Raises `ModelError` if the folder is not sound, if it holds not exactly the weights that its config asks for, or if
    a weight is not finite: what is missing would otherwise be filled with random numbers, and what is too much (the
    layers beyond `num_hidden_layers`) would be left out. So it is for an adapter, and if its base is another one than
    that which it was trained on.
    """
    facts = _inspected(model, LANGUAGE_MODEL)
    folder = _with_weights(facts, LANGUAGE_MODEL)
    if facts.adapter:
        check_base(facts.adapter, base_of(facts))
        if world.divides_models:
            check_divisible(saved_config(facts.adapter))
    options = _options(weights, device) | ({"dtype": dtype} if weights == "float32" else {})
    loaded = _load(AutoModelForCausalLM, folder, _config(folder, facts.name), facts.name, options, world=world)
    if weights != "float32":
        prepare(loaded)
    return _finished(loaded, facts, device, options, world)


class AdapterFit(NamedTuple):
    """What an adapter would be in a model that is not loaded."""

    weights: int | None  # None if its initialisation needs the base
    notes: list[str]


def fit_adapter(
    facts: ModelFacts, config: "PeftConfig", kind: Kind = LANGUAGE_MODEL, weights: Weights = "float32"
) -> AdapterFit:
    """Return what an adapter would be in a model whose base, in `weights`, is not loaded.

    Raises `ModelError` if it does not fit the model.
    """
    auto: Any = AutoModelForCausalLM if kind is LANGUAGE_MODEL else AutoModelForSequenceClassification
    base = config_of(facts)
    with torch.device("meta"):
        with _as_model_error(facts.name):
            model = auto_class(auto, base).from_config(base)
        model = model if weights == "float32" else model.bfloat16()
        note = left_out_note(model, config)
        notes = [note] if note else []
        try:
            attach(model, config)
        except ModelError as error:
            if isinstance(error.__cause__, RuntimeError):  # it reads numbers, which are not there
                return AdapterFit(None, notes)
            raise
    return AdapterFit(sum(weight.numel() for weight in trained_weights(model).values()), notes)


def base_of(facts: ModelFacts) -> BaseModel:
    """Return the identity of a model that is the base of an adapter. Its weights are on this machine."""
    if facts.dequantised:
        return BaseModel.of_file(Path(facts.name).expanduser().absolute())  # a link to it has the ending, .gguf
    folder = files_of(facts, MODEL_FILES)
    return BaseModel.of(str(folder.resolve()) if is_local(facts.name) else facts.name, folder)


def other_parts_of(facts: ModelFacts, model: PreTrainedModel) -> OtherParts | None:
    """Return what the files of a whole model have beside `model`, its text part; None if the model has all of them."""
    return OtherParts.of(files_of(facts, MODEL_FILES)) if left_out(model) else None


def load_classifier(
    name: str | Path | ModelFacts,
    device: torch.device | str = "cpu",
    *,
    head_seed: int | None = None,
    weights: Weights = "float32",
    world: World = ALONE,
) -> PreTrainedModel:
    """Load a model that gives a text one score, ready to be trained like that of `load_model`: a reward model.

    With `head_seed`, `name` is a language model: its body gets a new head `score` [1, H] of normal random numbers with
    the standard deviation 1/√(H + 1), so that new scores are of order 1 (Stiennon et al. 2020, appendix B).
    An adapter folder of a reward model holds its head; the base may be a language model. With `weights` other than
    float32 the body is stored in fewer bytes, and frozen. A `world` that divides
    models, as in `load_model`, is for a model with a head.

    Raises `ModelError` as `load_model` does, and if the model gives a text more than one score.
    """
    kind = REWARD_MODEL if head_seed is None else LANGUAGE_MODEL
    facts = _inspected(name, kind)
    folder = _with_weights(facts, _kind_of_base(facts, kind))
    config = _config(folder, facts.name)
    config.use_cache = False  # the model generates nothing
    if facts.adapter:
        check_base(facts.adapter, base_of(facts))
        if not any(architecture.endswith(REWARD_MODEL.endings) for architecture in config.architectures or ()):
            head_seed = 0  # any: the adapter has a head
    if head_seed is not None:
        config.num_labels = 1
    if config.num_labels != 1:
        scores = f"{config.num_labels} scores (num_labels)"
        raise ModelError(f"model {facts.name} gives a text {scores}, and a reward is one")
    how, new = _options(weights, device), () if head_seed is None else (f"{HEAD}.",)
    with torch.random.fork_rng(devices=[]):  # transformers fills a new head with random numbers
        model = _load(AutoModelForSequenceClassification, folder, config, facts.name, how, new=new, world=world)
    if weights != "float32":
        _train_head_alone(model, facts.name, weights)
    _train_every_embedding(model)
    if head_seed is not None:
        _fill_head(model, head_seed)
    return _finished(model, facts, device, how, world)


def _train_head_alone(model: PreTrainedModel, name: str, weights: Weights) -> None:
    """Prepare a body whose weights are stored in fewer bytes, and frozen. Raises `ModelError` if there is no head."""
    if not hasattr(model, HEAD):
        raise ModelError(f"model {name}: weights in {weights} need a model whose head is called {HEAD}")
    prepare(model, whole=HEAD)
    model.get_submodule(HEAD).requires_grad_(True)


def _train_every_embedding(model: PreTrainedModel) -> None:
    """Let the embedding of every token that is read have a gradient.

    By default that of the padding token has none, although a prompt may contain this token, and which token it is
    changes when a new reward model is saved and loaded. Padding itself is masked and adds nothing to a gradient.
    """
    embedding = model.get_input_embeddings()
    if isinstance(embedding, torch.nn.Embedding):
        embedding.padding_idx = None


def _fill_head(model: PreTrainedModel, seed: int) -> None:
    weight = model.get_parameter(f"{HEAD}.weight")
    source = torch.Generator().manual_seed(seed)
    torch.nn.init.normal_(weight, std=(weight.shape[1] + 1) ** -0.5, generator=source)


def _options(weights: Weights, device: torch.device | str) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for a model with such weights that will be on a device."""
    options = loading_options(weights)
    if "quantization_config" in options:
        options["device_map"] = {"": device}  # a library that quantises does so while it loads, and moves no model
    return options


def _finished(
    model: Any, facts: ModelFacts, device: torch.device | str, options: Mapping[str, Any], world: World
) -> PreTrainedModel:
    """Attach the adapter of a model that was loaded with these arguments, if it has one, and move it to its device."""
    if facts.adapter:
        attach_saved(model, facts.adapter)
    is_there = "device_map" in options or world.divides_models
    return (model if is_there else model.to(device)).eval()


def _inspected(model: str | Path | ModelFacts, kind: Kind) -> ModelFacts:
    return model if isinstance(model, ModelFacts) else inspect_folder(model, kind)


def _kind_of_base(facts: ModelFacts, kind: Kind) -> Kind:
    """Return which kind the files of a model have to be of; the adapter of a reward model has a base of either."""
    return EITHER if facts.adapter and kind is REWARD_MODEL else kind


def _with_weights(facts: ModelFacts, kind: Kind) -> Path:
    """Return the folder of a model, downloaded if it is on the hub."""
    folder = files_of(facts, MODEL_FILES)
    if not is_local(facts.name):
        inspect_folder(folder, kind)  # the weights of a hub model could not be inspected before the download
    return folder


def config_of(facts: ModelFacts) -> PretrainedConfig:
    """Return the configuration of a model, whose weights need not be on this machine, with every dropout at 0."""
    return _config(files_of(facts, TOKENIZER_FILES), facts.name)


def _config(folder: Path, name: str) -> PretrainedConfig:
    """Read a config, with every dropout at 0."""
    with _as_model_error(name):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    switch_dropout_off(config)
    return config


def _load(
    auto: Any,
    folder: Path,
    config: PretrainedConfig,
    name: str,
    options: Mapping[str, Any],
    *,
    new: tuple[str, ...] = (),
    world: World = ALONE,
) -> Any:
    """Load a model with exactly the weights that its config requires.

    `new` are the beginnings of the names of a new head: its weights need not be in the files, and the old head is left
    out.
    """
    with _as_model_error(name), without_bars(), _without_report():
        model, report = world.from_pretrained(
            auto_class(auto, config),
            folder,
            config=config,
            **options,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are in the report, and refused below with their names
        )
    body = f"{model.base_model_prefix}." if new else ""
    faults = list(weight_faults(model, report, new=new, body=body))
    if world.divides_models:
        faults = list(dict.fromkeys(fault for part in world.together(lambda: faults) for fault in part))
    if faults:
        raise ModelError("\n".join(f"model {name}: {fault}" for fault in faults))
    return with_public_class(model)


@contextmanager
def _as_model_error(name: str) -> Iterator[None]:
    """Raise what transformers raises for a broken file, which may be many things, as a `ModelError`."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, RuntimeError) as error:
        fault = f"model {name} cannot be loaded"
        said = explained(fault, error) if isinstance(error, ImportError) else f"{fault}: {first_line(error)}"
        raise ModelError(said) from error


@contextmanager
def without_bars() -> Iterator[None]:
    """Show no progress bars of transformers for quick reads and writes; downloads keep theirs."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def save_model(model: PreTrainedModel, folder: Path, other_parts: OtherParts | None, **options: Any) -> None:
    """Write a model folder, which is whole with the `other_parts` of a text part; `options` of `save_pretrained`."""
    with without_bars():
        model.save_pretrained(folder, **options)
    if other_parts is not None:
        other_parts.write(folder)


@contextmanager
def _without_report() -> Iterator[None]:
    """Show no report of transformers: outdo refuses what is wrong itself, and changes a head only on purpose."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def switch_dropout_off(config: PretrainedConfig) -> None:
    """Set every dropout probability of a config to 0, whatever its name in the architecture (`attn_pdrop`, ...)."""
    for part in (config, config.get_text_config()):
        for key, value in vars(part).items():
            if ("dropout" in key or "pdrop" in key or "layerdrop" in key) and isinstance(value, float):
                setattr(part, key, 0.0)


def max_context(model: PreTrainedModel) -> int | None:
    """Return the longest sequence, prompt and answer together, in tokens, that the model allows; `None`: no limit."""
    longest: int | None = sizes_of(model.config.get_text_config().to_dict(), [])["max_positions"]
    return longest
