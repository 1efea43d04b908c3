"""Defaults of the options of a chat template, such as `enable_thinking`, written into the template itself.

A template takes any option: `apply_chat_template(messages, enable_thinking=False)`. Whoever renders a prompt has to
pass the same options as the training did: the evaluation, the chat, and the server of the exported model. So the
options are not passed. They are set at the beginning of the template, unless the caller gives them, and the template is
saved with the tokenizer: in the checkpoints and in the exported model. One option is not the template's own:
`strftime_now`, the date that it writes in place of today's. `outdo.models.template_header` has the texts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.models.template_header import DATE, now, with_date, with_defaults
from outdo.models.template_source import reads_clock
from outdo.utils.errors import ModelError


def set_chat_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Set the defaults of options of the tokenizer's chat template; they replace those that were set before.

    An earlier date stays unless the options have one. Without `options` nothing is changed. Raises `ModelError` if
    there is no chat template.
    """
    if options and not tokenizer.chat_template:
        raise ModelError("the model has no chat template, so that it has no options")
    defaults, date = dict(options), options.get(DATE)
    defaults.pop(DATE, None)
    if defaults:
        _change(tokenizer, lambda text: with_defaults(text, defaults))
    if date is not None:
        _change(tokenizer, lambda text: with_date(text, str(date)))


def keep_date(tokenizer: PreTrainedTokenizerBase, date: str | None = None) -> str | None:
    """Set the date of a chat template that would write today's, and return it: `date`, or else this moment.

    Of any other template nothing is changed, and None is returned.
    """
    if not reads_clock(tokenizer.chat_template):
        return None
    date = date or now()
    _change(tokenizer, lambda text: with_date(text, date))
    return date


def _change(tokenizer: PreTrainedTokenizerBase, change: Callable[[str], str]) -> None:
    template: Any = tokenizer.chat_template
    if isinstance(template, dict):  # templates by name: for example one for tools
        tokenizer.chat_template = {name: change(text) for name, text in template.items()}
    else:
        tokenizer.chat_template = change(template)
