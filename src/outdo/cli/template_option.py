"""`--template` of the commands that prompt a model: a prompt template, or options of the model's chat template."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from outdo.cli.output import print_line
from outdo.config.file import read_value
from outdo.config.messages import to_toml
from outdo.config.prompt_template import chat_options
from outdo.models.inspect_folder import LANGUAGE_MODEL, Kind
from outdo.models.loading import load_tokenizer
from outdo.models.template_header import DATE, now, without_header
from outdo.models.template_source import options_without_effect, reads_clock, sources_of
from outdo.run.export.find_model import ModelRef
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


def template_notes(
    template: str | None, model: str, kind: Kind = LANGUAGE_MODEL, *, dated: bool = False
) -> Iterator[str]:
    """Yield a sentence for each option in `--template` that has no effect on the chat template of the model.

    Another one says that prompts depend on the day, because the chat template writes the date, unless it is `dated`:
    the caller sets one. Only the tokenizer is loaded.

    Raises `UserError` for options that are not possible, or if the model has no chat template.
    """
    text, options = read_template(template)
    if text is not None or (dated and not options):
        return
    chat_template: Any = load_tokenizer(model, kind=kind).chat_template
    if options and not chat_template:
        raise UserError([f"{OPTION}: {model} has no chat template, so that it has no options"])
    for _, why in options_without_effect([*map(without_header, sources_of(chat_template))], options):
        yield f"note: {OPTION}: the chat template of {model} {why}"
    if not dated and DATE not in options and reads_clock(chat_template):
        example = f"{OPTION} '{{{DATE} = \"{now()[:10]}\"}}' sets one"
        yield f"note: the chat template of {model} writes the date, so that prompts differ from day to day; {example}"


def say_template_notes(template: str | None, models: Sequence[ModelRef], *, dated: bool) -> None:
    """Print the notes on the chat templates of several models, beside what the command prints."""
    for note in (line for model in models for line in template_notes(template, model.model, dated=dated)):
        print_line(Console(stderr=True), note)


def with_date(template: str | None, model: str, kind: Kind = LANGUAGE_MODEL) -> tuple[str | None, list[str]]:
    """Return `--template` with the date that the chat template of a model writes, and a note; unchanged if it has none.

    So a model is trained with one date, also if the training is resumed.
    """
    text, options = read_template(template)
    if text is not None or DATE in options or not reads_clock(load_tokenizer(model, kind=kind).chat_template):
        return template, []
    date = now()
    return to_toml({**options, DATE: date}), [f"date in the chat template: {date}; the trained model keeps it"]
