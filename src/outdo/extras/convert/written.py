"""Write a recipe as a file: what has to be known as comments, and then the settings in outdo's order."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from outdo.config.messages import to_toml
from outdo.config.settings import settings
from outdo.extras.convert.conversion import Conversion

INCOMPLETE = "Not complete"
MEANING = "Without a counterpart, or with another meaning"
"""The headings of remarks. Those of settings that change no training say what they concern."""


def written_recipe(conversion: Conversion, title: str) -> str:
    """Return the recipe as TOML: the title and what is said as comments, and then the settings in outdo's order."""
    lines = [line for sentence in title.splitlines() for line in textwrap.wrap(sentence, 118)]
    lines = [f"# {line}" for line in lines]
    for heading, sentences in headed(conversion):
        lines += ["#", f"# {heading}:"]
        lines += [line for sentence in sentences for line in _comment(sentence)]
    table = ""
    for key in settings():
        if key not in conversion.settings:
            continue
        section, _, name = key.rpartition(".")
        if section != table or lines[-1].startswith("#"):
            lines += ["", f"[{section}]"] if section else [""]
            table = section
        lines.append(f"{name} = {to_toml(conversion.settings[key])}")
    return "\n".join(lines) + "\n"


def headed(conversion: Conversion) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what is said of a conversion under its headings: what is missing, what changes the training, the rest."""
    if conversion.incomplete:
        yield INCOMPLETE, list(dict.fromkeys(conversion.incomplete))
    if conversion.remarks:
        yield MEANING, list(dict.fromkeys(conversion.remarks))
    rest = [f"{concern}: {', '.join(dict.fromkeys(names))}" for concern, names in sorted(conversion.asides.items())]
    if rest:
        yield "Not in the recipe, and the training is the same", rest


def _comment(remark: str) -> Iterable[str]:
    printable = re.sub(r"[\x00-\x1f\x7f]", " ", remark)
    return textwrap.wrap(printable, 118, initial_indent="# - ", subsequent_indent="#   ", break_on_hyphens=False)
