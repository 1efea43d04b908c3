"""`outdo eval --lm-eval TASKS`: the benchmarks of EleutherAI's lm-evaluation-harness, of one model or of two."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outdo.cli.evaluate import EvalArguments
from outdo.cli.output import print_line
from outdo.models.chat_options import set_chat_options
from outdo.models.device import choose_device, make_deterministic
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model, load_tokenizer
from outdo.trainer.find_model import ModelRef, find_model
from outdo.trainer.progress_bar import progress
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.text import for_terminal

BATCH_ON_CPU = 16
"""Requests computed at once. The harness's own search for the largest number takes minutes on a CPU."""

MISSING = '--lm-eval needs the package lm-eval: pip install "outdo[lm-eval]"'


TASK = re.compile(r"""^task:\s*["']?([\w.-]+)""", re.MULTILINE)
"""The line of a task's file with its name. Such files have tags of the harness, which no other reader of YAML knows."""


@dataclass(frozen=True, slots=True)
class Score:
    """A metric of a task."""

    value: float
    stderr: float | None  # None where the harness computes none

    def __str__(self) -> str:
        around = f" ± {1.959964 * self.stderr:.4g}" if self.stderr else ""
        return f"{self.value:.4g}{around}"


Scores = Mapping[str, Score]
"""The metrics of all tasks by their name: `gsm8k: exact_match,strict-match`."""


def run_harness(
    models: Sequence[str], tasks: str, arguments: EvalArguments, console: Console, *, as_json: bool
) -> None:
    """Run tasks, names or .yaml files with commas between them, with each model; print a table, or one JSON object.

    Raises `UserError` before a model is loaded if lm-eval is not installed, with every option that it does not use, or
    with every task that it does not know.
    """
    _refuse_others(models, arguments)
    manager, names = _tasks(tasks)
    sources = [find_model(model) for model in models]
    scores = {source.name: _scores(source, names, manager, arguments) for source in sources}
    if as_json:
        console.file.write(json.dumps({name: _numbers(each) for name, each in scores.items()}) + "\n")
        return
    console.print(_table(scores))
    print_line(console, "after ±: half of the 95 % interval, 1.96 standard errors of the harness")


def _refuse_others(models: Sequence[str], arguments: EvalArguments) -> None:
    """Raise `UserError` for options that would have no effect: a task has its own questions, sampling and metrics."""
    given = {
        "--data": arguments.data,
        "--rewards": arguments.rewards,
        "--right": arguments.right,
        "--k": arguments.k > 1,
        "--temperature": arguments.temperature is not None,
        "--max-tokens": arguments.max_tokens,
        "--template": arguments.template,
        "--rates": arguments.rates,
        "--answers": arguments.answers,
        "--engine": arguments.engine,
    }
    mistakes = [f"eval: {name}: has no effect with --lm-eval; leave it out" for name, value in given.items() if value]
    if len(set(models)) < len(models):
        mistakes.append(f"eval: {models[0]} is given twice; --against needs another model")
    if mistakes:
        raise UserError(mistakes)


def _tasks(written: str) -> tuple[Any, list[str]]:
    """Return the harness's list of tasks, with those of the given files, and the names that are wanted."""
    try:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError([f"eval: {MISSING}"]) from None
    names, folders = _names(written)
    manager = TaskManager(include_path=sorted(folders))
    known = list(manager.all_tasks)
    unknown = [each for each in names if each not in known]
    if unknown:
        raise UserError([f"eval: --lm-eval: no task is called {each}{did_you_mean(each, known)}" for each in unknown])
    return manager, names


def _names(written: str) -> tuple[list[str], set[str]]:
    """Return the names of the tasks that are written with commas between them, and the folders of those in files."""
    wanted = [each.strip() for each in written.split(",") if each.strip()]
    files = {each: Path(each) for each in wanted if each.endswith((".yaml", ".yml"))}
    mistakes = [f"eval: --lm-eval: {file}: no such file" for file in files.values() if not file.is_file()]
    if not wanted:
        mistakes.append("eval: --lm-eval: name a task, such as gsm8k")
    if mistakes:
        raise UserError(mistakes)
    names = [_name_in(files[each]) if each in files else each for each in wanted]
    return names, {str(file.resolve().parent) for file in files.values()}


def _name_in(file: Path) -> str:
    """Return the name of the task that a file describes."""
    name = TASK.search(file.read_text(encoding="utf-8", errors="replace"))
    if name is None:
        raise UserError([f"eval: --lm-eval: {file}: expected a task of lm-eval, with a line `task: NAME`"])
    return name[1]


def _scores(source: ModelRef, names: Sequence[str], manager: Any, arguments: EvalArguments) -> Scores:
    """Load a model and run the tasks. A model with a chat template gets the questions through it."""
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]

    facts = inspect_folder(source.model)
    stop = source.recipe.sampling.stop_token_ids if source.recipe else ()
    tokenizer = load_tokenizer(facts, stop_token_ids=stop)
    set_chat_options(tokenizer, source.recipe.data.chat_options if source.recipe else {})
    device = choose_device(arguments.device)[0]
    with progress(f"loading {source.name}"):
        model = load_model(facts, device)
        make_deterministic(device)
    batch_size = BATCH_ON_CPU if device.type == "cpu" else "auto"
    found = simple_evaluate(
        model=HFLM(pretrained=model, tokenizer=tokenizer, batch_size=batch_size),
        tasks=list(names),
        task_manager=manager,
        limit=arguments.limit,
        apply_chat_template=bool(tokenizer.chat_template),
        log_samples=False,
        random_seed=arguments.seed,
        numpy_random_seed=arguments.seed,
        torch_random_seed=arguments.seed,
        fewshot_random_seed=arguments.seed,
    )
    assert found is not None  # this process is the first of all
    return dict(_read(found["results"]))


def _read(results: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Score]]:
    """Yield the metrics of the harness's results: beside `acc,none` stands `acc_stderr,none`."""
    for task, metrics in results.items():
        for key, value in metrics.items():
            metric, comma, kind = key.partition(",")
            if not comma or metric.endswith("_stderr") or not _is_number(value):  # such as the number of questions
                continue
            name = f"{task}: {metric}" + (f" ({kind})" if kind not in ("", "none") else "")
            stderr: Any = metrics.get(f"{metric}_stderr,{kind}")
            yield name, Score(float(value), float(stderr) if _is_number(stderr) else None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _numbers(scores: Scores) -> dict[str, dict[str, float | None]]:
    return {name: {"value": score.value, "stderr": score.stderr} for name, score in scores.items()}


def _table(scores: Mapping[str, Scores]) -> Table:
    table = Table("", *(escape(for_terminal(name)) for name in scores))
    for row in dict.fromkeys(name for each in scores.values() for name in each):
        table.add_row(escape(for_terminal(row)), *(str(each[row]) if row in each else "" for each in scores.values()))
    return table
