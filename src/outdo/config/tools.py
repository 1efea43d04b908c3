"""The tools that the environment `tools` may name: functions in the user's code, and those that outdo has."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.fields import Piece
from outdo.config.names import MCP, PYTHON, SEARCH, TOOL_NAMES
from outdo.utils.errors import UserError, did_you_mean, nearest
from outdo.utils.imports import signature_of
from outdo.utils.secrets import SecretPlace, has_secret_name, has_secret_value

Check = tuple[Callable[[Any], bool], str]
"""Whether a value suits an option, and what is expected."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_memory(value: Any) -> bool:
    return _is_natural(value) and value >= 64


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_text, value))


def _is_url(value: Any) -> bool:
    return _is_text(value) and value.startswith(("http://", "https://")) and not has_secret_value(value)


def _are_headers(value: Any) -> bool:
    """Whether these are headers of HTTP, of which none is a secret that is written out."""
    return isinstance(value, Mapping) and all(
        SecretPlace.of(each) is not None or (_is_text(each) and not _is_secret_header(str(name), each))
        for name, each in value.items()
    )


def _is_secret_header(name: str, value: str) -> bool:
    return name.lower() in SECRET_HEADERS or has_secret_name(name) or has_secret_value(value)


NATURAL: Check = (_is_natural, "a whole number of 1 or more")

TOOL_OPTIONS: Mapping[str, Mapping[str, Check]] = {
    SEARCH: {
        "corpus": (_is_text, 'a file such as "docs.jsonl"'),
        "column": (_is_text, "the name of a column"),
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
        "memory": (_is_memory, "a whole number of MiB, 64 or more"),
        "characters": NATURAL,
        "sandbox": (_is_text, "the name of a sandbox"),
        "unsafe_local": (_is_bool, "true or false"),
    },
}
"""The options of each tool that outdo has."""

FUNCTION_OPTIONS: Mapping[str, Check] = {
    "workers": NATURAL,
    "memory": (_is_positive, "a number of GiB above 0"),
    "environment": (_are_texts, "a list of environment variables"),
}
"""The options of a function in the user's code: those of its worker processes."""

NEEDED: Mapping[str, Sequence[str]] = {SEARCH: ["corpus"]}
"""The options that a tool cannot do without."""

ONLY_WITH: Mapping[str, Mapping[str, str]] = {MCP: {"environment": "command", "headers": "url"}}
"""Options of a tool that need another one."""

SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers whose values are always secret."""


def tools_in(options: Mapping[str, Any]) -> list[Piece]:
    """Return the tools of the environment `tools`: one, or a list. Raises `ValueError` if one has no name."""
    functions = options.get("functions", [])
    listed = functions if isinstance(functions, Sequence) and not isinstance(functions, str) else [functions]
    return [Piece.model_validate(each) for each in listed]


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
        yield from (f"environment.functions: {each}" for each in _mistakes(tool))


def tool_files(options: Mapping[str, Any]) -> list[Path]:
    """Return the files that the results of the tools depend on, besides Python code that is named.

    Of the program of a server, which may be Python itself, only the arguments are taken.
    """
    tools = tools_in(options)
    named = [str(tool.options["corpus"]) for tool in tools if "corpus" in tool.options]
    named += [str(word) for tool in tools for word in tool.options.get("command", ())[1:]]
    return [path for path in map(Path, named) if path.is_file()]


def _mistakes(tool: Piece) -> Iterator[str]:
    if ":" in tool.name:
        try:
            signature_of(tool.name)
        except UserError as error:
            yield from error.problems
        yield from _option_mistakes(tool, FUNCTION_OPTIONS)
        return
    if tool.name not in TOOL_NAMES:
        hint = did_you_mean(tool.name, TOOL_NAMES) or f"; expected file.py:name or {', '.join(TOOL_NAMES)}"
        yield f'no tool is called "{tool.name}"{hint}'
        return
    known, needed = TOOL_OPTIONS[tool.name], NEEDED.get(tool.name, ())
    yield from (f"{tool.name} needs the option {each}" for each in needed if each not in tool.options)
    if tool.name == MCP and ("command" in tool.options) == ("url" in tool.options):
        yield "mcp needs one of the options command and url"
    for option, other in ONLY_WITH.get(tool.name, {}).items():
        if option in tool.options and other not in tool.options:
            yield f"{tool.name}.{option}: only with {other}"
    yield from _option_mistakes(tool, known)


def _option_mistakes(tool: Piece, known: Mapping[str, Check]) -> Iterator[str]:
    for option, value in tool.options.items():
        if option not in known:
            similar = nearest(option, list(known))
            accepted = f"did you mean {similar}?" if similar else f"it takes {', '.join(known)}"
            yield f"{tool.name}: unknown option {option}; {accepted}"
        elif not known[option][0](value):
            yield f"{tool.name}.{option}: expected {known[option][1]}, found {value!r}"
