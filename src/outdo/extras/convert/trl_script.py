"""Read a script that calls TRL's `GRPOTrainer` as text, where it cannot be run.

Only what stands there plainly is read: a name that is bound once, a literal, a call of a library. Everything else is
named as not read.
"""

import ast
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from outdo.extras.convert.expressions import Call, Expression, Function, Name, PartOf, Unread
from outdo.extras.convert.reading import Configuration
from outdo.extras.convert.recorded import script_text
from outdo.extras.convert.recorder.libraries import POSITIONAL
from outdo.extras.convert.trainer_call import Trainer, last_name, reading_of_trainer
from outdo.utils.errors import UserError

ONLY_READS = ("GRPOTrainer", "get_peft_model", "from_pretrained", "prepare_model_for_kbit_training", "print", "len")
"""Functions that change nothing that they get."""

DEEPEST = 20
"""How many names are followed from one to the next."""


def read_script(path: Path, reason: str) -> Configuration:
    """Return the settings in a script that could not be run for a reason.

    Raises `UserError` if it is not Python or does not call `GRPOTrainer`.
    """
    text, tree = script_text(path)
    reader = _Reader(path, tree)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and last_name(n.func) == "GRPOTrainer"]
    if not calls:
        reasons = f"; running it in a sandbox failed: {reason}" if reason else ""
        raise UserError([f"{path}: nothing calls GRPOTrainer(...){reasons}; for `trl grpo`, name its .yaml"])
    call = reader.expression(calls[0], 0)
    assert isinstance(call, Call)
    reading = reading_of_trainer(
        Trainer(arguments=call.named(*POSITIONAL), line=call.line, path=path, text=text, tree=tree)
    )
    if len(calls) > 1:
        reading.missing.append(f"which GRPOTrainer trains: the script calls {len(calls)}")
    reading.how = f"The script was read as text, because it could not be run: {reason}."
    return reading


