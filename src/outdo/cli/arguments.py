"""Arguments that several commands share: their types and help texts, and checks of files and folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.machine import MOST_THREADS
from outdo.utils.run_names import run_folder

Settings = Annotated[
    list[str] | None,
    typer.Argument(help="recipe.toml and key=value settings, such as optim.lr=2e-6", show_default=False),
]
OtherSettings = Annotated[
    list[str],
    typer.Argument(help="its script.py, config.yaml or script.sh, key=value settings, or --flags", show_default=False),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="key=value settings", show_default=False)]
Profile = Annotated[bool, typer.Option("--profile", help="trace two steps, and show where the time of all steps went")]
Verbose = Annotated[
    bool, typer.Option("--verbose", help="print every note on the settings; start.txt in the run folder has them too")
]
Restarts = Annotated[
    int,
    typer.Option(min=0, help="after a fault of the machine, start again so often without progress; see cluster.md"),
]
RunFolder = Annotated[Path, typer.Argument(help="the run folder", show_default=False)]
RunOrModel = Annotated[
    str, typer.Argument(help="a run folder, a model folder, a .gguf file or a hub name", show_default=False)
]
Engine = Annotated[
    str | None,
    typer.Option(help='builtin, \'{name = "vllm", python = "path"}\' ...; unset: the engine of the run, or builtin'),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps")]
Threads = Annotated[int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads; unset: torch's default")]
Adapter = Annotated[str | None, typer.Option(help="train only an adapter: lora, or a table as train.adapter has it")]
BaseWeights = Annotated[
    Literal["auto", "float32", "bfloat16", "int8", "nf4"],
    typer.Option(help="how the frozen weights under an adapter are stored; auto: bfloat16 if their files are"),
]
Epochs = Annotated[
    float | None, typer.Option(min=0.001, help="passes over the data; unset: 3, or as many as --steps makes")
]
Steps = Annotated[int | None, typer.Option(min=1, help="optimiser steps, in place of --epochs")]
CheckpointEvery = Annotated[int, typer.Option(min=1, help="steps between checkpoints; `outdo resume OUT` uses them")]
Template = Annotated[
    str | None,
    typer.Option(
        help="prompt text for base models, with {prompt} in it, or options of the chat template: "
        "'{enable_thinking = false}'",
    ),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="tokens of the longest answer")]
Temperature = Annotated[
    float | None, typer.Option(min=0, help="0: greedy; unset: 0 for one answer per question, else 1")
]
Limit = Annotated[int | None, typer.Option(min=1, help="use only this many questions")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


def option_names(options: Mapping[str, bool]) -> list[str]:
    """Return the names of the options that are given, to pass them on to another process."""
    return [name for name, is_given in options.items() if is_given]


def recipe_and_overrides(settings: list[str] | None) -> tuple[Path | None, list[str]]:
    """Return the file and the `key=value` settings among the arguments of a command.

    What has a `/` before its first `=` is a file, such as `runs/lr=1e-5/recipe.toml`: no key has one.
    """
    overrides = [setting for setting in settings or [] if "=" in setting.partition("/")[0]]
    files = [setting for setting in settings or [] if setting not in overrides]
    if files[:1] == [""]:
        raise UserError(['"": expected the file of a recipe, or key=value; is a variable of the shell empty?'])
    if len(files) > 1:
        raise UserError([f'"{file}": expected key=value; the recipe is {files[0]}' for file in files[1:]])
    return Path(files[0]) if files else None, overrides


def no_run(run: Path) -> str | None:
    """Return why there is no run to show in a folder, if there is none."""
    if any((run / name).exists() for name in ("recipe.toml", "metrics.jsonl", "tokens")):
        return None
    if run.is_dir():
        return f"{run}: no run is there (it has neither recipe.toml nor metrics.jsonl nor tokens)"
    if run.exists():
        return f"{run}: expected a run folder, and this is a file"
    return f"{run}: no such folder{nearest_run(run)}"


def nearest_run(run: Path) -> str:
    """Return `; did you mean X?` with the run of this name in `runs/`, or else the folder of the most similar name."""
    named = run_folder(str(run))
    return f"; did you mean {named}?" if named.is_dir() else _nearest_folder(run)


def not_writable(file: Path) -> str | None:
    """Return why a file cannot be written at this place, if it cannot."""
    if file.is_dir():
        return f"{file}: expected the name of a file, and this is a folder"
    if not file.parent.is_dir():
        return f"{file}: cannot be written: there is no folder {file.parent}{_nearest_folder(file.parent)}"
    return None


def not_empty(folder: Path) -> str | None:
    """Return why a folder cannot be written as a new one, if something is in it."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        return f"{folder}: exists and is not empty; choose a new folder"
    return None


def _nearest_folder(folder: Path) -> str:
    """Return `; did you mean X?` with the most similar name among the folder's neighbours."""
    if not folder.parent.is_dir():
        return ""
    return did_you_mean(folder.name, [path.name for path in folder.parent.iterdir() if path.is_dir()])
