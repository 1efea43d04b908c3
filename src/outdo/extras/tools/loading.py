"""Load the tools that a recipe names."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from outdo.config.recipe import Piece
from outdo.data.files import read_rows, shorten
from outdo.extras.episodes.tools import Tool, as_tool
from outdo.extras.sandbox import Limits, open_sandbox
from outdo.extras.tools.python_tool import PythonTool
from outdo.extras.tools.search import Search, words
from outdo.extras.tools.settings import MCP, PYTHON, SEARCH
from outdo.extras.tools.tool_worker import open_workers
from outdo.rewards.limits import WorkerLimits
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve
from outdo.utils.secrets import read_secrets

Tools = list[Callable[..., Any] | Tool]

WAIT = 3600.0
"""Seconds in which a call waits until others have ended. Its deadline begins when it runs."""


def load_tools(pieces: Sequence[Piece], timeout: float) -> Tools:
    """Return the tools of a recipe, whose calls may take `timeout` seconds.

    Raises `UserError` with everything that is wrong with them.
    """
    tools: Tools = []
    mistakes: list[str] = []
    for piece in pieces:
        try:
            load = LOADERS.get(piece.name) or partial(_function, piece.name)
            tools += load(timeout, **piece.options)
        except UserError as error:
            mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return tools


def _function(
    spec: str, timeout: float, *, workers: int = 8, memory: float | None = None, environment: Sequence[str] = ()
) -> Tools:
    """Return a function of the user, which is called in worker processes; it is imported here for its schema."""
    if missing := [name for name in environment if name not in os.environ]:
        raise UserError([f"the tool {spec}: the environment variable {name} is not set" for name in missing])
    tool = as_tool(resolve(spec))
    limits = WorkerLimits(timeout=timeout, memory=memory, workers=workers, environment=tuple(environment))
    return [replace(tool, function=open_workers(spec, os.getcwd(), limits).call, grace=WAIT)]


def _search(timeout: float, *, corpus: str, column: str = "text", results: int = 3, characters: int = 1000) -> Tools:
    rows = read_rows(corpus)
    mistakes = [f"{corpus}, row {fault.row}: {fault.reason}" for fault in rows.faults]
    mistakes += [
        f'{corpus}, row {number}: expected text in the column "{column}", found {row.get(column)!r:.100}'
        for number, row in rows.values.items()
        if not isinstance(row.get(column), str)
    ]
    if mistakes:
        raise UserError(shorten(mistakes, source=corpus))
    documents = [_document(row, column) for row in rows.values.values()]
    if not any(map(words, documents)):
        raise UserError([f'{corpus}: no row has any word in the column "{column}"'])
    try:
        return [Search(documents, results=results, characters=characters).search]
    except ModuleNotFoundError as error:
        raise UserError([f"the tool search needs {error.name}: pip install 'outdo[search]'"]) from error


def _document(row: Mapping[str, Any], column: str) -> str:
    """Return the text of a row, below its title if it has one."""
    title = row.get("title")
    return f"{title}\n{row[column]}" if isinstance(title, str) and title and column != "title" else row[column]


def _mcp(
    timeout: float,
    *,
    command: Sequence[str] = (),
    url: str = "",
    tools: Sequence[str] | None = None,
    environment: Sequence[str] = (),
    headers: Mapping[str, Any] | None = None,
) -> Tools:
    try:
        from outdo.extras.tools.mcp_clients import Program, Service
        from outdo.extras.tools.mcp_server import open_server
    except ModuleNotFoundError as error:
        raise UserError([f"the tools of an MCP server need {error.name}: pip install 'outdo[mcp]'"]) from error
    if url:
        read, _ = read_secrets(headers or {}, f"the MCP server {url}")
        server = Service(url, tuple(read.items()))
    else:
        server = Program(tuple(command), tuple(environment))
    return [*open_server(server, timeout).tools(tools)]


def _python(
    timeout: float,
    *,
    seconds: int = 4,
    memory: int = 512,
    characters: int = 2000,
    sandbox: str | None = None,
    unsafe_local: bool = False,
) -> Tools:
    limits = Limits(seconds=seconds, wall_seconds=timeout, memory=memory)
    opened = open_sandbox(sandbox, unsafe_local=unsafe_local)
    return [PythonTool(opened, limits, characters=characters).tool(grace=WAIT)]


LOADERS: Mapping[str, Callable[..., Tools]] = {SEARCH: _search, MCP: _mcp, PYTHON: _python}
"""What makes the tools of a name, with the deadline of a call and its options."""


def tool_notes(pieces: Sequence[Piece]) -> list[str]:
    """Return a note on where programs of the policy run, if it has the tool `python`."""
    sandboxes = [
        open_sandbox(piece.options.get("sandbox"), unsafe_local=piece.options.get("unsafe_local", False))
        for piece in pieces
        if piece.name == PYTHON
    ]
    return [f"the tool python runs programs in {sandbox.description}" for sandbox in sandboxes]
