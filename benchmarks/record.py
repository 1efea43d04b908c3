"""Measure the cost of the record: the same quickstart step with and without it, side by side.

    python benchmarks/record.py [--rounds 30]

Four runs with one seed do the same work, step by step in turn: without a record, with the default record, with the five
most probable tokens in it, and with every token measured after the update. "cost" is the median over the rounds of a
step's time compared with the same step without a record. "inside" is the share of a step that the recorder itself
takes; noise between steps does not affect it. Prints a table and one JSON object.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tasks

from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.extras.record.recording import recorder_of
from outdo.loop import in_turn, train
from outdo.models.policy import Policy
from outdo.run.assemble.assemble import assemble_run
from outdo.types import Group, Prompt, Sampled

RECORDS = {"none": ["record.every=0"], "default": [], "top": ["record.top=5"], "all": ["record.after=all"]}
SETTINGS = ["threads=1", "sampling.max_tokens=48", "optim.lr=2e-4", "steps=1000", "seed=0"]


def steps(recipe: Recipe, folder: Path) -> Iterator[tuple[float, float]]:
    """Yield the seconds of each step with its record, and those of the record alone."""
    run = assemble_run(recipe)
    recorder = recorder_of(run.recipe, run.models.policy, run.method.advantage, run.method.objective, run.data.prompts)
    before = 0.0  # seconds of the part before the update

    def sample(policy: Policy, questions: Sequence[Prompt], *, step: int) -> Sequence[Group] | Sampled:
        nonlocal before
        sampled = run.sampling.sampler(policy, questions, step=step)
        began = time.perf_counter()
        recorder.before(step, Sampled.of(sampled).groups)
        before = time.perf_counter() - began
        return sampled

    rollouts = in_turn(run.models.policy, run.data.prompts, sample)
    loop = train(run.models, rollouts, run.method.advantage, run.method.objective)
    while True:
        began = time.perf_counter()
        step = next(loop)
        trained = time.perf_counter()
        recorder(step, folder)
        ended = time.perf_counter()
        yield ended - began, ended - trained + before


def main() -> None:
    """Measure and print the cost of each kind of record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument(
        "--models", type=Path, default=Path("benchmarks/models"), help="folder of the warm-started model"
    )
    arguments = parser.parse_args()
    names = list(RECORDS)
    files = tasks.prepared(tasks.QUICKSTART, 0, arguments.models)
    settings = [f"model={files['model']}", f"data.path={files['questions']}", f"data.eval_path={files['held_out']}"]
    with tempfile.TemporaryDirectory() as parent:
        folders = {name: Path(parent) / name for name in RECORDS}
        runs = {
            name: steps(load(None, [*settings, *SETTINGS, *extra]), folders[name]) for name, extra in RECORDS.items()
        }
        taken: dict[str, list[float]] = {name: [] for name in RECORDS}
        inside: dict[str, list[float]] = {name: [] for name in RECORDS}
        for number in range(arguments.rounds + 2):
            for name in sorted(names, key=lambda name: (names.index(name) + number) % len(names)):  # in turn
                seconds, recording = next(runs[name])
                if number >= 2:  # the first steps warm up
                    taken[name].append(seconds)
                    inside[name].append(recording / seconds)
        size = {
            name: sum(path.stat().st_size for path in folder.rglob("*.parquet")) for name, folder in folders.items()
        }
    results = {
        name: {
            "seconds": statistics.median(taken[name]),
            "cost": statistics.median(a / b for a, b in zip(taken[name], taken["none"], strict=True)) - 1,
            "inside": statistics.median(inside[name]),
            "bytes_per_step": size[name] / (arguments.rounds + 2),
        }
        for name in RECORDS
    }
    for name, numbers in results.items():
        shares = f"{numbers['cost']:+.1%}  inside {numbers['inside']:.1%}"
        print(f"{name:8} {numbers['seconds']:.3f} s  {shares}  {numbers['bytes_per_step']:,.0f} bytes")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
