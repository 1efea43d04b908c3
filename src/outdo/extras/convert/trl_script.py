"""Read the settings of a Python script that calls TRL's `GRPOTrainer`. The script is parsed and never executed."""

import ast
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.extras.convert.script_source import source_of
from outdo.utils.errors import UserError

CODE = "CODE:"
"""What stands before the name of a function of the script; `with_code` replaces it by the file with their code."""

CONVERTED = ("model", "args", "reward_funcs", "train_dataset", "eval_dataset", "peft_config", "tools")
"""The arguments of `GRPOTrainer` that a recipe has something for."""

BY_ITSELF = ("processing_class",)
"""Arguments whose part outdo does by itself: it loads the tokenizer of the model."""

ROW_METHODS = ("map", "filter", "rename_column", "rename_columns", "remove_columns", "train_test_split", "select")

DEEPEST = 20
"""How many names are followed from one to the next."""


class NotPlainError(Exception):
    """An expression is no plain value: only running the script would tell."""


@dataclass(kw_only=True)
class Script:
    """What a script says: TRL's settings by name, what could not be read, and the functions that a recipe needs."""

    written: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    with_messages: Sequence[str] = ()
    """Those of these functions that get messages: the script makes messages of the texts in the data."""
    source: str = ""
    """The code of these functions, with everything at the top of the script that they use."""


