"""What a script finds around it: its own files, libraries that are not there, and no way to write or to wait."""

import argparse
import ast
import builtins
import functools
import importlib.abc
import importlib.machinery
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from outdo.extras.convert.reading import OPEN, unmarked
from outdo.extras.convert.recorder.unknown import RUN, Origin, Unknown, frame_of_script, is_none, shown

_MISSING = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class MissingModule(ModuleType):
    """A module that is not there: each of its members is unknown, but for those that are recorded in their own way."""

    recorded: Mapping[str, Any] = {}
    __path__: list[str] = []  # noqa: RUF012  (so that the import system takes it for a package)
    __all__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        if name in self.recorded.get(self.__name__.partition(".")[0], {}):
            return self.recorded[self.__name__.partition(".")[0]][name]
        if name.startswith("__"):
            raise AttributeError(name)
        value = Unknown(Origin("name", path))
        self.__dict__[name] = value
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of the script's author."""

    def __init__(self, sources: Mapping[str, tuple[str, str, bool]]) -> None:
        self.sources = sources
        """For each module its file, its text, and whether it is a package."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname in self.sources:
            file, _, package = self.sources[fullname]
            spec = importlib.machinery.ModuleSpec(fullname, self, origin=file, is_package=package)
            spec.has_location = True
            return spec
        return None

    def create_module(self, spec: Any) -> ModuleType | None:
        return None if spec.name in self.sources else MissingModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in self.sources:
            file, text, _ = self.sources[module.__name__]
            exec(compiled(text, file), module.__dict__)


class MissingFinder(Finder):
    """Finds what nothing else finds, for the script alone: Python's own library has imports that are meant to fail."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__({})
        self.texts = texts

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        file = frame.f_code.co_filename
        if file not in RUN.files:
            return None
        is_import = frame.f_lineno not in optional_imports(self.texts[file])
        if is_import or RUN.decide(f"{fullname.partition('.')[0]} can be imported", (True, False)):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None


class _Comparisons(ast.NodeTransformer):
    """Writes `x is None` as a call, because no value can say what it is compared with."""

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        none = node.comparators[-1]
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot) or ast.unparse(none) != "None":
            return node
        call = ast.Call(ast.Name("__outdo_is_none__", ast.Load()), [node.left], [])
        return call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), call)


def compiled(text: str, file: str) -> Any:
    """Return the code of a file of the script."""
    tree = ast.fix_missing_locations(_Comparisons().visit(ast.parse(text)))
    return compile(tree, file, "exec")


@functools.cache
def optional_imports(text: str) -> set[int]:
    """Return the lines that may fail to import something: those in a `try` that expects it, and `find_spec`."""
    lines = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Try):
            caught = [ast.unparse(handler.type) if handler.type else "Exception" for handler in node.handlers]
            if any(name in kind for kind in caught for name in _MISSING):
                lines |= {n.lineno for statement in node.body for n in ast.walk(statement) if isinstance(n, ast.stmt)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("find_spec", "import_module")):
            lines.add(node.lineno)
    return lines


def surround(task: Mapping[str, Any]) -> None:
    """Give the script its files and arguments, and take from it what it could wait for."""
    texts = {task["path"]: task["text"]} | {file: text for file, text, _ in task["modules"].values()}
    RUN.files |= texts.keys()
    sys.meta_path.insert(0, Finder(task["modules"]))
    sys.meta_path.append(MissingFinder(texts))
    sys.argv[:] = [task["path"], *task["arguments"]]
    os.environ.clear()
    os.environ.update(task["environment"])
    os.environ.__class__.__getitem__ = _variable  # type: ignore[method-assign]
    os.environ.__class__.get = _variable_or_default  # type: ignore[method-assign]
    RUN.texts = task["files"]
    RUN.folders = (task["folder"], os.path.join(task["folder"], os.path.dirname(task["path"])))
    _with_files()
    _without_effects()
    builtins.__outdo_is_none__ = is_none  # type: ignore[attr-defined]
    argparse.ArgumentParser.parse_known_args = _lenient(argparse.ArgumentParser.parse_known_args)  # type: ignore


def _variable(environment: Any, name: str) -> Any:
    try:
        return environment.decodevalue(environment._data[environment.encodekey(name)])
    except KeyError:
        if sys._getframe(1).f_code.co_filename not in RUN.files:
            raise
        return Unknown(Origin("text", f"${name}"))


def _variable_or_default(environment: Any, name: str, default: Any = None) -> Any:
    caller = sys._getframe(2 if sys._getframe(1).f_code is os.getenv.__code__ else 1)
    if name not in environment and caller.f_code.co_filename in RUN.files:
        RUN.defaults[f"${name}"] = shown(default)
    try:
        return environment[name]
    except KeyError:
        return default


def _with_files() -> None:
    """Let the script open the files near it; what it writes is forgotten."""
    real, exists = builtins.open, os.path.exists

    def open_file(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
        if frame_of_script() is None or isinstance(file, int):
            return real(file, mode, *arguments, **keywords)
        if set("wax+") & set(mode):
            return io.BytesIO() if "b" in mode else io.StringIO()
        text = RUN.text_of(file)
        if text is None:
            raise FileNotFoundError(f"{unmarked(str(file))}: no such file of settings or text near the script")
        return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)

    builtins.open = io.open = open_file
    os.path.exists = os.path.isfile = lambda path: (
        exists(path) or bool(frame_of_script() and RUN.text_of(path) is not None)
    )


def _without_effects() -> None:
    """Let folders be made, processes started and time pass, without any of it."""
    for name in ("makedirs", "mkdir", "remove", "chdir", "system", "removedirs", "rename"):
        setattr(os, name, lambda *_, **__: 0)
    time.sleep = lambda _: None
    sys.modules["subprocess"] = MissingModule(subprocess.__name__)
    level = logging._checkLevel  # type: ignore[attr-defined]
    logging._checkLevel = lambda of: 0 if isinstance(of, Unknown) else level(of)  # type: ignore[attr-defined]
    builtins.get_ipython = lambda: Unknown(Origin("text", "get_ipython()"))  # type: ignore[attr-defined]
    builtins.input = lambda prompt="": Unknown(Origin("text", f"input({prompt!r})"))
    loads = json.loads
    json.loads = lambda text, **how: (
        Unknown(Origin("text", f"json.loads({shown(text)})")) if isinstance(text, Unknown) else loads(text, **how)
    )


def _converting(convert: Any) -> Any:
    """Return the type of an argument, which takes a word with an unknown part as unknown."""
    return lambda word: Unknown(Origin("text", unmarked(word))) if OPEN in word else convert(word)


def _lenient(parse: Any) -> Any:
    """Return `parse_known_args` that makes an unknown value of a required argument, and notes which were not given."""

    def parse_known_args(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else list(args)
        for action in self._actions:
            name = action.option_strings[-1] if action.option_strings else action.dest
            if isinstance(action, argparse._HelpAction | argparse._SubParsersAction):
                continue
            if action.type is not None:
                action.type = _converting(action.type)
            if action.required:
                action.required, action.default = False, Unknown(Origin("text", f"the argument {name}"))
                action.nargs = "?" if not action.option_strings and action.nargs is None else action.nargs
            elif not {*action.option_strings} & {word.partition("=")[0] for word in words}:
                RUN.defaults[name] = shown(action.default)
        return parse(self, words, namespace)

    return parse_known_args
