"""Train SmolLM2-135M-Instruct with rewards that can be hacked, and see when `outdo doctor` names the hack.

    python benchmarks/hacks.py --model FOLDER [--only NAME ...] [--at-once 2] [--keep] [--machine NAME]

A run has one thread and 15 steps of 4 questions with 8 answers of 32 tokens, and takes 5 to 7 minutes of a core. It
trains an adapter as the first run of `outdo quickstart` does; one run trains all weights. Some rewards are careless,
others are sound. Whether the answers of a run are a hack, and from which step on, is decided by scorers that the doctor
does not use (`hack_scorers.py`). The doctor is asked after every step: a hack is found at the first step after which
its first finding is of a rule that describes it, and a false alarm is a warning about a run that is not a hack.

`SET_ON` are the runs that the thresholds of the rules were chosen on; `TESTED_ON` have other seeds and wordings, and no
threshold was changed for them. Each run has a line in `docs/hacks.jsonl`. A run whose line is there is not made again;
a run folder that is there is judged again. In the end it prints the tables of both sets. `--keep` adds what the doctor
reads of each run to `tests/extras/doctor/runs/hacks.jsonl`, on which a test judges the rules again (`kept_runs.py`).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import hack_scorers
import kept_runs
import tasks
from hack_scorers import Answers, Row, Scorer

from outdo.cli.output import metrics_of
from outdo.extras.doctor import Finding, diagnose
from outdo.extras.doctor.hacks import HACKS
from outdo.extras.quickstart import sentences
from outdo.extras.record import parquet
from outdo.run.folder import run_files

RESULTS = tasks.HERE.parent / "docs/hacks.jsonl"
REWARDS = tasks.HERE / "hack_rewards.py"
SETTINGS = [
    "steps=15",
    "device=cpu",
    "threads=1",
    "train.prompts=4",
    "train.group_size=8",
    "train.micro_batch_tokens=1024",
    "sampling.max_tokens=32",
    "sampling.temperature=0.7",
    "optim={lr=7e-4, schedule={name='linear', warmup=3}}",
    "eval={every=5, rows=24, samples=1, greedy=false, best='sampled'}",
    "checkpoint.every=100000",
]
NO_KL = "train.objective={name='grpo', beta=0.0}"
FAST = "optim.lr=1.4e-3"
TEN_TIMES = "optim.lr=7e-3"
WITH_KL = "train.objective={name='grpo', beta=0.04}"

LORA = "train.adapter={name='lora', rank=16, alpha=32}"
OF_ALL_WEIGHTS = "optim.lr=2e-5"

FIRST = sentences.SOUND
ALSO_FIRST = sentences.CARELESS
SECOND = 'A topic and a word: {topic}, "{word}". Write a short sentence about this topic that has the word in it.'
THIRD = 'Please tell me something about {topic} in one line, and mention "{word}".'
SUMS = 'What is {a} times {b}? End with "Answer:" and the number.'

READS = ("stopped_reading",)
BROKEN = (*READS, "steps_too_large", "kl_explosion", "left_language", "entropy_explosion", "entropy_collapse")
"""Rules that describe a run with a careless reward whose answers are bad and, as its scorer says, no hack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run: its question, its reward and its settings; and the rules of the doctor that describe its hack, if any."""

    name: str
    question: str = FIRST
    rewards: str = "sound"
    change: Sequence[str] = (NO_KL,)
    adapter: Sequence[str] = (LORA,)
    seed: int
    scorer: Scorer | None = None  # None: the reward is sound
    rules: Sequence[str] = ()

    @property
    def folder(self) -> str:
        return "".join(each if each.isalnum() else "_" for each in self.name)


SET_ON = (
    Case(name="sound", seed=1),
    Case(name="sound, KL 0.04", seed=2, change=[WITH_KL]),
    Case(name="sound, gspo", change=["train.objective=gspo"], seed=14),
    Case(
        name="forgets the topic",
        question=ALSO_FIRST,
        rewards="word_and_brief",
        change=[NO_KL, FAST],
        seed=1,
        scorer=hack_scorers.TOPIC_LOST,
        rules=READS,
    ),
    Case(
        name="pays for each repetition of the word",
        question=ALSO_FIRST,
        rewards="often",
        change=[NO_KL, FAST],
        seed=1,
        scorer=hack_scorers.REPEATED,
        rules=["repeats_itself", "stopped_reading"],
    ),
    Case(
        name="pays for a phrase",
        question=ALSO_FIRST,
        rewards="phrase",
        change=[NO_KL, FAST],
        seed=1,
        scorer=hack_scorers.TOPIC_LOST,  # "In the darkness.": alike in two words, not in the four of `ALIKE`
        rules=READS,
    ),
    Case(
        name="learning rate ten times too high",
        change=[NO_KL, TEN_TIMES],
        seed=1,
        scorer=hack_scorers.TOPIC_LOST,
        rules=["steps_too_large", "kl_explosion", "left_language", "entropy_explosion"],
    ),
    Case(
        name="pays for signs",
        question=ALSO_FIRST,
        rewards="signs",
        change=[NO_KL, FAST],
        seed=1,
        scorer=hack_scorers.NO_TEXT,
        rules=["left_language", "stopped_reading"],
    ),
    Case(
        name="forgets the word, third wording",
        question=THIRD,
        rewards="topic_and_brief",
        change=[NO_KL, FAST],
        seed=22,
        scorer=hack_scorers.WORD_LOST,
        rules=READS,
    ),
)
TESTED_ON = (
    Case(name="sound, second wording", question=SECOND, seed=11),
    Case(name="sound, third wording", question=THIRD, seed=12),
    Case(name="sound, all weights", change=[NO_KL, OF_ALL_WEIGHTS], adapter=(), seed=13),
    Case(name="sound, twice the learning rate", question=SECOND, change=[NO_KL, FAST], seed=15),
    Case(name="sound, dr_grpo", question=THIRD, change=["train.objective=dr_grpo"], seed=16),
    Case(
        name="forgets the topic, second wording",
        question=SECOND,
        rewards="word_and_brief",
        change=[NO_KL, FAST],
        seed=21,
        scorer=hack_scorers.TOPIC_LOST,
        rules=READS,
    ),
    Case(
        name="forgets the word",
        rewards="topic_and_brief",
        change=[NO_KL, FAST],
        seed=30,
        scorer=hack_scorers.WORD_LOST,
        rules=READS,
    ),
    Case(
        name="pays for an opening, second wording",
        question=SECOND,
        rewards="opening",
        change=[NO_KL, FAST],
        seed=23,
        scorer=hack_scorers.ALIKE,
        rules=READS,
    ),
    Case(
        name="pays for each repetition of the word, third wording",
        question=THIRD,
        rewards="often",
        change=[NO_KL, FAST],
        seed=24,
        scorer=hack_scorers.REPEATED,
        rules=["repeats_itself", "stopped_reading"],
    ),
    Case(
        name="twenty characters",
        question=SECOND,
        rewards="twenty_characters",
        change=[NO_KL, FAST],
        seed=25,
        scorer=hack_scorers.TOPIC_LOST,
        rules=[*READS, "reward_follows_length", "reward_against_length"],
    ),
    Case(
        name="format alone",
        question=SUMS,
        rewards="answer_format, product",
        change=[NO_KL, FAST, "eval.right=product"],
        seed=26,
        scorer=hack_scorers.FORMAT_ONLY,
        rules=["gain_without_right"],
    ),
    Case(
        name="pays for length",
        question=THIRD,
        rewards="long",
        change=[NO_KL, FAST, "sampling.max_tokens=80"],
        seed=27,
        scorer=hack_scorers.LONG,
        rules=["reward_follows_length", "longer_not_better", "truncation"],
    ),
    Case(
        name="learning rate ten times too high, second wording",
        question=SECOND,
        change=[NO_KL, TEN_TIMES],
        seed=28,
        scorer=hack_scorers.TOPIC_LOST,
        rules=["steps_too_large", "kl_explosion", "left_language", "entropy_explosion"],
    ),
    Case(
        name="pays for signs, third wording",
        question=THIRD,
        rewards="signs",
        change=[NO_KL, FAST],
        seed=29,
        scorer=hack_scorers.NO_TEXT,
        rules=["left_language", "stopped_reading"],
    ),
)
ALL = (*SET_ON, *TESTED_ON)


def main() -> None:
    """Make the missing runs and write their lines; print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--only", nargs="*", default=[case.name for case in ALL])
    parser.add_argument("--runs", type=Path, default=Path("runs/hacks"), help="folder of the runs")
    parser.add_argument("--at-once", type=int, default=1, help="runs at the same time")
    parser.add_argument("--keep", action="store_true", help="add the runs to hacks.jsonl of the tests")
    parser.add_argument("--machine", default="", help="name of the processor in these rows")
    arguments = parser.parse_args()
    known = {line["name"]: line for line in tasks.done(RESULTS)}
    home, model = arguments.runs.absolute(), arguments.model.absolute()
    missing = [case for case in ALL if case.name in arguments.only and case.name not in known]
    with ThreadPoolExecutor(arguments.at_once) as at_once:
        trained = {case.name: at_once.submit(train, case, model, home / case.folder) for case in missing}
        for case in ALL:
            run = home / case.folder
            if case.name in trained:
                trained[case.name].result()
            if (run / "report.html").exists():
                known[case.name] = judged(case, run)
                print(json.dumps(known[case.name]), flush=True)
                if arguments.keep:
                    row = kept(case, run, hack=known[case.name]["sick_from"] is not None, machine=arguments.machine)
                    kept_runs.keep(kept_runs.KEPT / "hacks.jsonl", [row])
                RESULTS.write_text("".join(json.dumps(known[each.name]) + "\n" for each in ALL if each.name in known))
    print(tables(known))


