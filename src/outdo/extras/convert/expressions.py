"""The expressions of a script, as running it or reading its text finds them: what a trainer was made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Expression = Any
"""A plain value, a list or a table of expressions, or one of the classes below."""


@dataclass(frozen=True, kw_only=True)
class Unread:
    """An expression whose value only the machine, the data or a library would tell."""

    shown: str
    template: Sequence[str] = ()
    """Of a text the parts: what is written, and in between the expressions that it has."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """A member of a module."""

    path: str


@dataclass(frozen=True, kw_only=True)
class PartOf:
    """An item or an attribute of a value."""

    of: Expression
    key: Expression
    shown: str
    effects: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of something that the script does not define."""

    function: Expression
    arguments: Sequence[Expression]
    keywords: Mapping[str, Expression]
    line: int
    shown: str
    effects: Sequence[tuple[int, str]] = ()
    """What the script does to the result: the line, and a method or an attribute."""
    makes: Expression = None
    """What the first argument, a function of the script, makes of a row."""

    @property
    def name(self) -> str:
        """The last part of the name of what is called."""
        if isinstance(self.function, PartOf):
            return str(self.function.key)
        return self.function.path.rpartition(".")[2] if isinstance(self.function, Name) else ""

    @property
    def owner(self) -> Expression:
        """What a method is called on: the value, or the class as a `Name`."""
        if isinstance(self.function, PartOf):
            return self.function.of
        return Name(path=self.function.path.rpartition(".")[0]) if isinstance(self.function, Name) else None

    def named(self, *positions: str) -> dict[str, Expression]:
        """Return the arguments by name, with these names for those that have none."""
        return dict(zip(positions, self.arguments, strict=False)) | dict(self.keywords)


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function of the script or of a file next to it."""

    name: str
    file: str
    line: int
    bound: bool
    """Whether its module has it under a name."""
    module: str = ""
    """The name of its module; "" if that is not known."""
    closure: Mapping[str, str | None] = field(default_factory=dict)
    """The variables of the function around it that it reads, as Python writes their values; None: no plain value."""


@dataclass(frozen=True, kw_only=True)
class Partial:
    """`functools.partial` with named arguments."""

    function: Expression
    keywords: Mapping[str, Expression]


class NotPlainError(Exception):
    """An expression is no plain value; the message shows it."""


def plain(value: Expression) -> Any:
    """Return a value of numbers, texts, lists and tables. A member of torch is its name. Raises `NotPlainError`."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Name) and value.path.startswith("torch."):
        return value.path.rpartition(".")[2]
    if isinstance(value, Unread | Name | PartOf | Call | Function | Partial):
        raise NotPlainError(shown(value))
    return value


def shown(value: Expression) -> str:
    """Return an expression as the script would write it."""
    if isinstance(value, Unread | PartOf | Call):
        return value.shown
    if isinstance(value, Name):
        return value.path
    if isinstance(value, Function):
        return "a lambda" if value.name == "<lambda>" else value.name
    if isinstance(value, Partial):
        return f"functools.partial({shown(value.function)}, ...)"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {shown(each)}' for name, each in value.items())}}}"
    return str(value)


def decoded(value: Any) -> Expression:
    """Return an expression from the JSON of the recorder (`recorder/program.py`)."""
    if isinstance(value, list):
        return [decoded(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value))
    return _DECODERS[kind](value)


def _decoded_call(value: dict[str, Any]) -> Call:
    function = decoded(value["call"])
    sets = value.get("sets", {}) if isinstance(function, Name) and function.path.endswith("Config") else {}
    return Call(
        function=function,
        arguments=decoded(value["arguments"]),
        keywords=_table(value["keywords"] | sets),
        line=int(value["line"]),
        shown=str(value.get("shown", "")),
        effects=_effects(value),
        makes=decoded(value.get("makes")),
    )


def _table(value: Mapping[str, Any]) -> dict[str, Expression]:
    return {str(name): decoded(each) for name, each in value.items()}


def _effects(value: Mapping[str, Any]) -> list[tuple[int, str]]:
    return [(int(line), str(how)) for line, how in value.get("effects", ())]


def _part(value: dict[str, Any]) -> PartOf:
    key = value["get"] if "get" in value else decoded(value["item"])
    return PartOf(of=decoded(value["of"]), key=key, shown=str(value["shown"]), effects=_effects(value))


_DECODERS: Mapping[str, Any] = {
    "call": _decoded_call,
    "get": _part,
    "item": _part,
    "name": lambda value: Name(path=str(value["name"])),
    "unread": lambda value: Unread(shown=str(value["unread"]), template=value.get("template", ())),
    "object": lambda value: Unread(shown=str(value["object"])),
    "table": lambda value: _table(value["table"]),
    "range": lambda value: range(*map(int, value["range"])),
    "partial": lambda value: Partial(function=decoded(value["partial"]), keywords=_table(value["keywords"])),
    "function": lambda value: Function(
        name=str(value["function"]),
        file=str(value["file"]),
        line=int(value["line"]),
        bound=bool(value["bound"]),
        closure=value["closure"],
        module=str(value["module"]),
    ),
}
