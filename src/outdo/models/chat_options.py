"""Defaults of the options of a chat template, such as `enable_thinking`, written into the template itself.

A template takes any option: `apply_chat_template(messages, enable_thinking=False)`. Whoever renders a prompt has to
pass the same options as the training did: the evaluation, the chat, and the server of the exported model. So the
options are not passed. They are set at the beginning of the template, unless the caller gives them, and the template is
saved with the tokenizer: in the checkpoints and in the exported model.
"""

import json
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from outdo.utils.errors import ModelError

BEGIN = "{#- outdo: defaults of this chat template #}\n"
END = "{#- outdo: end of the defaults #}\n"
"""Where the defaults begin and end. transformers removes the line break after each of them."""


def set_chat_options(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]) -> None:
    """Set the defaults of options of the tokenizer's chat template; they replace those that were set before.

    Without `options` nothing is changed. Raises `ModelError` if there is no chat template.
    """
    if not options:
        return
    given: Any = tokenizer.chat_template
    if not given:
        raise ModelError("the model has no chat template, so that it has no options")
    if isinstance(given, dict):  # templates by name: for example one for tools
        tokenizer.chat_template = {name: _with_defaults(text, options) for name, text in given.items()}
    else:
        tokenizer.chat_template = _with_defaults(given, options)


def without_defaults(template: str) -> str:
    """Return a chat template without the defaults that `set_chat_options` has set."""
    return template.partition(END)[2] if template.startswith(BEGIN) else template


def _with_defaults(template: str, options: Mapping[str, Any]) -> str:
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in options.items()}
    lines = (
        f"{{%- if not {name} is defined %}}{{%- set {name} = {value} %}}{{%- endif %}}\n"
        for name, value in values.items()
    )
    return "".join([BEGIN, *lines, END, without_defaults(template)])
