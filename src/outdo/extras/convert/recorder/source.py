"""The source of the functions of a script that a recipe names: a file that runs without the script."""

import ast
import builtins
import dis
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from outdo.extras.convert.reading import OPEN
from outdo.extras.convert.recorder.unknown import RUN, NotPlainError, is_of_script

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

WITH_ROWS = '''

def with_rows(function):
    """Give a reward function the columns that the script makes of the rows: outdo reads them as they are on disk."""

    def score(prompts, completions, **columns):
        rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
        made = [{**row, **%s(dict(row)), "prompt": prompt} for row, prompt in zip(rows, prompts)]
        columns |= {name: [row[name] for row in made] for name in made[0] if name != "prompt"}
        return function(prompts=prompts, completions=completions, **columns)

    score.__name__ = function.__name__
    return score'''
"""The decorator of reward functions that read columns which a function of the script makes."""

LONGEST_VALUE = 4000
OF_PYTHON = (*dir(builtins), "__file__", "__name__")
"""Names that every module has."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function or a class of the script or of a file next to it."""

    name: str
    file: str
    bound: bool
    """Whether its module has it under a name."""
    module: str
    line: int = 0
    """0 if it is not known."""
    closure: Mapping[str, str | None] = field(default_factory=dict)
    """The variables of the function around it that it reads, as Python writes their values; None: no plain value."""


def function_of(value: Any) -> Function | None:
    """Return what is known of a function or class of the script; None for any other value."""
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    bound = next((name for name, bound_value in vars(module).items() if bound_value is value), None) if module else None
    if is_of_script(value):
        code, name = value.__code__, str(value.__module__)
        cells = zip(code.co_freevars, value.__closure__ or (), strict=True)
        return Function(
            name=code.co_name if bound is None or name == "__main__" else bound,
            file=code.co_filename,
            line=code.co_firstlineno,
            closure={name: written_value(_content(cell)) for name, cell in cells},
            bound=bound is not None,
            module=name,
        )
    file = getattr(module, "__file__", None)
    if isinstance(value, type) and bound is not None and file in RUN.files:
        return Function(name=bound, file=str(file), bound=True, module=value.__module__)
    return None


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return cell


def written_value(value: Any) -> str | None:
    """Return a value of numbers, texts, lists and tables as Python writes it; None for any other, or a long one."""
    try:
        text = repr(value) if _is_plain(value) else ""
    except RecursionError:
        return None
    return text if text and len(text) <= LONGEST_VALUE and OPEN not in text else None


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str, bytes)


