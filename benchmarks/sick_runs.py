"""Train small models with a mistake in each recipe, and compare what `outdo doctor` reports first with the mistake.

    python benchmarks/sick_runs.py [--only NAME ...] [--jobs 2] [--seed N] [--keep] [--machine NAME]

Every run is the quickstart's task with one change: some have a mistake, the others are healthy. A mistake is named if
the first finding is of a rule that describes it; a false alarm is a warning about a healthy run. A run that is in the
folder already is not made again. In the end it prints the tables.

`--keep` adds what the doctor reads of each run to `tests/extras/doctor/runs/sick.jsonl`, on which a test judges the
rules again; a run of another processor or seed is a further row (`kept_runs.py`). `--only` without a name makes no run
and prints the tables of these rows.

The task is the same on every processor as far as the warm-started model solves as many questions (`Task.skill`).
"""

import argparse
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import kept_runs
import tasks
import torch
from rich.console import Console

from outdo.config.file import load
from outdo.run.check.preflight import Report
from outdo.run.checkpoints.resume import resume
from outdo.run.display import Display
from outdo.run.folder.begin import holds_run
from outdo.run.training import start

REWARDS = tasks.HERE / "sick_rewards.py"

GRPO = "train.objective={{name='grpo', beta={beta}, entropy_bonus={bonus}}}"
SETTINGS = [
    GRPO.format(beta=0.0, bonus=0.0),
    "steps=20",
    "sampling.max_tokens=36",
    "train.prompts=8",
    "train.group_size=8",
    "optim.lr=2e-4",
    "eval.rows=128",
    "threads=1",
    "checkpoint.every=100000",
]


SUMS = replace(tasks.QUICKSTART, skill=(0.4, 0.65))
CARRIES = tasks.Task(name="carries", careless=0.7, carries=2, skill=(0.06, 0.16))
"""Another task: sums with two carries, of which the model solves few at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run, and the rules of the doctor that describe its mistake. Without rules the run is healthy."""

    name: str
    change: Sequence[str]
    rules: Sequence[str] = ()
    task: tasks.Task = SUMS


def reward(name: str) -> str:
    """Return a setting that rewards answers by a function of `sick_rewards.py` alone."""
    return f"rewards={REWARDS}:{name}"


def measured(name: str, weight: float) -> str:
    """Return a setting that adds such a function to `exact`, which has the given weight."""
    return f"rewards=['{REWARDS}:{name}', {{name='exact', weight={weight}}}]"


SICK = (
    Case(name="a constant reward", change=[reward("constant"), "steps=10"], rules=["constant_reward"]),
    Case(name="the reward pays for length", change=[reward("length"), "steps=12"], rules=["reward_follows_length"]),
    Case(name="the reward pays for brevity", change=[reward("brevity"), "steps=12"], rules=["reward_against_length"]),
    Case(
        name="the right answer, and 0.5 for each character",
        change=[reward("right_and_length"), "steps=12"],
        rules=["reward_follows_length"],
    ),
    Case(name="a random reward", change=[reward("random")], rules=["random_reward"]),
    Case(name="inverted labels", change=[measured("inverted", 0)], rules=["reward_against_right"]),
    Case(
        name="a part for style outweighs the right answer",
        change=[measured("nines", 0.1)],
        rules=["reward_against_right"],
    ),
    Case(
        name="a reward that raises exceptions",
        change=[reward("failing"), "reward_limits.max_failed=1.0"],
        rules=["failed_rewards"],
    ),
    Case(name="questions that are too easy", change=["data.path={easy}"], rules=["too_easy"]),
    Case(name="questions that are too hard", change=["data.path={hard}"], rules=["too_hard"]),
    Case(
        name="eight questions, forty visits each",
        change=["data.limit=8", "optim.lr=5e-4", "steps=40"],
        rules=["memorised"],
    ),
    Case(name="answers are cut off, four steps", change=["sampling.max_tokens=20", "steps=4"], rules=["truncation"]),
    Case(
        name="truncated answers are left out, and all are truncated",
        change=["sampling.max_tokens=12", "train.mask_truncated=true", "steps=6"],
        rules=["truncation"],
    ),
    Case(name="sampling is nearly greedy", change=["sampling.temperature=0.05"], rules=["identical_answers"]),
    Case(name="learning rate 1e-7", change=["optim.lr=1e-7"], rules=["steps_too_small"]),
    Case(name="learning rate 1e-2", change=["optim.lr=1e-2", "steps=12"], rules=["steps_too_large"]),
    Case(
        name="eight passes over each batch",
        change=["train.passes=8", "optim.lr=1e-3", "steps=10"],
        rules=["steps_too_large"],
    ),
    Case(
        name="the KL from the reference explodes",
        change=[GRPO.format(beta=1e-4, bonus=0.0), "optim.lr=3e-3"],
        rules=["steps_too_large", "kl_explosion"],
    ),
    Case(
        name="the reference holds the policy",
        change=[GRPO.format(beta=100.0, bonus=0.0), "steps=12"],
        rules=["reward_outweighed"],
    ),
    Case(
        name="an entropy bonus of 1", change=[GRPO.format(beta=0.0, bonus=1.0), "steps=17"], rules=["entropy_explosion"]
    ),
    Case(
        name="a critic with learning rate 0.3",
        change=["train.objective=ppo", "train.critic={name='head', lr=0.3}", "steps=12"],
        rules=["critic_worse_than_mean"],
    ),
)

