"""What Python source reads besides its arguments: environment variables, and files whose paths it names.

The source is parsed and not run, so what is computed is not found: `os.environ[prefix + "_KEY"]`.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

Names = Mapping[str, ast.expr]
"""What the names of a module are bound to, at its top level."""


def variables_read(file: Path) -> set[str]:
    """Return the names of the environment variables that a source file reads."""
    tree, names = _parsed(file)
    return {name for node in ast.walk(tree) for key in _keys(node) if (name := _text(key, names)) is not None}


def files_read(file: Path) -> set[Path]:
    """Return the existing files that a source file reads and does not write, relative ones from the working directory.

    What it writes itself, such as a log or a cache, is not an input.
    """
    tree, names = _parsed(file)
    paths: dict[bool, set[Path]] = {True: set(), False: set()}
    for path, is_written in (opened for node in ast.walk(tree) for opened in _opened(node)):
        named = _path(path, names, file.resolve())
        paths[is_written] |= set() if named is None else {named.resolve()}
    return {path for path in paths[False] - paths[True] if path.is_file()}


def _parsed(file: Path) -> tuple[ast.Module, Names]:
    """Return the tree of a source file and its names; an empty one if it is not Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, OSError, ValueError, RecursionError, MemoryError):
        tree = ast.Module([], [])
    bound = [(node.targets, node.value) for node in tree.body if isinstance(node, ast.Assign)]
    return tree, {name.id: value for targets, value in bound for name in targets if isinstance(name, ast.Name)}


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expression that names a variable, if a node reads one."""
    match node:
        case ast.Subscript(value=mapping, slice=key, ctx=ast.Load()) if _is_environ(mapping):
            yield key
        case ast.Call(func=ast.Attribute(value=mapping, attr="get" | "pop" | "setdefault"), args=[key, *_]) if (
            _is_environ(mapping)
        ):
            yield key
        case ast.Call(func=ast.Attribute(attr="getenv") | ast.Name(id="getenv"), args=[key, *_]):
            yield key
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[mapping]) if _is_environ(mapping):
            yield key


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in ("os.environ", "environ")


def _opened(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expression of the path, if a node opens a file, and whether it may write it."""
    match node:
        case ast.Call(func=ast.Name(id="open"), args=[path, *rest]):
            yield path, _writes(rest, node.keywords)
        case ast.Call(func=ast.Attribute(value=path, attr="open"), args=rest):
            yield path, _writes(rest, node.keywords)
        case ast.Call(func=ast.Attribute(value=path, attr="read_text" | "read_bytes")):
            yield path, False
        case ast.Call(func=ast.Attribute(value=path, attr="write_text" | "write_bytes" | "touch")):
            yield path, True


def _writes(arguments: list[ast.expr], keywords: list[ast.keyword]) -> bool:
    modes = arguments[:1] + [keyword.value for keyword in keywords if keyword.arg == "mode"]
    return any(not isinstance(mode, ast.Constant) or set("wax+") & set(str(mode.value)) for mode in modes)


def _text(node: ast.expr, names: Names) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name) if isinstance(value := names.get(name), ast.Constant):
            return value.value if isinstance(value.value, str) else None
    return None


def _path(node: ast.expr, names: Names, file: Path) -> Path | None:
    """Return the path that an expression such as `Path(__file__).parent / "words.txt"` is; None if it is no such."""
    match node:
        case ast.Name(id="__file__"):
            return file
        case ast.Name(id=name) if name in names:
            return _path(names[name], {other: value for other, value in names.items() if other != name}, file)
        case ast.Attribute(value=inner, attr="parent"):
            return _parent(_path(inner, names, file))
        case ast.Call():
            return _path_of_call(node, names, file)
        case ast.BinOp(op=ast.Div(), left=left, right=right):
            return _joined([_path(left, names, file), _path(right, names, file)])
    text = _text(node, names)
    return None if text is None else Path(os.path.expanduser(text))


def _path_of_call(call: ast.Call, names: Names, file: Path) -> Path | None:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(value=ast.Attribute(attr="path") | ast.Name(), attr=name):
            parts = call.args  # of Path(...), os.path.join(...), pathlib.Path(...)
        case ast.Attribute(value=of, attr=name):
            parts = [of, *call.args]  # of a method of a path
        case _:
            return None
    if name not in _PATHS:
        return None
    path = _joined([_path(part, names, file) for part in parts])
    return _parent(path) if name == "dirname" else path


_PATHS = ("Path", "join", "joinpath", "dirname", "abspath", "realpath", "resolve", "absolute", "expanduser")
"""Functions that return a path of their arguments, or of what they are methods of."""


def _joined(paths: list[Path | None]) -> Path | None:
    known = [path for path in paths if path is not None]
    return Path(*known) if known and len(known) == len(paths) else None


def _parent(path: Path | None) -> Path | None:
    return None if path is None else path.parent
