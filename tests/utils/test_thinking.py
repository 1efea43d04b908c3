"""What is thinking in the text of a turn, and what a prompt has written of the answer already."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.utils.thinking import opens_thinking, prefill_of, split_thinking, without_thinking

PAIRS = [
    ("<think>", "</think>"),
    ("<THINK >", "</Think >"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]


@pytest.mark.parametrize(("begin", "end"), PAIRS)
def test_thinking_of_every_kind_is_found_cut_or_closed_and_begun_by_the_prompt_or_not(begin: str, end: str) -> None:
    assert without_thinking(f"{begin}It is 42.") == ""
    assert without_thinking(f"{begin}It is 42.{end}It is 7.") == "It is 7."
    assert without_thinking(f"It is 42.{end}It is 7.") == "It is 7."
    assert without_thinking(f"It is 7.{begin}Or 42") == "It is 7."
    assert without_thinking(f"{begin}1{end}2{begin}3{end}4") == "4"
    assert split_thinking(f"{begin}It is 42.")[0] == "It is 42."
    assert split_thinking(f"{begin}It is 42.{end}It is 7.")[0].startswith("It is 42.")
    for prompt in (f"Q?<|assistant|>{begin}", f"Q?\n{begin}\n\n"):
        prefill = prefill_of(prompt)
        assert (prefill.strip(), opens_thinking(prefill)) == (begin.strip(), True)
    assert not opens_thinking(f"{begin}{end}")


def test_a_tool_call_of_gpt_oss_is_no_answer() -> None:
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 42}<|call|>'
    assert without_thinking(call) == ""
    assert without_thinking("<|channel|>final <|constrain|>json<|message|>42") == "42"


@given(st.text())
def test_a_text_without_tags_has_no_thinking(text: str) -> None:
    plain = text.replace("<", "").replace("[", "").replace("◁", "")
    assert split_thinking(plain) == ("", plain)


@pytest.mark.parametrize(
    ("prompt", "prefill"),
    [
        ("Q?<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("Q?<|im_start|>assistant\n<think>\n\n</think>\n\n", "<think>\n\n</think>\n\n"),
        ("Q?<|Assistant|></think>", "</think>"),
        ("Q?<|Assistant|><think></think><answer>", "<think></think><answer>"),
        ("Q? <answer>", "<answer>"),
        ("A: ```python\n", "```python\n"),
        (r"The answer is \boxed{", r"\boxed{"),
        ("Write <think> and </think>.", ""),
        ("Use <think> first.\nAssistant:", ""),
        ("```\ncode\n```\n", ""),
        ("", ""),
    ],
)
def test_the_tags_at_the_end_of_a_prompt_are_its_prefill(prompt: str, prefill: str) -> None:
    assert prefill_of(prompt) == prefill


def test_the_last_message_of_the_assistant_is_the_prefill_where_the_prompt_goes_on_with_it() -> None:
    question = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "Okay, so "}]
    assert prefill_of("Q?<|assistant|><think>\nOkay, so", question) == "<think>\nOkay, so"
    assert prefill_of("Q?<|assistant|>Okay, so ", question) == "Okay, so "
    assert prefill_of("Q?<|assistant|>Okay, so<|end|><|assistant|>", question) == ""
    assert prefill_of("Q?<|assistant|>Q?", question[:1]) == ""


@pytest.mark.parametrize("tag", ["<think>", "<think", "<|channel|>analysis", "</think >", "<answer>", " ", "```"])
def test_a_text_of_nothing_but_tags_is_read_once(tag: str) -> None:
    """A pattern that looks for the end of every tag again would take hours."""
    split_thinking(tag * 100_000)
    prefill_of(tag * 100_000)
