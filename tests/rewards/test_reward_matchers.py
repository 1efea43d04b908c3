"""exact, last_number, math, multiple_choice and format: right and wrong answers, and texts that are no answer."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outdo.rewards import RewardInput, load_reward
from outdo.rewards.exact import exact
from outdo.rewards.format import format
from outdo.rewards.last_number import last_number
from outdo.rewards.matchers import MATCHERS as READERS
from outdo.rewards.matchers import matcher_called
from outdo.rewards.math import math
from outdo.rewards.multiple_choice import multiple_choice
from outdo.utils.errors import UserError
from outdo.utils.thinking import prefill_of

ROOT = Path(__file__).parents[2]
MATCHERS = {"exact": exact, "last_number": last_number, "math": math}
TABLE = re.findall(r"^\| `(.+?)` \| `(.+?)` \| ([01]) \| ([01]) \|", (ROOT / "docs/rewards.md").read_text(), re.M)


@pytest.fixture(scope="module")
def gsm8k() -> list[str]:
    """The reference solutions: of the whole files if `OUTDO_GSM8K` names their folder, otherwise of the excerpt."""
    folder = os.environ.get("OUTDO_GSM8K")
    files = (
        [Path(folder) / "train.jsonl", Path(folder) / "test.jsonl"] if folder else [ROOT / "examples/gsm8k_100.jsonl"]
    )
    answers = [json.loads(line)["answer"] for file in files for line in file.read_text("utf-8").splitlines()]
    assert len(answers) == (8792 if folder else 100)
    return answers


@pytest.mark.parametrize("matcher", MATCHERS.values(), ids=MATCHERS.keys())
def test_the_reference_solutions_of_gsm8k_are_all_right(matcher: Callable[[str, str], bool], gsm8k: list[str]):
    assert [answer for answer in gsm8k if not matcher(answer, answer)] == []
    assert [answer for answer in gsm8k if not matcher(answer, answer.rpartition("####")[2].strip())] == []


@pytest.mark.parametrize("matcher", MATCHERS.values(), ids=MATCHERS.keys())
def test_another_questions_solution_is_right_only_if_the_answer_is_the_same(
    matcher: Callable[[str, str], bool], gsm8k: list[str]
):
    final = [answer.rpartition("####")[2].strip().replace(",", "") for answer in gsm8k[:1000]]
    pairs = list(zip(gsm8k, gsm8k[1:], final, final[1:], strict=False))
    assert [mine for mine, theirs, a, b in pairs if matcher(mine, theirs) != (a == b)] == []


@pytest.mark.parametrize(("completion", "reference", "number", "mathematics"), TABLE)
def test_the_documented_table_of_odd_answers_is_correct(completion: str, reference: str, number: str, mathematics: str):
    assert last_number(completion, reference) == bool(int(number))
    assert math(completion, reference) == bool(int(mathematics))


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("7+5=12,4+8+1=13,3+2+1=6#632", "632", True),
        ("working\n#### C#", "C#", True),
        ("#### 1,234", "1234", False),
        ("<think>5</think><answer>632</answer>", "632", True),
        ("<think>632</think><answer>5</answer>", "632", False),
        (r"\boxed{632}", "632", True),
        ("The answer is Paris.", "Paris", True),
        ("The answer is A. The answer is B.", "A", False),  # listing all options is no answer
        ("The answer is A. The answer is B.", "B", True),
        ("The answer is B#A", "A", False),
        ("1632", "632", False),
        ("632", 632.0, True),
        ("632.0", "632", False),
        ("6.5", 6.5, True),
    ],
)
def test_exact_compares_the_final_text_character_by_character(completion: str, answer: object, right: bool):
    assert exact(completion, answer) is right


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("-$1,234.50.", "-1234.5", True),
        ("#### 18\n\nQuestion: 7 ducks", "18", True),
        ("18, so the answer is ####\n5", "5", True),
        (r"\boxed{\$18}", "18", True),
        ("3/4", "4", False),
        ("12,34", "12.34", True),
        ("#### 18 of 20", "20", False),
        (r"\boxed{\frac{1}{2}}", "0.5", True),
        ("no number", "18", False),
        (r"\boxed{x+1}", "1", False),
        ("The answer is 18 — that is how many eggs she has.", "18", True),
        ("So the total is 18—done.", "18", True),
        ("It is 18 – the total.", "18", True),
        ("It is 18 - x", "18", False),
        ("It is 18 – 5", "18", False),
        ("It is 18 - sqrt(2)", "18", False),
        ("9 * 2 => 18", "18", True),
        ("9 * 2 -> 18", "18", True),
        (r"9 * 2 \Rightarrow 18", "18", True),
        (r"\lim_{x \to 18} f", "18", False),
        ("x >= 18", "18", False),
        ("He earns $18/hour.", "18", True),
        ("18/pi", "18", False),
        (r"\boxed{(1,234)}", "1234", False),  # a point, or an interval
        ("#### 1.234,50", "5", False),
        ("The answer is 3 hours 20 minutes.", "3", False),
        ("It takes 3 hours and 20 minutes.", "20", False),
        ("In 3 days 18 feet of snow fell.", "18", True),
        ("The answer is 2 and a half hours.", "2", False),
        (r"\boxed{5i}", "5", False),
        ("It is 18 i think.", "18", True),
        ("#### 3 x 10^8", "300000000", True),
        (r"\boxed{1.5 x 10^{-3}}", "0.0015", True),
    ],
)
def test_last_number_compares_the_final_number(completion: str, answer: object, right: bool):
    assert last_number(completion, answer) is right


@pytest.mark.parametrize(
    ("completion", "reference", "right"),
    [
        (r"\boxed{(3,12)}", "(3,12)", True),
        (r"\boxed{[3,12]}", "(3,12)", False),  # a closed interval is no open one
        (r"\boxed{3.12}", "(3,12)", False),
        (r"\boxed{(5,10)}", "5.1", False),
        (r"\boxed{\{3,12\}}", r"\{12, 3\}", True),
        (r"\boxed{(0.5,12)}", "(0.5,12)", True),
        (r"\boxed{(2.5,10)}", "(2.5, 10)", True),
    ],
)
def test_two_numbers_in_brackets_are_not_one(completion: str, reference: str, right: bool):
    assert math(completion, reference) is right


NUMERALS = st.text(alphabet="0123.,/ ()", max_size=14)


@given(st.text(alphabet="0123456789,./-$%e#\\boxed{}()*^answer: <>k½²\n", max_size=60) | NUMERALS)
@pytest.mark.parametrize("name", READERS)
def test_no_text_raises_an_exception(name: str, text: str):
    matcher_called(name).read(text)


@pytest.mark.parametrize(
    "part", ["(aa", "$", r"\[", "answer: ", "answer is (", "1 ", "9", r"\boxed{}", "#### Step\n", " \n", "1(a"]
)
@pytest.mark.parametrize("name", READERS)
def test_a_long_text_takes_a_time_that_grows_with_its_length(name: str, part: str):
    """Four times the text takes four times as long. A pattern that backtracks takes sixteen times as long, or more."""

    def seconds(length: int) -> float:
        began = process_time()
        matcher_called(name).read(part * (length // len(part)))
        return process_time() - began

    assert min(seconds(120_000) for _ in range(3)) < 10 * max(min(seconds(30_000) for _ in range(3)), 0.005)


@pytest.mark.parametrize(
    ("matcher", "answer"),
    [
        *[(exact, None), (exact, " "), (math, ""), (math, "there is no such number at all")],
        *[
            (last_number, each)
            for each in ("many", r"\frac{1}{2}", "10:30", "2k+2", "2k", "1, 2", "52_8", "3 or 4", "5-3")
        ],
        *[(multiple_choice, each) for each in ("Paris", "A or B", "18", "")],
    ],
)
def test_a_reference_that_cannot_be_compared_is_an_error_not_a_wrong_answer(
    matcher: Callable[[str, object], bool], answer: object
):
    with pytest.raises(ValueError, match="the reference answer"):
        matcher("18", answer)


@pytest.mark.parametrize(
    "reference",
    [
        *[r"\frac{\sqrt{3}}{2}", r"2\pi", "x^2+1", "(1,2)", "2k+2", "2k", "p - q", r"\$18.90", "x=5", "1,-2", "52_8"],
        *[r"\text{Evelyn}", r"\text{(C)}", r"90^\circ", r"\frac43", r"1\frac{4}{5}", r"10,\!080", r"5.4 \text{ cents}"],
        *[r"864 \mbox{ inches}^2", r"1 \pm \sqrt{19}", r"x \in [-2,7]", r"(-\infty, 2) \cup (3, \infty)", ".35625"],
        *[r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", "5x - 7y + 11z + 4 = 0", r"\frac{270}7\text{ degrees}"],
    ],
)
def test_a_reference_may_be_any_latex_without_dollars(reference: str):
    for written in (r"so it is $\boxed{%s}$", "<think>2</think><answer>%s</answer>", "The answer is $%s$.", "#### %s"):
        assert math(written.replace("%s", reference), reference), written
    assert not math(r"\boxed{2}", reference)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        *[("50%", "0.5", True), ("0.5", "50%", True), ("50%", "50", True), ("50", "50%", True), ("50%", "50%", True)],
        *[("0.5%", "50%", False), ("0.5%", "50", False), ("5000%", "50%", False), ("5000", "50%", False)],
        ("0.005", "50%", False),
    ],
)
def test_a_percentage_is_never_a_hundred_times_another_one(answer: str, reference: str, right: bool):
    assert math(answer, reference) is right


@pytest.mark.parametrize("matcher", MATCHERS.values(), ids=MATCHERS.keys())
def test_a_matcher_and_format_can_both_be_1(matcher: Callable[[str, str], bool]):
    right, wrong = "<think>two nines</think><answer>18</answer>", "<think>It is 18</think><answer>banana</answer>"
    assert (matcher(right, "18"), format(right)) == (True, 1.0)
    assert (matcher(wrong, "18"), format(wrong)) == (False, 1.0)


@pytest.mark.parametrize(
    ("completion", "letter", "right"),
    [
        ("<think>A or B?</think><answer>B</answer>", "B", True),
        (r"\boxed{\text{(C)}}", "C", True),
        ("The answer is (b), since A is wrong.", "B", True),
        ("A good answer needs more.", "A", False),
        ("It is not (B).", "B", False),
    ],
)
def test_multiple_choice_compares_the_final_letter(completion: str, letter: str, right: bool):
    assert multiple_choice(completion, letter) is right


@pytest.mark.parametrize("reference", [r"0.\overline{3}", r"A \cup B"])
def test_a_reference_that_math_verify_cannot_read_is_compared_as_text(reference: str):
    assert math(rf"\boxed{{ {reference} }}", reference)
    assert not math(r"\boxed{A \cap B}", reference)


@pytest.mark.parametrize(
    ("reference", "equal", "other"),
    [
        ("18 to 20", r"\boxed{18 to 20}", r"\boxed{20\text{ to }18}"),
        ("10:30 AM", "The answer is **10:30 am**.", "<answer>10:30 PM</answer>"),
        (r"3\text{ hours }20\text{ minutes}", "#### 3 hours 20 minutes", r"\boxed{3}"),
        (r"5 \text{ remainder } 3", r"\boxed{5 \text{ remainder } 3}", r"\boxed{3 \text{ remainder } 5}"),
        ("3", r"\boxed{3 \text{ h}}", r"\boxed{3\text{ hours }20\text{ minutes}}"),
        ("1,2", r"\boxed{1\text{ or }2}", r"\boxed{1\text{ to }2}"),
    ],
)
def test_numbers_with_words_between_them_equal_only_the_same_words(reference: str, equal: str, other: str):
    assert math(equal, reference)
    assert not math(other, reference)


@pytest.mark.parametrize("monster", ["$9^{9^{9^9}}$", "$" + "{" * 3000 + "$"], ids=["tower", "nested"])
def test_endless_mathematics_is_stopped_and_the_next_answer_is_scored(monster: str):
    reward = load_reward("math", timeout=3.0)
    texts = ["1/2", monster, "0.5"]
    first, endless, last = reward([RewardInput(prompt="", completion=text, answer="1/2") for text in texts])
    reward.close()
    assert (first.value, last.value) == (1.0, 1.0)
    assert (endless.status, endless.value) in [("timed_out", 0.0), ("ok", 0.0), ("failed", 0.0)]


def test_an_endless_expression_is_given_up_after_seconds_of_computing_and_is_not_wrong():
    reward, endless = load_reward("math", timeout=3.0), r"\boxed{\frac{10^{10^9}}{7}}"
    output = reward([RewardInput(prompt="", completion=endless, answer="1/2")])[0]
    reward.close()
    assert (output.status, output.parts) == ("timed_out", {"math": None})
    assert output.reason == "math computed for more than 2 s"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the processes of a reward in /proc")
def test_an_answer_that_waits_for_a_busy_machine_is_scored_all_the_same():
    """Stopped for longer than a call of other rewards may take, the worker has computed nothing meanwhile."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    reward = load_reward("math", timeout=1.0, workers=1)
    half = RewardInput(prompt="", completion=r"\frac{x}{2}", answer="x/2")
    assert reward([half])[0].value == 1.0
    (worker,) = map(int, set(children.read_text().split()) - before)
    os.kill(worker, signal.SIGSTOP)
    waking = Timer(3.0, os.kill, (worker, signal.SIGCONT))
    waking.start()
    output = reward([half])[0]
    waking.join()
    reward.close()
    assert (output.status, output.value) == ("ok", 1.0)


def test_without_math_verify_the_error_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "math_verify.py").write_text("raise ModuleNotFoundError('as if not installed')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r'pip install "outdo\[math\]"'):
        load_reward("math")


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("<think>1\n2</think>\n<answer>3</answer>\n", True),
        ("<think>1</think><answer>3</answer> so", False),
        ("<think>1<think>2</think><answer>3</answer>", False),
    ],
)
def test_format_requires_both_tags_once_and_nothing_else(completion: str, right: bool):
    assert format(completion) == right


@pytest.mark.parametrize(
    ("prompt", "completion", "right"),
    [
        ("Question. Assistant: <think>", "1\n2</think> <answer>3</answer>", True),
        ("<think>\n\n</think>\n\n", "<answer>3</answer>", True),
        ("<think>", "<think>1</think><answer>3</answer>", False),
        ("Write <think> and </think>.", "1</think><answer>3</answer>", False),
        ("Write <think> and </think>.", "<think>1</think><answer>3</answer>", True),
    ],
)
def test_tags_that_the_prompt_opened_belong_to_the_format(prompt: str, completion: str, right: bool):
    assert format(completion, prefill_of(prompt)) == right