def read_script(path: Path) -> Script:
    """Return the settings in a script. Raises `UserError` if it is not Python or does not call `GRPOTrainer`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        tree = ast.parse(text)
    except OSError as error:
        raise UserError([f"{path}: {error.strerror}"]) from None
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError([f"{path}: not Python: {error}"]) from None
    reader = _Reader(path, tree)
    reader.read()
    script = reader.script
    script.source = source_of(tree, text, script.functions, script.with_messages) if script.functions else ""
    return script


def with_code(value: Any, file: str) -> Any:
    """Return the value with the functions of the script named as those of `file`."""
    if isinstance(value, str) and value.startswith(CODE):
        return f"{file}:{value.removeprefix(CODE)}"
    return [with_code(each, file) for each in value] if isinstance(value, list) else value


class _Reader:
    """The names of a script and what they are bound to."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path, self.tree, self.script = path, tree, Script()
        self.bound: dict[str, list[ast.expr]] = {}
        self.defined: dict[str, ast.AST] = {}
        self.imported: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self.bind(target, node.value)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.defined[node.name] = node
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        """Remember what a name is bound to; of `a, b = f()` both names are bound to the call."""
        if isinstance(target, ast.Name):
            self.bound.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Tuple):
            one_each = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
            for number, each in enumerate(target.elts):
                self.bind(each, value.elts[number] if one_each and isinstance(value, ast.Tuple) else value)

    def read(self) -> None:
        trainer = next(self.calls("GRPOTrainer"), None)
        if trainer is None:
            raise UserError([f"{self.path}: nothing calls GRPOTrainer(...); for `trl grpo`, name its .yaml"])
        given = self.arguments(trainer, ["model", "reward_funcs", "args", "train_dataset", "eval_dataset"])
        self.put_config(trainer, given.get("args"))
        self.put_model(given.get("model"))
        self.put_rewards(given.get("reward_funcs"))
        for name in ("train_dataset", "eval_dataset"):
            if name in given:
                self.put_data(name, given[name])
        self.put_messages(given.get("train_dataset"))
        self.put_adapter(given.get("peft_config"))
        if "tools" in given:
            self.script.written["tools"] = list(self.functions(given["tools"]))
        for name, node in given.items():
            if name not in (*CONVERTED, *BY_ITSELF):
                self.remark(node, f"{name} of GRPOTrainer: no counterpart")

    # ------------------------------------------------------------------------------------------------------ settings

    def put_config(self, trainer: ast.Call, node: ast.expr | None) -> None:
        config = self.follow(node)
        if not isinstance(config, ast.Call) or _name(config.func) != "GRPOConfig":
            config = next(self.calls("GRPOConfig"), None)
        if config is None:
            self.remark(trainer, "no GRPOConfig(...) was found; give its settings as key=value")
            return
        for name, value in self.arguments(config, ["output_dir"]).items():
            self.put(name, value)

    def put_model(self, node: ast.expr | None) -> None:
        node = self.follow(node)
        if isinstance(node, ast.Call):  # AutoModelForCausalLM.from_pretrained(NAME, ...), get_peft_model(model, ...)
            given = self.arguments(node, ["model"])
            names = ("pretrained_model_name_or_path", "model_name", "model")
            node = self.follow(next((given[name] for name in names if name in given), None))
            self.put_adapter(given.get("peft_config"))
        if isinstance(node, ast.Call):
            self.put_model(node)
        elif node is not None:
            self.put("model_name_or_path", node)

    def put_rewards(self, node: ast.expr | None) -> None:
        if node is not None:
            self.script.written["reward_funcs"] = list(self.functions(node))

    def put_data(self, name: str, node: ast.expr) -> None:
        calls, methods = [], set[str]()
        for each in self.reachable(node):
            if isinstance(each, ast.Call) and _name(each.func) == "load_dataset":
                calls.append(each)
            elif isinstance(each, ast.Attribute) and each.attr in ROW_METHODS:
                methods.add(each.attr)
        if not calls:
            self.remark(node, f"{name}: no load_dataset(...) was found; name a file or a data set of the Hub")
            return
        try:
            self.script.written[name] = self.data_path(calls[0], node, default="train" if "train" in name else "test")
        except NotPlainError as error:
            self.remark(calls[0], f"{name}: {error}")
        if methods:
            changed = ", ".join(sorted(methods))
            self.remark(
                node,
                f"{name}: the script changes the rows ({changed}); outdo reads them as they are on disk: set "
                "data.prompt, data.answer and data.system, or save the changed rows as a .jsonl file",
            )

    def put_messages(self, rows: ast.expr | None) -> None:
        """Give the reward functions messages if the script makes messages of the rows."""
        if rows is None or not any(map(_is_message, self.reachable(rows))):
            return
        self.script.with_messages = tuple(self.script.functions)
        for name in self.script.written.get("reward_funcs", ()):
            if isinstance(name, str) and ":" in name.removeprefix(CODE):
                self.remark(
                    rows,
                    f"{name}: TRL gives it messages, which the script makes of the rows; outdo gives it the texts in "
                    "the data: save the changed rows as a .jsonl file",
                )

    def data_path(self, call: ast.Call, node: ast.expr, *, default: str) -> Any:
        """Return a `load_dataset` call as `data.path`. A split may be an argument of it, or an index of its result."""
        given = self.arguments(call, ["path", "name", "data_dir", "data_files", "split"])
        value = {name: self.value(given[name]) for name in ("path", "name", "data_files", "split") if name in given}
        files = value.get("data_files")
        if files is not None:
            return files.get(default, next(iter(files.values()))) if isinstance(files, Mapping) else files
        config = f"/{value['name']}" if value.get("name") else ""
        return f"{value.get('path')}{config}:{value.get('split') or self.index(node) or default}"

    def index(self, node: ast.expr) -> str | None:
        """Return the split that an expression takes from a dictionary of splits, as in `load_dataset(...)["train"]`."""
        for each in self.reachable(node):
            if isinstance(each, ast.Subscript) and isinstance(self.follow(each.value), ast.Call):
                try:
                    return str(self.value(each.slice))
                except NotPlainError:
                    continue
        return None

    def put_adapter(self, node: ast.expr | None) -> None:
        call = self.follow(node)
        if isinstance(call, ast.Call) and _name(call.func).endswith("Config"):
            if _name(call.func) != "LoraConfig":
                self.remark(call, f"{_name(call.func)}: the recipe has LoRA; see docs/adapters.md for other methods")
            options = {}
            for name, value in self.arguments(call, []).items():
                try:
                    options[name] = self.value(value)
                except NotPlainError as error:
                    self.remark(value, f"{name} of {_name(call.func)}: {error}")
            self.script.written["peft_config"] = options

    def functions(self, node: ast.expr) -> Iterator[Any]:
        """Yield the functions that an expression lists, as `rewards` of a recipe has them."""
        followed = self.follow(node)
        if isinstance(followed, ast.List | ast.Tuple):
            for each in followed.elts:
                yield from self.functions(each)
        elif isinstance(followed, ast.Constant) and isinstance(followed.value, str):
            yield followed.value
        elif isinstance(followed, ast.Name) and followed.id in self.defined:
            self.script.functions.append(followed.id)
            yield f"{CODE}{followed.id}"
        elif isinstance(followed, ast.Name) and followed.id in self.imported:
            yield self.imported_function(self.imported[followed.id])
        elif isinstance(followed, ast.Call) and _name(followed.func) == "get_soft_overlong_punishment":
            yield self.punishment(followed)
        else:
            self.remark(node, f"{_shown(node)}: no function that a recipe can name; write it as `def`")

    def punishment(self, call: ast.Call) -> dict[str, Any]:
        given = self.arguments(call, ["max_completion_len", "soft_punish_cache"])
        names = {"max_tokens": "max_completion_len", "cache": "soft_punish_cache"}
        reward: dict[str, Any] = {"name": "overlong"}
        for ours, theirs in names.items():
            try:
                reward[ours] = self.value(given[theirs])
            except (KeyError, NotPlainError):
                self.remark(call, f"{theirs} of get_soft_overlong_punishment is no plain number; write {ours}")
        return reward

    def imported_function(self, name: str) -> str:
        module, _, function = name.rpartition(".")
        file = self.path.parent.joinpath(*module.split(".")).with_suffix(".py")
        return f"{file}:{function}" if file.is_file() else name

    # ---------------------------------------------------------------------------------------------------- expressions

    def calls(self, name: str) -> Iterator[ast.Call]:
        return (n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and _name(n.func) == name)

    def arguments(self, call: ast.Call, positional: Sequence[str]) -> dict[str, ast.expr]:
        """Return the arguments of a call by name, also those of `**options` if that is a dictionary of the script."""
        given = dict(zip(positional, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg is not None:
                given[keyword.arg] = keyword.value
                continue
            options = self.follow(keyword.value)
            if isinstance(options, ast.Dict):
                pairs = zip(options.keys, options.values, strict=True)
                given |= {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
            elif isinstance(options, ast.Call) and _name(options.func) == "dict":
                given |= self.arguments(options, [])
            else:
                self.remark(keyword.value, f"**{_shown(keyword.value)}: cannot be read; give them as key=value")
        return given

    def put(self, name: str, node: ast.expr) -> None:
        try:
            self.script.written[name] = self.value(node)
        except NotPlainError as error:
            self.remark(node, f"{name}: {error}")

    def follow(self, node: ast.expr | None) -> ast.expr | None:
        """Return what a name was last bound to, or the expression itself."""
        for _ in range(DEEPEST):  # a name may be bound to itself
            if not (isinstance(node, ast.Name) and node.id in self.bound):
                return node
            node = self.bound[node.id][-1]
        return node

    def reachable(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the parts of an expression, and those of everything that its names and functions stand for."""
        waiting, seen = [node], set[str]()
        while waiting:
            for each in ast.walk(waiting.pop(0)):
                yield each
                if isinstance(each, ast.Name) and each.id not in seen:
                    seen.add(each.id)
                    waiting += self.bound.get(each.id, [])
                    waiting += [self.defined[each.id]] if each.id in self.defined else []

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """Return the value of an expression of literals and of names that are bound once. Raises `NotPlainError`."""
        if depth > DEEPEST:  # names that are bound to each other
            raise NotPlainError(f"{_shown(node)} has no value that could be read")
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            pass
        if isinstance(node, ast.Name) and len(self.bound.get(node.id, [])) == 1:
            return self.value(self.bound[node.id][0], depth + 1)
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in node.values]
            return "".join(str(self.value(part, depth + 1)) for part in parts)
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(each, depth + 1) for each in node.elts]
        if isinstance(node, ast.BinOp):
            return _computed(node.op, self.value(node.left, depth + 1), self.value(node.right, depth + 1))
        raise NotPlainError(f"{_shown(node)} is known only while the script runs; write it")

    def remark(self, node: ast.AST, sentence: str) -> None:
        self.script.remarks.append(f"line {getattr(node, 'lineno', 0)}: {sentence}")


_ARITHMETIC: Mapping[type, Any] = {
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: left / right,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
}


def _computed(operator: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operation on numbers. Raises `NotPlainError` for other values."""
    try:
        if isinstance(left, int | float) and isinstance(right, int | float):
            return _ARITHMETIC[type(operator)](left, right)
    except (ArithmeticError, KeyError):
        pass
    raise NotPlainError("not an operation on numbers that has a result")


def _shown(node: ast.AST) -> str:
    try:
        return textwrap.shorten(ast.unparse(node), 60, placeholder=" ...")
    except RecursionError:
        return "an expression"


def _name(node: ast.expr) -> str:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_message(node: ast.AST) -> bool:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)] if isinstance(node, ast.Dict) else []
    return {"role", "content"} <= {*keys}
