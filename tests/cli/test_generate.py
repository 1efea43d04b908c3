"""`outdo generate` answers a file of prompts that needs neither a reward nor a reference."""

import json

import pytest
import torch


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "3+4="}\n{"prompt": "5+2="}\n{"prompt": "6+1="}\n')
    return path


def answers(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_prompt_has_a_line_with_its_answer(outdo, seven, prompts, tmp_path):
    done = outdo("generate", seven, "--data", prompts, "--out", tmp_path / "out.jsonl")
    assert (done.status, f"3 answers of {seven}: {tmp_path / 'out.jsonl'}" in done.out) == (0, True)
    assert answers(tmp_path / "out.jsonl") == [
        {"id": str(n), "sample": 0, "prompt": prompt, "completion": "7", "finish_reason": "stop", "tokens": 2}
        for n, prompt in enumerate(("3+4=", "5+2=", "6+1="), 1)
    ]


def test_several_answers_to_some_prompts_are_neighbours_and_as_long_as_asked(outdo, seven, prompts, tmp_path):
    asked = ["--k", 3, "--limit", 2, "--max-tokens", 1, "--out", tmp_path / "out.jsonl"]
    assert outdo("generate", seven, "--data", prompts, *asked).status == 0
    found = answers(tmp_path / "out.jsonl")
    assert [(each["id"], each["sample"]) for each in found] == [(question, n) for question in "12" for n in range(3)]
    assert {each["tokens"] for each in found} == {1}


def test_what_cannot_work_is_said_before_a_model_is_loaded(outdo, prompts, tmp_path):
    greedy = outdo("generate", "none", "--data", prompts, "--k", 2, "--temperature", 0, "--out", tmp_path / "o.jsonl")
    assert (greedy.status, "generate: at temperature 0 all 2 answers" in greedy.error) == (2, True)
    nowhere = outdo("generate", "none", "--data", prompts, "--out", tmp_path / "no" / "out.jsonl")
    assert (nowhere.status, "there is no folder" in nowhere.error) == (2, True)


@pytest.mark.parametrize(
    ("command", "options"), [("generate", ["--out", "out.jsonl"]), ("eval", ["--rewards", '{name = "exact"}'])]
)
def test_threads_are_those_that_are_asked_for(outdo, seven, tmp_path, monkeypatch, command, options):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text('{"prompt": "3+4=", "answer": "7"}\n')
    before = torch.get_num_threads()
    try:
        done = outdo(command, seven, "--data", "data.jsonl", "--threads", before + 1, *options)
        assert (done.status, torch.get_num_threads()) == (0, before + 1), done.error
    finally:
        torch.set_num_threads(before)
