"""The rule that all matchers share: tag, mark, box, end of the text; thinking is never the answer."""

import pytest

from outdo.rewards.final_answer import FinalAnswer, after_cue, final_answer, reference_text


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("<think>18</think><answer>banana</answer>", "banana"),
        ("<answer>17</answer> no, <answer> 18 </answer> dollars", "18"),
        (r"<answer>so \boxed{18}</answer> and \boxed{19}", "18"),
        ("<answer>#### 18</answer>", "18"),
        ("#### 18\n\nQuestion: 7 ducks", "18"),
        ("18, so the answer is ####\n5", "5"),
        (r"#### 18 \boxed{19}", "19"),
        (r"\boxed{7} no wait \boxed{18}", "18"),
        (r"\boxed{\frac{1}{\sqrt{2}}} \boxed{}", r"\frac{1}{\sqrt{2}}"),
        (r"so $\boxed 18$", "18"),
    ],
)
def test_a_tag_a_mark_or_a_box_states_the_answer(completion: str, text: str):
    assert final_answer(completion) == FinalAnswer(text, stated=True)


@pytest.mark.parametrize(
    "heading", ["Answer", "Step 3: totals", "**Solution**", "1. Count the eggs", "Wait, let me check"]
)
def test_a_markdown_heading_is_no_mark(heading: str):
    assert final_answer(f"#### {heading}\n\nThe total is 18.") == FinalAnswer(
        f"#### {heading}\n\nThe total is 18.", stated=False
    )
    assert final_answer(f"#### {heading}\nIt is \\boxed{{18}}") == FinalAnswer("18", stated=True)


@pytest.mark.parametrize(
    "completion", ["", " \n", "<think>18", "<think>18</think>", "<answer> </answer> 18", "18 ####", "<think>#### 18"]
)
def test_a_completion_may_have_no_answer(completion: str):
    assert final_answer(completion) is None


def test_prose_begins_after_the_thinking():
    assert final_answer("<think>17</think> It is 18.") == FinalAnswer("It is 18.", stated=False)
    assert final_answer("17</think> It is 18. <think>Or 19?") == FinalAnswer("It is 18.", stated=False)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("The answer is 7. I checked it 3 times.", ["7"]),
        ("**Answer:** 18", ["18"]),
        ("The answer is 1.5 or so. No, the answer should be $2.5$!", ["$2.5$", "1.5 or so"]),
        ("The answer is:\n\\[\n18\n\\]\nDone.", ["\\[\n18\n\\]"]),
        ("I cannot answer this", []),
    ],
)
def test_the_sentence_after_the_answer_is_has_priority_in_prose(text: str, sentences: list[str]):
    assert list(after_cue(text)) == sentences


def test_a_reference_may_be_a_worked_solution():
    assert reference_text("9 * 2 = 18\n#### 18") == "18"
    assert reference_text(r"so it is \boxed{x+1}.") == "x+1"
    assert reference_text("<answer> 18 </answer>") == "18"
    assert reference_text(18) == "18"
    for nothing in (None, "", " "):
        with pytest.raises(ValueError, match="the reference answer is empty"):
            reference_text(nothing)
