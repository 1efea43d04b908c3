"""What a classifier gets before it is a reward model: an adapter, if it has one, and a padding token."""

from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.models.adapter import attach, has_adapter, set_base, with_head
from outdo.models.inspect_folder import ModelFacts
from outdo.models.loading import HEAD, base_of, other_parts_of

if TYPE_CHECKING:
    from peft import PeftConfig


def attached(model: PreTrainedModel, facts: ModelFacts, new: "PeftConfig | None", seed: int) -> dict[str, Any]:
    """Attach a new adapter, if there is one, and its head; return what a `RewardModel` keeps of the model's files."""
    if new is not None:
        attach(model, with_head(new, HEAD), seed=seed)
    if not has_adapter(model):
        return {"other_parts": other_parts_of(facts, model)}
    base = base_of(facts)
    set_base(model, base.name, base.revision)
    return {"base": base}


def set_pad_token(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the padding token; if the model has none, set it to a special token other than the end, if there is any.

    Transformers reads the score at the last token that is not padding. If padding and end are the same token, that is
    the token before the end: a model that was trained this way is also evaluated this way.
    """
    config = model.config.get_text_config()
    if config.pad_token_id is None:
        end: Any = tokenizer.eos_token_id
        special: list[Any] = [tokenizer.pad_token_id, *tokenizer.all_special_ids]
        config.pad_token_id = next((token_id for token_id in special if token_id != end), end)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id) or tokenizer.pad_token
    return config.pad_token_id
