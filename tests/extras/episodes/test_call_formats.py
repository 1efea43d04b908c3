"""Calls are read as models write them, with the chat templates of the models themselves."""

import re
from importlib.metadata import version
from time import process_time
from typing import Any

import pytest

from benchmarks.chat_templates import BEGIN, PAGE, names, tables, template_of
from outdo.extras.episodes.call_formats import CALL_FORMATS, find_calls
from outdo.extras.episodes.template import Template
from outdo.extras.episodes.tools import as_tool


def book(title: str, seats: int, window: bool, names: list[str], prices: dict[str, Any]) -> str:
    """Book seats.

    Args:
        title: The title.
        seats: How many.
        window: Whether at the window.
        names: Of whom.
        prices: By name.
    """
    return f"{title} {seats} {window} {names} {prices}"


TOOLS = [as_tool(book).schema]
ARGUMENTS: dict[str, Any] = {
    "title": 'It\'s "5",\n{a: 1} \\ ü',
    "seats": 3,
    "window": True,
    "names": ["Ann", "5"],
    "prices": {"Ann": 1.5, "Bob": [1, 2]},
}
FORMATS = {
    "gemma": ["diffusion_gemma", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"],
    "glm": ["glm4moe"],
    "harmony": ["gptoss"],
    "hermes": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"],
    "lfm2": ["lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"],
    "llama": ["llama3_1", "llama3_2"],
    "qwen_xml": [
        *("qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "qwen3_8"),
        *("nemotron_3_nano", "nemotron_3_super", "nemotron_3_ultra", "nemotron_3_5_lightning"),
    ],
}
"""The templates of TRL that write calls in each format."""
WITH_CALLS = [(name, form) for form, templates in FORMATS.items() for name in templates]


def call(title: str, place: int = 0) -> dict[str, Any]:
    function = {"name": "book", "arguments": {**ARGUMENTS, "title": title}}
    return {"id": f"call0000{place}", "type": "function", "function": function}


def parsed(template: Template, message: dict[str, Any]) -> Any:
    """What is read of a turn that the template itself writes."""
    text = template._written(message)
    for end in template.ends:
        text = text.rpartition(end)[0] or text
    return template.parse(template.tokenizer.encode(text, add_special_tokens=False), [])


@pytest.mark.parametrize(("name", "form"), WITH_CALLS)
def test_what_the_template_of_a_model_writes_is_read_back_with_its_types(name: str, form: str) -> None:
    template = template_of(name, TOOLS)
    assert template.call_format == form
    unescaped = name.startswith("lfm2_2_5")  # these templates write texts between ' as they are
    for title in ("Two" if unescaped else ARGUMENTS["title"], "5", "true", ""):
        found = parsed(template, {"role": "assistant", "content": "", "tool_calls": [call(title)]})
        assert not found.faults
        assert [each["function"] for each in found.message["tool_calls"]] == [call(title)["function"]]
        assert "book" not in found.message["content"]
    if template.properties.parallel:
        both = [call("one"), call("two", 1)]
        found = parsed(template, {"role": "assistant", "content": "", "tool_calls": both})
        assert [each["function"] for each in found.message["tool_calls"]] == [each["function"] for each in both]


@pytest.mark.parametrize(("name", "form"), WITH_CALLS)
def test_what_follows_a_call_is_what_the_template_of_the_model_writes_after_it(name: str, form: str) -> None:
    template = template_of(name, TOOLS)
    turn = {"role": "assistant", "content": "", "tool_calls": [call("one")]}
    result = {"role": "tool", "name": "book", "tool_call_id": "call00000", "content": "Booked."}
    end = template._after([result])[0]
    follows = template.following([end], [result])
    assert template._render([turn, result]).endswith(str(template.tokenizer.decode([end, *follows])))
    assert "Booked." in str(template.tokenizer.decode(follows))


FAULTY = {
    "hermes": ["<tool_call>{", "<tool_call>" + "[" * 20_000 + "</tool_call>", "<tool_call>5</tool_call>"],
    "qwen_xml": [
        "<tool_call><function=f><parameter=a>1</parameter></function>",  # it has no end
        "<tool_call><function=f>1</function></tool_call>",
        "<tool_call>f</tool_call>",
    ],
    "glm": ["<tool_call>f<arg_key>a</arg_key></tool_call>", "<tool_call>f", "<tool_call></tool_call>"],
    "mistral": ['[TOOL_CALLS][{"name": 5}]'],
    "mistral_args": ["[TOOL_CALLS]f[ARGS]{", "[TOOL_CALLS]f[CALL_ID]1[ARGS]5"],
    "kimi": ["<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"],
    "invoke": [
        '<invoke name="f"><parameter name="a">1</parameter>',  # it has no end
        '<minimax:tool_call>\n<invoke name="f">1</invoke>\n</minimax:tool_call>',
    ],
    "llama": ['{"name": "f", "parameters": 5}'],
    "gemma": ["<|tool_call>call:f{a:<tool_call|>", '<|tool_call>call:f{a:<|"|>x<tool_call|>'],
    "lfm2": [
        "<|tool_call_start|>[f(1)]<|tool_call_end|>",
        "<|tool_call_start|>[f(a=open('x'))]<|tool_call_end|>",
        "<|tool_call_start|>[f(**{'a': 1})]<|tool_call_end|>",
        "<|tool_call_start|>[f(a={[]: 1})]<|tool_call_end|>",
        "<|tool_call_start|>" + "(" * 20_000,
        "<|tool_call_start|>[f(a=" + "-" * 20_000 + "1)]",
    ],
    "harmony": ['to=functions.f<|channel|>commentary json<|message|>{"a":'],
}


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in FAULTY.items() for text in texts])
def test_a_call_that_cannot_be_read_is_a_fault_and_never_an_exception(form: str, text: str) -> None:
    _, calls, faults = find_calls(form, text)
    assert calls == []
    assert len(faults) == 1
    assert FAULTY.keys() == CALL_FORMATS.keys()


