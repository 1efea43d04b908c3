"""Preferences and rated answers in TRL's formats, for a reward model."""

import pytest

from outdo.data.files import read_rows
from outdo.extras.reward_models.preferences import comparisons_from, describe_format, detect_kind
from outdo.rewards.comparisons import Comparison
from outdo.utils.errors import UserError

ASKED = {"role": "user", "content": "2+2?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in "45")
SHAREGPT = {"from": "human", "value": "2+2?"}


@pytest.mark.parametrize(
    ("row", "prompt", "answers", "name"),
    [
        ({"prompt": "2+2?", "chosen": "4", "rejected": "5"}, "2+2?", ("4", "5"), "preference"),
        ({"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}, (ASKED,), ("4", "5"), "preference"),
        ({"chosen": "2+2 is 41", "rejected": "2+2 is 45"}, "2+2 is", (" 41", " 45"), "preference, implicit prompt"),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, (ASKED,), ("4", "5"), "preference, implicit prompt"),
        (
            {
                "chosen": [SHAREGPT, {"from": "gpt", "value": "4"}],
                "rejected": [SHAREGPT, {"from": "gpt", "value": "5"}],
            },
            (ASKED,),
            ("4", "5"),
            "preference, implicit prompt",
        ),
        (
            {"instruction": "Add.", "input": "2+2", "chosen": "4", "rejected": "5"},
            "Add.\n\n2+2",
            ("4", "5"),
            "preference",
        ),
    ],
    ids=str,
)
def test_pairs_of_each_format(row, prompt, answers, name, written):
    path = written([row])
    assert comparisons_from(path, "pairs", {}) == [Comparison(prompt=prompt, completions=answers, values=(1.0, 0.0))]
    assert describe_format(read_rows(path), "pairs", {}) == name


def test_unpaired_preferences_are_rated_answers(written):
    rows = [{"prompt": [ASKED], "completion": [each], "label": each is GOOD} for each in (GOOD, BAD)]
    path = written(rows)
    assert detect_kind(read_rows(path)) == "scored"
    assert comparisons_from(path, "scored", {}) == [
        Comparison(prompt=(ASKED,), completions=("4", "5"), values=(1.0, 0.0))
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": "4", "rejected": "5"}, "have no common beginning, followed by two answers"),
        ({"chosen": [ASKED, GOOD], "rejected": [GOOD]}, "differ in more than their last message"),
        ({"chosen": [ASKED, GOOD], "rejected": "5"}, "neither two texts nor two conversations"),
        (
            {"chosen": [ASKED, GOOD | {"tool_calls": [{"name": "add"}]}], "rejected": [ASKED, GOOD]},
            'column "chosen" ends with a call of tools',
        ),
    ],
    ids=str,
)
def test_answers_without_a_common_prompt_are_refused_with_their_row(row, reason, written):
    path = written([{"chosen": "2+2 is 4", "rejected": "2+2 is 5"}, row])
    with pytest.raises(UserError) as caught:
        comparisons_from(path, "pairs", {})
    assert f"{path}, row 2: " in str(caught.value)
    assert reason in str(caught.value)


def test_an_answer_to_another_question_than_the_prompt_is_refused(written):
    row = {"prompt": "1+1?", "chosen": [ASKED, GOOD], "rejected": "5"}
    with pytest.raises(UserError, match='column "chosen" has other messages before its last one than the prompt'):
        comparisons_from(written([row]), "pairs", {})


def test_a_label_may_be_written_in_words(tmp_path):
    path = tmp_path / "rated.csv"
    path.write_text("prompt,completion,label\n2+2?,4,true\n2+2?,5,False\n")
    (comparison,) = comparisons_from(str(path), "scored", {})
    assert comparison.values == (1.0, 0.0)
