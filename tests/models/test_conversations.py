"""Of a conversation exactly the assistant's turns are learned, as the chat template writes them."""

from pathlib import Path

import pytest

from outdo.extras.sft.conversations import encode_conversation
from outdo.models import prompt_encoding
from outdo.models.prompt_encoding import encode_prompt
from outdo.testing import CHAT_TEMPLATE, byte_bpe_tokenizer
from outdo.utils.errors import ModelError

QUESTIONS, ANSWERS = ("What is 2+2?", "And 3+3?"), ("It is 4.", "It is 6.")
CONVERSATION = [
    {"role": role, "content": text}
    for pair in zip(QUESTIONS, ANSWERS, strict=True)
    for role, text in zip(("user", "assistant"), pair, strict=True)
]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>\n{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETFUL = "{% for m in messages[-2:] %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TOOL = {"type": "function", "function": {"name": "add"}}
READS_TOOLS = "{{ tools | tojson if tools else '' }}" + CHATML


def tokenizer_of(template):
    tokenizer = byte_bpe_tokenizer([*QUESTIONS, *ANSWERS])
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<end_of_turn>"]})
    tokenizer.bos_token = "<|end|>"
    tokenizer.chat_template = template
    return tokenizer


def marked(tokenizer, ids, learned):
    """The text, with brackets around what is learned."""
    text, before = "", False
    for token, own in [*zip(ids, learned, strict=True), (None, False)]:
        text += "«" * (own and not before) + "»" * (before and not own)
        text += str(tokenizer.decode([token])) if token is not None else ""
        before = own
    return text


def encoded(template, messages=CONVERSATION, **how):
    tokenizer = tokenizer_of(template)
    ends = {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|end|>", "<end_of_turn>")}
    return marked(tokenizer, *encode_conversation(tokenizer, messages, **{"end_ids": ends, **how}))


EXPECTED = (
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n«It is 4.<|im_end|>»\n"
    "<|im_start|>user\nAnd 3+3?<|im_end|>\n<|im_start|>assistant\n«It is 6.<|im_end|>»"
)


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marks"])
def test_every_turn_of_the_assistant_is_learned_with_its_end_and_nothing_else(template):
    assert encoded(template) == EXPECTED


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marks"])
def test_turns_that_belong_to_the_prompt_are_not_learned(template):
    assert encoded(template, first=3) == EXPECTED.replace("«It is 4.<|im_end|>»", "It is 4.<|im_end|>")


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["prefixes", "marks"])
def test_what_follows_the_last_answer_is_left_out(template):
    assert encoded(template, [*CONVERSATION, {"role": "user", "content": "Thanks."}]) == EXPECTED


ROLES_END = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content and loop.last %}({{ m.reasoning_content }}){% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_the_role_of_the_next_message_is_learned_where_it_ends_an_answer():
    """As in GLM: without it the model would never learn to stop."""
    tokenizer = tokenizer_of(ROLES_END)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    ends = {tokenizer.convert_tokens_to_ids("<|user|>")}
    thinking = [*CONVERSATION[:-1], {**CONVERSATION[-1], "reasoning_content": "I add."}]
    begin = "<|user|>What is 2+2?<|assistant|>"
    assert (
        marked(tokenizer, *encode_conversation(tokenizer, thinking, end_ids=ends))
        == f"{begin}«It is 4.<|user|>»And 3+3?<|assistant|>«(I add.)It is 6.<|user|>»"
    )
    assert (
        marked(tokenizer, *encode_conversation(tokenizer, thinking))
        == f"{begin}«It is 4.»<|user|>And 3+3?<|assistant|>«(I add.)It is 6.»"
    )


def test_a_token_never_crosses_the_border_of_prompt_and_answer():
    tokenizer = byte_bpe_tokenizer([">>>>" * 20])  # which makes one token of ">>"
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    ids, learned = encode_conversation(
        tokenizer, [{"role": "user", "content": "a>"}, {"role": "assistant", "content": ">b"}]
    )
    assert len(tokenizer.encode(">>")) == 1
    assert marked(tokenizer, ids, learned) == "a>«>b»"


def test_a_template_that_does_not_keep_prefixes_is_refused_with_the_message():
    with pytest.raises(ModelError, match=r"row 3: .* does not keep prefixes: with message 4 it changes what it wrote"):
        encoded(FORGETFUL, where="row 3")


def test_a_template_that_marks_nothing_is_refused():
    nothing = CHATML + "{% if false %}{% generation %}{% endgeneration %}{% endif %}"
    with pytest.raises(ModelError, match=r"leaves nothing to learn of the assistant's messages"):
        encoded(nothing)


SAME = [
    "cohere",
    "cohere2",
    "diffusion_gemma",
    "gemma",
    "gemma3",
    "lfm2",
    "lfm2_v2",
    "llama3",
    "qwen2_5_vl",
    "qwen3_instruct_2507",
    "qwen3_vl",
]
REWRITING = ["deepseek_r1_distill", "nemotron_3_nano", "qwen3", "phi3", "gptoss"]


def template_of(name):
    trl = pytest.importorskip("trl")
    path = Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja"
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAME)
def test_prefixes_find_what_the_marks_of_trls_templates_say(name):
    ends = {"end_ids": {tokenizer_of(None).convert_tokens_to_ids(token) for token in ("<|im_end|>", "<end_of_turn>")}}
    by_marks = encoded(template_of(f"{name}_training"), **ends)
    assert "«" in by_marks
    assert encoded(template_of(name), **ends).replace("»\n", "\n»") == by_marks.replace("»\n", "\n»")


