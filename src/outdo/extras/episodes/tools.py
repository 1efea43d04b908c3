"""Functions that a policy can call: their JSON schemas, and whether a call fits one of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from transformers.utils import get_json_schema
from transformers.utils.chat_template_utils import DocstringParsingException, TypeHintParsingException

from outdo.utils.errors import UserError, did_you_mean

TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""The types of values by the types of JSON schemas."""


class LateError(Exception):
    """A call did not return within its deadline."""


class ToolError(Exception):
    """A call cannot be made, or has failed. The message is for the policy; `metric` counts it.

    The policy reads what was `printed` before the message, as it is.
    """

    def __init__(self, metric: str, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.metric = metric
        self.printed = printed


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a policy can call, with the JSON schema of its arguments, as chat templates read it.

    A function that keeps the deadline itself and raises `LateError` has `grace` seconds more for what is not the call,
    such as the start of a process. What it raises of the classes `lost` says that what it needs is lost: that ends the
    episode, and the policy does not read it.
    """

    function: Callable[..., Any]
    schema: dict[str, Any]
    grace: float = 0.0
    lost: tuple[type[Exception], ...] = ()

    @property
    def name(self) -> str:
        """The name by which the policy calls it."""
        return self.schema["function"]["name"]


def as_tool(function: Callable[..., Any]) -> Tool:
    """Return a function as a tool. Raises `UserError` without type hints or a docstring to make a schema of."""
    if not callable(function) or not hasattr(function, "__name__"):  # such as a partial, or a name as text
        raise UserError([f"a tool has to be a function or a method, found {function!r:.100}"])
    try:
        return Tool(function, get_json_schema(function))
    except (DocstringParsingException, TypeHintParsingException, NameError) as error:  # a hint may name nothing
        name = getattr(function, "__name__", function)
        mistake = f"the tool {name} needs type hints, and a docstring that explains its arguments: {error}"
        raise UserError([mistake]) from error


class ToolBox:
    """The functions that a policy can call, with their JSON schemas.

    Raises `UserError` with one sentence for each function that has no type hints or no docstring to make a schema of,
    and for each name that two tools have.
    """

    def __init__(self, functions: Sequence[Callable[..., Any] | Tool]) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._tools: dict[str, Tool] = {}
        mistakes: list[str] = []
        for function in functions:
            try:
                tool = function if isinstance(function, Tool) else as_tool(function)
            except UserError as error:
                mistakes += error.problems
                continue
            if tool.name in self._tools:
                mistakes.append(f"two tools are called {tool.name}; the policy could not tell them apart")
            self.schemas.append(tool.schema)
            self._tools[tool.name] = tool
        if mistakes:
            raise UserError(mistakes)
        self._parameters = {
            function["function"]["name"]: function["function"]["parameters"] for function in self.schemas
        }

    @property
    def names(self) -> list[str]:
        """The names of the tools."""
        return list(self._parameters)

    @property
    def lost(self) -> tuple[type[Exception], ...]:
        """The classes of errors that say that what a tool needs is lost."""
        return tuple(error for tool in self._tools.values() for error in tool.lost)

    def of(self, functions: Sequence[Callable[..., Any]]) -> "ToolBox":
        """Return the same tools with the functions of another episode, such as the methods of its object."""
        other = copy(self)
        by_name = {function.__name__: function for function in functions}
        other._tools = {
            name: replace(tool, function=by_name[name]) for name, tool in self._tools.items() if name in by_name
        }
        return other

    def find(self, name: str, arguments: Mapping[str, Any]) -> Tool:
        """Return the tool of a call. Raises `ToolError` if there is none, or if the arguments do not fit it."""
        if name not in self._tools:
            hint = did_you_mean(name, list(self._tools)) or f"; there are {', '.join(self._tools)}"
            raise ToolError("unknown", f"there is no tool {name}{hint}")
        known, more = self._parameters[name]["properties"], self._parameters[name].get("additionalProperties")
        mistakes = [
            f"{argument} is missing"
            for argument in self._parameters[name].get("required", ())
            if argument not in arguments
        ]
        for argument, value in arguments.items():
            if argument not in known and not more:
                mistakes.append(f"there is no argument {argument}{did_you_mean(argument, list(known))}")
            elif expected := _expected_instead_of(value, known.get(argument, {})):
                mistakes.append(f"{argument} must be {expected}")
        if mistakes:
            raise ToolError("unparsed", f"{name}: {'; '.join(mistakes)}")
        return self._tools[name]


def _expected_instead_of(value: Any, schema: Mapping[str, Any]) -> str | None:
    """Return what the schema of an argument wants in the place of a value, or None if the value fits."""
    kind, choices = schema.get("type"), schema.get("enum")
    if value is None and schema.get("nullable"):  # how a schema of `int | None` is written
        return None
    if isinstance(kind, str) and not _has_type(value, kind):
        return f"of type {kind}"
    same = (value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices or ())
    if choices is not None and not any(same):
        return f"one of {', '.join(json.dumps(choice, ensure_ascii=False) for choice in choices)}"
    return None


def _has_type(value: Any, kind: str) -> bool:
    """Return whether a value of JSON has the type of a schema; a bool is not a number."""
    expected = TYPES.get(kind)
    return expected is None or (isinstance(value, expected) and (isinstance(value, bool) == (kind == "boolean")))
