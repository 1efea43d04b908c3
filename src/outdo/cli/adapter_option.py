"""`--adapter` of `outdo sft` and `outdo reward-model`: what `train.adapter` is in a recipe."""

from typing import TYPE_CHECKING, TypeAlias

from outdo.config.adapters import adapter_mistakes
from outdo.config.file import read_piece
from outdo.models.adapter import with_head
from outdo.models.inspect_folder import LANGUAGE_MODEL, Kind, inspect_folder
from outdo.models.loading import HEAD, fit_adapter
from outdo.run.assemble.method import peft_config
from outdo.utils.errors import ModelError, UserError

if TYPE_CHECKING:
    from peft import PeftConfig

OPTION = "--adapter"

ReadAdapter: TypeAlias = "tuple[PeftConfig | None, list[str]]"
"""A configuration, if there is an adapter, and notes on it."""


def read_adapter(text: str | None, model: str, base_weights: str, kind: Kind = LANGUAGE_MODEL) -> ReadAdapter:
    """Return the adapter that `--adapter` names for a model whose folder is sound.

    `kind` is that of the model that is made. Raises `UserError` if there is no such adapter, if it does not fit the
    model, or if without one weights that are trained would be stored in fewer bytes.
    """
    facts = inspect_folder(model, kind)
    if base_weights not in ("auto", "float32") and not (text or facts.adapter):
        raise UserError(
            [f"--base-weights {base_weights}: the weights are trained, in float32; it needs a model under an adapter"]
        )
    if text is None:
        return None, []
    if facts.adapter:
        raise UserError([f"{OPTION}: {model} is an adapter, which is trained further without this option"])
    piece = read_piece(OPTION, text, '{name = "lora", rank = 32}')
    if mistakes := list(adapter_mistakes(OPTION, piece)):
        raise UserError(mistakes)
    config = peft_config(OPTION, piece)
    try:
        fit = fit_adapter(facts, config if kind is LANGUAGE_MODEL else with_head(config, HEAD), kind)
    except ModelError as error:
        raise UserError([f"{OPTION}: {line}" for line in str(error).splitlines()]) from None
    return config, fit.notes
