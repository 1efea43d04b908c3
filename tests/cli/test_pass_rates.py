"""Pass rates: written by `outdo eval`, read by the data section, and wrong in no silent way."""

import json
from pathlib import Path

import pytest
from command_cases import SMALL

from outdo.config.file import load
from outdo.data.pass_rates import fingerprint
from outdo.data.splits import load_questions
from outdo.utils.errors import UserError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Ten questions, the answer to the first five of which is 7."""
    path = tmp_path / "ten.jsonl"
    rows = [{"question": f"{n}=", "answer": "7" if n < 5 else "1"} for n in range(10)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rates(tmp_path: Path) -> Path:
    """Rates of those questions: 0, 0.1, ... 0.9."""
    path = tmp_path / "rates.jsonl"
    path.write_text("".join(line(n) for n in range(10)))
    return path


def line(n: int, **changes: object) -> str:
    row = {"id": str(n + 1), "pass_rate": n / 10, "right": n, "k": 10, "fingerprint": fingerprint(f"{n}=")}
    return json.dumps(row | changes) + "\n"


def of(data: Path, rates: Path, *overrides: str, low: float = 0.2, high: float = 0.5):
    chosen = f'data.select={{file = "{rates}", low = {low}, high = {high}}}'
    return load_questions(load(None, ["model=m", f"data.path={data}", chosen, *overrides]))


def mistakes(data: Path, rates: Path, *overrides: str, low: float = 0.2, high: float = 0.5) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        of(data, rates, *overrides, low=low, high=high)
    return caught.value.problems


# ------------------------------------------------------------------------------------------------------------- writing


def test_eval_writes_a_line_for_each_question_that_the_data_section_reads(outdo, seven, data, tmp_path):
    done = outdo("eval", seven, "--data", data, "--k", 3, "--rates", tmp_path / "r.jsonl", "--json")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [each["id"] for each in lines] == [str(n) for n in range(1, 11)]
    assert all(each["pass_rate"] == each["right"] / each["k"] for each in lines)
    assert {each["k"] for each in lines} == {3}
    told = json.loads(done.out)
    assert sum(each["pass_rate"] for each in lines) / 10 == pytest.approx(told["pass@1"])
    assert 0 < told["pass@1"] <= 0.5
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    chosen = {question.id for question in of(data, tmp_path / "r.jsonl", low=0.3, high=1).train}
    assert chosen == {each["id"] for each in lines if each["right"]} <= {"1", "2", "3", "4", "5"}


def test_where_rates_cannot_go_is_said_before_a_model_is_asked(outdo, data, tmp_path):
    for target, said in (("r.txt", "to a file ending in .jsonl"), ("nowhere/r.jsonl", "there is no folder")):
        done = outdo("eval", tmp_path / "no_model", "--data", data, "--rates", tmp_path / target)
        assert (done.status, said in done.error) == (2, True)
    two = outdo("eval", "a", "--against", "b", "--data", data, "--rates", tmp_path / "r.jsonl")
    assert (two.status, "--rates writes the pass rates of one model" in two.error) == (2, True)


# ------------------------------------------------------------------------------------------------------------- reading


def test_questions_within_the_bounds_are_trained_on_and_their_number_is_said(data, rates):
    found = of(data, rates)
    assert [question.id for question in found.train] == ["3", "4", "5", "6"]
    note = f"data.select: 4 of 10 training questions kept: pass rate from 0.2 to 0.5 in {rates}"
    assert note in found.notes


def test_held_out_questions_are_never_left_out_and_need_no_rate(data, rates):
    everything = load_questions(load(None, ["model=m", f"data.path={data}", "data.eval_rows=4"]))
    held_out = {question.id for question in everything.held_out}
    rates.write_text("".join(line(n) for n in range(10) if str(n + 1) not in held_out))
    found = of(data, rates, "data.eval_rows=4")
    assert found.held_out == everything.held_out
    assert {question.id for question in found.train} == {"3", "4", "5", "6"} - held_out


def test_a_question_without_a_rate_is_a_mistake(data, rates):
    rates.write_text("".join(line(n) for n in (0, 1, 2, 5, 6)))
    (said,) = mistakes(data, rates)
    assert said == (
        f"data.select: 5 of 10 training questions have no pass rate in {rates}; the first is question 4 "
        "(`outdo eval --rates` writes none where no answer has a verdict)"
    )


def test_a_question_that_was_rewritten_since_is_a_mistake(data, rates):
    data.write_text(data.read_text().replace("4=", "4 =").replace("6=", "6 ="))
    (said,) = mistakes(data, rates)
    assert "2 of 10 training questions have another text than the one rated" in said
    assert said.endswith("the first is question 5")


def test_a_message_of_a_conversation_is_part_of_the_question():
    said = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
    others = [said[1:], [{"role": "user", "content": "a"}, said[1]], [said[0], {"role": "user", "content": "c"}], "ab"]
    assert len({fingerprint(each) for each in [said, *others]}) == 5
    assert fingerprint(said) == fingerprint([dict(reversed(message.items())) for message in said])


def test_bounds_that_leave_nothing_are_a_mistake(data, rates):
    (said,) = mistakes(data, rates, low=0.95, high=1)
    assert said.startswith("data.select: none of the 10 training questions is left: pass rate from 0.95 to 1")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("{", "row 2: broken JSON"),
        (line(1, pass_rate=1.5), "row 2: the pass rate 1.5 is not between 0 and 1"),
        (line(1, pass_rate="0.5"), "row 2: expected id, pass_rate, right, k and fingerprint"),
        ('{"id": "2", "pass_rate": 0.5}', "row 2: expected id, pass_rate, right, k and fingerprint"),
        (line(0), 'row 2: the id "1" is in an earlier row too'),
    ],
)
def test_a_faulty_line_is_told_with_its_number(data, rates, content, said):
    rates.write_text(line(0) + content if content else "")
    (told,) = mistakes(data, rates)
    assert told.startswith(f"data.select: {rates}")
    assert said in told


def test_faults_of_all_files_are_told_at_once(data, tmp_path):
    told = mistakes(data, tmp_path / "no_rates.jsonl", "data.eval_path=nowhere.jsonl")
    assert [each.partition(":")[0] for each in told] == ["data.eval_path", "data.select"]


def test_a_run_is_not_resumed_with_other_rates(outdo, model, data, rates, tmp_path):
    chosen = f'data.select={{file = "{rates}", low = 0.2, high = 0.5}}'
    folder = tmp_path / "run"
    started = outdo("train", f"model={model}", f"data.path={data}", f"run={folder}", chosen, *SMALL, "steps=1")
    assert started.status == 0, started.error
    assert "data.select: 4 of 10 training questions kept" in (folder / "start.txt").read_text()
    assert outdo("resume", folder, "steps=2").status == 0
    rates.write_text(rates.read_text() + "\n")
    refused = outdo("resume", folder, "steps=3")
    assert refused.status == 2
    assert "data.select: the file has changed since the run was started" in refused.error
