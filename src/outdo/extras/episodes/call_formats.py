"""How models write tool calls: each format finds the calls in the text of a turn.

| format | models | a call |
|---|---|---|
| `hermes` | Hermes, Qwen2.5, Qwen3 | `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>` |
| `qwen_xml` | Qwen3.5, Nemotron 3 | `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>` |
| `glm` | GLM-4.5 and later | `<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>` |
| `mistral` | Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]` |
| `mistral_args` | Ministral 3, Mistral Small 3.2 | `[TOOL_CALLS]f[ARGS]{"a": 1}` |
| `kimi` | Kimi K2 | `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>` |
| `invoke` | MiniMax-M2, DeepSeek-V3.2 | `<invoke name="f"><parameter name="a">1</parameter></invoke>` |
| `llama` | Llama 3.1 and later | `{"name": "f", "parameters": {"a": 1}}`, also after `"type": "function"` |
| `gemma` | Gemma 4 | `<|tool_call>call:f{a:1}<tool_call|>` |
| `lfm2` | LFM2 | `<|tool_call_start|>[f(a=1)]<|tool_call_end|>` |
| `harmony` | gpt-oss | `to=functions.f<|channel|>commentary json<|message|>{"a": 1}` |
"""

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Call = dict[str, Any]  # {"name": ..., "arguments": {...}}
Schemas = Mapping[str, Mapping[str, Any]]
"""The JSON schemas of the arguments of each tool, by name."""

AS_JSON = {"True": "true", "False": "false", "None": "null"}
"""Values as Jinja writes them. Some templates, and the models that were trained on them, do not write JSON."""

UNREADABLE = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)
"""What Python's own readers of JSON and of literals raise: a policy may write anything, such as 10,000 brackets."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Finds calls by a pattern; `read` returns the calls of a match, or raises one of `UNREADABLE`."""

    pattern: re.Pattern[str]
    read: Callable[[re.Match[str], Schemas], Iterable[Call]]
    thought: re.Pattern[str] | None = None  # thinking, besides what `</think>` ends; group 1 is its text
    frame: re.Pattern[str] | None = None  # what stands around a text, and is not a part of it


def find_calls(form: str, text: str, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[str, list[Call], list[str]]:
    """Return the text without its calls, the calls as a chat template takes them, and a sentence for each faulty call.

    `tools` are JSON schemas of functions. Formats that write the number 5 and the text 5 alike need them.
    """
    functions = [tool["function"] for tool in tools]
    schemas = {function["name"]: function.get("parameters", {}).get("properties", {}) for function in functions}
    calls: list[dict[str, Any]] = []
    faults: list[str] = []
    for match in CALL_FORMATS[form].pattern.finditer(text):
        try:
            calls += [{"type": "function", "function": call} for call in CALL_FORMATS[form].read(match, schemas)]
        except UNREADABLE as error:
            faults.append(f"the call is not valid: {error}")
    return CALL_FORMATS[form].pattern.sub("", text).strip(), calls, faults


def marks_thinking(form: str) -> bool:
    """Return whether the format marks thinking in a way of its own, and `split_thought` is to be asked for it."""
    return CALL_FORMATS[form].thought is not None


def split_thought(form: str, text: str) -> tuple[str, str]:
    """Return the thinking that is marked as the format marks it, and the text without it and without its frame."""
    thought, frame = CALL_FORMATS[form].thought, CALL_FORMATS[form].frame
    thinking = "\n".join(match[1].strip() for match in thought.finditer(text)) if thought else ""
    text = thought.sub("", text) if thought else text
    return thinking, frame.sub("", text) if frame else text


# ------------------------------------------------------------------------------------------------------------- readers


def _read_json(match: re.Match[str], _: Schemas) -> list[Call]:
    """Read the JSON of one call, or of a list; the arguments may be called `parameters`, and be JSON as text."""
    value: Any = json.loads(match[1])
    calls: Sequence[Any] = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    for call in calls:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise ValueError('expected {"name": ..., "arguments": {...}}')
    return [_call(call["name"], call.get("arguments", call.get("parameters", {}))) for call in calls]


def _read_named(match: re.Match[str], _: Schemas) -> list[Call]:
    """Read a call whose name stands before the JSON of its arguments."""
    return [_call(match["name"], json.loads(match["arguments"]))]


def _read_gemma(match: re.Match[str], _: Schemas) -> list[Call]:
    """Read arguments with keys that are not quoted, and texts between `<|"|>`."""
    parts = match["arguments"].split('<|"|>')
    for i in range(len(parts)):
        if i % 2:
            parts[i] = json.dumps(parts[i])
        else:
            quoted = re.sub(r"([{,]\s*)([\w.-]+)(\s*:)", r'\1"\2"\3', parts[i])
            parts[i] = re.sub(r"\b(True|False|None)\b", lambda word: AS_JSON[word[1]], quoted)
    return [_call(match["name"], json.loads("".join(parts)))]


def _read_python(match: re.Match[str], _: Schemas) -> list[Call]:
    """Read a list of calls in the syntax of Python, with values of Python or of JSON."""
    with warnings.catch_warnings():  # of escapes that Python does not know
        warnings.simplefilter("ignore")
        written = ast.parse(match["calls"].strip(), mode="eval").body
    calls = written.elts if isinstance(written, ast.List) else [written]
    return [_python_call(call) for call in calls]


def _python_call(call: ast.expr) -> Call:
    if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("expected [name(argument=value)]")
    return _call(ast.unparse(call.func), {str(keyword.arg): _literal(keyword.value) for keyword in call.keywords})


def _literal(value: ast.expr) -> Any:
    """Return the value of a literal; `true`, `false` and `null` are those of JSON."""
    for node in ast.walk(value):
        if isinstance(node, ast.Name) and node.id in AS_JSON.values():
            node.id = next(name for name, word in AS_JSON.items() if word == node.id)
    return ast.literal_eval(ast.unparse(value))


def _tagged(call: str, argument: str) -> Callable[[re.Match[str], Schemas], list[Call]]:
    """Return a reader of calls whose arguments are between tags, as text or as JSON."""
    call_pattern, argument_pattern = (re.compile(pattern, re.DOTALL) for pattern in (call, rf"{argument}\s*"))

    def read(match: re.Match[str], schemas: Schemas) -> list[Call]:
        written = call_pattern.fullmatch(match[1].strip())
        arguments = written and _consecutive(argument_pattern, written["arguments"].strip())
        if written is None or arguments is None:
            raise ValueError("expected the name of a tool and its arguments, each between its tags")
        if not match["end"]:
            raise ValueError("it has no end")
        known = schemas.get(written["name"], {})
        values = {part["key"]: _value(part["value"], known.get(part["key"])) for part in arguments}
        return [_call(written["name"], values)]

    return read


def _consecutive(pattern: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    """Return the matches that a text consists of; `None` if it has anything else.

    It reads a text once: to look for a match at every tag would take long for 10,000 tags that nothing closes.
    """
    matches: list[re.Match[str]] = []
    while (start := matches[-1].end() if matches else 0) < len(text):
        if (match := pattern.match(text, start)) is None:
            return None
        matches.append(match)
    return matches


def _value(text: str, schema: Any) -> Any:
    """Return an argument that is written as text: as it is if it has to be a text, or else what it is as JSON."""
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(AS_JSON.get(text.strip(), text))
    except ValueError:
        return text


def _call(name: str, arguments: Any) -> Call:
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, Mapping):
        raise ValueError("expected the arguments as an object")
    return {"name": name, "arguments": dict(arguments)}


# ------------------------------------------------------------------------------------------------------------- formats


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.DOTALL)


