"""Functions that a policy can call: their JSON schemas, and whether a call fits one of them."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
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


class ToolError(Exception):
    """A call cannot be made. The message is for the policy; `metric` counts it."""

    def __init__(self, metric: str, message: str) -> None:
        super().__init__(message)
        self.metric = metric


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a policy can call, with the JSON schema of its arguments, as chat templates read it."""

    function: Callable[..., Any]
    schema: dict[str, Any]

    @property
    def name(self) -> str:
        """The name by which the policy calls it."""
        return self.schema["function"]["name"]


class ToolBox:
    """The functions that a policy can call, with their JSON schemas.

    Raises `UserError` with one sentence for each function that has no type hints or no docstring to make a schema of,
    and for each name that two tools have.
    """

    def __init__(self, functions: Sequence[Callable[..., Any] | Tool]) -> None:
        self.schemas: list[dict[str, Any]] = []
        self._functions: dict[str, Callable[..., Any]] = {}
        mistakes: list[str] = []
        for each in functions:
            try:
                tool = each if isinstance(each, Tool) else Tool(each, get_json_schema(each))
            except (DocstringParsingException, TypeHintParsingException) as error:
                mistakes.append(
                    f"the tool {each.__name__} needs type hints, and a docstring that explains its arguments: {error}"
                )
                continue
            if tool.name in self._functions:
                mistakes.append(f"two tools are called {tool.name}; the policy could not tell them apart")
            self.schemas.append(tool.schema)
            self._functions[tool.name] = tool.function
        if mistakes:
            raise UserError(mistakes)
        self._parameters = {each["function"]["name"]: each["function"]["parameters"] for each in self.schemas}

    def of(self, functions: Sequence[Callable[..., Any]]) -> "ToolBox":
        """Return the same tools with the functions of another episode, such as the methods of its object."""
        other = copy(self)
        other._functions = {function.__name__: function for function in functions}
        return other

    def find(self, name: str, arguments: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the function of a call. Raises `ToolError` if there is none, or if the arguments do not fit it."""
        if name not in self._functions:
            hint = did_you_mean(name, list(self._functions)) or f"; there are {', '.join(self._functions)}"
            raise ToolError("unknown", f"there is no tool {name}{hint}")
        known = self._parameters[name]["properties"]
        mistakes = [
            f"{each} is missing" for each in self._parameters[name].get("required", ()) if each not in arguments
        ]
        for argument, value in arguments.items():
            kind = known.get(argument, {}).get("type")
            if argument not in known:
                mistakes.append(f"there is no argument {argument}{did_you_mean(argument, list(known))}")
            elif isinstance(kind, str) and not _has_type(value, kind):
                mistakes.append(f"{argument} must be of type {kind}")
        if mistakes:
            raise ToolError("unparsed", f"{name}: {'; '.join(mistakes)}")
        return self._functions[name]


def _has_type(value: Any, kind: str) -> bool:
    """Return whether a value of JSON has the type of a schema; a bool is no number."""
    expected = TYPES.get(kind)
    return expected is None or (isinstance(value, expected) and (isinstance(value, bool) == (kind == "boolean")))
