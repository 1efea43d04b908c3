"""The recipes of `examples/anchors`, offline: a small model and rows of the same form stand in for the real ones."""

import json
from pathlib import Path

import pytest

from outdo.extras.page.bands import read_bands
from outdo.utils.imports import resolve

ROOT = Path(__file__).parents[2]
ANCHORS = ROOT / "examples/anchors"
GSM8K = ROOT / "examples/gsm8k_100.jsonl"
NAMES = ("verl_gsm8k", "reasoning_from_scratch", "reverse_text")
SMALL = ("steps=2", "train.prompts=2", "train.group_size=2", "sampling.max_tokens=8", "data.max_prompt_tokens=2000")


def rows_like_those_of(name: str, folder: Path) -> Path:
    """Rows with the columns that the data of a recipe have on the Hub."""
    rows = [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]
    if name == "reasoning_from_scratch":
        halves = [rf"\frac{{{number}}}{{2}}" for number in range(1, 40, 2)]
        rows = [{"problem": f"What is ${half}$?", "solution": rf"\boxed{{{half}}}", "answer": half} for half in halves]
    elif name == "reverse_text":
        rows = [{"prompt": " ".join(row["question"].split()[:8])} for row in rows]
    path = folder / f"{name}.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_have_the_metrics_of_the_band(name, outdo, stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the recipe finds its reward
    data = (f"data.path={rows_like_those_of(name, tmp_path)}", "data.eval_path=", "data.eval_rows=4", "eval.rows=4")
    run = tmp_path / "run"
    settings = (f"model={stand_in}", f"run={run}", "device=cpu", "threads=1", *data, *SMALL)
    done = outdo("train", str(ANCHORS / f"{name}.toml"), *settings)
    assert (done.status, done.error) == (0, "")
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["steps"] == 2
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {band.metric for band in read_bands(ANCHORS / f"{name}.band.toml")} <= set().union(*lines)


@pytest.mark.parametrize(
    ("name", "completion", "reference", "reward"),
    [
        ("after_mark", "So it is 1,200.\n#### 1,200", "1000 + 200\n#### 1200", 1),
        ("after_mark", "The answer is 1200.", "1000 + 200\n#### 1200", 0),
        ("after_mark", "#### 1200 is wrong.\n#### 12", "#### 1,200", 0),
        ("boxed", r"It is \boxed{0.5}", r"\frac{1}{2}", 1),
        ("boxed", "The answer is 1/2.", r"\frac{1}{2}", 0),
        ("reversed_text", "<reversed_text> cba </reversed_text>", "abc", 1),
        ("reversed_text", "cba", "abc", 0),
    ],
)
def test_a_reward_is_that_of_the_published_run(name, completion, reference, reward):
    assert resolve(f"{ANCHORS / 'rewards.py'}:{name}")(completion, reference) == reward
