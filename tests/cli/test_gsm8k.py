"""GSM8K, its files whole and unchanged, through the commands: check, eval and train."""

import json

from command_cases import SMALL

from outdo.config.file import load
from outdo.run.assemble.assemble import assemble_run
from outdo.types import Batch


def rows(path):
    return path.read_text(encoding="utf-8").splitlines()


def settings(model, gsm8k):
    return [f"model={model}", f"data.path={gsm8k / 'train.jsonl'}", f"data.eval_path={gsm8k / 'test.jsonl'}", *SMALL]


def test_check_shows_columns_prompts_rewards_arithmetic_memory_and_what_has_no_effect(outdo, chat_model, gsm8k):
    checked = outdo("check", *settings(chat_model, gsm8k), "train.prompts=32", "train.group_size=8", "steps=10")
    assert (checked.status, checked.error) == (0, "")
    for name in ("train", "test"):
        assert f"{len(rows(gsm8k / f'{name}.jsonl')):,} questions; columns: question -> prompt, answer" in checked.out
    for number, line in enumerate(rows(gsm8k / "train.jsonl")[:2], 1):
        assert f"Prompt {number} of 2" in checked.out
        assert f"<|user|>{json.loads(line)['question']}<|end|><|assistant|>" in checked.out
    for kind, value in (("reference", "1"), ("empty", "0"), ("wrong", "0")):
        assert any(line.split()[:2] == [kind, value] for line in checked.out.splitlines()), kind
    for said in (
        "one step: 32 questions × 8 answers = 256 sequences",
        "optimiser steps in it: 1 (passes 1 × minibatches 1)",
        "the run: 10 steps, 10 optimiser steps",
        "at the peak",
        "the ratio is 1, so clip_low and clip_high cannot take effect",
        "No errors, ",
    ):
        assert said in " ".join(checked.out.split())


def test_eval_answers_questions_of_the_whole_test_file(outdo, model, gsm8k):
    done = outdo("eval", model, "--data", gsm8k / "test.jsonl", "--limit", 16, "--max-tokens", 8, "--json")
    assert done.status == 0, done.error
    told = json.loads(done.out)
    assert (told["n"], told["unscored"]) == (16, 0)
    assert {"pass@1", "maj@1", "mean_length", "truncated", "ci95"} <= told.keys()


def test_train_runs_two_steps_on_the_whole_files(outdo, chat_model, gsm8k, tmp_path):
    folder = tmp_path / "run"
    done = outdo("train", *settings(chat_model, gsm8k), f"run={folder}")
    assert (done.status, done.error) == (0, "")
    assert [json.loads(line)["step"] for line in rows(folder / "metrics.jsonl")] == [1, 2]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert summary["steps"] == 2
    assert summary["accuracy_before"] is not None
    assert f"data.path: {len(rows(gsm8k / 'train.jsonl')):,} questions" in (folder / "start.txt").read_text()


def test_what_is_trained_is_what_was_sampled_token_by_token(chat_model, gsm8k):
    """Prompts were tokenised once and answers never: the ids of the batch are those that the engine handed out."""
    run = assemble_run(load(None, [*settings(chat_model, gsm8k), "data.limit=20"]))
    asked, answered = [], []
    generate = run.sampling.engine.generate

    def listening(requests, sampling):
        completions = generate(requests, sampling)
        asked.extend(requests)
        answered.extend(completions)
        return completions

    run.sampling.engine.generate = listening
    questions = next(iter(run.data.prompts))
    groups = run.sampling.sampler(run.models.policy, questions, step=1)
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    assert [rollout.token_ids for rollout in rollouts] == [completion.token_ids for completion in answered]

    batch = Batch.from_groups(groups)
    for row, (question, completion) in enumerate(zip(asked, answered, strict=True)):
        length = int(batch.attention_mask[row].sum())
        assert tuple(batch.token_ids[row, :length].tolist()) == question.token_ids + completion.token_ids
        assert batch.token_ids[row][batch.loss_mask[row]].tolist() == list(completion.token_ids)
    run.reward.close()