def test_a_call_of_llama_may_begin_with_its_type() -> None:
    content, calls, _ = find_calls("llama", '{"type": "function", "name": "f", "parameters": {"a": 1}}')
    assert ([each["function"] for each in calls], content) == ([{"name": "f", "arguments": {"a": 1}}], "")
    assert find_calls("llama", '{"type": "sum", "name": "f"}') == ('{"type": "sum", "name": "f"}', [], [])


@pytest.mark.parametrize(
    ("form", "part"),
    [
        *[("llama", " "), ("harmony", " to=functions.f"), ("harmony", "to=functions."), ("hermes", "<tool_call>{")],
        *[
            ("glm", "<tool_call>f<arg_key>"),
            ("glm", "<arg_key>a</arg_key><arg_value>"),
            ("gemma", "<|tool_call>call:f"),
        ],
        *[
            ("mistral_args", "[TOOL_CALLS]f[ARGS]"),
            ("kimi", "<|tool_call_begin|>functions.f:0"),
            ("invoke", '<invoke name="f">'),
            ("invoke", '<parameter name="a">'),
            ("invoke", "<minimax:tool_call> "),
        ],
        *[("qwen_xml", "<parameter=a>"), ("lfm2", "<|tool_call_start|>"), ("mistral", "[TOOL_CALLS]")],
    ],
)
def test_the_time_to_look_for_calls_grows_with_the_length_of_the_turn_alone(form: str, part: str) -> None:
    """Four times the text takes four times as long. A pattern that backtracks takes sixteen times as long, or more."""
    opening, closing = {
        "glm": ("<tool_call>f", "</tool_call>"),
        "qwen_xml": ("<tool_call><function=f>", "</function></tool_call>"),
        "invoke": ('<invoke name="f">', "</invoke>"),
    }.get(form, ("", ""))

    def seconds(length: int) -> float:
        began = process_time()
        find_calls(form, opening + part * (length // len(part)) + closing)
        return process_time() - began

    assert min(seconds(40_000) for _ in range(3)) < 10 * max(min(seconds(10_000) for _ in range(3)), 0.005)


def test_values_without_quotes_have_the_types_of_the_tools_arguments() -> None:
    written = "".join(
        f"<parameter={name}>\n{value}\n</parameter>"
        for name, value in {"title": "5", "seats": "5", "window": "False", "other": "x"}.items()
    )
    text = f"I book.<tool_call><function=book>{written}</function></tool_call>"
    content, calls, _ = find_calls("qwen_xml", text, TOOLS)
    assert calls[0]["function"]["arguments"] == {"title": "5", "seats": 5, "window": False, "other": "x"}
    assert content == "I book."


def test_lists_of_python_calls_may_have_values_of_python_and_of_json() -> None:
    text = '<|tool_call_start|>[f(a=[True, true], b={"c": null, "d": \'e\'}), g.h()]<|tool_call_end|>Yes.'
    content, calls, _ = find_calls("lfm2", text)
    assert [each["function"] for each in calls] == [
        {"name": "f", "arguments": {"a": [True, True], "b": {"c": None, "d": "e"}}},
        {"name": "g.h", "arguments": {}},
    ]
    assert content == "Yes."


@pytest.mark.parametrize("name", ["gemma4", "gptoss"])
def test_a_call_in_a_thought_is_no_call_where_a_model_marks_thoughts_in_another_way(name: str) -> None:
    template = template_of(name, TOOLS)
    inner = template._written({"role": "assistant", "content": "", "tool_calls": [call("one")]})
    inner = inner.replace("<|call|>", "")
    opening, closing = {
        "gemma4": ("<|channel>thought\n", "\n<channel|>"),
        "gptoss": ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    }[name]
    ids = template.tokenizer.encode(f"{opening}{inner}{closing}No.", add_special_tokens=False)
    message = template.parse(ids, []).message
    assert message["content"] == "No."
    assert "tool_calls" not in message
    assert "book" in message["reasoning_content"]


def test_the_tables_of_the_page_are_up_to_date() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2]
    if f"TRL {version('trl')}:" not in written:
        pytest.skip(f"the page is about another version of TRL than {version('trl')}")
    assert written.strip() == tables().strip()
    assert set(names()) <= set(re.findall(r"\w+", written))
