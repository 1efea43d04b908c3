"""Every preset on the quickstart's sums: accuracy after the same 40 steps, three seeds each.

    python benchmarks/methods.py [--seeds 0 1 2] [--only grpo dapo]

Results go to `docs/methods/quickstart.jsonl`, and from there into the table `docs/methods/quickstart.md`. All runs
have the same settings (below), except those that a method requires. Nothing is tuned.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tasks

from outdo.config.methods import facts_of_objective
from outdo.config.names import OBJECTIVES

RESULTS = tasks.HERE.parent / "docs/methods/quickstart.jsonl"
TABLE = RESULTS.with_suffix(".md")
STEPS = 40
SETTINGS = [
    f"steps={STEPS}",
    "sampling.max_tokens=48",
    "train.prompts=16",
    "train.group_size=8",
    "train.minibatches=4",  # four optimiser steps per batch, so that ratios and clips have an effect
    "optim.lr=1e-4",
    "optim.schedule.warmup=4",
    "eval.rows=256",
    "eval.samples=4",
]
REQUIRED = {  # settings that a method requires
    "ppo": ["train.critic={name='model', lr=1e-3, warmup=4}"],
    "grpo": ["train.objective.beta=0"],  # no KL, like the others
    "dapo": ["train.dynamic_sampling=1", "train.mask_truncated=true"],
}
HEAD = """# Every preset on the quickstart's sums

{steps} steps of 16 questions with 8 answers each, four optimiser steps per batch, Adam at 1e-4 for all methods, no KL.
Evaluated on 256 held-out sums, with greedy answers and with 4 sampled answers each, over {seeds} seeds (mean ± standard
deviation), in per cent. Before training {greedy} % of the greedy answers and {sampled} % of the sampled ones are
right. All methods use the same settings. This shows that each method learns, not which is best: nothing was tuned.
`benchmarks/methods.py` makes this page; `quickstart.jsonl` contains every run.

| method | advantage | greedy | sampled |
|---|---|---|---|
"""

TAIL = """
Results:

- Every method learns. Most differences are within the spread of three seeds: this is not a ranking.
- `grpo` without its KL is `grpo_clip`, and `gspo_token` with one advantage per answer is `gspo`; their rows are equal
  because their runs are equal, in every reward of every step.
- `target_essay` learns least ([why](target.md#why-the-essays-form-learns-less)).
- `ppo` trains its critic from scratch (learning rate 1e-3) and does not change the policy in the first 4 of the 40
  steps. `dapo` samples one further round of questions to replace groups whose rewards are all equal. `distillation` has
  a teacher that forgets no carry, and uses no reward.
"""


def main() -> None:
    """Make the missing runs; write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=[*OBJECTIVES])
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    arguments = parser.parse_args()
    wanted = [{"method": method, "seed": seed} for seed in arguments.seeds for method in arguments.only]
    for each in tasks.missing(RESULTS, wanted):
        tasks.append(RESULTS, {**each, **run(each["method"], each["seed"], arguments.models)})
        write_table()


def run(method: str, seed: int, models: Path) -> dict[str, Any]:
    """Train by one method; return the numbers that the results file keeps."""
    files = tasks.prepared(tasks.QUICKSTART, seed, models)
    required = REQUIRED.get(method, [])
    if method == "distillation":
        required = [f"reference.model={tasks.prepared(tasks.CAREFUL, seed, models)['model']}"]
    result = tasks.train(files, [f"train.objective={method}", f"seed={seed}", *SETTINGS, *required])
    summary = result["summary"]
    names = ("accuracy_before", "accuracy_after", "sampled_before", "sampled_after", "seconds")
    return {name: summary[name] for name in names} | {"reward": [round(step["reward"], 4) for step in result["steps"]]}


def write_table() -> None:
    """Write the page of all results so far, sorted by the accuracy of sampled answers at the end."""
    runs = tasks.done(RESULTS)
    methods = sorted({each["method"] for each in runs}, key=lambda name: (-mean(runs, name, "sampled_after"), name))
    lines = [table_row(runs, name) for name in methods]
    before = {
        kind: mean_and_deviation(runs, methods[0], figure)  # all methods start from the same models
        for kind, figure in (("greedy", "accuracy_before"), ("sampled", "sampled_before"))
    }
    head = HEAD.format(steps=STEPS, seeds=len({each["seed"] for each in runs}), **before)
    TABLE.write_text(head + "\n".join(lines) + "\n" + TAIL)


def table_row(runs: Sequence[dict[str, Any]], method: str) -> str:
    """Return the row of a method."""
    shown = [mean_and_deviation(runs, method, figure) for figure in ("accuracy_after", "sampled_after")]
    return f"| `{method}` | {facts_of_objective(method).published_with} | {' | '.join(shown)} |"


def mean_and_deviation(runs: Sequence[dict[str, Any]], method: str, figure: str) -> str:
    """Return mean and standard deviation over the seeds, in per cent."""
    values = [100 * each[figure] for each in runs if each["method"] == method]
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def mean(runs: Sequence[dict[str, Any]], method: str, figure: str) -> float:
    """Return the mean of a figure over the seeds."""
    return fmean(each[figure] for each in runs if each["method"] == method)


if __name__ == "__main__":
    main()
