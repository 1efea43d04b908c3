"""Question files in the formats of TRL, Alpaca and ShareGPT: question, reference and tools."""

import json

import pytest

from outdo.config.file import load
from outdo.data.questions import questions_from
from outdo.data.splits import load_questions
from outdo.utils.errors import UserError

ASKED = {"role": "user", "content": "2+2?"}
ANSWERED = {"role": "assistant", "content": "4"}
TOOL = {"type": "function", "function": {"name": "add", "description": None}}
WITHOUT_NULL = {"type": "function", "function": {"name": "add"}}


def of(path, *overrides):
    return load_questions(load(None, ["model=m", f"data.path={path}", *overrides]))


@pytest.mark.parametrize(
    ("row", "text", "answer"),
    [
        ({"prompt": "2+2?"}, "2+2?", None),
        ({"prompt": [ASKED], "completion": [ANSWERED]}, (ASKED,), "4"),
        ({"prompt": "2+2?", "completion": "4", "label": True}, "2+2?", None),
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, "2+2?", None),
        ({"messages": [ASKED, ANSWERED]}, (ASKED,), "4"),
        ({"messages": [ASKED, ANSWERED], "answer": "four"}, (ASKED,), "four"),
        ({"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}, (ASKED,), "4"),
        ({"instruction": "Add.", "input": "2+2", "output": "4"}, "Add.\n\n2+2", "4"),
    ],
    ids=str,
)
def test_question_and_reference_of_each_format(row, text, answer, written):
    (question,) = questions_from(written([row]))
    assert (question.text, question.answer) == (text, answer)


def test_a_conversation_that_lacks_the_answer_which_others_have_is_a_fault(written):
    with pytest.raises(UserError, match=r'row 2: column "messages" does not end with an answer by the assistant'):
        questions_from(written([{"messages": [ASKED, ANSWERED]}, {"messages": [ASKED]}]))


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [json.dumps(TOOL)]], ids=["list", "text", "texts"])
def test_tools_are_read_and_noted(tools, written):
    path = written(
        [{"prompt": "2+2?", "answer": "4", "tools": tools}, {"prompt": "3+3?", "answer": "6", "tools": None}]
    )
    questions = of(path)
    assert [question.tools for question in questions.train] == [(WITHOUT_NULL,), ()]
    assert questions.notes[0].endswith("; 1 with tools, which the chat template writes into the prompt")


@pytest.mark.parametrize("tools", [7, [7], {"a": 1}], ids=str)
def test_a_column_of_tools_that_is_none_is_a_fault(tools, written):
    with pytest.raises(
        UserError, match=r'row 1: column "tools" is neither a list of JSON schemas nor JSON text of one'
    ):
        questions_from(written([{"prompt": "2+2?", "tools": tools}]))
