"""Collect from a run folder, as plain data, what the page shows, and nothing else.

Damaged or partial data is left out, and a finding reports it. Reading is limited: only the tokens of the chosen steps,
of these only the groups to show, one column at a time; and at most `MOST_POINTS` points per curve.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyarrow import parquet

from outdo.extras.page import glossary
from outdo.extras.page.held_out import held_out_data, rewarded_completions
from outdo.extras.page.select import (
    DEFAULT_BYTES,
    READ_ERRORS,
    CheckpointComparison,
    encoded_step,
    informative_steps,
    moved_most,
    spread_out,
)
from outdo.extras.record import parquet as files
from outdo.run.checkpoints.run_state import run_state
from outdo.run.evaluation import held_out_completions
from outdo.run.folder import run_files
from outdo.run.folder.run_folder import is_alive
from outdo.utils.errors import RunFolderError
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.text import shortened

MOST_POINTS = 2_000
"""The maximum number of points of a curve. A longer run shows the last value of every few steps."""

LEAST_POINTS = 100
"""A curve has so many points in any case, also if many runs with many metrics share a page."""

POINT_BYTES = 9
"""About how many bytes a value of a metric takes in the page's file."""

PAGE_BYTES = 7_700_000
"""The default size of all data on a page, in bytes of its file: with scripts and styles it stays below 8 MB."""

MOST_CURVES = 1_000
"""The maximum number of metrics of a run; a run has about a hundred."""

BEFORE_ALL = -1
"""A step before all others: step 0 is the evaluation before the first step."""

LONGEST_NAME = 200
"""The maximum number of characters in the name of a metric."""

DIAGNOSIS = "outdo.extras.doctor.shown:shown_diagnosis"
"""What finds, in the metrics of a run, what its page says of it. A page without it says that it is not there."""

SECRET = re.compile(r"(?<=://)[^/@\s]+(?=@)|\b(?:hf_|sk-|ghp_|github_pat_|AKIA)[\w-]{8,}|(?<=\?)\S*=\S*")
"""Text that may be a secret: before the host of a URL, with the prefix of a known token, or in the query of a URL."""