@dataclass(kw_only=True)
class Sources:
    """A script, and those of its functions that the recipe names."""

    path: str
    folder: str
    """The folder in which the user calls outdo; the paths of files begin there."""
    text: str
    tree: ast.Module
    modules: Mapping[str, Any]
    """The names of the modules next to the script."""
    functions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, Function] = field(default_factory=dict)
    """Functions of modules next to the script."""
    rewards: set[str] = field(default_factory=set)
    """Those of both that are rewards."""
    constants: dict[str, str] = field(default_factory=dict)
    """Variables that the file gets as values: those of the functions around its functions, and of the script."""
    messages: bool = False
    """Whether TRL gives these functions messages where the data holds texts."""
    rows: str = ""
    """The function that makes the columns which they read: a name, or a lambda."""

    def add(self, function: Function, *, is_reward: bool) -> None:
        """Add a function. Raises `NotPlainError` if its code does not say all that it does."""
        if is_reward:
            self.rewards.add(function.name)
        if function.file != self.path:
            self.imports[function.name] = function
            return
        node = self.definition(function)
        missing = [name for name, value in function.closure.items() if value is None]
        if node is None or missing:
            reads = f", which reads {', '.join(missing)} of a function around it" if missing else ""
            name = "a lambda" if function.name == "<lambda>" else function.name
            raise NotPlainError(f"{name} of line {function.line}{reads}: write it as `def` at the top of a file")
        is_other = self.functions.setdefault(function.name, node) is not node
        if is_other or any(self.constants.get(name, value) != value for name, value in function.closure.items()):
            raise NotPlainError(f"{function.name} of line {function.line}: the script has two of this name")
        self._keep(function)

    def _keep(self, function: Function) -> None:
        self.constants |= {name: value for name, value in function.closure.items() if value is not None}

    def expression(self, function: Function) -> str:
        """Return a function of the script as an expression: its name, or a lambda; "" if its code does not say all."""
        if function.file != self.path or None in function.closure.values():
            return ""
        if (node := self.definition(function)) is not None and node in self.tree.body:
            return node.name
        lambdas = [n for n in ast.walk(self.tree) if isinstance(n, ast.Lambda) and n.lineno == function.line]
        if function.name != "<lambda>" or len(lambdas) != 1:
            return ""
        self._keep(function)
        return ast.unparse(lambdas[0])

    def definition(self, function: Function) -> Definition | None:
        nodes = [n for n in ast.walk(self.tree) if isinstance(n, Definition) and n.name == function.name]
        return next((node for node in nodes if function.line in (0, _first_line(node))), None)

    def is_decorated(self, function: Function) -> bool:
        node = self.definition(function)
        return node is not None and bool(node.decorator_list)

    def place(self, file: str) -> str:
        """Return the whole path of a file of the script."""
        return os.path.normpath(os.path.join(self.folder, file))


def source_of(sources: Sources) -> tuple[str, list[str]]:
    """Return the source of the functions with all that they use, and the names that it lacks."""
    taken = dict[int, ast.stmt]()
    lacking = set[str]()
    waiting = [*sources.functions, *_read_names(ast.parse(sources.rows))]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name in sources.constants:
            continue
        seen.add(name)
        for statement in _bound_by(name, sources, lacking):
            taken[statement.lineno] = statement
            waiting += {*_read_names(ast.Module([statement], []))} - {*_bindings(statement)}
    statements = [taken[number] for number in sorted(taken)]
    return _written(sources, statements), sorted(lacking) + _hidden_modules(sources, statements)


def _read_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module reads, which are not those of its functions' own variables."""
    waiting = [compile(tree, "rewards", "exec")]
    while waiting:
        code = waiting.pop()
        yield from (
            instruction.argval
            for instruction in dis.get_instructions(code)
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        )
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def _bound_by(name: str, sources: Sources, lacking: set[str]) -> Sequence[ast.stmt]:
    """Return the statements that bind a name; a plain value becomes a constant, and what has neither is lacking."""
    if name in sources.functions:
        return [sources.functions[name]]
    binding = [node for node in sources.tree.body if name in _bindings(node)]
    touching = [node for node in sources.tree.body if name in _touched(node)]
    if {*map(type, binding)} & {ast.Import, ast.ImportFrom}:
        return binding + touching
    only = _only_binding(name, binding, touching, sources.tree)
    value = written_value(vars(sys.modules["__main__"]).get(name, sys))  # a module has no plain value
    if value is not None and not _is_literal(only):
        sources.constants[name] = value
    elif only is not None and not isinstance(only, ast.If | ast.For | ast.While | ast.With):
        return [only]
    elif binding or touching or name not in OF_PYTHON:
        lacking.add(name)
    return []


def _only_binding(
    name: str, binding: Sequence[ast.stmt], touching: Sequence[ast.stmt], tree: ast.Module
) -> ast.stmt | None:
    """Return the statement that binds a name, if nothing else changes its value; functions may declare it global."""
    declared = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    return binding[0] if len(binding) == 1 and not touching and name not in declared else None


