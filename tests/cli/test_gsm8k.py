"""GSM8K, its files whole and unchanged, through the commands: check, eval and train."""

import json

import pytest
from command_cases import SMALL, new_interpreter, outdo_process

from outdo.config.file import load
from outdo.data.prompts import tokenise
from outdo.data.questions import questions_from
from outdo.models.loading import load_tokenizer
from outdo.run.build.build import build_run
from outdo.types import Batch


def rows(path):
    return path.read_text(encoding="utf-8").splitlines()


def settings(model, gsm8k):
    return [f"model={model}", f"data.path={gsm8k / 'train.jsonl'}", f"data.eval_path={gsm8k / 'test.jsonl'}", *SMALL]


@pytest.fixture(scope="module")
def checked(chat_model, gsm8k):
    return outdo_process("check", *settings(chat_model, gsm8k), "train.prompts=32", "train.group_size=8", "steps=10")


def test_check_finds_the_columns_and_nothing_wrong(checked, gsm8k):
    assert (checked.status, checked.error) == (0, "")
    for name in ("train", "test"):
        assert f"{len(rows(gsm8k / f'{name}.jsonl')):,} questions; columns: question -> prompt, answer" in checked.out
    assert "No errors, " in checked.out


def test_check_shows_two_prompts_as_the_model_reads_them(checked, gsm8k):
    for number, line in enumerate(rows(gsm8k / "train.jsonl")[:2], 1):
        assert f"Prompt {number} of 2" in checked.out
        assert f"<|user|>{json.loads(line)['question']}<|end|><|assistant|>" in checked.out


def test_check_tries_the_reward_on_the_reference_an_empty_and_a_wrong_answer(checked):
    lines = checked.out.splitlines()
    for kind, value in (("reference", "1"), ("empty", "0"), ("wrong", "0")):
        assert any(line.split()[:2] == [kind, value] for line in lines), kind


def test_check_does_the_arithmetic_and_estimates_memory(checked):
    assert "one step: 32 questions × 8 answers = 256 sequences" in checked.out
    assert "optimiser steps in it: 1 (passes 1 × minibatches 1)" in checked.out
    assert "the run: 10 steps, 10 optimiser steps" in checked.out
    assert "at the peak" in checked.out


def test_check_says_which_options_have_no_effect(checked):
    said = " ".join(checked.out.split())
    assert "the ratio is 1, so clip_low and clip_high cannot bind" in said


def test_eval_answers_questions_of_the_whole_test_file(model, gsm8k):
    done = outdo_process("eval", model, "--data", gsm8k / "test.jsonl", "--limit", 16, "--max-tokens", 8, "--json")
    assert done.status == 0, done.error
    told = json.loads(done.out)
    assert told["n"] == 16
    assert told["unscored"] == 0
    assert {"pass@1", "maj@1", "mean_length", "truncated", "ci95"} <= told.keys()


@pytest.mark.parametrize(("kind", "command"), [("model", new_interpreter), ("chat_model", outdo_process)])
def test_train_runs_two_steps_on_the_whole_files(kind, command, gsm8k, tmp_path, request):
    folder = tmp_path / "run"
    done = command("train", *settings(request.getfixturevalue(kind), gsm8k), f"run={folder}")
    assert (done.status, done.error) == (0, "")
    assert [json.loads(line)["step"] for line in rows(folder / "metrics.jsonl")] == [1, 2]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2
    assert summary["accuracy_before"] is not None
    assert f"data.path: {len(rows(gsm8k / 'train.jsonl')):,} questions" in done.out


@pytest.mark.parametrize("kind", ["model", "chat_model"])
def test_what_is_trained_is_what_was_sampled_token_by_token(kind, gsm8k, request):
    """Prompts were tokenised once and answers never: the ids of the batch are those that the engine handed out."""
    recipe = load(None, settings(request.getfixturevalue(kind), gsm8k))
    run = build_run(recipe)
    asked, answered = [], []
    generate = run.engine.generate

    def listening(requests, sampling):
        completions = generate(requests, sampling)
        asked.extend(requests)
        answered.extend(completions)
        return completions

    run.engine.generate = listening
    questions = next(iter(run.prompts))
    groups = run.sampler(run.models.policy, questions, step=1)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [rollout.token_ids for rollout in rollouts] == [completion.token_ids for completion in answered]

    batch = Batch.from_groups(groups)
    for row, (question, completion) in enumerate(zip(asked, answered, strict=True)):
        length = int(batch.attention_mask[row].sum())
        assert tuple(batch.token_ids[row, :length].tolist()) == question.token_ids + completion.token_ids
        assert batch.token_ids[row][batch.loss_mask[row]].tolist() == list(completion.token_ids)
    run.reward.close()


def test_every_question_of_gsm8k_fits_the_model_and_has_its_answer(model, gsm8k):
    questions = questions_from(str(gsm8k / "test.jsonl"))
    prompts = tokenise(questions, load_tokenizer(model), max_tokens=511)
    assert len(prompts) == len(questions) == len(rows(gsm8k / "test.jsonl"))
    assert all("#### " in prompt.answer for prompt in prompts)
