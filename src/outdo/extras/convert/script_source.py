"""The source of the functions of a script that a recipe names."""

import ast
import textwrap
from collections.abc import Sequence

WITH_MESSAGES = '''

def with_messages(function):
    """Give a reward function messages, as TRL does for this script: the rows that outdo reads are texts."""

    @functools.wraps(function)
    def score(*args, **given):
        for name, role in (("prompts", "user"), ("completions", "assistant")):
            if name in given:
                given[name] = [[{"role": role, "content": x}] if isinstance(x, str) else x for x in given[name]]
        return function(*args, **given)

    return score'''
"""The decorator of reward functions whose script makes messages of the texts in the data."""


def source_of(tree: ast.Module, text: str, functions: Sequence[str], with_messages: Sequence[str]) -> str:
    """Return the source of functions, with the imports, constants and functions at the top level that they use.

    Those named in `with_messages` get the decorator of that name.
    """
    bindings = {name: node for node in tree.body for name in _bindings(node)}
    inner = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    bindings |= {name: inner[name] for name in functions if name not in bindings}
    waiting, used = list(functions), dict[str, ast.stmt]()
    while waiting:
        name = waiting.pop()
        if name in bindings and name not in used:
            used[name] = bindings[name]
            waiting += [each.id for each in ast.walk(used[name]) if isinstance(each, ast.Name)]
    nodes = {node.lineno: node for node in used.values()}
    lines = [_lines(nodes[number], text, with_messages) for number in sorted(nodes)]
    return "\n".join(_with_decorator(lines) if with_messages else lines).strip("\n") + "\n"


def _with_decorator(lines: Sequence[str]) -> list[str]:
    """Return statements with the decorator before the first definition."""
    place = next(place for place, each in enumerate(lines) if each.startswith("\n"))
    return ["import functools", *lines[:place], WITH_MESSAGES, *lines[place:]]


def _lines(node: ast.stmt, text: str, with_messages: Sequence[str]) -> str:
    """Return the lines of a statement with its decorators, and two empty lines before a definition."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    lines = textwrap.dedent("\n".join(text.splitlines()[first - 1 : node.end_lineno]))
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in with_messages:
        lines = f"@with_messages\n{lines}"
    is_definition = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return f"\n\n{lines}" if is_definition else lines


def _bindings(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top level binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