def _is_literal(node: ast.stmt | None) -> bool:
    """Return whether a statement says by itself what it binds."""
    try:
        ast.literal_eval(node.value if isinstance(node, ast.Assign) else "")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _written(sources: Sources, statements: Sequence[ast.stmt]) -> str:
    """Return a file: imports and constants first, then decorators, then the rest in the order of the script."""
    lines = [_lines(statement, sources) for statement in statements]
    index = next((index for index, line in enumerate(lines) if line.startswith("\n")), len(lines))
    parts = ["import functools"] if sources.messages else []
    parts += ["import sys"] if sources.imports else []
    if _own_imports(sources, statements):
        parts += ["import sys", "", f"sys.path.insert(0, {os.path.dirname(sources.place(sources.path))!r})"]
    parts += [*lines[:index], *(f"{name} = {value}" for name, value in sorted(sources.constants.items()))]
    if sources.rows:
        is_named = sources.rows.isidentifier()
        parts += [WITH_ROWS % (sources.rows if is_named else "make_row")]
        parts += [] if is_named else [f"\n\nmake_row = {sources.rows}"]
    parts += [WITH_MESSAGES] if sources.messages else []
    return "\n".join([*parts, *_imports(sources), *lines[index:]]).strip("\n") + "\n"


def _lines(node: ast.stmt, sources: Sources) -> str:
    """Return the lines of a statement with its decorators, and two empty lines before a definition."""
    lines = textwrap.dedent("\n".join(sources.text.splitlines()[_first_line(node) - 1 : node.end_lineno]))
    if not isinstance(node, Definition):
        return lines
    if node.name in sources.rewards and node is sources.functions.get(node.name):
        lines = "".join(f"@{name}\n" for name in _decorators(sources)) + lines
    return f"\n\n{lines}"


def _decorators(sources: Sources) -> list[str]:
    return [name for name, wanted in (("with_rows", sources.rows), ("with_messages", sources.messages)) if wanted]


def _imports(sources: Sources) -> Iterator[str]:
    """Yield the lines that import functions of modules next to the script, with their decorators."""
    for function in sources.imports.values():
        folder = sources.place(function.file)
        for _ in range(function.module.count(".") + 1 + (os.path.basename(folder) == "__init__.py")):
            folder = os.path.dirname(folder)
        yield f"\n\nsys.path.insert(0, {folder!r})"
        yield f"from {function.module} import {function.name}"
        if function.name in sources.rewards and (names := _decorators(sources)):
            yield f"{function.name} = {'('.join([*names, function.name])}{')' * len(names)}"


def _own_imports(sources: Sources, statements: Sequence[ast.stmt]) -> bool:
    """Return whether a statement imports a module that lies next to the script."""
    return any(name in sources.modules for statement in statements for name in _imported_modules(statement))


def _hidden_modules(sources: Sources, statements: Sequence[ast.stmt]) -> list[str]:
    """Return the modules that only the script's own search path may have."""
    if "sys.path" not in sources.text or _own_imports(sources, statements):
        return []
    imported = {name for statement in statements for name in _imported_modules(statement)}
    return [f"the module {name}" for name in sorted(imported - sys.stdlib_module_names)]


def _imported_modules(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def _bindings(node: ast.AST) -> list[str]:
    """Return the names that a statement binds in its module; an attribute or an item binds none."""
    if isinstance(node, Definition):
        return [node.name]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    return [name for child in ast.iter_child_nodes(node) for name in _bindings(child)]


def _touched(node: ast.stmt) -> set[str]:
    """Return the names whose values a statement changes: `x[0] = 1`, `x.y = 1`, `x += 1`, `x.append(1)`, `del x[0]`."""
    touched = set[str]()
    for inner in [] if isinstance(node, Definition) else ast.walk(node):
        if isinstance(inner, ast.AugAssign) and isinstance(inner.target, ast.Name):
            touched.add(inner.target.id)
        elif isinstance(inner, ast.Attribute | ast.Subscript) and not isinstance(inner.ctx, ast.Load):
            touched.add(_root(inner))
        elif isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Call):
            touched.add(_root(inner.value.func))
    return touched


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