PageData = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a page shows of a run."""

    steps: Sequence[int] = ()  # empty: the most informative ones, then as many others as fit
    groups: int | None = None  # per step; None: as many as fit
    size: int = DEFAULT_BYTES  # of the tokens in the page's file
    total: int = PAGE_BYTES  # of everything about the run in the page's file
    comparison: CheckpointComparison | None = None
    evaluations: tuple[int, int] | None = None  # the two whose answers are compared first; None: the first and the last

    def shared(self, runs: int) -> "View":
        """Return the view of each run if so many runs share the bytes of a page."""
        return replace(self, size=self.size // runs, total=self.total // runs)


DEFAULT_VIEW = View()


def collect_run(folder: Path, view: View = DEFAULT_VIEW) -> PageData:
    """Collect what the page shows of the run in `folder`. It writes nothing into the folder.

    Raises: RunFolderError if a file of the folder cannot be opened.
    """
    run_data = RunData(folder)
    recorded = files.recorded_steps(folder)
    comparison = view.comparison
    rest = {
        **run_data.to_dict(after=BEFORE_ALL, size=view.total // 6),
        "about": _description(folder, run_data, recorded),
        "recorded": recorded,
        "compared": {"step": comparison.step, "a": comparison.a, "b": comparison.b} if comparison else None,
        "moved_most": moved_most(recorded, run_data.metrics),
        "held_out": held_out_data(folder, pair=view.evaluations, size=view.total // 14),
    }
    size = min(view.size, view.total - len(json.dumps(rest, separators=(",", ":"))))
    leading = _leading_steps(recorded, run_data, view)
    entries = _encoded_steps(folder, leading, recorded, run_data, replace(view, size=size))
    return {**rest, "chosen": entries, "findings": run_data.all_findings}


def _encoded_steps(
    folder: Path, leading: Mapping[int, str], recorded: Sequence[int], run_data: "RunData", view: View
) -> list[dict[str, Any]]:
    """Return the steps with tokens: the leading ones, which share `view.size` bytes, then others while they fit."""
    others = [] if view.steps or view.groups else [step for step in spread_out(recorded) if step not in leading]
    entries: dict[int, dict[str, Any]] = {}
    left = view.size
    for number, step in enumerate([*leading, *others]):
        share = left // max(1, len(leading) - number)
        try:
            entry = _encoded_step(folder, step, leading.get(step, ""), view, share)
        except RunFolderError as error:
            run_data.add_warning(f"The tokens of step {step} are left out: {error}", step)
            continue
        if step in others and len(entry["blob"]) > left:
            break
        entries[step] = entry
        left = max(0, left - len(entry["blob"]))
    return [entries[step] for step in sorted(entries)]


def _encoded_step(folder: Path, step: int, why: str, view: View, size: int) -> dict[str, Any]:
    """Encode a step; if its tokens need more than `size` bytes, encode as many of them as that suggests."""
    comparison = view.comparison if view.comparison and view.comparison.step == step else None
    entry = encoded_step(folder, step, why, groups=view.groups, comparison=comparison)
    if not why or view.groups or len(entry["blob"]) <= size:
        return entry
    tokens = max(1, int(0.9 * entry["tokens"] * size / len(entry["blob"])))
    return encoded_step(folder, step, why, tokens=tokens, comparison=comparison)


def metrics_since(run_data: "RunData", *, after: int) -> PageData:
    """Return what is new in a run since step `after`: metrics, findings and recorded steps, without tokens.

    `evaluated` are the steps of its evaluations, of which `held_out_data` has the answers.
    """
    run_data.refresh()
    folder = run_data.folder
    recorded = files.recorded_steps(folder)
    record = {"recorded": recorded, "chosen": [], "compared": None, "moved_most": None, "held_out": None}
    record["evaluated"] = held_out_completions.evaluated_steps(folder)
    return {**run_data.to_dict(after=after), "about": _description(folder, run_data, recorded), **record}


def step_tokens(folder: Path, step: int) -> dict[str, Any] | None:
    """Return the tokens of one step as the page shows them; None if they are not recorded.

    Raises: RunFolderError with the name of the file if it is damaged.
    """
    if step not in files.recorded_steps(folder):
        return None
    return encoded_step(folder, step, "")


def _leading_steps(recorded: Sequence[int], run_data: "RunData", view: View) -> dict[int, str]:
    """Return the steps that the page names, with the reason: the requested or most informative ones, the compared."""
    best = _subtable(run_data.summary, "best").get("step")
    best = best if run_files.is_step(best) else None
    usual = informative_steps(recorded, run_data.metrics, run_data.findings, best=best)
    leading = dict.fromkeys(view.steps, "requested") if view.steps else usual
    if view.comparison:
        leading.setdefault(view.comparison.step, "compared")
    return leading


# -------------------------------------------------------------------------------------------------- metrics and words


class RunData:
    """The metrics of a run (numbers only, sorted by step), its findings, and what was left out.

    `refresh` reads what is new. Step 0 is the evaluation before the first step, which is in `summary.json`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = run_files.MetricsFile(folder)
        self._diagnosed: Any = None
        self.findings: list[dict[str, Any]] = []
        self.reward_parts: list[dict[str, Any]] = []
        self.ends: dict[str, list[float]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what was written since the last call. A long run is diagnosed again when it has 2 % more steps."""
        folder = self.folder
        self.left_out: list[dict[str, Any]] = []
        steps = {line["step"]: line for line in self._file.read(self.add_warning)}
        self.recipe = run_files.table(folder, "recipe.toml", self.add_warning)
        self.summary = run_files.table(folder, "summary.json", self.add_warning)
        self.environment = run_files.table(folder, "environment.json", self.add_warning)
        before = {"before": _numbers(_subtable(self.summary, "before"))}
        self.metrics = [*run_files.with_initial_evaluation([steps[step] for step in sorted(steps)], before)]
        not_there = missing_extra(DIAGNOSIS, "the diagnosis")
        if not_there:
            self.add_warning(not_there)
        state = (int(math.log(1 + len(self.metrics), 1.02)), self.summary, self.recipe)
        if state == self._diagnosed:
            return
        self._diagnosed = state
        self.ends = ends_of(self.metrics)
        if not not_there:
            self.findings, parts = load_extra(DIAGNOSIS, "the diagnosis")(self.metrics, self.recipe)
            self.reward_parts = [part for part in parts[:MOST_CURVES] if len(part["name"]) <= LONGEST_NAME]

    def add_warning(self, text: str, step: int = 0) -> None:
        """Add a finding about the files of the run, not about its metrics."""
        self.left_out.append({"first": step, "last": step, "level": "warning", "text": text, "metric": ""})

    @property
    def examples(self) -> list[list[str]]:
        """Answers of the last evaluation, if a finding puts a reward that rose in doubt: `[question, answer]`."""
        return rewarded_completions(self.folder) if any(finding["is_hack"] for finding in self.findings) else []

    @property
    def all_findings(self) -> list[dict[str, Any]]:
        """The findings about the run, and about what was left out of its files."""
        return [*self.findings, *self.left_out]

    def to_dict(self, *, after: int, size: int = PAGE_BYTES) -> PageData:
        """Return what the page shows except tokens, with the metrics after a step in about `size` bytes."""
        lines = [line for line in self.metrics if line["step"] > after]
        written = sorted({name for line in lines for name in line} - {"step"})
        names = [name for name in written if len(name) <= LONGEST_NAME][:MOST_CURVES]
        if len(names) < len(written):
            self.add_warning(f"The page shows {len(names):,} of {len(written):,} metrics.")
        most = max(LEAST_POINTS, min(MOST_POINTS, size // (POINT_BYTES * max(1, len(names)))))
        every = -(-len(lines) // most) or 1
        bins = [lines[max(0, end - every) : end] for end in range(len(lines), 0, -every)][::-1]
        values = {name: [_last_value(name, some) for some in bins] for name in names}
        if every > 1:
            self.add_warning(f"The run is long: the curves show the last value of every {every} steps.")
        return {
            "name": redacted(self.folder.resolve().name),
            "alive": is_alive(self.folder),
            "state": str(run_state(self.folder)),
            "ends": _of_names(self.ends, names),
            "metrics": {"steps": [some[-1]["step"] for some in bins], "values": values},
            "words": _glossary_texts(names),
            "findings": self.all_findings,
            "reward_parts": self.reward_parts,
            "examples": self.examples,
        }


def ends_of(lines: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return for each metric the means of its first and of its last values, and how many: a fifth, three to ten.

    These are the ends that the doctor compares (`RunMetrics.first_and_last`). Of less than nine values it is a third.
    """
    columns: dict[str, list[float]] = {}
    for line in lines:
        for name, value in line.items():
            columns.setdefault(name, []).append(value)
    ends: dict[str, list[float]] = {}
    for name, values in columns.items():
        few = max(1, min(10, max(len(values) // 5, min(3, len(values) // 3))))
        means = (sum(value / few for value in some) for some in (values[:few], values[-few:]))
        ends[name] = [*(float(f"{mean:.6g}") for mean in means), few]
    return ends


def _of_names(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers, rounded to six significant digits."""
    numbers = {name: run_files.number_or_none(value) for name, value in record.items() if name != "step"}
    return {name: float(f"{value:.6g}") for name, value in numbers.items() if value is not None}


def _last_value(name: str, lines: Sequence[Mapping[str, float]]) -> float | None:
    return next((line[name] for line in reversed(lines) if name in line), None)


def _glossary_texts(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the glossary entries of the metrics that have one."""
    entries = {name: glossary.entry(name) for name in names}
    fields = ("title", "what", "healthy", "otherwise", "better", "topic", "n")
    return {name: {key: getattr(entry, key) for key in fields} for name, entry in entries.items() if entry is not None}


def _description(folder: Path, run_data: RunData, recorded: Sequence[int]) -> list[list[str]]:
    """Return a short description of the run. Only these fields are shown: no command, no other setting, no secret."""
    recipe, environment = run_data.recipe, run_data.environment
    record = _record_metadata(folder, recorded) if recorded else {}
    train, data = _subtable(recipe, "train"), _subtable(recipe, "data")
    objective = train.get("objective")
    method = objective.get("name") if isinstance(objective, dict) else objective
    description = {
        "method": method or (recipe and "grpo") or record.get("method"),
        "model": recipe.get("model") or record.get("model"),
        "data": data.get("path"),
        "seed": recipe.get("seed", environment.get("seed")),
        **{name: environment.get(name) for name in ("device", "started", "outdo", "torch", "transformers", "python")},
    }
    description["outdo"] = description["outdo"] or record.get("version")
    return [[label, redacted(value)] for label, value in description.items() if isinstance(value, str | int)]


def _subtable(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = table.get(name)
    return value if isinstance(value, Mapping) else {}


def _record_metadata(folder: Path, recorded: Sequence[int]) -> Mapping[str, Any]:
    """Return the metadata of the last recorded step: all that is known about a run that outdo did not make."""
    try:
        newest = run_files.file_inside(folder, files.path_of(folder, recorded[-1]))
        return files.metadata_of(parquet.read_schema(newest))
    except (*READ_ERRORS, RunFolderError):
        return {}  # a finding reports that its tokens are left out


def redacted(value: Any) -> str:
    """Return a value as short text, without anything that looks like a secret."""
    return shortened(SECRET.sub("***", str(value)), 200)
