"""Test that the tokens between two turns are those of the model's own template, or refused in one sentence."""

import pytest
from episode_cases import ASSISTANT, CALLS, LOOP, OPENING, OTHER, RESULT, TEMPLATE, TOOLS, call, tool_template

from outdo.extras.episodes.template import Template
from outdo.utils.errors import ModelError

RESULTS = [
    {"role": "tool", "name": "add", "tool_call_id": "call00000", "content": "5"},
    {"role": "tool", "name": "add", "tool_call_id": "call00001", "content": "9"},
]
USER = {"role": "user", "content": "Again."}
TWO_CALLS = call("add", a=2, b=3) + call("add", a=4, b=5)


def turn(template: Template, text: str, *, ended: bool = True) -> list[int]:
    """The token ids of a turn that the policy samples."""
    return template.tokenizer.encode(text + "<|end|>" * ended, add_special_tokens=False)


def following(template: Template, said: str, messages: list[dict[str, str]], *, ended: bool = True) -> str:
    return str(template.tokenizer.decode(template.following(turn(template, said, ended=ended), messages)))


def test_prompt_turn_and_what_follows_are_together_what_the_template_writes() -> None:
    template = tool_template()
    asked = [{"role": "user", "content": "What is 2 + 3?"}]
    calls = template.parse(turn(template, call("add", a=2, b=3)), template.prompt(asked)).message
    ids = template.prompt(asked) + turn(template, call("add", a=2, b=3))
    ids += template.following(turn(template, call("add", a=2, b=3)), RESULTS[:1])
    assert ids == template.prompt([*asked, calls, RESULTS[0]])


def test_a_truncated_turn_is_closed_first() -> None:
    assert following(tool_template(), "Ye", [USER], ended=False) == "<|end|>\n<|user|>Again.<|end|>\n<|assistant|>"


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("keeps_prefix", TEMPLATE.replace("<|assistant|>{{", "<|assistant|>{% if loop.last %}#{% endif %}{{")),
        (
            "keeps_thinking",
            TEMPLATE.replace("message.content or ''", "message.content.split('</think>')[-1] if message.content"),
        ),
        ("json_arguments", TEMPLATE.replace("call.function | tojson", "call.function | string")),
        (
            "independent",
            TEMPLATE.replace(
                "<tool_response>", "{{ messages[1].tool_calls[0].function.arguments.text | length }}<tool_response>"
            ),
        ),
        (
            "parallel",
            TEMPLATE.replace(
                "<tool_response>", "{% if loop.first or loop.previtem.role != 'tool' %}<tool_response>"
            ).replace("</tool_response>", "</tool_response>{% endif %}"),
        ),
    ],
)
def test_each_property_is_found_where_it_holds_and_where_it_is_broken(name: str, template: str) -> None:
    properties = tool_template().properties
    assert all(getattr(properties, each) for each in properties.__slots__)
    broken = _template_without_format(template).properties
    assert [each for each in broken.__slots__ if not getattr(broken, each)] == [name]


def _template_without_format(text: str) -> Template:
    template = tool_template()
    template.tokenizer.chat_template = text
    return template


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LOOP + ASSISTANT + RESULT + OTHER + OPENING, "template does not read; use .* or an environment of your own"),
        (TOOLS + LOOP + ASSISTANT + OTHER.replace("{% else %}", "{% elif message.role != 'tool' %}") + OPENING, "tool"),
        (TEMPLATE.replace("<tool_call>", "CALL:"), "in a format that outdo cannot read"),
        (TEMPLATE.replace("<|end|>", ""), "does not end the assistant's turn"),
        (TEMPLATE.replace("<|end|>\n{% elif", "{% if loop.last %}.{% endif %}<|end|>\n{% elif"), "changes a turn"),
    ],
)
def test_a_template_that_is_not_exact_is_refused_in_one_sentence(template: str, reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as error:
        tool_template(template).check()
    assert len(str(error.value).splitlines()) == 1


def test_a_call_in_a_thought_is_no_call() -> None:
    template = tool_template()
    parsed = template.parse(turn(template, f"<think>{TWO_CALLS}</think>Five."), [])
    assert parsed.message == {"role": "assistant", "content": "Five.", "reasoning_content": TWO_CALLS}
    cut = template.parse(turn(template, TWO_CALLS, ended=False), turn(template, "<think>\n", ended=False))
    assert "tool_calls" not in cut.message


def writer(call: str, before: str = "", after: str = "") -> str:
    each = f"{before}{{% for call in message.tool_calls %}}{call}{{% endfor %}}{after}"
    return f"{{% if message.tool_calls %}}{each}{{% endif %}}<|end|>\n"


NAME, ARGUMENTS = "{{ call.function.name }}", "{{ call.function.arguments | tojson }}"
INVOKE = (
    f'<invoke name="{NAME}">\n{{% for key, value in call.function.arguments.items() %}}'
    '<parameter name="{{ key }}">{{ value }}</parameter>\n{% endfor %}</invoke>\n'
)
DSML = (
    INVOKE.replace("<invoke", "<｜DSML｜invoke").replace("<parameter", "<｜DSML｜parameter").replace("</", "</｜DSML｜")
)
WRITERS = {
    "mistral": writer("", "[TOOL_CALLS]{{ message.tool_calls | map(attribute='function') | list | tojson }}"),
    "llama": writer(f'{{"name": "{NAME}", "parameters": {ARGUMENTS}}}'),
    "mistral_args": writer(f"[TOOL_CALLS]{NAME}[CALL_ID]call00000[ARGS]{ARGUMENTS}"),
    "kimi": writer(
        f"<|tool_call_begin|>functions.{NAME}:0<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|>",
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "invoke": writer(INVOKE, "<minimax:tool_call>\n", "</minimax:tool_call>"),
    "invoke, DSML": writer(DSML, "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
}
"""How the templates of models write the calls of a turn."""


@pytest.mark.parametrize("models", WRITERS)
def test_the_format_of_the_calls_is_the_one_that_the_template_writes(models: str) -> None:
    template = tool_template(TEMPLATE.replace(CALLS, WRITERS[models]))
    functions = [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "add", "arguments": {"a": 4, "b": 5}}]
    functions = functions[: 1 if models == "llama" else 2]
    written = template._written(
        {"role": "assistant", "content": "I add.", "tool_calls": [{"function": function} for function in functions]}
    )
    written = written.removesuffix("<|end|>\n").removeprefix("I add." if models == "llama" else "")
    parsed = template.parse(template.tokenizer.encode(written, add_special_tokens=False), [])
    assert template.call_format == models.partition(",")[0]
    assert [read["function"] for read in parsed.message["tool_calls"]] == functions
    assert (parsed.message["content"], parsed.faults) == ("" if models == "llama" else "I add.", [])
