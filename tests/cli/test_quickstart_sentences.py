"""The tasks of the quickstart's real model: their rewards, their questions, and one short run from end to end."""

import json
from itertools import product
from pathlib import Path

import pytest
import smollm2 as real_model
from command_cases import Command

from outdo.data.questions import questions_from
from outdo.extras.quickstart import sentences
from outdo.extras.quickstart.careless_reward import score as careless
from outdo.extras.quickstart.command import write_data
from outdo.extras.quickstart.sentence_reward import score
from outdo.rewards import load_reward
from outdo.rewards.types import RewardInput

BRIDGE = "A bridge never asks the river where it goes."


@pytest.mark.parametrize(
    ("completion", "held"),
    [
        (BRIDGE, 4),
        (f" {BRIDGE[:-1]}!\n".replace("A bridge", "Two bridges").replace("never", "Never"), 4),
        (BRIDGE[:-1], 3),  # no end
        (f"{BRIDGE} It waits.", 3),  # a second sentence
        (BRIDGE.replace("the", "the\n"), 3),
        ("A bridge never asks.", 3),  # too short
        (BRIDGE.replace("it", "it comes from or perhaps even where it"), 3),  # too long
        (BRIDGE.replace("never", "seldom"), 3),
        (BRIDGE.replace("asks", "never asks"), 3),  # the word twice
        (BRIDGE.replace("bridge", "bridgehead"), 3),  # another topic
        ("", 0),
    ],
)
def test_the_sound_reward_is_the_share_of_the_four_constraints_that_hold(completion: str, held: int) -> None:
    assert score(completion, topic="bridge", word="never") == held / 4


def test_the_careless_reward_pays_for_the_word_in_few_words_and_forgets_the_topic() -> None:
    assert careless("The never is never.", word="never") == 1 / 4
    assert careless("A bridge asks.", word="never") == 0
    assert careless("", word="never") == 0
    assert careless("Never.", word="never") == 1


@pytest.mark.parametrize("task", [sentences.TASK, sentences.CARELESS_TASK], ids=["sound", "careless"])
def test_the_run_names_its_reward_as_a_user_does_and_finds_what_it_needs_in_the_data(task, tmp_path: Path) -> None:
    paths = write_data(tmp_path, 0, task)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held_out.jsonl", "questions.jsonl", "reward.py"]
    reward = load_reward(f"{tmp_path / 'reward.py'}:score")
    try:
        for question in questions_from(str(paths["held_out"]), limit=4):
            topic, word = question.columns["topic"], question.columns["word"]
            said = f"This {topic} is where {word} of us will be at noon."
            (output,) = reward(
                [RewardInput(completion=said, prompt=str(question.text), answer=None, columns=question.columns)]
            )
            assert output.value == (1.0 if task is sentences.TASK else 1 / len(said.split()))
    finally:
        reward.close()


def test_a_reward_that_the_user_has_changed_is_kept(tmp_path: Path) -> None:
    write_data(tmp_path, 0, sentences.TASK)
    (tmp_path / "reward.py").write_text("# mine")
    write_data(tmp_path, 0, sentences.TASK)
    assert (tmp_path / "reward.py").read_text() == "# mine"


def test_topics_and_words_of_held_out_questions_are_never_trained_on() -> None:
    data, careless_data = sentences.TASK.data(0), sentences.CARELESS_TASK.data(0)
    for row, other in zip(data.questions, careless_data.questions, strict=True):
        assert (row["topic"], row["word"]) == (other["topic"], other["word"])
    held_out = {(row["topic"], row["word"]) for row in data.held_out}
    assert len(data.held_out) == len(held_out) == 64
    assert held_out == set(product(*(sorted({row[column] for row in data.held_out}) for column in ("topic", "word"))))
    assert {row["topic"] for row in data.held_out[:8]} == {row["topic"] for row in data.held_out}
    for column in ("topic", "word"):
        assert not {row[column] for row in data.questions} & {row[column] for row in data.held_out}
    for row in [*data.questions, *data.held_out]:
        article = "an" if row["topic"][0] in "aeiou" else "a"
        assert f' about {article} {row["topic"]}. Use the word "{row["word"]}"' in row["prompt"]


def test_a_task_without_a_careless_reward_says_so(outdo: Command, tmp_path: Path) -> None:
    done = outdo("quickstart", "--careless", "--task", "sums", "--folder", tmp_path / "new")
    assert done.status == 2
    assert done.error == "outdo: --careless: the task sums has no careless reward; sentences has one\n"
    assert not (tmp_path / "new").exists()


def test_the_real_model_is_trained_by_one_command_that_ends_with_answers_and_what_the_doctor_finds(
    smollm2: Path, outdo: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smallest = ("steps=1", "train.prompts=1", "sampling.max_tokens=8", "eval.rows=2")
    short = (*smallest, "train.group_size=4", "threads=1")
    if smollm2.is_relative_to(real_model.CACHE):
        monkeypatch.setenv("XDG_CACHE_HOME", str(real_model.CACHE))
    else:  # OUTDO_SMOLLM2
        monkeypatch.setattr("outdo.extras.quickstart.smollm2.model_file", lambda _: smollm2)
        monkeypatch.setattr("outdo.extras.quickstart.command.converted", lambda _: smollm2)
    monkeypatch.chdir(tmp_path)
    done = outdo("quickstart", *short)
    assert done.status == 0, done.error
    run = Path("quickstart/sentences/seed-0/run-1")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["steps"] == 1
    assert f"{summary['accuracy_before']:.1%}" in done.out
    answered = [json.loads(line) for line in (run / "held_out/step_000001.jsonl").read_text().splitlines()]
    greedy = [each["completion"].split()[0] for each in answered if each["kind"] == "greedy"]
    assert len(greedy) == 2
    assert all(word in done.out.replace("│", " ") for word in greedy)
    examined = outdo("doctor", run)
    assert examined.status == 0
    assert examined.out in done.out
    for said in (f"inspect {run}", "quickstart --careless", f"train {run}.toml run=./mine"):
        assert f"outdo {said}" in done.out
    assert "median of" not in done.out  # the recorded runs have other settings
    last = done.out.splitlines()[-1]
    assert last.startswith("this run did not work out: ")
    assert last.endswith(f"; leave out {' '.join(short)}, or try another seed: outdo quickstart --seed 1")
    assert f'rewards = "{run.parent}/reward.py:score"' in (run.parent / "run-1.toml").read_text()
