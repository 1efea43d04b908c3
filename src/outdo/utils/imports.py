"""Find code by a name such as `"package.module:name"` or `"file.py:name"`, and read its parameters without running it.

`signature_of` reads the source with `ast`, so that outdo finds a wrong option before it imports anything. `resolve`
imports the code and returns the object, and `signature_of_object` reads that.
"""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from outdo.utils.errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters of a function or class, as written in its source."""

    spec: str
    """The name in the recipe, such as `"my_reward.py:score"`."""
    parameters: tuple[str, ...] = ()
    """All named parameters in the order of the source, without `self`, `*args` and `**kwargs`."""
    options: tuple[str, ...] = ()
    """Parameters that are keyword-only or have a default: a recipe may set them."""
    required: tuple[str, ...] = ()
    """Parameters without a default."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The defaults that are literals."""
    accepts_any: bool = False
    """The code takes `**kwargs`, or the source does not show its parameters because it is not a function or class."""
    is_async: bool = False
    is_class: bool = False

    def without(self, filled: Collection[str]) -> "Signature":
        """Return the signature of code that outdo calls by names: all parameters are options, except those given."""
        options = tuple(name for name in self.parameters if name not in filled)
        return replace(self, options=options, required=tuple(name for name in self.required if name in options))


def split(spec: str) -> tuple[str, str]:
    """Split `"where:name"` into its two parts. Raises `UserError` if it does not have this form."""
    where, colon, name = spec.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise UserError([f'"{spec}": expected {_expected_form(spec)}'])
    return where, name


def _expected_form(spec: str) -> str:
    """Return the form of what names code; of a file without a name, with the names of what it defines."""
    file = spec.removesuffix(":")
    if not file.endswith(".py") or not Path(file).is_file():
        return '"file.py:name" or "package.module:name"'
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = [name for name, node in _definitions_in(Path(file), spec).items() if isinstance(node, kinds)]
    return f'"{file}:NAME"; it defines {", ".join(names) or "no function"}'


def names_of(spec: str) -> tuple[str, str]:
    """Return the name of the function that `spec` names, and that of its file or module without its folders."""
    where, function = split(spec)
    return function, os.path.basename(where).removesuffix(".py").rpartition(".")[2]


def signature_of(spec: str) -> Signature:
    """Return the signature of `spec` by reading its source; nothing is imported or executed.

    The parameters of a dataclass are its fields and those of the classes that it inherits from.

    Raises `UserError` if the file or module is missing, is not Python, or has no such name; the message names the most
    similar one.
    """
    where, name = split(spec)
    definitions = _definitions_in(source_file(where), spec)
    if name not in definitions:
        raise UserError([f'"{spec}": {where} has no "{name}"{did_you_mean(name, list(definitions))}'])
    return _read(spec, definitions[name], definitions)


def signature_of_object(code: Any, name: str) -> Signature:
    """Return the signature of code that was imported, and that is called by names: every parameter is an option."""
    try:
        parameters = inspect.signature(code).parameters.values()
    except ValueError:  # some functions written in C have no parameters that can be read
        parameters = []
    called_by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    by_name = [parameter for parameter in parameters if parameter.kind in called_by_name]
    names = tuple(parameter.name for parameter in by_name)
    defaults = {parameter.name: parameter.default for parameter in by_name if parameter.default is not parameter.empty}
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    required = tuple(name for name in names if name not in defaults)
    return Signature(
        spec=name, parameters=names, options=names, required=required, defaults=defaults, accepts_any=accepts_any
    )


def source_file(where: str) -> Path:
    """Return the source file of `"file.py"` or `"package.module"` without importing any package.

    Raises `UserError` if there is none.
    """
    if where.endswith(".py"):
        path = Path(where)
        if path.exists() and not path.is_file():  # reading a pipe may wait for ever
            raise UserError([f"{where}: expected a file, and this is a folder, a pipe or a device"])
        if not path.is_file():
            neighbours = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise UserError([f"{where}: no such file (looked in {Path.cwd()}){did_you_mean(path.name, neighbours)}"])
        return path
    origin = _module_origin(where) if all(part.isidentifier() for part in where.split(".")) else None
    if origin is None:
        file = where.replace(".", "/") + ".py"
        meant = f"; did you mean {file}?" if Path(file).is_file() else ""
        raise UserError([f'"{where}": no such Python module, and not a file ending in .py{meant}'])
    if not origin.endswith(".py"):
        raise UserError([f'"{where}": this module is not written in Python; name a function in a file or a package'])
    return Path(origin)


