"""Values that only a library, the data or the user's machine would tell: each keeps the expression that it is.

Python goes on with such a value as with any other: it can be called, indexed, computed with and set. Where the script
branches on one, `decide` gives an answer and keeps the question, so that the script can be run with the other answer.
"""

import dis
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from outdo.extras.convert.reading import CLOSE, OPEN, unmarked

MOST_ASKED, MOST_ITEMS = 60, 3000
LENGTHS = (1, 997)
"""How many items an iteration has whose number nobody knows: first one, and in another run many."""


class ScriptRun:
    """One run of a script: what it asked, and what it made."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        """The files of the script's author; other frames belong to Python's library or to this recorder."""
        self.answers: dict[str, Any] = {}
        self.asked: dict[str, tuple[int, list[Any]]] = {}
        self.items = 0
        self.given_functions: list[Callable[..., Any]] = []
        """Functions of the script that a library was given, such as `main` in `fire.Fire(main)`."""
        self.trainers: list[Any] = []
        self.trained: list[tuple[int, str]] = []
        """What the script trains before, such as `trl.SFTTrainer(...)`, and the lines."""
        self.defaults: dict[str, str] = {}
        """Arguments and variables that were not given, and their defaults."""
        self.texts: dict[str, str] = {}
        """What is in the files near the script, by their whole paths."""
        self.folders: tuple[str, ...] = ()
        """Where the paths of files may begin."""
        self.wanted: list[str] = []
        """Files that the script reads and that are not there."""

    def decide(self, question: str, choices: Sequence[Any]) -> Any:
        """Return the answer that this run gives to a question, by default the first one."""
        if question not in self.asked:
            if len(self.asked) >= MOST_ASKED:
                raise RuntimeError(f"more than {MOST_ASKED} decisions depend on what nobody knows here")
            self.asked[question] = (line(), list(choices))
        return self.answers.get(question, choices[0])

    def text_of(self, path: Any) -> str | None:
        """Return what is in a file near the script; None if it is not there."""
        places = [os.path.normpath(os.path.join(folder, os.fspath(path))) for folder in self.folders]
        place = next((place for place in places if place in self.texts), None)
        if place is None:
            self.wanted.append(unmarked(str(path)))
        return None if place is None else self.texts[place]


RUN = ScriptRun()


def frame_of_script() -> FrameType | None:
    """Return the innermost frame that executes a file of the script."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in RUN.files:
        frame = frame.f_back
    return frame


def line() -> int:
    frame = frame_of_script()
    return frame.f_lineno if frame else 0


class Origin:
    """The expression of an unknown value.

    `kind` is "name" (`text` is the dotted path of a module's member), "call", "get" (an attribute, `text`), "item"
    (`key`), or "text" (any other expression).
    """

    def __init__(self, kind: str, text: str = "", of: Any = None, key: Any = None) -> None:
        self.kind, self.text, self.of, self.key = kind, text, of, key
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        self.line = line()
        self.parts: dict[Any, Any] = {}
        """Attributes and items that were read or set before."""
        self.effects: list[tuple[int, str]] = []
        """What the script did to the value: the line, and a method or an attribute."""


def origin_of(value: Any) -> Origin:
    return value.__dict__["_origin"]