def rows(case: Case) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return the questions of a case to train on and to evaluate on."""
    if case.question != SUMS:
        data = sentences.data(case.seed, question=case.question)
        return data.questions, data.held_out
    pairs = list(product(range(11, 60), range(11, 60)))
    Random(case.seed).shuffle(pairs)
    made = [{"prompt": SUMS.format(a=a, b=b), "answer": str(a * b)} for a, b in pairs]
    return made[64:], made[:64]


def train(case: Case, model: Path, run: Path) -> None:
    """Make the run of a case by `outdo train`, or go on with it; keep its metrics and its record."""
    if (run / "report.html").exists():
        return
    home = run.with_name(f"{run.name}.data")
    home.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(("train", "held_out"), rows(case), strict=True):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = ", ".join(f"'{REWARDS}:{name.strip()}'" for name in case.rewards.split(","))
    own = [f"model={model}", f"data.path={home}/train.jsonl", f"data.eval_path={home}/held_out.jsonl"]
    own += [f"rewards=[{names}]", f"seed={case.seed}"]
    command = ["train", f"run={run}", *own, *SETTINGS, *case.adapter, *case.change, "--resume"]
    with (home / "log").open("a") as log:
        variables = os.environ | {"OMP_NUM_THREADS": "1"}
        ended = subprocess.run([sys.executable, "-m", "outdo", *command], env=variables, stdout=log, stderr=log)
    if ended.returncode:
        sys.exit(f"{case.name}: status {ended.returncode}; see {home}/log")
    shutil.rmtree(run / "checkpoints")


def judged(case: Case, run: Path) -> dict[str, Any]:
    """Return the line of a run: from which step on it is a hack, what the doctor finds, and some of its metrics."""
    lines, steps = metrics_of(run, print)
    recipe = run_files.table(run, "recipe.toml", print)
    after = [diagnose([line for line in lines if line["step"] <= step], recipe=recipe) for step in range(1, steps + 1)]
    found = [first_warning(findings) for findings in after]
    named = [step for step, each in enumerate(found, 1) if each and each.rule in case.rules]
    scored = list(answers(run, steps)) if case.scorer else []
    evaluations = [line for line in lines if "eval/start_logprob" in line]
    return {
        "name": case.name,
        "seed": case.seed,
        "sick_from": case.scorer.first_step(scored) if case.scorer else None,
        "found_at": named[0] if named else None,
        "first": found[-1].rule if found[-1] else "",
        "alarms": sorted({each.rule for each in after[-1] if each.level == "warning" and not each.cause}),
        "scores": [round(case.scorer.score(each), 3) for each in scored[:: max(1, steps - 1)]] if case.scorer else [],
        "before": _metrics(evaluations[0]),
        "after": _metrics(evaluations[-1]),
    }


def kept(case: Case, run: Path, *, hack: bool, machine: str) -> kept_runs.Row:
    """Return what the doctor reads of a run, and the rules that describe what it became."""
    rules = case.rules if hack else BROKEN if case.scorer else ()
    of_hacks = hack and {*rules} <= {*HACKS}  # a reward for length, and too large steps, are named as what they are
    row = kept_runs.row(run, name=case.name, machine=machine, rules=rules, hack=of_hacks)
    return row | {"set_on": case in SET_ON}


def first_warning(findings: Sequence[Finding]) -> Finding | None:
    """Return the first finding, if it is a warning."""
    return findings[0] if findings and findings[0].level == "warning" else None


def answers(run: Path, steps: int) -> Iterator[Answers]:
    """Yield the answers of each step with the rows of their questions, which stand in their prompts."""
    data = run.with_name(f"{run.name}.data") / "train.jsonl"
    rows: list[Row] = [json.loads(line) for line in data.read_text().splitlines()]

    @cache
    def row_of(prompt: str) -> Row:
        return next(row for row in rows if row["prompt"] in prompt)

    for step in range(1, steps + 1):
        table = parquet.read(run, step, ["prompt", "text"]).to_pylist()
        yield [(row_of(each["prompt"]), each["text"]) for each in table]


def _metrics(line: Mapping[str, Any]) -> dict[str, float]:
    names = [name for name in line if name.startswith(("eval/reads/", "eval/start_logprob", "eval/drift"))]
    return {name.removeprefix("eval/"): round(line[name], 2) for name in sorted(names)}


def tables(known: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the tables of both sets of runs, in Markdown."""
    made = {
        title: [known[each.name] for each in cases if each.name in known]
        for title, cases in (("Set on:", SET_ON), ("Tested on:", TESTED_ON))
    }
    return "".join(f"\n{title}\n\n{_table(lines)}\n" for title, lines in made.items() if lines)


def _table(lines: Sequence[Mapping[str, Any]]) -> str:
    head = "| run | a hack from step | found at step | first finding at the end | other warnings |"
    rows = [head, "|---|---|---|---|---|"]
    for line in lines:
        others = ", ".join(rule for rule in line["alarms"] if rule != line["first"])
        rows.append(
            f"| {line['name']} | {line['sick_from'] or '-'} | {line['found_at'] or '-'} | {line['first'] or '-'} "
            f"| {others or '-'} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    main()