@pytest.mark.parametrize("name", REWRITING)
def test_models_whose_templates_rewrite_earlier_turns_are_refused_without_marks(name):
    assert encoded(template_of(f"{name}_training")).count("«") == 2
    with pytest.raises(ModelError, match="does not keep prefixes"):
        encoded(template_of(name))


# --------------------------------------------------------------------------------------------------------------- tools


def test_tools_are_written_into_the_prompt():
    tokenizer = tokenizer_of(READS_TOOLS)
    prompt = str(tokenizer.decode(encode_prompt(tokenizer, QUESTIONS[0], tools=[TOOL])))
    assert prompt.startswith('[{"type": "function", "function": {"name": "add"}}]<|im_start|>user')
    assert encoded(READS_TOOLS, tools=[TOOL]).startswith('[{"type": "function"')


@pytest.mark.parametrize("how", [{}, {"template": "Q: {prompt}"}], ids=["chat template", "prompt template"])
def test_tools_that_nothing_reads_are_refused(how):
    with pytest.raises(
        ModelError, match=r"row 3 has tools, .*; use a model with such a template, or remove the column"
    ):
        encode_prompt(tokenizer_of(CHATML), QUESTIONS[0], tools=[TOOL], where="row 3", **how)
    with pytest.raises(ModelError, match="which the model's chat template does not read"):
        encoded(CHATML, tools=[TOOL])


# --------------------------------------------------------------------------------------------------- hostile templates


@pytest.mark.parametrize(
    "body",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{{ messages[99].content.x.y }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
    ids=["endless", "arithmetic", "undefined", "recursion"],
)
def test_a_chat_template_that_fails_or_does_not_end_is_one_sentence(body, monkeypatch):
    monkeypatch.setattr(prompt_encoding, "LONGEST_RENDERING", 0.5)
    with pytest.raises(ModelError, match="row 3: the model's chat template refused it: ") as caught:
        encode_prompt(tokenizer_of(body + CHAT_TEMPLATE), "Hi", where="row 3")
    assert "endless" not in body or "within 0.5 seconds" in str(caught.value)


def test_a_chat_template_has_a_limit_of_time(monkeypatch):
    """This one would end by itself, after some seconds."""
    monkeypatch.setattr(prompt_encoding, "LONGEST_RENDERING", 0.1)
    body = "{% for i in range(500) %}{% for j in range(60000) %}{% endfor %}{% endfor %}"
    with pytest.raises(ModelError, match=r"row 3: .* it did not end within 0.1 seconds"):
        encode_prompt(tokenizer_of(body + CHAT_TEMPLATE), "Hi", where="row 3")
