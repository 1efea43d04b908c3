"""Keep what `outdo doctor` reads of runs, so that its rules can be judged on them again without training.

    python benchmarks/kept_runs.py FILE RUN [RUN ...] [--rules RULE ...] [--note TEXT]

adds run folders to a file of JSON lines. A line has:

    name      of the run; with `machine` and the seed it tells the rows apart: a row with the same three is replaced
    machine   the processor, as the run's `environment.json` has it or `--machine` says
    rules     of the doctor that describe the mistake of the run; empty: it is healthy
    hack      whether its answers earn the reward without what was asked
    set_on    whether a rule or a threshold was chosen or changed while looking at it; a new row was not
    note      what the reader of the row should know
    recipe    without paths and what decides no finding
    steps     0 is the evaluation before the first step
    metrics   for each metric its values in these steps, with four significant digits; null where it was not measured

`tests/extras/doctor/test_real_runs.py` diagnoses all rows of the files in `KEPT`.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.cli.output import metrics_of
from outdo.extras.doctor import Finding, diagnose
from outdo.run.folder import run_files

Row = dict[str, Any]

KEPT = Path(__file__).parents[1] / "tests/extras/doctor/runs"

NOTED = ("set_on", "note")
"""What a row keeps when the same run is kept again."""

NOT_READ = ("time/", "passes/stopped/")
"""How the names of metrics begin that no rule reads."""

SETTINGS = ("environment", "eval", "optim", "reference", "rewards", "sampling", "seed", "steps", "teachers", "train")
"""The keys of a recipe that decide what a rule says."""


def main() -> None:
    """Add run folders to a file."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--names", nargs="+", help="of the runs; by default those of their folders")
    parser.add_argument("--rules", nargs="*", default=[], help="that describe the mistake; none: the runs are healthy")
    parser.add_argument("--hack", action="store_true", help="the answers earn the reward without what was asked")
    parser.add_argument("--machine", default="", help="name of the processor")
    parser.add_argument("--note", default="")
    arguments = parser.parse_args()
    names = arguments.names or [run.name for run in arguments.runs]
    about = {"rules": arguments.rules, "hack": arguments.hack, "machine": arguments.machine}
    rows = [row(run, name=name, note=arguments.note, **about) for run, name in zip(arguments.runs, names, strict=True)]
    keep(arguments.file, rows)
    for each in rows:
        findings = diagnosed(each)
        print(f"{each['name']}: {'as expected' if is_right(each, findings) else 'WRONG'}: {', '.join(found(findings))}")


def row(
    run: Path, *, name: str, machine: str = "", rules: Sequence[str] = (), hack: bool = False, note: str = ""
) -> Row:
    """Return the row of a run folder. Raises `FileNotFoundError` without the report, which is written last."""
    if not (run / "report.html").exists():
        raise FileNotFoundError(f"{run}: is not a finished run")
    lines, _ = metrics_of(run, print)
    names = sorted(
        {metric for line in lines for metric in line if metric != "step" and not metric.startswith(NOT_READ)}
    )
    hardware = run_files.table(run, "environment.json", print).get("hardware", "unknown")
    return {
        "name": name,
        "machine": machine or hardware,
        "rules": list(rules),
        "hack": hack,
        "set_on": False,
        "note": note,
        "recipe": _recipe(run_files.table(run, "recipe.toml", print)),
        "steps": [line["step"] for line in lines],
        "metrics": {metric: [_short(line.get(metric)) for line in lines] for metric in names},
    }


def keep(file: Path, rows: Sequence[Row]) -> None:
    """Add rows to a file, in the place of those about the same run, of which they keep what was noted by hand."""
    known = {_key(each): each for each in read(file)}
    for each in rows:
        known[_key(each)] = each | {name: known.get(_key(each), each)[name] for name in NOTED}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in known.values()))


def read(file: Path) -> list[Row]:
    """Return the rows of a file; none if it does not exist."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def lines_of(row: Row) -> list[dict[str, Any]]:
    """Return the metrics of a row as lines, as `diagnose` takes them."""
    return [
        {"step": step} | {name: values[n] for name, values in row["metrics"].items() if values[n] is not None}
        for n, step in enumerate(row["steps"])
    ]


def diagnosed(row: Row) -> list[Finding]:
    """Return what the doctor finds in the run of a row."""
    return diagnose(lines_of(row), recipe=row["recipe"])


def is_right(row: Row, findings: Sequence[Finding]) -> bool:
    """Return whether the first finding is of a rule that describes the mistake, or a healthy run got no warning."""
    if row["rules"]:
        return bool(findings) and findings[0].level == "warning" and findings[0].rule in row["rules"]
    return all(each.level != "warning" for each in findings)


def found(findings: Sequence[Finding]) -> list[str]:
    """Return the rules of the findings that are not good news, each once, causes first."""
    return list(dict.fromkeys(each.rule for each in findings if each.level != "good"))


def _key(row: Row) -> tuple[Any, ...]:
    return row["name"], row["machine"], row["recipe"].get("seed")


def _recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide findings."""
    return {key: _without_folders(recipe[key]) for key in SETTINGS if key in recipe}


def _without_folders(value: Any) -> Any:
    """Return a setting; of a path to a reward's function or to a reference, its last part."""
    if isinstance(value, Mapping):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_folders(each) for each in value]
    return value.rpartition("/")[2] if isinstance(value, str) else value


def _short(value: Any) -> float | None:
    return None if value is None else float(f"{value:.4g}")


if __name__ == "__main__":
    main()