def with_neighbours(file: Path) -> list[Path]:
    """Return a source file and the modules in its folder that it imports, directly or through one another.

    Nothing is imported or executed. A file that is not Python is returned alone.
    """
    files, waiting = [], [file.resolve()]
    while waiting:
        path = waiting.pop()
        if path not in files:
            files.append(path)
            waiting += _imported_neighbours(path)
    return sorted(files)


def _imported_neighbours(file: Path) -> list[Path]:
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, OSError, ValueError, RecursionError, MemoryError):
        return []
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    neighbours = [file.parent.joinpath(*module.split(".")) for module in modules]
    candidates = [path for near in neighbours for path in (near.with_name(f"{near.name}.py"), near / "__init__.py")]
    return [path.resolve() for path in candidates if path.is_file()]


def resolve(spec: str) -> Any:
    """Import the code and return the object that `"package.module:name"` or `"file.py:name"` names.

    Raises `UserError` if there is no such object or if importing the code fails; the message has the first cause.
    """
    where, name = split(spec)
    try:
        module = _import_file(source_file(where)) if where.endswith(".py") else importlib.import_module(where)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # a user's file may raise anything while it is imported
        raise UserError([f'"{spec}": importing {where} raised {type(error).__name__}: {error}']) from error
    if not hasattr(module, name):
        raise UserError([f'"{spec}": {where} has no "{name}"{did_you_mean(name, dir(module))}'])
    return getattr(module, name)


def _import_file(path: Path) -> Any:
    path = path.resolve()
    # One module per file: two files named reward.py are two modules.
    module_name = f"_outdo_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec, "a .py file has a loader"
    assert spec.loader, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:  # so that it can import its neighbours, as when run as a script
        sys.path.append(str(path.parent))
    sys.modules[module_name] = module  # dataclasses and pickle look the module up by its name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _module_origin(module: str) -> str | None:
    """Return the file of a dotted module. `importlib.util.find_spec` would import the parent packages and so torch."""
    root, *children = module.split(".")
    try:
        spec = importlib.util.find_spec(root)
    except ValueError:  # a module without a specification, such as __main__
        return None
    for child in children:
        locations = spec.submodule_search_locations if spec else None
        # Without the names of its parents: a package without `__init__.py` would look for them in `sys.modules`.
        spec = PathFinder.find_spec(child, locations) if locations else None
    return spec.origin if spec else None


def _definitions_in(path: Path, spec: str) -> Mapping[str, ast.AST]:
    try:
        return _parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UserError([f'"{spec}": {path} is not valid Python: {error.msg} (line {error.lineno})']) from error
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise UserError([f'"{spec}": {path} cannot be read as Python: {error}']) from error


@lru_cache(maxsize=64)
def _parse(content: bytes, file: str) -> Mapping[str, ast.AST]:
    """Return the definitions in a file, parsed once for its content: an edited file is parsed again."""
    return _definitions(ast.parse(content, file).body)


def _definitions(body: Sequence[ast.stmt]) -> dict[str, ast.AST]:
    """Return all names that a module defines at its top level, also inside `if`, `try` and `with`; the last definition
    of a name counts."""
    names: dict[str, ast.AST] = {}
    for statement in body:
        names.update(_defined_by(statement))
    return names


def _defined_by(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield statement.name, statement
        case ast.Assign(targets=targets, value=value):
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name, statement) for alias in aliases)
        case ast.If() | ast.Try() | ast.With():
            yield from _definitions(_inside(statement)).items()


def _inside(block: ast.If | ast.Try | ast.With) -> list[ast.stmt]:
    """Return the statements in all branches of a block."""
    handled = [statement for handler in getattr(block, "handlers", ()) for statement in handler.body]
    return [*block.body, *handled, *getattr(block, "orelse", ()), *getattr(block, "finalbody", ())]


