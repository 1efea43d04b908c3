"""The prompt template and the system message of a reward model, kept in its folder.

A reward model scores texts as it was trained to only if they begin as those of its training. What a text template puts
around a prompt is written into `tokenizer_config.json`, whose unknown entries transformers keeps: so it is in the
folder of a whole model and of an adapter, in a checkpoint, and in what is exported.
"""

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from outdo.utils.reward_names import KEPT_PROMPT


def keep_prompt(tokenizer: PreTrainedTokenizerBase, *, template: str | None, system: str | None) -> None:
    """Write template and system message into the configuration that is saved with the tokenizer."""
    texts = {name: text for name, text in (("template", template), ("system", system)) if text is not None}
    tokenizer.init_kwargs.pop(KEPT_PROMPT, None)
    if texts:
        tokenizer.init_kwargs[KEPT_PROMPT] = texts


def kept_prompt(
    tokenizer: PreTrainedTokenizerBase, *, template: str | None, system: str | None
) -> tuple[str | None, str | None]:
    """Return the template and the system message that are given, and otherwise those that the tokenizer keeps.

    A template that is given replaces both: it may have no place for the system message that was kept.
    """
    kept: Mapping[str, str] = tokenizer.init_kwargs.get(KEPT_PROMPT, {}) if template is None else {}
    return kept.get("template", template), kept.get("system") if system is None else system
