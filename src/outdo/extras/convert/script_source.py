"""The source of the functions of a script that a recipe names: a file that runs without the script."""

import ast
import builtins
import dis
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

from outdo.extras.convert.expressions import Function, NotPlainError

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

Statement = ast.stmt
Compound = ast.If | ast.For | ast.While | ast.With
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Sources:
    """A script, and those of its functions that the recipe names."""

    path: Path
    text: str
    tree: ast.Module
    values: Mapping[str, str]
    """The plain values at its top when the trainer was made, as Python writes them."""
    functions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, Function] = field(default_factory=dict)
    """Functions of modules next to the script."""
    rewards: set[str] = field(default_factory=set)
    """Those of both that are rewards."""
    constants: dict[str, str] = field(default_factory=dict)
    """Variables of the functions around them."""
    messages: bool = False
    """Whether TRL gives these functions messages where the data holds texts."""
    rows: str = ""
    """The function that makes the columns which they read: a name, or a lambda."""

    def add(self, function: Function, *, is_reward: bool) -> None:
        """Add a function. Raises `NotPlainError` if its code does not say all that it does."""
        if is_reward:
            self.rewards.add(function.name)
        if function.file != str(self.path):
            self.imports[function.name] = function
            return
        node = self.definition(function)
        missing = [name for name, value in function.closure.items() if value is None]
        if node is None or missing:
            reads = f", which reads {', '.join(missing)} of a function around it" if missing else ""
            name = "a lambda" if function.name == "<lambda>" else function.name
            raise NotPlainError(f"{name} of line {function.line}{reads}: write it as `def` at the top of a file")
        closure = {name: value for name, value in function.closure.items() if value is not None}
        if self.functions.setdefault(function.name, node) is not node or any(
            self.constants.get(name, value) != value for name, value in closure.items()
        ):
            raise NotPlainError(f"{function.name} of line {function.line}: the script has two of this name")
        self.constants |= closure

    def expression(self, function: Function) -> str:
        """Return a function of the script as an expression: its name, or a lambda; "" if its code does not say all."""
        if function.file != str(self.path) or None in function.closure.values():
            return ""
        if (node := self.definition(function)) is not None and node in self.tree.body:
            return node.name
        lambdas = [n for n in ast.walk(self.tree) if isinstance(n, ast.Lambda) and n.lineno == function.line]
        if function.name != "<lambda>" or len(lambdas) != 1:
            return ""
        self.constants |= {name: value for name, value in function.closure.items() if value is not None}
        return ast.unparse(lambdas[0])

    def definition(self, function: Function) -> Definition | None:
        for node in ast.walk(self.tree):
            if not isinstance(node, Definition) or node.name != function.name:
                continue
            if function.line in (0, _first_line(node)):  # that of a class is not known
                return node
        return None

    def is_decorated(self, function: Function) -> bool:
        node = self.definition(function)
        return node is not None and bool(node.decorator_list)


def source_of(sources: Sources) -> tuple[str, list[str]]:
    """Return the source of the functions with all that they use, and the names that it lacks."""
    taken = dict[int, Statement]()
    constants = dict[str, str]()
    unknown = set[str]()
    maker = ast.walk(ast.parse(sources.rows))
    waiting = [*sources.functions, *(each.id for each in maker if isinstance(each, ast.Name))]
    seen = set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for statement in _bound_by(name, sources, constants, unknown):
            taken[statement.lineno] = statement
            waiting += [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)]
    text = _written(sources, [taken[number] for number in sorted(taken)], constants)
    return text, _lacking(text, sources, unknown)


def _bound_by(name: str, sources: Sources, constants: dict[str, str], unknown: set[str]) -> Sequence[Statement]:
    """Return the statements that bind a name; a value goes to `constants`, and what has neither to `unknown`."""
    if name in sources.functions:
        return [sources.functions[name]]
    if name in sources.constants:
        constants[name] = sources.constants[name]
        return []
    binding, touching = _binding(name, sources.tree), _touching(name, sources.tree)
    if {*map(type, binding)} & {ast.Import, ast.ImportFrom}:
        return binding + touching
    is_set_again = bool(binding[1:] or touching or name in _set_globals(sources.tree))
    if binding and not is_set_again and _says_all(binding[0], name in sources.values):
        return binding
    if name in sources.values:
        constants[name] = sources.values[name]
    elif binding or is_set_again:
        unknown.add(name)
    return []