HEALTHY = (
    Case(name="no change", change=[]),
    Case(name="another seed", change=["seed=1"]),
    Case(name="a dense reward from -1 to 3", change=[reward("digits")]),
    Case(name="`dapo` with dynamic sampling", change=["train.objective=dapo", "train.dynamic_sampling=2"]),
    Case(
        name="`gspo`, four passes, learning rate 1e-4",
        change=["train.objective=gspo", "train.passes=4", "optim.lr=1e-4"],
    ),
    Case(
        name="`ppo` with a critic",
        change=["train.objective=ppo", "train.critic={name='model', lr=1e-3, warmup=4}"],
    ),
    Case(name="KL with beta 0.04", change=[GRPO.format(beta=0.04, bonus=0.0)]),
    Case(name="40 questions, six visits each", change=["data.limit=40"]),
)

OTHER_TASK = (
    Case(
        name="inverted labels, `dr_grpo`",
        change=[measured("inverted", 0), "train.objective=dr_grpo", "seed=11"],
        rules=["reward_against_right"],
        task=CARRIES,
    ),
    Case(
        name="the reward pays for length, `gspo`",
        change=[reward("length"), "train.objective=gspo", "seed=12"],
        rules=["reward_follows_length"],
        task=CARRIES,
    ),
    Case(
        name="learning rate 2e-2, `cispo`",
        change=["train.objective=cispo", "optim.lr=2e-2", "seed=13"],
        rules=["steps_too_large"],
        task=CARRIES,
    ),
)
OTHER_TASK_HEALTHY = (
    Case(
        name="`cispo`, 16 answers per question",
        change=["train.objective=cispo", "train.group_size=16", "seed=14"],
        task=CARRIES,
    ),
    Case(
        name="`rloo`, two passes, learning rate 1e-4",
        change=["train.objective=rloo_clip", "train.passes=2", "optim.lr=1e-4", "seed=15"],
        task=CARRIES,
    ),
)
ALL = (*SICK, *HEALTHY, *OTHER_TASK, *OTHER_TASK_HEALTHY)

FILE = kept_runs.KEPT / "sick.jsonl"