class _Reader:
    """The names of a script and what they are bound to."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.bound: dict[str, list[ast.expr | None]] = {}
        self.functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
        self.imported: dict[str, str] = {}
        self.effects: dict[str, list[tuple[int, str]]] = {}
        top = {id(each) for each in tree.body}
        for node in ast.walk(tree):
            for name, value in _bindings(node):
                self.bound.setdefault(name, []).append(value)
            for name, how in _effects(node):
                self.effects.setdefault(name, []).append((getattr(node, "lineno", 0), how))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) in top:
                self.functions[node.name] = node
            elif isinstance(node, ast.Import | ast.ImportFrom):
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
                self.imported |= {alias.asname or alias.name: f"{module}{alias.name}" for alias in node.names}

    def expression(self, node: ast.expr, depth: int) -> Expression:
        """Return an expression with its names followed."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        reads = _READERS.get(type(node)) if depth < DEEPEST else None
        return Unread(shown=_shown(node)) if reads is None else reads(self, node, depth + 1)

    def _listed(self, node: ast.List | ast.Tuple, depth: int) -> Expression:
        return [self.expression(each, depth) for each in node.elts]

    def _table(self, node: ast.Dict, depth: int) -> Expression:
        keys = [key.value if isinstance(key, ast.Constant) else f"**{_shown(key or node)}" for key in node.keys]
        return {str(key): self.expression(each, depth) for key, each in zip(keys, node.values, strict=True)}

    def _attribute(self, node: ast.Attribute, depth: int) -> Expression:
        of = self.expression(node.value, depth)
        return Name(path=f"{of.path}.{node.attr}") if isinstance(of, Name) else Unread(shown=_shown(node))

    def _item(self, node: ast.Subscript, depth: int) -> Expression:
        key = self.expression(node.slice, depth)
        return PartOf(of=self.expression(node.value, depth), key=key, shown=_shown(node))

    def _named(self, node: ast.Name, depth: int) -> Expression:
        bound = self.bound.get(node.id, [])
        if not bound:
            return self._defined(node.id)
        if len(bound) > 1 or bound[0] is None:
            return Unread(shown=f"{node.id}, which the script sets in several ways")
        value = self.expression(bound[0], depth)
        effects = self.effects.get(node.id, [])
        if isinstance(value, Call) and value.name.endswith("Config"):
            changed = {_setting(how): Unread(shown=f"set at line {line}") for line, how in effects}
            return Call(**{**vars(value), "keywords": {**value.keywords, **changed}})
        return Call(**{**vars(value), "effects": effects}) if isinstance(value, Call) else value

    def _defined(self, name: str) -> Expression:
        if name in self.functions:
            function = self.functions[name]
            line = min([function.lineno, *(each.lineno for each in function.decorator_list)])
            return Function(name=name, file=str(self.path), line=line, bound=True)
        path = self.imported.get(name, "")
        module, _, member = path.rpartition(".")
        file = self.path.parent / f"{module.replace('.', '/')}.py"
        if module and file.is_file():
            return Function(name=member, file=str(file), line=0, bound=True, module=module)
        return Name(path=path) if path else Unread(shown=name)

    def _called(self, node: ast.Call, depth: int) -> Expression:
        function = self.expression(node.func, depth)
        if isinstance(node.func, ast.Attribute) and not isinstance(function, Name):
            owner = self.expression(node.func.value, depth)
            function = PartOf(of=owner, key=node.func.attr, shown=_shown(node.func))
        elif isinstance(function, Unread) and isinstance(node.func, ast.Name) and node.func.id not in self.bound:
            function = Name(path=node.func.id)  # of Python itself, or of `from x import *`
        if isinstance(function, Function):
            return Unread(shown=_shown(node))
        keywords: dict[str, Expression] = {}
        for each in node.keywords:
            keywords |= self._keyword(each, depth)
        arguments = [self.expression(each, depth) for each in node.args]
        return Call(function=function, arguments=arguments, keywords=keywords, line=node.lineno, shown=_shown(node))

    def _keyword(self, node: ast.keyword, depth: int) -> Mapping[str, Expression]:
        value = self.expression(node.value, depth)
        if node.arg is not None:
            return {node.arg: value}
        if isinstance(value, Call) and value.name == "dict" and not value.arguments:
            return value.keywords
        return value if isinstance(value, Mapping) else {f"**{_shown(node.value)}": Unread(shown=_shown(node.value))}


_READERS: Mapping[type, Callable[[_Reader, Any, int], Expression]] = {
    ast.Name: _Reader._named,
    ast.Call: _Reader._called,
    ast.List: _Reader._listed,
    ast.Tuple: _Reader._listed,
    ast.Dict: _Reader._table,
    ast.Attribute: _Reader._attribute,
    ast.Subscript: _Reader._item,
}


def _effects(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names whose values an expression may change, and how: `x.y = 1`, `x.f()`, `f(x)`."""
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        name, _, path = ast.unparse(node).partition(".")
        yield name, f"{path} = ..."
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name, _, path = ast.unparse(node.func).partition(".")
        yield name, f"{path}()"
    if isinstance(node, ast.Call) and last_name(node.func) not in ONLY_READS:
        words = [*node.args, *(each.value for each in node.keywords)]
        yield from ((each.id, f"{_shown(node.func)}()") for each in words if isinstance(each, ast.Name))


def _setting(how: str) -> str:
    return how.partition(" ")[0] if how.endswith("= ...") else f"**{how}"


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a statement binds and, where it is known, to what; of `a, b = f()` the parts of the call."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple | ast.List):
                for place, each in enumerate(target.elts):
                    index = ast.copy_location(ast.Constant(place), node)
                    part = ast.copy_location(ast.Subscript(node.value, index, ast.Load()), node)
                    yield ast.unparse(each), part
    elif isinstance(node, ast.For | ast.AugAssign | ast.NamedExpr) and isinstance(node.target, ast.Name):
        yield node.target.id, None
    elif isinstance(node, ast.arg):
        yield node.arg, None


def _shown(node: ast.AST) -> str:
    try:
        return textwrap.shorten(ast.unparse(node), 60, placeholder=" ...")
    except RecursionError:
        return "an expression"
