"""`outdo plan` without torch: text, JSON, validation, and errors that name what to change."""

import json
import re

import pytest
from run_cases import outdo_, write_home
from test_light_start import CLI, loaded

pytestmark = pytest.mark.release


def flat(said: str) -> str:
    """The text without line breaks."""
    return " ".join(said.split())


QUICK = ("--model", "qwen2.5-1.5b", "--gpus", "16xH100", "train.gradient_checkpointing=true", "train.prompts=64")


def planned(*arguments: str) -> dict:
    status, heavy, printed = loaded(CLI, "plan", *arguments, "--json")
    assert (status, heavy) == (0, [])
    return json.loads(printed.strip().splitlines()[-1])


def test_a_plan_loads_nothing_heavy_and_names_the_best_layout_first():
    found = planned(*QUICK)
    days = [option["tokens_a_day"] for option in found["options"]]
    assert days[0] >= max(days) / 1.05
    assert found["options"][0]["seconds"]["step"] > 0
    assert found["error"]["median"] <= 0.2


def test_a_plan_in_words_has_memory_seconds_cost_binding_and_assumptions(tmp_path):
    said = outdo_(tmp_path, "plan", *QUICK)
    for part in ("tokens a day", "what binds: ", "Seconds of a step", "GiB on each device", "Assumed", "Error", "$"):
        assert part in said


def test_the_largest_cluster_is_planned_as_well():
    settings = ["train.gradient_checkpointing=true", "train.prompts=40000", "sampling.max_tokens=8192"]
    found = planned("--model", "7B", "--gpus", "10000xH100", *settings)
    assert found["devices"] == 10_000
    assert found["options"][0]["goodput"] < 0.99


def test_failures_that_take_back_the_time_are_named(tmp_path):
    settings = ["train.gradient_checkpointing=true", "train.prompts=20000", "checkpoint.every=4000"]
    said = outdo_(tmp_path, "plan", "--model", "7B", "--gpus", "10000xH100", *settings)
    assert "failures take back " in said
    assert "checkpoint.every=1000 keeps more than 4000" in " ".join(said.split())


def test_a_recipe_and_a_model_folder_are_planned(tmp_path):
    home = write_home(tmp_path)
    said = outdo_(home, "plan", "recipe.toml", "--gpus", "2xA100", "--answer-tokens", "6")
    assert "30 steps take" in said
    assert "outdo trains like this: cluster.replicas=2" in said
    assert re.search(r"prompts: \d+ tokens on average; prompts of \d+ to \d+ tokens \(12 of 12 questions\)", flat(said))
    given = outdo_(home, "plan", "recipe.toml", "--gpus", "2xA100", "--answer-tokens", "6", "--prompt-tokens", "9")
    assert "tokens on average" not in flat(given)


def test_a_plan_names_what_makes_a_model_fit_and_where_its_bytes_are(tmp_path):
    large = ("--model", "qwen2.5-14b", "--gpus", "2xH100", "train.objective.beta=0")
    said = " ".join(outdo_(tmp_path, "plan", *QUICK[4:], *large).split())
    for part in (
        "cluster.replicas=2 cluster.shard='{offload = true}'",
        "main memory of a machine: 220 of 512 GiB (weights 55, gradients 55, Adam's two moments 110)",
        "only with parts in main memory; otherwise ",
        "20 s for the optimiser step of a billion weights",
    ):
        assert part in said


def test_a_plan_counts_reward_models(tmp_path):
    rewards = '{name = "reward_model", path = "qwen2.5-0.5b", labels = "exact", every = 4, batch = 2}'
    found = planned(*QUICK, f"rewards={rewards}")
    option = next(each for each in found["options"] if each["kind"] == "replicas")
    assert option["bytes_trainer"]["gradients and moments of reward models"] == 12 * 494_000_000
    assert option["seconds"]["rewards"] > 0
    assert any("reward models compute in float32" in line for line in found["assumptions"])


def test_measured_lengths_replace_assumptions():
    assumed, known = planned(*QUICK), planned(*QUICK, "--answer-tokens", "20", "--prompt-tokens", "50")
    assert len(known["assumptions"]) == len(assumed["assumptions"]) - 2
    assert known["options"][0]["seconds"]["sampling"] < assumed["options"][0]["seconds"]["sampling"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "7B", "--gpus", "8xH10"], "unknown card 'H10'; did you mean"),
        (["--model", "qwen2.5-7bb", "--gpus", "8xH100"], "did you mean qwen2.5-7b"),
        (["--gpus", "8xH100"], "model"),
        (["--model", "7B", "--gpus", "8xH100", "train.promts=3"], "train.promts"),
        (["--model", "405B", "--gpus", "1xH100"], "GiB on each device"),
        (
            ["--model", "qwen2.5-7b", "--gpus", "8xH100", "cluster.replicas=8", "attention=ulysses"],
            "the 28 attention heads of qwen2.5-7b cannot be divided by the 8 replicas",
        ),
        (["--model", "someone/unknown", "--gpus", "8xH100"], "give --model a size such as 7B"),
        (["--validate", "--model", "7B"], "--model has no effect on published runs"),
    ],
)
def test_a_mistake_is_one_sentence_without_a_traceback(arguments, said):
    status, heavy, printed = loaded(CLI, "plan", *arguments)
    assert (status, heavy) == (2, [])
    assert said in printed
    assert "Traceback" not in printed


def test_the_validation_prints_every_row(tmp_path):
    said = outdo_(tmp_path, "plan", "--validate")
    for part in ("NeMo-RL", "prime-rl", "verl", "SkyRL", "AReaL", "fitted", "not covered", "median error of"):
        assert part in said
