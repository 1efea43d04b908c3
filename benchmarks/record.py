"""What the record costs: the same quickstart step with and without it, side by side.

    python benchmarks/record.py [--rounds 30]

Three runs with one seed do the same work, step by step in turn: without a record, with the default one, and with every
token measured after the update. A cost is the median, over the rounds, of a recorded step's time against that of the
same step without a record; `inside` is the share of the step that the recorder itself took, which the noise between
steps does not touch. Prints a table and one JSON object.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import tasks

from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.loop import train
from outdo.trainer.build import build_run

WAYS = {"none": ["record.every=0"], "default": [], "all": ["record.after=all"]}
SETTINGS = ["threads=1", "sampling.max_tokens=48", "optim.lr=2e-4", "steps=1000", "seed=0"]


def steps(recipe: Recipe, folder: Path) -> Iterator[tuple[float, float]]:
    """The seconds of each step, its record included, and of its record."""
    run = build_run(recipe)
    loop = train(run.models, run.prompts, run.sampler, run.advantage, run.objective)
    while True:
        began = time.perf_counter()
        step = next(loop)
        trained = time.perf_counter()
        run.recorder(step, folder)
        ended = time.perf_counter()
        yield ended - began, ended - trained


def main() -> None:
    """Measure, and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=30)
    arguments.add_argument("--models", type=Path, default=Path("benchmarks/models"), help="where the warm model is")
    asked = arguments.parse_args()
    files = tasks.prepared(tasks.QUICKSTART, 0, asked.models)
    given = [f"model={files['model']}", f"data.path={files['questions']}", f"data.eval_path={files['held_out']}"]
    with tempfile.TemporaryDirectory() as place:
        folders = {way: Path(place) / way for way in WAYS}
        runs = {way: steps(load(None, [*given, *SETTINGS, *extra]), folders[way]) for way, extra in WAYS.items()}
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        inside: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(asked.rounds + 2):
            for way in sorted(WAYS, key=lambda way: (list(WAYS).index(way) + number) % len(WAYS)):  # in turn
                seconds, recording = next(runs[way])
                if number >= 2:  # the first steps warm up
                    taken[way].append(seconds)
                    inside[way].append(recording / seconds)
        size = {way: sum(path.stat().st_size for path in folder.rglob("*.parquet")) for way, folder in folders.items()}
    found = {
        way: {
            "seconds": statistics.median(taken[way]),
            "cost": statistics.median(a / b for a, b in zip(taken[way], taken["none"], strict=True)) - 1,
            "inside": statistics.median(inside[way]),
            "bytes_per_step": size[way] / (asked.rounds + 2),
        }
        for way in WAYS
    }
    for way, numbers in found.items():
        shares = f"{numbers['cost']:+.1%}  inside {numbers['inside']:.1%}"
        print(f"{way:8} {numbers['seconds']:.3f} s  {shares}  {numbers['bytes_per_step']:,.0f} bytes")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
