"""`outdo glossary`: what a metric means."""

from collections.abc import Mapping
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from outdo.cli.output import print_text
from outdo.extras.page import glossary
from outdo.utils.errors import UserError
from outdo.utils.text import mark_invisible

TOPICS: Mapping[str, str] = {
    "outcome": "Did training help?",
    "data": "Did the questions teach anything?",
    "tokens": "Did the tokens move as they should?",
    "policy": "How is the policy doing?",
    "engine": "Are sampler and trainer the same policy?",
    "cost": "What does it cost?",
}


def command(
    metric: Annotated[
        str | None, typer.Argument(help="a metric, or a word of a step's line or of the page; unset: all metrics")
    ] = None,
) -> None:
    """Print what a metric or a word means; without one, list all metrics by topic. Raises `UserError` if unknown."""
    console = Console()
    if metric is None:
        for topic, entries in groupby(glossary.entries(), key=lambda entry: entry.topic):
            print_text(console, Text(TOPICS[topic], style="bold"))
            for entry in entries:
                print_text(console, Text.assemble((f"{entry.name}  ", "cyan"), entry.title))
        return
    meaning = glossary.words().get(metric.lower(), metric.lower())
    entry = glossary.entry(metric) or glossary.entry(meaning)
    if entry is None and metric.lower() in glossary.words():
        print_text(console, Text.assemble((metric, "bold"), f": {meaning}"))
        return
    if entry is None:
        near = glossary.nearest(metric)
        hint = f"; did you mean {near}?" if near else "; `outdo glossary` lists all of them"
        raise UserError([f"{metric}: outdo writes no such metric, and shows no such word{hint}"])
    title, name = mark_invisible(entry.title, spaces=False), mark_invisible(entry.name)
    print_text(console, Text.assemble((title, "bold"), f"  ({name})"))
    texts = {"what": entry.what, "sample size": entry.n, "healthy": entry.healthy, "otherwise": entry.otherwise}
    for label, text in texts.items():
        if text is not None:
            print_text(console, Text.assemble((f"{label}: ", "cyan"), text))