class Foreign:
    """The base of a class whose base is unknown."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(Origin("text", f"{type(self).__name__}().{name}"))


class Unknown:
    """A value that nobody knows here."""

    def __init__(self, node: Origin) -> None:
        self.__dict__["_origin"] = node

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        node = origin_of(self)
        if ("get", name) not in node.parts:
            child = Origin("name", f"{node.text}.{name}") if node.kind == "name" else Origin("get", name, self)
            node.parts["get", name] = Unknown(child)
        return node.parts["get", name]

    def __setattr__(self, name: str, value: Any) -> None:
        origin_of(self).parts["get", name] = origin_of(self).parts["set", name] = value
        changed(self, f"{name} = {shown(value)}")

    def __getitem__(self, key: Any) -> Any:
        parts, part = origin_of(self).parts, ("item", repr(key))
        return parts[part] if part in parts else Unknown(Origin("item", of=self, key=key))

    def __setitem__(self, key: Any, value: Any) -> None:
        origin_of(self).parts["item", repr(key)] = value
        changed(self, f"[{shown(key)}] = {shown(value)}")

    def __delitem__(self, key: Any) -> None:
        changed(self, f"del [{shown(key)}]")

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        node = Origin("call", of=self)
        node.arguments, node.keywords = arguments, keywords
        RUN.given_functions += [argument for argument in (*arguments, *keywords.values()) if is_of_script(argument)]
        of = origin_of(self)
        if of.kind == "get":
            changed(of.of, f"{of.text}()")
            if of.text == "train" and shown(of.of).partition("(")[0].endswith("Trainer"):
                RUN.trained.append((line(), shown(of.of)))
        return Unknown(node)

    def __iter__(self) -> Iterator[Any]:
        frame = sys._getframe(1)
        code = frame.f_code.co_code
        if dis.opname[code[frame.f_lasti]] == "UNPACK_SEQUENCE":
            return iter([self[index] for index in range(code[frame.f_lasti + 1])])
        count = RUN.decide(f"len({shown(self)})", LENGTHS)
        count = count if RUN.items < MOST_ITEMS else 1
        RUN.items += count
        return iter([Unknown(Origin("text", f"an item of {shown(self)}", self)) for _ in range(count)])

    def keys(self) -> list[str]:  # of f(**unknown) as well
        return [f"**{OPEN}{shown(self)}{CLOSE}"]

    def __bool__(self) -> bool:
        return RUN.decide(shown(self), (False, True))

    def __len__(self) -> int:
        return RUN.decide(f"len({shown(self)})", LENGTHS)

    def __index__(self) -> int:
        return RUN.decide(f"int({shown(self)})", LENGTHS)

    __int__ = __index__

    def __float__(self) -> float:
        return float(RUN.decide(f"float({shown(self)})", LENGTHS))

    def __str__(self) -> str:
        return f"{OPEN}{shown(self)}{CLOSE}"

    __repr__ = __fspath__ = __str__

    def __format__(self, _: str) -> str:
        return str(self)

    def __hash__(self) -> int:
        return id(self)

    def __contains__(self, item: Any) -> bool:
        return RUN.decide(f"{shown(item)} in {shown(self)}", (False, True))

    def __instancecheck__(self, value: Any) -> bool:
        return RUN.decide(f"isinstance({shown(value)}, {shown(self)})", (False, True))

    def __subclasscheck__(self, value: Any) -> bool:
        return self.__instancecheck__(value)

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Foreign,)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None: ...

    def __await__(self) -> Any:
        return self
        yield

    def __eq__(self, other: object) -> Any:
        return True if other is self else Unknown(Origin("text", f"{shown(self)} == {shown(other)}"))

    def __ne__(self, other: object) -> Any:
        return False if other is self else Unknown(Origin("text", f"{shown(self)} != {shown(other)}"))


def _with_operators() -> None:
    """Give `Unknown` the operators, from either side."""
    signs = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
    signs |= {"and": "&", "or": "|", "xor": "^", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

    def operation(sign: str, *, reverse: bool) -> Callable[[Any, Any], Unknown]:
        def compute(self: Any, other: Any) -> Unknown:
            left, right = (other, self) if reverse else (self, other)
            return Unknown(Origin("text", f"{shown(left)} {sign} {shown(right)}"))

        return compute

    for name, sign in signs.items():
        setattr(Unknown, f"__{name}__", operation(sign, reverse=False))
        if len(name) > 2 or name == "or":
            setattr(Unknown, f"__r{name}__", operation(sign, reverse=True))
    for name, sign in {"neg": "-", "abs": "abs ", "invert": "~", "round": "round "}.items():
        setattr(Unknown, f"__{name}__", lambda self, *_, sign=sign: Unknown(Origin("text", f"{sign}{shown(self)}")))


_with_operators()


def is_none(value: Any) -> bool:
    """Return `value is None`, which a script's comparison is rewritten to."""
    return RUN.decide(f"{shown(value)} is None", (False, True)) if isinstance(value, Unknown) else value is None


