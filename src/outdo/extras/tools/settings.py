"""The tools that the environment `tools` may name: functions in the user's code, and those that outdo has."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.fields import Piece
from outdo.utils.errors import UserError
from outdo.utils.imports import Signature, signature_of
from outdo.utils.options import BOOLEAN, MIB, NATURAL, POSITIVE, Check, is_text, is_url, no_such_name, option_mistakes
from outdo.utils.secrets import SecretPlace, has_secret_name, has_secret_value

SEARCH = "search"
"""The tool that searches a corpus."""

MCP = "mcp"
"""The tools of a server of the Model Context Protocol."""

PYTHON = "python"
"""The tool that runs programs of the policy in a sandbox."""

TOOL_NAMES = (SEARCH, MCP, PYTHON)
"""The tools that outdo has; every other one is a function in user's code."""


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_text, value))


def _is_url(value: Any) -> bool:
    return is_url(value) and not has_secret_value(value)


def _are_headers(value: Any) -> bool:
    """Whether these are headers of HTTP, of which none is a secret that is written out."""
    return isinstance(value, Mapping) and all(
        SecretPlace.of(header) is not None or (is_text(header) and not _is_secret_header(str(name), header))
        for name, header in value.items()
    )


def _is_secret_header(name: str, value: str) -> bool:
    return name.lower() in SECRET_HEADERS or has_secret_name(name) or has_secret_value(value)


TOOL_OPTIONS: Mapping[str, Mapping[str, Check]] = {
    SEARCH: {
        "corpus": (is_text, 'a file such as "docs.jsonl"'),
        "column": (is_text, "the name of a column"),
        "results": NATURAL,
        "characters": NATURAL,
    },
    MCP: {
        "command": (_are_texts, 'a program and its arguments, such as ["uvx", "mcp-server-fetch"]'),
        "url": (_is_url, "a URL that begins with http:// or https://, without a password"),
        "tools": (_are_texts, "a list of names"),
        "environment": (_are_texts, "a list of environment variables"),
        "headers": (_are_headers, 'a table of texts; a secret is written as {env = "NAME"} or {file = "path"}'),
    },
    PYTHON: {
        "seconds": NATURAL,
        "memory": MIB,
        "characters": NATURAL,
        "sandbox": (is_text, "the name of a sandbox"),
        "unsafe_local": BOOLEAN,
    },
}
"""The options of each tool that outdo has."""

FUNCTION_OPTIONS: Mapping[str, Check] = {
    "workers": NATURAL,
    "memory": (POSITIVE[0], "a number of GiB above 0"),
    "environment": (_are_texts, "a list of environment variables"),
}
"""The options of a function in the user's code: those of its worker processes."""

NEEDED: Mapping[str, tuple[str, ...]] = {SEARCH: ("corpus",)}
"""The options that a tool cannot do without."""

ONLY_WITH: Mapping[str, Mapping[str, str]] = {MCP: {"environment": "command", "headers": "url"}}
"""Options of a tool that need another one."""

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers whose values are always secret."""


def tools_in(options: Mapping[str, Any]) -> list[Piece]:
    """Return the tools of the environment `tools`: one, or a list. Raises `ValueError` if one has no name."""
    functions = options.get("functions", [])
    listed = functions if isinstance(functions, Sequence) and not isinstance(functions, str) else [functions]
    return [Piece.model_validate(tool) for tool in listed]


def tools_mistakes(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the tools that a recipe names; their code is read, and not run."""
    try:
        tools = tools_in(options)
    except ValueError:
        tools = []
    if not tools:
        expected = f'"file.py:name", {", ".join(TOOL_NAMES)}, a table with one of them as `name`, or a list of these'
        yield f"environment.functions: expected {expected}; found {options.get('functions')!r}"
    for tool in tools:
        yield from _mistakes("environment.functions", tool)


def tool_files(options: Mapping[str, Any]) -> list[Path]:
    """Return the files that the results of the tools depend on, besides Python code that is named.

    Of the program of a server, which may be Python itself, only the arguments are taken.
    """
    tools = tools_in(options)
    named = [str(tool.options["corpus"]) for tool in tools if "corpus" in tool.options]
    named += [str(word) for tool in tools for word in tool.options.get("command", ())[1:]]
    return [path for path in map(Path, named) if path.is_file()]


def _mistakes(key: str, tool: Piece) -> Iterator[str]:
    name, options = tool.name, tool.options
    if ":" in name:
        try:
            signature_of(name)
        except UserError as error:
            yield from (f"{key}: {mistake}" for mistake in error.problems)
    elif name not in TOOL_NAMES:
        yield no_such_name(key, name, TOOL_NAMES, own="file.py:name")
        return
    if name == MCP and ("command" in options) == ("url" in options):
        yield f"{key}: mcp needs one of the options command and url"
    for option, other in ONLY_WITH.get(name, {}).items():
        if option in options and other not in options:
            yield f"{key}.{name}.{option}: only with {other}"
    takes = Signature(spec=name, required=NEEDED.get(name, ()))
    checks = TOOL_OPTIONS.get(name, FUNCTION_OPTIONS)
    yield from option_mistakes(f"{key}.{name}", name, options, takes, checks=checks)
