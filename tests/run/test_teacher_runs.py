"""Teachers, through the command line: which of them teach a row, hints, the record, and a run that was killed."""

import os
import signal

import pytest
from family_cases import ENDING
from run_cases import Command, metrics, outdo_, steps_done, timeless, wait_until, weights, write_rows

from outdo.extras.record.parquet import read
from outdo.testing import byte_bpe_tokenizer, tiny_model

GKD = ("train.objective=gkd", "optim.lr=1e-2")
HINTED = (
    'teachers=["teacher", "reference", {model = "policy", hint = "{prompt} (it is {answer}, {note})"}]',
    "data.path=taught.jsonl",
)


@pytest.fixture(scope="module", autouse=True)
def taught(family):
    """Rows that name a teacher or none, of which the first has no note for the hint."""
    rows = [
        {"prompt": f"{a}+{b}=", "answer": str(a + b), "note": "odd" if a else "", "teacher": ["", "teacher"][b % 2]}
        for a in range(4)
        for b in range(3)
    ]
    write_rows(family / "taught.jsonl", rows)
    noted = [{"prompt": f"{a}+0=", "answer": str(a), "note": "odd" if a else ""} for a in range(4)]
    write_rows(family / "noted.jsonl", noted)


def test_the_policy_comes_closer_to_its_teachers_whatever_the_reward(trained):
    run = trained(*GKD, "teachers=teacher", "train.prompts=4", steps=4)
    lines = metrics(run)
    divergences = [line["teacher/divergence"] for line in lines]
    assert divergences[-1] < 0.8 * divergences[0]
    assert all(line["teacher/taught_ratio"] == 1.0 for line in lines)
    assert all(line["loss"] == pytest.approx(line["loss/teacher"]) for line in lines)
    assert all(line["loss/policy"] == 0.0 for line in lines)


def test_the_record_has_what_the_teacher_says_of_each_token(trained):
    run = trained('train.objective={name = "dapo", teacher_beta = 0.1}', "teachers=teacher", steps=1)
    table = read(run, 1).to_pylist()
    assert table
    for row in table:
        for name in ("teacher_logprobs", "teacher_divergence"):
            assert [value is None or value != value for value in row[name]] == [
                value is None or value != value for value in row["old_logprobs"]
            ]
    gaps = [
        old - teacher
        for row in table
        for old, teacher in zip(row["old_logprobs"], row["teacher_logprobs"], strict=True)
        if old == old
    ]
    assert sum(gaps) / len(gaps) == pytest.approx(metrics(run)[0]["teacher/gap"], abs=1e-5)


def test_a_run_with_hints_that_was_killed_ends_with_the_same_bits(family, trained):
    settings = (*GKD, *HINTED, "reference.sync={every = 1, mix = 0.5}", "record.top=3", ENDING)
    whole = trained(*settings, steps=4)
    assert min(line["teacher/taught_ratio"] for line in metrics(whole)) > 0
    killed = family / "killed"
    usual = ("eval.every=0", "data.eval_path=", "checkpoint.keep=9", "steps=4")
    command = Command(family, "train", "recipe.toml", f"run=./{killed.name}", *usual, *settings)
    wait_until(lambda: steps_done(killed) >= 2)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    outdo_(family, "resume", killed.name)
    assert weights(killed, 4) == weights(whole, 4)
    assert timeless(killed) == timeless(whole)
    for step in range(1, 5):
        assert read(killed, step).equals(read(whole, step))
    assert read(whole, 4)["teacher_top"].null_count < len(read(whole, 4))


def test_the_record_has_what_the_teachers_would_have_written(trained):
    """The first question has no note for the hint of the policy: its answers have no teacher."""
    hinted = 'teachers={model = "policy", name = "me", hint = "{prompt} ({note})"}'
    rows_data = ("data.path=noted.jsonl", hinted, "record.top=300", 'record.after="all"')
    run = trained("train.objective=distillation", *rows_data, "train.prompts=4", steps=1)
    rows = read(run, 1).to_pylist()
    assert {row["prompt"] for row in rows if row["teacher_top"] is None} == {"0+0="}
    for row in rows:
        if row["teacher_top"] is None:
            assert set(row["teacher_logprobs"]) == {None}
            continue
        places = zip(row["token_ids"], row["teacher_logprobs"], row["teacher_top"], row["old_top"], strict=True)
        for token, logprob, top, of_policy in places:
            of_token = {each["token_id"]: each["logprob"] for each in top}
            assert logprob == pytest.approx(of_token[token], abs=1e-5)
            assert len(top) == len(of_policy)
            assert [*of_token.values()] == sorted(of_token.values(), reverse=True)
        assert row["teacher_top"] != row["old_top"]


