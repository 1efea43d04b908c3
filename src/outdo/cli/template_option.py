"""`--template` of the commands that prompt a model: a prompt template, or options of the model's chat template."""

from collections.abc import Iterator, Mapping
from typing import Any

from outdo.config.fields import chat_options
from outdo.config.file import read_value
from outdo.models.inspect_folder import LANGUAGE_MODEL, Kind
from outdo.models.loading import load_tokenizer
from outdo.run.check.prompt_warnings import unknown_options
from outdo.utils.errors import UserError

OPTION = "--template"


def read_template(template: str | None) -> tuple[str | None, Mapping[str, Any]]:
    """Return the text that `--template` gives, or the options of the chat template if it is a table in TOML.

    Raises `UserError` for an option that is not possible.
    """
    value = template and read_value(template)
    if not isinstance(value, Mapping):
        return template, {}
    try:
        return None, chat_options(value)
    except ValueError as error:
        raise UserError([f"{OPTION}: {error}"]) from None


def template_notes(template: str | None, model: str, kind: Kind = LANGUAGE_MODEL) -> Iterator[str]:
    """Yield a sentence for each option in `--template` that the chat template of the model does not know.

    Raises `UserError` for options that are not possible, or if the model has no chat template. Only its tokenizer is
    loaded.
    """
    options = read_template(template)[1]
    if not options:
        return
    given: Any = load_tokenizer(model, kind=kind).chat_template
    if not given:
        raise UserError([f"{OPTION}: {model} has no chat template, so that it has no options"])
    for name in unknown_options(str(given), options):
        yield f"note: {OPTION}: the chat template of {model} does not know the option {name}"
