"""`outdo config`: the recipe with every default, its schema, or the named pieces."""

import json
from typing import Annotated

import typer
from rich.console import Console

from outdo.config import file
from outdo.config.options import list_pieces
from outdo.utils.errors import UserError


def command(
    schema: Annotated[bool, typer.Option("--schema", help="print the JSON schema instead")] = False,
    pieces: Annotated[bool, typer.Option("--pieces", help="print every named piece and its options instead")] = False,
) -> None:
    """Write a commented recipe with every default, or the JSON schema, or every named piece and its options."""
    if schema and pieces:
        raise UserError(["config: give either --schema or --pieces"])
    text = file.commented()
    if pieces:
        text = "\n".join(list_pieces())
    elif schema:
        text = json.dumps(file.schema(), indent=2)
    Console().file.write(f"{text}\n")
