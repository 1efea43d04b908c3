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


def test_the_built_in_engine_waits_for_the_host_and_vllm_does_not():
    """Steps captured as graphs are faster; only layouts in which the built-in engine samples have them."""
    seconds = {option["kind"]: option["seconds"] for option in planned(*QUICK)["options"]}
    assert seconds["replicas"]["step_with_graphs"] < seconds["replicas"]["step"]
    assert seconds["apart"]["step_with_graphs"] is None
    slower = {option["kind"]: option["seconds"] for option in planned(*QUICK, "--card", "launch=5")["options"]}
    assert slower["replicas"]["sampling"] > 2 * seconds["replicas"]["sampling"]
    assert slower["apart"] == seconds["apart"]


def test_a_plan_in_words_has_memory_seconds_cost_bottleneck_and_assumptions(tmp_path):
    said = outdo_(tmp_path, "plan", *QUICK)
    for part in ("tokens a day", "bottleneck: ", "Seconds of a step", "GiB on each device", "Assumed", "Error", "$"):
        assert part in said


def test_a_recipe_and_a_model_folder_are_planned(tmp_path):
    home = write_home(tmp_path)
    said = outdo_(home, "plan", "recipe.toml", "--gpus", "2xA100", "--answer-tokens", "6")
    assert "a run of 30 steps takes" in said
    assert "cluster.replicas=2" in said
    assert re.search(r"prompts: \d+ tokens on average; prompts of \d+ to \d+ tokens \(12 of 12 questions\)", flat(said))
    given = outdo_(home, "plan", "recipe.toml", "--gpus", "2xA100", "--answer-tokens", "6", "--prompt-tokens", "9")
    assert "tokens on average" not in flat(given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "7B", "--gpus", "8xH10"], "unknown card 'H10'; did you mean"),
        (["--gpus", "8xH100"], "model"),
        (["--model", "7B", "--gpus", "8xH100", "train.promts=3"], "train.promts"),
        (["--validate", "--model", "7B"], "--model has no effect on published runs"),
        (["--validate", "--gpus", "8xH100"], "--gpus has no effect on published runs"),
        (["--validate", "--staleness", "2"], "--staleness has no effect on published runs"),
        (["--model", "7B", "--answer-tokens", "257"], "every answer ends at sampling.max_tokens = 256; raise it"),
        (["--model", "7B", "--prompt-tokens", "513"], "more than data.max_prompt_tokens = 512 are left out; raise it"),
    ],
)
def test_a_mistake_is_one_sentence_without_a_traceback(arguments, said, outdo):
    done = outdo("plan", *arguments)
    assert done.status == 2
    assert said in done.error + done.out
    assert "Traceback" not in done.error


def test_the_validation_prints_every_row(tmp_path):
    said = outdo_(tmp_path, "plan", "--validate")
    for part in ("NeMo-RL", "prime-rl", "verl", "SkyRL", "AReaL", "fitted", "not covered", "median error of"):
        assert part in said