def test_check_names_a_teacher_that_is_not_there_and_a_place_that_no_row_fills(family):
    said = outdo_(
        family,
        "check",
        "recipe.toml",
        "data.path=taught.jsonl",
        "train.objective=gkd",
        'teachers={model = "policy", name = "me", hint = "{prompt} {note} {nothing}"}',
        status=2,
    )
    said = " ".join(said.split())
    assert 'in the column teacher: nothing is called "teacher"; expected me' in said
    assert 'a place in the hint: nothing is called "nothing"; expected answer, feedback, note, prompt' in said


def test_a_run_that_learns_from_demonstrations_and_was_killed_ends_with_the_same_bits(family, trained):
    settings = (*GKD, "teachers=teacher", 'data.demonstrations={column = "answer", share = 0.5}', ENDING)
    whole = trained(*settings, steps=5)
    lines = metrics(whole)
    assert 0 < sum(line["demonstrations/ratio"] for line in lines) < 5
    sampled = trained(*GKD, "teachers=teacher", ENDING, steps=5)
    assert [line["num_completions"] for line in lines] == [
        line["num_completions"] * (1 - shown["demonstrations/ratio"])
        for line, shown in zip(metrics(sampled), lines, strict=True)
    ]
    killed = family / "killed_demonstrations"
    usual = ("eval.every=0", "data.eval_path=", "checkpoint.keep=9", "steps=5")
    command = Command(family, "train", "recipe.toml", f"run=./{killed.name}", *usual, *settings)
    wait_until(lambda: steps_done(killed) >= 2)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    outdo_(family, "resume", killed.name)
    assert weights(killed, 5) == weights(whole, 5)
    assert timeless(killed) == timeless(whole)


def test_the_policy_comes_closer_to_its_teacher_on_the_answers_of_the_data_alone(trained):
    run = trained(*GKD, "teachers=teacher", "data.demonstrations=answer", "train.prompts=4", steps=6)
    lines = metrics(run)
    assert all(line["demonstrations/ratio"] == 1 for line in lines)
    assert all("reward" not in line for line in lines)
    assert not [name for line in lines for name in line if name.startswith(("reads", "transfer"))]
    divergences = [line["teacher/divergence"] for line in lines]
    assert sum(divergences[-2:]) < 0.8 * sum(divergences[:2])


def test_check_names_a_column_that_no_demonstration_stands_in(family):
    settings = ("train.objective=gkd", "teachers=teacher", "data.demonstrations=answr")
    said = " ".join(outdo_(family, "check", "recipe.toml", *settings, status=2).split())
    assert 'data.demonstrations: a column of the rows: nothing is called "answr"; did you mean answer?' in said


def test_check_warns_of_a_hint_with_a_right_answer_where_none_is_known_to_be_right(family):
    teachers = 'teachers={model = "policy", hint = "{prompt} {right}"}'
    settings = ("recipe.toml", "train.objective=gkd", teachers)
    no_hint = "teachers: no answer will have the hint with {right}, because right is not defined"
    said = " ".join(outdo_(family, "check", *settings, "rewards=rewards.py:rare").split())
    assert no_hint in said
    said = " ".join(outdo_(family, "check", *settings, "rewards=rewards.py:rare", "eval.right=rare").split())
    assert no_hint not in said


def test_check_names_a_device_that_is_not_there_and_a_teacher_with_another_vocabulary(family):
    tiny_model(family / "stranger")
    byte_bpe_tokenizer(["ab"], 264).save_pretrained(family / "stranger")
    teachers = 'teachers=[{model = "teacher", device = "cuda:99"}, "stranger"]'
    said = " ".join(outdo_(family, "check", "recipe.toml", "train.objective=gkd", teachers, status=2).split())
    assert "teachers: teacher: device 'cuda:99' is not usable here" in said
    assert "teachers: stranger: the teacher" in said
    assert "has another vocabulary than the policy" in said


@pytest.mark.release
@pytest.mark.parametrize("division", ["cluster.shard=false", "cluster.shard=true"])
def test_two_replicas_learn_from_teachers_what_one_process_does(family, trained, division):
    settings = (*GKD, *HINTED, ENDING, "optim.lr=1e-4", 'optim.algorithm={name = "adamw", eps = 1e-5}')
    alone, both = trained(*settings, steps=2), trained(*settings, "cluster.replicas=2", division, steps=2)
    names = ("loss", "loss/teacher", "teacher/gap", "teacher/divergence", "teacher/taught_ratio")
    for one, two in zip(metrics(alone), metrics(both), strict=True):
        for name in names:
            assert two[name] == pytest.approx(one[name], rel=1e-4), name