def is_of_script(value: Any) -> bool:
    """Return whether a value is a function that a file of the script defines."""
    code = getattr(value, "__code__", None) if not isinstance(value, Unknown) else None
    return code is not None and code.co_filename in RUN.files


def changed(value: Any, how: str) -> None:
    """Note at a value, and at the values that it is a part of, what the script does to it."""
    path = how
    while isinstance(value, Unknown):
        node = origin_of(value)
        node.effects.append((line(), path))
        if node.kind == "text" and node.of is not None:  # of an iteration, such as `for p in model.parameters()`
            path = f"an item of {called(node.of)}(): {path}" if called(node.of) else f"an item: {path}"
            value = method_of(node.of) if called(node.of) else node.of
            continue
        path = f"{node.text}.{path}" if node.kind == "get" else f"[{shown(node.key)}].{path}"
        value = node.of if node.kind in ("get", "item") else None


def shown(value: Any) -> str:
    """Return a value as the script would write it, on one line and shortened."""
    if isinstance(value, Unknown):
        return _short(_expression(value))
    if isinstance(value, functools.partial):
        return _short(f"functools.partial({shown(value.func)}, ...)")
    if hasattr(value, "__qualname__"):  # a function or a class
        return "a lambda" if value.__name__ == "<lambda>" else str(value.__name__)
    if isinstance(value, list | tuple):
        items = ", ".join(map(shown, value))
        return _short(f"[{items}]" if isinstance(value, list) else f"({items})")
    if type(value).__module__ != "builtins":
        return f"an object of the class {type(value).__name__}"
    return _short(repr(value).replace(OPEN, "{").replace(CLOSE, "}"))


def _expression(value: Unknown) -> str:
    node = origin_of(value)
    if node.kind == "call":
        words = [shown(argument) for argument in node.arguments]
        words += [f"{unmarked(name)}={shown(argument)}" for name, argument in node.keywords.items()]
        return f"{shown(node.of)}({', '.join(words)})"
    if node.kind == "item":
        return f"{shown(node.of)}[{shown(node.key)}]"
    return f"{shown(node.of)}.{node.text}" if node.kind == "get" else node.text


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:87]}..."


# --------------------------------------------------------------------------------------------------- what a value says


class NotPlainError(Exception):
    """A value is not plain; the message shows it."""


def plain(value: Any) -> Any:
    """Return a value of numbers, texts, lists and tables. A member of torch is its name. Raises `NotPlainError`."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {unmarked(str(name)): plain(item) for name, item in value.items()}
    if isinstance(value, Unknown) and origin_of(value).kind == "name" and shown(value).startswith("torch."):
        return shown(value).rpartition(".")[2]
    if value is None or type(value) in (bool, int, float) or (type(value) is str and OPEN not in value):
        return value
    raise NotPlainError(shown(value))


def called(value: Any) -> str:
    """Return the last part of the name of what a call calls; "" for a value that is no call."""
    node = origin_of(value) if isinstance(value, Unknown) else None
    of = origin_of(node.of) if node is not None and node.kind == "call" else None
    return of.text.rpartition(".")[2] if of is not None and of.kind in ("name", "get") else ""


def method_of(value: Any) -> Any:
    """Return the value whose method a call calls; None for a function or a method of a class."""
    of = origin_of(origin_of(value).of)
    return of.of if of.kind == "get" else None


def named(call: Any, *positions: str) -> dict[str, Any]:
    """Return the arguments of a call by name, with these names for those that have none.

    What the script sets later in an object of settings counts as well.
    """
    node = origin_of(call)
    given = dict(zip(positions, node.arguments, strict=False))
    given |= {unmarked(name): value for name, value in node.keywords.items()}
    if called(call).endswith("Config"):
        given |= {name: value for (kind, name), value in node.parts.items() if kind == "set"}
    return given


def first_of(call: Any) -> Any:
    """Return the first argument of a call that has no name."""
    return next(iter(origin_of(call).arguments), None)


def effects_on(value: Any) -> list[tuple[int, str]]:
    """Return what the script did to a value: the line, and a method or an attribute."""
    return origin_of(value).effects if isinstance(value, Unknown) else []