def main() -> None:
    """Make the missing runs, keep what the doctor reads of them if that is asked for, and print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[case.name for case in ALL])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, one thread each")
    parser.add_argument("--runs", type=Path, default=Path("runs/sick"), help="folder of the runs")
    parser.add_argument("--models", type=Path, default=Path("runs/benchmarks"), help="folder for warm-started models")
    parser.add_argument("--seed", type=int, help="of every run, in the place of those of the cases")
    parser.add_argument("--keep", action="store_true", help=f"add the runs to {FILE.name}")
    parser.add_argument("--machine", default="", help="name of the processor in these rows")
    arguments = parser.parse_args()
    cases = [case for case in ALL if case.name in arguments.only]
    if arguments.seed is not None:
        cases = [replace(case, change=[*case.change, f"seed={arguments.seed}"]) for case in cases]
    files = {task: task_files(task, arguments.models) for task in {case.task for case in cases}}
    make = partial(train, files=files, runs=arguments.runs)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # before the processes are forked
    with get_context("fork").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for name in pool.imap_unordered(make, cases, chunksize=1):
            print(f"made: {name}", flush=True)
    rows = [
        kept_runs.row(folder_of(case, arguments.runs), name=case.name, rules=case.rules, machine=arguments.machine)
        for case in cases
    ]
    if arguments.keep:
        kept_runs.keep(FILE, rows)
    print("".join(table(rows or kept_runs.read(FILE), sick=sick) for sick in (True, False)))


def task_files(task: tasks.Task, models: Path) -> dict[str, Path]:
    """Return the files of a task, and its questions without a carry and with four digits."""
    files = tasks.prepared(task, 0, models)
    rows = [json.loads(line) for line in files["questions"].read_text().splitlines()]
    digits = [(row["prompt"][:3], row["prompt"][4:7]) for row in rows]
    easy = [
        row
        for row, (a, b) in zip(rows, digits, strict=True)
        if all(int(x) + int(y) < 10 for x, y in zip(a, b, strict=True))
    ]
    hard = [{"prompt": f"9{row['prompt']}", "answer": str(9000 + int(row["answer"]))} for row in rows]
    for name, content in {"easy": easy, "hard": hard}.items():
        files[name] = files["questions"].with_name(f"{name}.jsonl")
        files[name].write_text("".join(json.dumps(row) + "\n" for row in content))
    return files


def folder_of(case: Case, runs: Path) -> Path:
    """Return the run folder of a case."""
    return runs / "".join(each if each.isalnum() or each in ".-" else "_" for each in case.name)


def train(case: Case, *, files: Mapping[tasks.Task, Mapping[str, Path]], runs: Path) -> str:
    """Make the run of a case, as `outdo train` does, unless it is there; return its name."""
    folder, paths_of = folder_of(case, runs), files[case.task]
    with (runs / f"{folder.name}.log").open("a") as log:
        display = Display(Console(file=log))
        if not holds_run(folder):
            paths = [
                f"model={paths_of['model']}",
                f"data.path={paths_of['questions']}",
                f"data.eval_path={paths_of['held_out']}",
            ]
            change = [each.format(**paths_of) if each.startswith("data.path") else each for each in case.change]
            recipe = load(None, [*paths, *SETTINGS, *change])
            start(Report(recipe=recipe, errors=()), folder, display)
        elif not (folder / "report.html").exists():  # written last: the run was stopped
            resume(folder, [], display)
    return case.name


def table(rows: Sequence[kept_runs.Row], *, sick: bool) -> str:
    """Return Markdown tables of runs with or without a mistake, those of each processor and kind, each with a count."""
    changes = {case.name: ", ".join(case.change).replace(f"{REWARDS.parent}/", "").replace("|", "\\|") for case in ALL}
    head = (
        f"| {'mistake' if sick else 'healthy run'} | change | first finding | further findings |\n|---|---|---|---|\n"
    )
    tables: dict[str, list[str]] = {}
    wrong: Counter[str] = Counter()
    for each in (each for each in rows if bool(each["rules"]) == sick):
        kind = f"{each['machine']}, {'used to set the rules' if each['set_on'] else 'not used to set the rules'}"
        findings = kept_runs.diagnosed(each)
        wrong[kind] += not kept_runs.is_right(each, findings)
        first, *others = kept_runs.found(findings) or ["none"]
        change = f"`{changes[each['name']]}`" if changes.get(each["name"]) else each["note"]
        tables.setdefault(kind, []).append(f"| {each['name']} | {change} | {first} | {', '.join(others)} |\n")
    count = "{right} of {all} mistakes named" if sick else "{wrong} false alarms in {all} runs"
    return "".join(
        f"\n{kind}: **{count.format(all=len(lines), wrong=wrong[kind], right=len(lines) - wrong[kind])}.**\n\n"
        f"{head}{''.join(lines)}"
        for kind, lines in tables.items()
    )


if __name__ == "__main__":
    main()