INVOKER = r"(?:minimax:|｜DSML｜)?"
"""What stands before the names of tags that invoke a tool."""

TAGS = _pattern(r"<tool_call>(.*?)(?P<end></tool_call>|\Z)")

CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat(TAGS, _read_json),
    "qwen_xml": CallFormat(
        TAGS,
        _tagged(
            r"<function=(?P<name>[^>\n]+)>(?P<arguments>.*)</function>",
            r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
        ),
    ),
    "glm": CallFormat(
        TAGS,
        _tagged(
            r"(?P<name>[^\s<{]+)(?P<arguments>.*)",
            r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>",
        ),
    ),
    "mistral": CallFormat(_pattern(r"\[TOOL_CALLS\]\s*(.*)\Z"), _read_json),
    "mistral_args": CallFormat(
        _pattern(
            r"\[TOOL_CALLS\](?P<name>[^\s\[]{1,256}+)(?:\[CALL_ID\][^\s\[]{1,256}+)?\[ARGS\]"
            r"(?P<arguments>(?:(?!\[TOOL_CALLS\]).)*+)"
        ),
        _read_named,
    ),
    "kimi": CallFormat(
        _pattern(
            r"(?:<\|tool_calls_section_begin\|>)?<\|tool_call_begin\|>(?:functions\.)?(?P<name>[^\s:<]{1,256}+):\d{1,9}+"
            r"<\|tool_call_argument_begin\|>(?P<arguments>.*?)(?:<\|tool_call_end\|>|\Z)(?:<\|tool_calls_section_end\|>)?"
        ),
        _read_named,
    ),
    "invoke": CallFormat(
        _pattern(
            rf"(?:<{INVOKER}(?:tool_call|tool_calls|function_calls)>\s{{0,9}}+)?(<{INVOKER}invoke name=.*?)"
            rf"(?:(?P<end></{INVOKER}invoke>)(?:\s{{0,9}}+</{INVOKER}(?:tool_call|tool_calls|function_calls)>)?|\Z)"
        ),
        _tagged(
            rf'<{INVOKER}invoke name="(?P<name>[^"\n]+)">(?P<arguments>.*)',
            rf'<{INVOKER}parameter name="(?P<key>[^"\n]+)"[^>]*>(?P<value>.*?)</{INVOKER}parameter>',
        ),
    ),
    "llama": CallFormat(
        _pattern(r"\A\s*(?:<\|python_tag\|>\s*)?(\{\s*\"(?:type\"\s*:\s*\"function\"\s*,\s*\")?name\".*)\Z"), _read_json
    ),
    "gemma": CallFormat(
        _pattern(r"<\|tool_call>call:(?P<name>[\w.-]+)(?P<arguments>.*?)(?:<tool_call\|>|\Z)"),
        _read_gemma,
        thought=_pattern(r"<\|channel>thought\n?(.*?)(?:<channel\|>|\Z)"),
    ),
    "lfm2": CallFormat(_pattern(r"<\|tool_call_start\|>(?P<calls>.*?)(?:<\|tool_call_end\|>|\Z)"), _read_python),
    "harmony": CallFormat(
        _pattern(
            r"(?:<\|start\|>assistant)?(?:<\|channel\|>commentary)? ?to=functions\.(?P<name>[^\s<]{1,256}+)"
            r"(?:(?!to=functions\.).)*?<\|message\|>(?P<arguments>.*?)(?:<\|call\|>|\Z)"
        ),
        _read_named,
        thought=_pattern(r"<\|channel\|>analysis<\|message\|>(.*?)(?:<\|end\|>|\Z)"),
        frame=_pattern(r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>|<\|end\|>"),
    ),
}
"""The formats by name; a template gets the first one that reads back what it writes."""