def _binding(name: str, tree: ast.Module) -> list[Statement]:
    return [each for each in tree.body if name in _bindings(each)]


def _touching(name: str, tree: ast.Module) -> list[Statement]:
    return [each for each in tree.body if name in _touched(each)]


def _says_all(node: Statement, has_value: bool) -> bool:
    """Return whether a statement is to be copied: it is fixed, or it runs in any case and makes no plain value."""
    return _is_fixed(node) or not (has_value or isinstance(node, Compound))


def _written(sources: Sources, statements: Sequence[Statement], constants: Mapping[str, str]) -> str:
    """Return a file: imports and constants first, then decorators, then the rest in the order of the script."""
    lines = [_lines(each, sources) for each in statements]
    place = next((place for place, each in enumerate(lines) if each.startswith("\n")), len(lines))
    parts = ["import functools"] if sources.messages else []
    parts += ["import sys"] if sources.imports else []
    if _own_imports(sources, statements):
        parts += ["import sys", "", f"sys.path.insert(0, {str(sources.path.parent.resolve())!r})"]
    parts += [*lines[:place], *(f"{name} = {value}" for name, value in sorted(constants.items()))]
    if sources.rows:
        named = sources.rows.isidentifier()
        parts += [WITH_ROWS % (sources.rows if named else "make_row")]
        parts += [] if named else [f"\n\nmake_row = {sources.rows}"]
    parts += [WITH_MESSAGES] if sources.messages else []
    return "\n".join([*parts, *_imports(sources), *lines[place:]]).strip("\n") + "\n"


def _lines(node: Statement, sources: Sources) -> str:
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
        folder = Path(function.file).resolve()
        depth = function.module.count(".") + 1 + (folder.name == "__init__.py")
        yield f"\n\nsys.path.insert(0, {str(folder.parents[depth - 1])!r})"
        yield f"from {function.module or folder.stem} import {function.name}"
        if function.name in sources.rewards and (names := _decorators(sources)):
            yield f"{function.name} = {'('.join([*names, function.name])}{')' * len(names)}"


def _own_imports(sources: Sources, statements: Sequence[Statement]) -> bool:
    """Return whether a statement imports a module that lies next to the script."""
    folder = sources.path.parent
    return any(
        (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
        for each in statements
        for name in _imported_modules(each)
    )


def _lacking(text: str, sources: Sources, unknown: set[str]) -> list[str]:
    """Return the names that the file reads and does not have, by compiling it."""
    tree = ast.parse(text)
    bound = {name for node in tree.body for name in _bindings(node)} | {*dir(builtins), "__file__", "__name__"}
    missing = (set(_read_globals(compile(tree, "rewards", "exec"))) | unknown) - bound
    hidden = []
    if "sys.path" in sources.text and not _own_imports(sources, tree.body):
        imported = {name for node in tree.body for name in _imported_modules(node)}
        hidden = [f"the module {name}" for name in sorted(imported - sys.stdlib_module_names)]
    return sorted(missing) + hidden


def _read_globals(code: CodeType) -> Iterator[str]:
    yield from (each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _read_globals(inner)


def _imported_modules(node: Statement) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return [node.module.partition(".")[0]] if isinstance(node, ast.ImportFrom) and node.module else []


def _first_line(node: Statement) -> int:
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])


def _is_fixed(node: Statement) -> bool:
    """Return whether a statement says by itself what it binds."""
    try:
        ast.literal_eval(getattr(node, "value", None) or "")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return isinstance(node, Definition | ast.Try | ast.Assign | ast.AnnAssign)


def _bindings(node: ast.AST) -> list[str]:
    """Return the names that a statement binds in its module; an attribute or an item binds none."""
    if isinstance(node, Definition):
        return [node.name]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).partition(".")[0]]
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    return [name for each in ast.iter_child_nodes(node) for name in _bindings(each)]


def _touched(node: Statement) -> set[str]:
    """Return the names whose values a statement changes: `x[0] = 1`, `x.y = 1`, `x += 1`, `x.append(1)`, `del x[0]`."""
    if isinstance(node, Definition):
        return set()
    touched = set[str]()
    for each in ast.walk(node):
        if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            touched.add(each.target.id)
        elif isinstance(each, ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            touched.add(_root(each))
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            touched.add(_root(each.value.func))
    return touched


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _set_globals(tree: ast.Module) -> set[str]:
    """Return the names that a function of the script sets at its top."""
    return {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
