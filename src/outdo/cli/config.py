"""`outdo config`: the recipe with every default, its schema, or the named pieces."""

import json

from rich.console import Console

from outdo.config import file
from outdo.config.options import every_piece


def run_config(console: Console, *, schema: bool, pieces: bool) -> None:
    """Write a commented recipe with every default, or the JSON schema, or every named piece and its options."""
    text = file.commented()
    if pieces:
        text = "\n".join(every_piece())
    elif schema:
        text = json.dumps(file.schema(), indent=2)
    console.file.write(f"{text}\n")
