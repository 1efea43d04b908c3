"""What a run leaves behind: settings, surroundings, metrics, a summary, and a model for others."""

import json
import re
import shutil

import pytest
import torch
from run_cases import metrics, outdo_, saved, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from outdo.config.file import load
from outdo.extras.record import parquet
from outdo.run.checkpoints import checkpoint
from outdo.run.evaluation import held_out_completions

ONCE_RIGHT = '''
asked = 0

def score(prompt, completion):
    """Held-out questions are right the second time that they are asked."""
    global asked
    if "+5=" not in prompt:
        return len(completion) % 2 == 0
    asked += 1
    return 3 < asked <= 6
'''


def test_metrics_have_a_line_for_each_step_and_the_names_of_the_field(straight):
    lines = metrics(straight)
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert {
        *(
            "reward",
            "reward_std",
            "reward_group_std",
            "frac_reward_zero_std",
            "rewards/score/mean",
            "entropy",
            "num_tokens",
        ),
        *("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
        *("completions/mean_length", "completions/min_length", "completions/max_length", "completions/clipped_ratio"),
        *("loss", "grad_norm", "learning_rate", "seconds", "tokens_per_second", "updates/refused", "passes/done"),
        *("sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"),
    } <= lines[0].keys()
    assert [line["step"] for line in lines if "eval/greedy_reward" in line] == [10, 12]


def test_a_reward_of_numbers_is_never_called_right(home, straight):
    said = (home / "straight.log").read_text()
    notes = (straight / "start.txt").read_text()
    assert "right is not defined: mean rewards are shown instead; score returns numbers" in notes
    assert "held-out reward after step 0: greedy 0." in said
    assert not re.search(r"right \d|questions right", said)
    names = {name for line in metrics(straight) for name in line}
    assert not names & {"right", "frac_all_right", "frac_all_wrong", "eval/greedy", "eval/sampled"}
    assert set(parquet.read(straight, 12, ["right"])["right"].to_pylist()) == {None}
    assert all(answer["right"] is None for answer in held_out_completions.read(straight, 12))


def test_the_answers_of_every_evaluation_are_kept(straight):
    assert held_out_completions.evaluated_steps(straight) == [0, 10, 12]
    answers = held_out_completions.read(straight, 10)
    assert [(each["kind"], each["id"], each["sample"]) for each in answers] == [
        (kind, str(row), 0) for kind in ("greedy", "sampled") for row in range(1, 5)
    ]
    greedy = [each["reward"] for each in answers if each["kind"] == "greedy"]
    line = next(line for line in metrics(straight) if line["step"] == 10)
    assert sum(greedy) / 4 == pytest.approx(line["eval/greedy_reward"])
    assert greedy == [sum(map(str.isalnum, each["completion"])) / 8 for each in answers if each["kind"] == "greedy"]
    assert answers[1]["prompt"] == "0+5="
    assert answers[1]["answer"] == "5"


def test_the_summary_has_the_held_out_results_before_and_after(straight):
    summary = json.loads((straight / "summary.json").read_text())
    assert {
        *("accuracy_before", "accuracy_after", "sampled_before", "sampled_after"),
        *("steps", "seconds", "tokens_per_second", "run"),
    } <= summary.keys()
    assert (summary["steps"], summary["run"]) == (12, "straight")
    assert summary["accuracy_after"] is None
    assert summary["reward_after"] == metrics(straight)[-1]["eval/greedy_reward"]
    assert summary["seconds"] == pytest.approx(sum(line["seconds"] for line in metrics(straight)))


def test_the_recipe_is_written_with_every_resolved_setting(home, straight, monkeypatch):
    monkeypatch.chdir(home)  # the recipe names its reward as seen from there
    recipe = load(straight / "recipe.toml", [])
    assert (recipe.steps, recipe.threads, recipe.device) == (12, 1, "cpu")
    assert "optim" in (straight / "recipe.toml").read_text()


def test_the_environment_is_written(straight):
    environment = json.loads((straight / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert {"python", "outdo", "transformers", "platform", "git_commit", "started"} <= environment.keys()
    assert (environment["seed"], environment["threads"], environment["device"]) == (0, 1, "cpu")
    assert environment["command"][1:] == ["train", "recipe.toml", "run=./straight", "steps=12"]


def test_the_best_checkpoint_is_saved_when_it_is_found_and_never_pruned(own_home):
    (own_home / "score.py").write_text(ONCE_RIGHT)
    held_out = [{"prompt": f"{a}+5=", "answer": str(a + 5)} for a in range(3)]
    (own_home / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))
    keys = ("steps=6", "eval.every=2", "eval.samples=0", "checkpoint.every=5", "checkpoint.keep=1")
    outdo_(own_home, "train", "recipe.toml", "run=./run", *keys)
    assert [line.get("eval/greedy") for line in metrics(own_home / "run")] == [None, 1.0, None, 0.0, None, 0.0]
    assert saved(own_home / "run") == [2, 6]
    outdo_(own_home, "export", "run", "best", "--best")
    assert checkpoint.weights_hash(own_home / "best") == weights(own_home / "run", 2)
    assert "| right, greedy | 0.0% [0.0%, 56.1%] | 100.0% [" in (own_home / "best/README.md").read_text()
    outdo_(own_home, "export", "run", "newest")
    assert "| right, greedy | 0.0% [0.0%, 56.1%] | 0.0% [" in (own_home / "newest/README.md").read_text()


def test_the_card_of_a_killed_run_does_not_guess(home, six_steps):
    run = shutil.copytree(six_steps, home / "no-end")
    (run / "summary.json").unlink()
    outdo_(home, "export", run.name, "guess")
    card = (home / "guess/README.md").read_text()
    assert "The run was not evaluated after step 6, so its held-out results are not known." in card


def test_an_exported_model_loads_and_its_card_has_the_held_out_reward_before_and_after(home, straight):
    outdo_(home, "export", "straight", "exported")
    folder = home / "exported"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("1+2=")["input_ids"]) == "1+2="
    assert model.config.vocab_size == 264
    assert checkpoint.weights_hash(folder) == weights(straight)
    assert not (folder / "state").exists()
    summary, card = json.loads((straight / "summary.json").read_text()), (folder / "README.md").read_text()
    for name in ("greedy", "sampled"):
        rewards = [f"{summary[when][f'{name}_reward']:.3f} [" for when in ("before", "after")]
        assert f"| reward, {name} | {rewards[0]}" in card
        assert f"| {rewards[1]}" in card
    assert "right |" not in card
    assert "lr = 0.001" in card


def test_an_export_never_overwrites(home, six_steps):
    folder = home / "full"
    folder.mkdir()
    (folder / "mine").touch()
    assert "choose a new folder" in outdo_(home, "export", "six", "full", status=2)
    assert [path.name for path in folder.iterdir()] == ["mine"]
