"""The standard formats of data to fine-tune on are found by their columns, and read as their authors mean them."""

import pytest

from outdo.extras.sft.sft_examples import SftExample, encode_examples, read_examples
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import UserError

ASKED = {"role": "user", "content": "2+2?"}
ANSWERED = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
SYSTEM = {"role": "system", "content": "Add."}

FORMATS = {
    "language modeling (standard)": ({"text": "2+2=4"}, "", "2+2=4"),
    "language modeling (conversational)": ({"messages": [ASKED, ANSWERED]}, (), (ASKED, ANSWERED)),
    "prompt-completion (standard)": ({"prompt": "2+2?", "completion": "4"}, "2+2?", "4"),
    "prompt-completion (conversational)": ({"prompt": [ASKED], "completion": [ANSWERED]}, (ASKED,), (ANSWERED,)),
    "preference (standard)": ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, "2+2?", "4"),
    "preference (conversational)": (
        {"prompt": [ASKED], "chosen": [ANSWERED], "rejected": [WRONG]},
        (ASKED,),
        (ANSWERED,),
    ),
    "preference, implicit prompt (standard)": ({"chosen": "2+2 is 4", "rejected": "2+2 is 5"}, "2+2 is", " 4"),
    "preference, implicit prompt (conversational)": (
        {"chosen": [ASKED, ANSWERED], "rejected": [ASKED, WRONG]},
        (ASKED,),
        (ANSWERED,),
    ),
    "unpaired preference (standard)": ({"prompt": "2+2?", "completion": "4", "label": True}, "2+2?", "4"),
    "unpaired preference (conversational)": (
        {"prompt": [ASKED], "completion": [ANSWERED], "label": True},
        (ASKED,),
        (ANSWERED,),
    ),
    "Alpaca (standard)": ({"instruction": "Add.", "input": "2+2", "output": "4"}, "Add.\n\n2+2", "4"),
    "Alpaca (conversational)": (
        {"instruction": "2+2?", "input": "", "output": "4", "system": "Add.", "history": [["1+1?", "2"]]},
        (SYSTEM, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}, ASKED),
        (ANSWERED,),
    ),
    "ShareGPT (conversational)": (
        {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}], "system": "Add."},
        (),
        (SYSTEM, ASKED, ANSWERED),
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_standard_format_is_named_and_read(name, written):
    row, prompt, completion = FORMATS[name]
    path = written([row])
    examples, notes = read_examples(path)
    assert f"{path}: 1 example; format: {name}; learned: " in notes[0]
    assert [(each.prompt, each.completion) for each in examples] == [(prompt, completion)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "chosen": [SYSTEM, ASKED, ANSWERED], "rejected": [SYSTEM, ASKED, WRONG]},
        {"prompt": [ASKED], "chosen": [SYSTEM, ASKED, ANSWERED], "rejected": "5"},
        {"system": "Add.", "question": "2+2?", "chosen": "4", "rejected": "5"},
        {"system": "Add.", "prompt": "2+2?", "chosen": [ASKED, ANSWERED], "rejected": [ASKED, WRONG]},
        {"prompt": [SYSTEM], "completion": [ASKED, ANSWERED]},
        {"system": "Add.", "question": "2+2?", "response": "4"},
        {"system": "Add.", "prompt": [SYSTEM, ASKED], "completion": [ANSWERED]},
    ],
)
def test_a_system_message_is_read_where_it_stands(row, written):
    (example,) = read_examples(written([row]))[0]
    assert (*example.prompt, *example.completion) == (SYSTEM, ASKED, ANSWERED)


def test_the_prompt_that_a_chosen_answer_repeats_may_have_other_spaces(written):
    row = {"prompt": "2+2? ", "chosen": [ASKED, ANSWERED], "rejected": [ASKED, WRONG]}
    (example,) = read_examples(written([row]))[0]
    assert example.prompt == ({"role": "user", "content": "2+2? "},)
    assert example.completion == (ANSWERED,)


def test_a_row_without_a_label_is_a_fault_where_others_have_one(written):
    rows = [{"prompt": "2+2?", "completion": "5", "label": False}, {"prompt": "2+2?", "completion": "4"}]
    with pytest.raises(UserError, match=r'row 2: column "label" is None, expected true or false'):
        read_examples(written(rows))


CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Paris"}', {"city": "Paris"}, {"city": "Paris", "expr": None}],
    ids=["text", "object", "null"],
)
def test_arguments_of_a_call_are_an_object_without_nulls(arguments, written):
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    asked = [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]
    (example,) = read_examples(written([{"messages": asked}]))[0]
    assert example.completion[1]["tool_calls"] == [CALL]


def test_answers_labelled_false_are_left_out_and_counted(written):
    rows = [{"prompt": "2+2?", "completion": text, "label": text == "4"} for text in "4567"]
    examples, notes = read_examples(written(rows))
    assert [each.completion for each in examples] == ["4"]
    assert notes[1].endswith("left out: 3 answers labelled false")


def test_parts_of_a_message_that_are_null_or_text_are_read(written):
    call = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    messages = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}],
            "tool_calls": None,
        },
        {"role": "assistant", "content": None, "tool_calls": call},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    (example,), _ = read_examples(written([{"messages": messages}]))
    assert example.completion == (
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": call},
        {"role": "tool", "content": "4"},
        ANSWERED,
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [ASKED]}, 'column "messages" has no answer by the assistant'),
        ({"messages": [{"role": "user"}]}, 'column "messages" is neither text nor a list of messages'),
        ({"messages": [ASKED, {"role": "assistant", "content": [{"type": "image"}]}]}, "parts that are not text"),
        ({"messages": [ASKED, ANSWERED], "tools": 7}, 'column "tools" is neither a list of JSON schemas'),
        ({"messages": [ASKED, ANSWERED | {"weight": 0}]}, 'has a message with "weight": 0'),
    ],
    ids=str,
)
def test_a_faulty_row_is_reported_with_its_number_and_reason(row, reason, written):
    with pytest.raises(UserError) as caught:
        read_examples(written([{"messages": [ASKED, ANSWERED]}, row]))
    assert len(caught.value.problems) == 1
    assert "row 2: " in caught.value.problems[0]
    assert reason in caught.value.problems[0]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "2+2?"}, "no column looks like the answers to learn; name it: --answer NAME (columns: prompt)"),
        ({"prompt": [ASKED], "completion": [ASKED]}, "the completion has no message by the assistant"),
        ({"chosen": "4", "rejected": "5"}, 'the columns "chosen" and "rejected" have no common beginning'),
        *[
            (
                {"prompt": prompt, "chosen": [*system, ASKED, ANSWERED], "rejected": "5"},
                'column "chosen" begins with other messages than the prompt',
            )
            for prompt, system in (("1+1?", ()), ([SYSTEM, ASKED], ({"role": "system", "content": "Multiply."},)))
        ],
    ],
    ids=str,
)
def test_what_cannot_be_learned_is_refused_with_the_reason(row, reason, written):
    with pytest.raises(UserError, match=r".*") as caught:
        read_examples(written([row]))
    assert reason in str(caught.value)


# ------------------------------------------------------------------------------------------------------------ encoding


def encoded(example, *, chat, **how):
    tokenizer = byte_bpe_tokenizer(["2+2? 4"], chat=chat)
    (tokens,) = encode_examples([example], tokenizer, **{"end_ids": {tokenizer.eos_token_id}, **how})
    pairs = list(zip(tokens.token_ids, tokens.learned, strict=True))
    return tuple(str(tokenizer.decode([token for token, own in pairs if own is learned])) for learned in (False, True))


def test_a_text_pair_is_one_question_and_one_answer_for_a_chat_model():
    pair = SftExample(where="row 1", prompt="2+2?", completion="4")
    assert encoded(pair, chat=True) == ("<|user|>2+2?<|end|><|assistant|>", "4<|end|>")
    assert encoded(pair, chat=False) == ("2+2?", "4<|end|>")
    assert encoded(pair, chat=True, template="Q: {prompt} A:") == ("Q: 2+2? A:", "4<|end|>")


def test_of_plain_text_every_token_but_the_first_is_learned():
    assert encoded(SftExample(where="row 1", prompt="", completion="2+2"), chat=True) == ("2", "+2<|end|>")


def test_examples_that_are_too_long_are_left_out_whole():
    short, long = (SftExample(where="", prompt="2?", completion="4" * length) for length in (1, 50))
    tokenizer = byte_bpe_tokenizer([""])
    assert len(encode_examples([short, long, short], tokenizer, max_tokens=20)) == 2
    with pytest.raises(UserError, match=r"no example of 1 fits into the model's context of 20 tokens"):
        encode_examples([long], tokenizer, max_tokens=20)
