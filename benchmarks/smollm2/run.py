"""Make a run of the plan in processes of its own, and return its line of the results."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.smollm2.kinds import EXAMPLES
from benchmarks.smollm2.plan import Planned
from outdo.extras.page.bands import read_bands
from outdo.run.checkpoints.checkpoint import latest, weights_hash
from outdo.run.folder.run_folder import read_metrics
from outdo.utils.text import counted

OUTDO = (sys.executable, "-m", "outdo.cli.main")
CURVE = {
    "reward": "reward",
    "right": "right",
    "length": "completions/mean_length",
    "entropy": "entropy",
    "identical": "completions/identical_ratio",
    "moved": "moved_as_intended",
    "attained": "attained",
    "overshoot": "overshoot",
    "clipped": "clip_ratio/region_mean",
    "updates": "passes/done",
    "kl": "step_kl",
    "gap": "teacher/gap",
    "divergence": "teacher/divergence",
    "taught": "teacher/taught_ratio",
    "seconds": "seconds",
}
"""The metrics of each step that a line keeps, and under which name."""
ANSWERS = 20
INTERRUPTED = (130, 143, -2, -15)

FINE_TUNED = {
    "reversed_words": ("--epochs", "1", "--lr", "5e-5"),
    "calculator": ("--epochs", "1", "--lr", "2e-5"),
}
"""How `outdo sft` makes the models that these tasks start from."""


class Asked(NamedTuple):
    """Questions that every trained model is asked, to see what it has forgotten."""

    data: str
    reward: str
    max_tokens: int


ROWS = "runs/smollm2/data/{}/rows.jsonl"
CHAIN_SUM = "reasoning-gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1&size=100"
REMEMBERED = {
    "instructions": Asked(ROWS.format("instructions"), f"{EXAMPLES}/instructions.py:score", 64),
    "fifty_tokens": Asked(ROWS.format("fifty_tokens"), f"{EXAMPLES}/fifty_tokens.py:score", 96),
    "sums_in_words": Asked(ROWS.format("sums_in_words"), "last_number", 64),
    "gsm8k": Asked("examples/gsm8k_100.jsonl", "last_number", 128),
    "chain_sum": Asked(CHAIN_SUM, "reasoning_gym", 48),
}


class InterruptedRunError(Exception):
    """A run was interrupted; it goes on when it is made again."""


class FailedRunError(RuntimeError):
    """A process of a run has failed, or another process makes this run now."""


def of_outdo(run: Planned, folder: Path, model: Path, threads: int) -> dict[str, Any]:
    """Make what is missing of a run; return its line. Raises `InterruptedRunError`."""
    recipe = EXAMPLES / f"{run.task}.toml"
    settings = [
        f"model={model}",
        f"seed={run.seed}",
        f"optim.lr={run.lr}",
        f"run=./{folder}",
        "checkpoint.keep=1",
        f"threads={threads}",
        *run.settings,
    ]
    usage = process([*OUTDO, "train", str(recipe), *settings, "--resume"], folder, threads)
    metrics = read_metrics(folder / "metrics.jsonl")
    summary = json.loads((folder / "summary.json").read_text())
    environment = json.loads((folder / "environment.json").read_text())
    saved = latest(folder / "checkpoints")
    assert saved is not None, folder
    return {
        "before": summary["before"],
        "after": summary["after"],
        "curve": {name: [rounded(line.get(metric)) for line in metrics] for name, metric in CURVE.items()},
        "evaluations": [evaluation(line) for line in metrics if any(name.startswith("eval/") for name in line)],
        "bands": bands(run.task, metrics),
        "tokens": sum(line["num_tokens"] for line in metrics),
        "weights": weights_hash(saved.path),
        "versions": {name: environment[name] for name in ("outdo", "torch", "transformers")},
        **usage,
    }


def start(task: str, model: Path, folder: Path) -> Path:
    """Return the model that a task starts from: `model`, or what `outdo sft` makes of it in `folder`."""
    if task not in FINE_TUNED:
        return model
    tuned = folder / f"{task}-sft"
    if not tuned.exists():
        if task == "calculator":
            with_tools = folder / "with-tools"
            script = [sys.executable, EXAMPLES / "with_template.py", model, EXAMPLES / "tools.jinja", with_tools]
            subprocess.run(script, check=True)
            model = with_tools
        data = folder / "data" / task / "sft.jsonl"
        options = ["--data", data, "--out", tuned, "--threads", "2", *FINE_TUNED[task]]
        subprocess.run([*OUTDO, "sft", model, *options], check=True)
    return tuned


def process(command: Sequence[str], folder: Path, threads: int) -> dict[str, Any]:
    """Run a command to its end; return what all its attempts took, which stands beside `folder`.

    Raises: InterruptedRunError, or FailedRunError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    file = folder.with_name(f"{folder.name}.usage.jsonl")
    with folder.with_name(f"{folder.name}.log").open("ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        try:
            _, status, used = os.wait4(child.pid, 0)
        except BaseException:  # this program is interrupted: so is the run, which saves its last finished step
            child.terminate()
            _, status, used = os.wait4(child.pid, 0)
    code = child.returncode = os.waitstatus_to_exitcode(status)
    entry = {"cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": used.ru_maxrss * 1024}
    with file.open("a") as lines:
        lines.write(json.dumps(entry) + "\n")
    if code in INTERRUPTED:
        raise InterruptedRunError
    if code:
        raise FailedRunError(f"{' '.join(command)} ended with {code}; see {log.name}")
    attempts = [json.loads(line) for line in file.read_text().splitlines()]
    return {
        "cpu_seconds": round(sum(each["cpu_seconds"] for each in attempts)),
        "peak_bytes": max(each["peak_bytes"] for each in attempts),
        "processor": f"{processor()}, {counted(threads, 'thread')}",
    }


def processor() -> str:
    """Return the name of the processor, and its widest vectors."""
    text = Path("/proc/cpuinfo").read_text()
    name = next(line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name"))
    return f"{name}, {'AVX-512' if 'avx512f' in text else 'AVX2'}, {os.cpu_count()} cores"


def remembered(model: Path, without: str = "") -> dict[str, float]:
    """Return the mean reward of a model's greedy answers to the questions of `REMEMBERED`, but for one task."""
    return {name: greedy_reward(model, asked) for name, asked in REMEMBERED.items() if name != without}


def greedy_reward(model: Path, asked: Asked) -> float:
    """Return the mean reward of a model's greedy answers, by `outdo eval`."""
    options = ["--data", asked.data, "--rewards", asked.reward, "--max-tokens", str(asked.max_tokens), "--json"]
    done = subprocess.run([*OUTDO, "eval", str(model), *options], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)["reward"]


def bands(task: str, metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return whether the metrics are within the bands of the task, as `outdo compare --band` finds it."""
    found = []
    for band in read_bands(EXAMPLES / f"{task}.band.toml"):
        value = band.value(metrics)
        if value is not None:  # the run was long enough
            ends = {"low": band.low, "high": band.high, "value": rounded(value), "inside": band.holds(value)}
            found.append({"metric": band.metric, "steps": band.steps, **ends})
    return found


def answers(folder: Path, step: int) -> list[dict[str, Any]]:
    """Return the first greedy answers of each held-out set after a step."""
    lines = (folder / "held_out" / f"step_{step:06}.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] == "greedy"]
    chosen = [row for name in ("rows", "kinds") for row in [row for row in rows if row["set"] == name][: ANSWERS // 2]]
    return [{name: row[name] for name in ("set", "prompt", "completion", "reward", "right")} for row in chosen]


def evaluation(line: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name.removeprefix("eval/"): rounded(value) for name, value in line.items() if name.startswith("eval/")}
    return {"step": line["step"], **kept}


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