def _read(spec: str, node: ast.AST, definitions: Mapping[str, ast.AST]) -> Signature:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            return _from_arguments(spec, node.args, isinstance(node, ast.AsyncFunctionDef))
        case ast.ClassDef():
            return replace(_read_class(spec, node, definitions), is_class=True)
    return Signature(spec=spec, accepts_any=True)


def _read_class(spec: str, node: ast.ClassDef, definitions: Mapping[str, ast.AST]) -> Signature:
    init = _definitions(node.body).get("__init__")
    if isinstance(init, ast.FunctionDef):
        return _from_arguments(spec, init.args, is_async=False, skip=1)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return _from_fields(spec, node, definitions)
    return Signature(spec=spec, accepts_any=True)


def _from_arguments(spec: str, arguments: ast.arguments, is_async: bool, skip: int = 0) -> Signature:
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    keyword_only = [a.arg for a in arguments.kwonlyargs]
    written: dict[str, ast.expr] = dict(
        zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    )
    written |= {n: d for n, d in zip(keyword_only, arguments.kw_defaults, strict=True) if d is not None}
    parameters = (*positional[skip:], *keyword_only)
    return Signature(
        spec=spec,
        parameters=parameters,
        options=tuple(name for name in parameters if name in keyword_only or name in written),
        required=tuple(name for name in parameters if name not in written),
        defaults=dict(_literals(written)),
        accepts_any=arguments.kwarg is not None,
        is_async=is_async,
    )


def _from_fields(spec: str, node: ast.ClassDef, definitions: Mapping[str, ast.AST]) -> Signature:
    """Read the fields of a dataclass; those of its bases come first, as far as their source is found.

    A field that may have values of several types has no default here, because its type tells nothing about others.
    """
    inherited = Signature(spec=spec)
    for base in node.bases:
        if isinstance(base, ast.Name):
            inherited = _inherited(f"{split(spec)[0]}:{base.id}", definitions)
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)]
    written = {field.target.id: field.value for field in fields if isinstance(field.target, ast.Name)}
    values = {name: _default(value) for name, value in written.items() if value is not None}
    plain = {name for name, field in zip(written, fields, strict=True) if isinstance(field.annotation, ast.Name)}
    parameters = tuple(dict.fromkeys([*inherited.parameters, *written]))
    without_default = {*inherited.required, *written} - values.keys()
    return Signature(
        spec=spec,
        parameters=parameters,
        options=parameters,
        required=tuple(name for name in parameters if name in without_default),
        defaults={**inherited.defaults, **dict(_literals({name: values[name] for name in values.keys() & plain}))},
    )


def _inherited(spec: str, definitions: Mapping[str, ast.AST]) -> Signature:
    """Read a base class that a module, which has these definitions, defines or imports under its own name."""
    where, name = split(spec)
    try:
        while isinstance(node := definitions.get(name), ast.ImportFrom):
            where = _imported_module(where, node)
            definitions = _definitions_in(source_file(where), spec)
        return _read(f"{where}:{name}", definitions[name], definitions) if name in definitions else Signature(spec=spec)
    except UserError:
        return Signature(spec=spec)


def _default(value: ast.expr) -> ast.expr:
    """Return the default of a field: `field(default=...)`, or the value itself."""
    if isinstance(value, ast.Call):
        return next((keyword.value for keyword in value.keywords if keyword.arg == "default"), value)
    return value


def _imported_module(where: str, statement: ast.ImportFrom) -> str:
    """Return the dotted module that a statement of the module `where` imports from."""
    if not statement.level:
        return statement.module or ""
    origin = source_file(where)
    parts = where.split(".")
    package = parts[: len(parts) - statement.level + (origin.name == "__init__.py")]
    return ".".join([*package, *filter(None, [statement.module])])


def _literals(written: Mapping[str, ast.expr]) -> Iterator[tuple[str, Any]]:
    for name, expression in written.items():
        try:
            yield name, ast.literal_eval(expression)
        except ValueError:  # an expression such as `math.inf` or `default()`: its value is known only when it runs
            continue
