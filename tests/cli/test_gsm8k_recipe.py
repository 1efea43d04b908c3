"""The recipe of docs/gsm8k.md, offline: a small model of the architecture of Qwen2.5 stands in for the real ones."""

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from outdo.config.file import load
from outdo.extras.plan.command import PlanArguments, run_plan
from outdo.extras.plan.shapes import known_shapes
from outdo.run.check import cost

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "examples/gsm8k_qwen.toml"
PAGE = (ROOT / "docs/gsm8k.md").read_text(encoding="utf-8")
CARDS = ("1xRTX4090", "1xL40S", "1xH100", "8xH100")
TABLE = re.findall(r"^\| (Qwen[\d.]+-[\d.]+B) \| (LoRA|all weights) \| ([\d.]+) \|[^|]*\|(.*)\|$", PAGE, re.MULTILINE)


def offline(model: Path) -> list[str]:
    excerpt = (f"data.path={ROOT / 'examples/gsm8k_100.jsonl'}", "data.eval_path=", "data.eval_rows=20")
    return [str(RECIPE), f"model={model}", *excerpt, "data.max_prompt_tokens=2000"]


def test_the_page_shows_the_whole_recipe():
    assert len(TABLE) == 6
    shown = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    recipe = RECIPE.read_text(encoding="utf-8")
    assert shown == [recipe[recipe.index("model = ") :]]


def test_check_finds_no_error_and_says_what_the_run_is(outdo, stand_in):
    done = outdo("check", *offline(stand_in))
    assert (done.status, done.error) == (0, "")
    said = " ".join(done.out.split())
    assert "one step: 64 questions × 5 answers = 320 sequences" in said
    assert "the run: 116 steps, 116 optimiser steps" in said
    assert "<|system|>Think step by step, and write the final number after ####." in said
    assert re.search(r"No errors, no warnings", said), said


def test_two_steps_train_the_adapter(outdo, stand_in, tmp_path):
    small = ("steps=2", "train.prompts=2", "sampling.max_tokens=8", "eval.rows=2", "device=cpu", "threads=1")
    done = outdo("train", *offline(stand_in), f"run={tmp_path / 'run'}", *small)
    assert (done.status, done.error) == (0, "")
    assert json.loads((tmp_path / "run/summary.json").read_text(encoding="utf-8"))["steps"] == 2
    assert (tmp_path / "run/checkpoints/step_000002/adapter_model.safetensors").exists()


def planned(model: str, trained: str, gpus: str, capsys: pytest.CaptureFixture[str]) -> tuple[float, str]:
    """What a plan says of replicas: GiB at the peak, and minutes of the run with captured steps and without."""
    arguments = PlanArguments(
        gpus=gpus, card=[], model=model.lower(), answer_tokens=220, prompt_tokens=130, spread=None, staleness=0
    )
    settings = [str(RECIPE), *(["train.adapter="] if trained == "all weights" else [])]
    run_plan(settings, arguments, Console(), as_json=True)
    options = json.loads(capsys.readouterr().out)["options"]
    replicas = next(option for option in options if option["kind"] == "replicas")
    held = replicas["bytes_trainer"]
    phases = {
        phase: sum(size for name, size in held.items() if name.endswith(phase))
        for phase in ("while training", "while sampling")
    }
    kept = sum(held.values()) - sum(phases.values())
    minutes = [f"{replicas['seconds'][name] * 116 / 60:.0f}" for name in ("step_with_graphs", "step")]
    return (kept + max(phases.values())) / 2**30, " to ".join(dict.fromkeys(minutes))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: "-".join(row[:2]))
def test_the_page_has_the_numbers_of_the_plan(row, capsys):
    model, trained, memory, minutes = row
    for gpus, said in zip(CARDS, minutes.split("|"), strict=True):
        if "min" in said:
            found, expected = planned(model, trained, gpus, capsys)
            assert said.strip() == f"{expected} min", gpus
            assert gpus.startswith("8x") or f"{found:.1f}" == memory


def test_the_page_has_the_memory_that_check_estimates():
    rows = re.findall(r"^\| (Qwen2.5-[\d.]+B) \| (LoRA|all weights) \| [\d.]+ \| ([\d.]+) \|", PAGE, re.MULTILINE)
    recipe = load(str(RECIPE), ["model=m", "device=cuda", "data.max_prompt_tokens=256"])
    assert len(rows) == 4
    for model, trained, said in rows:
        facts = known_shapes()[model.lower()].facts
        parts = cost.alternatives(facts, recipe, reference=True)[trained.replace("all weights", "full")]
        assert said == f"{cost.peak(parts) / 2**30:.1f}"


def test_every_published_number_has_a_source():
    published = PAGE.split("## What comes out")[1].split("## What fits")[0]
    rows = [line for line in published.splitlines() if line.startswith("| Qwen")]
    assert len(rows) > 5
    links = set(re.findall(r"^\[(\w+)\]: https://", PAGE, re.MULTILINE))
    for line in rows:
        named = re.findall(r"\]\[(\w+)\]", line.split("|")[-2])
        assert named, line
        assert set(named) <= links, line
