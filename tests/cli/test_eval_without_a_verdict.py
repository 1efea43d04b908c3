"""`outdo eval` with a grader that fails: what it prints and writes is of the answers with a verdict."""

import json

import pytest
from command_cases import chain_model

from outdo.config.file import load
from outdo.data.splits import load_questions
from outdo.utils.errors import UserError

GRADERS = '''
def sure(prompt, completion, answer):
    return completion.strip() == answer


def crashes(prompt, completion, answer):
    """Raises for the even questions."""
    if int(prompt.rstrip("=")) % 2 == 0:
        raise RuntimeError("the grader crashed")
    return sure(prompt, completion, answer)


def silent(prompt, completion, answer):
    """Does not apply to the even questions."""
    return sure(prompt, completion, answer) if int(prompt.rstrip("=")) % 2 else None


def down(prompt, completion, answer):
    """Does not apply to any answer of the model."""
    return None if completion.strip() == "7" else False


def gate(prompt, completion, answer):
    """False in one branch, a number in the other."""
    if int(prompt.rstrip("=")) % 2 == 0 or not completion:
        return False
    return 1.0 if completion.strip() == answer else 0.5
'''


@pytest.fixture
def graders(tmp_path):
    (tmp_path / "graders.py").write_text(GRADERS)
    return tmp_path / "graders.py"


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A model that answers 121212..."""
    return chain_model(tmp_path_factory.mktemp("models") / "endless", "12", after="=", ends=False)


@pytest.fixture
def ten(tmp_path):
    """The answer to the questions 1 to 8 is 7, to the others 1. Every answer of the model is 7."""
    rows = [{"question": f"{n}=", "answer": "7" if n <= 8 else "1"} for n in range(1, 11)]
    (tmp_path / "ten.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "ten.jsonl"


@pytest.mark.parametrize("grader", ["crashes", "silent"])
def test_shares_rates_and_pairs_are_those_of_the_answers_with_a_verdict(
    outdo, seven, endless, ten, graders, grader, tmp_path
):
    asked = ["eval", seven, "--data", ten, "--rewards", f"{graders}:{grader}"]
    told = json.loads(outdo(*asked, "--json").out)
    assert (told["pass@1"], told["without_verdict"], told["unscored"], told["n"]) == (0.8, 5, 5, 10)
    assert told["reward"] == pytest.approx(told["pass@1"])  # of the same verdicts
    assert told["reward_ci95"] == pytest.approx(told["ci95"])
    assert "without a verdict" in outdo(*asked).out
    rates = tmp_path / "rates.jsonl"
    said = outdo(*asked, "--rates", rates).out
    assert "pass rates of 5 questions" in said
    assert "5 questions without a verdict have none" in " ".join(said.split())
    assert [json.loads(line)["id"] for line in rates.read_text().splitlines()] == ["1", "3", "5", "7", "9"]
    chosen = f'data.select={{file = "{rates}", low = 0.1, high = 1.0}}'
    with pytest.raises(UserError, match="5 of 10 training questions have no pass rate"):
        load_questions(load(None, ["model=m", f"data.path={ten}", chosen]))
    both = json.loads(outdo(*asked, "--against", endless, "--max-tokens", 6, "--json").out)["comparison"]
    assert (both["questions"], both["left_out"], both["worse"], both["difference"]) == (5, 5, 4, pytest.approx(-0.8))


def test_a_grader_that_applies_to_no_answer_leaves_no_number_and_writes_no_rates(outdo, seven, ten, graders, tmp_path):
    asked = ["eval", seven, "--data", ten, "--rewards", f"{graders}:down"]
    told = json.loads(outdo(*asked, "--json").out)
    assert (told["without_verdict"], told["unscored"]) == (10, 10)
    assert not {"pass@1", "reward", "ci95"} & told.keys()
    refused = outdo(*asked, "--rates", tmp_path / "r.jsonl")
    assert (refused.status, "is not written: no answer has a verdict" in refused.error) == (2, True)
    assert not (tmp_path / "r.jsonl").exists()


def test_a_function_that_returns_false_or_a_number_gives_one_kind_of_verdict(outdo, seven, ten, graders):
    told = json.loads(outdo("eval", seven, "--data", ten, "--rewards", f"{graders}:gate", "--json").out)
    assert told["pass@1"] == 0.4  # 1, 3, 5 and 7; the even ones are False, and 9 is 0.5
    assert "without_verdict" not in told
    said = outdo("eval", seven, "--data", ten, "--rewards", f"{graders}:gate").out
    assert "right if gate returns True, or a number of 1 or more" in " ".join(said.split())
