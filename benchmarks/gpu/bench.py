"""Train tiny models on a device, by commands of outdo, and read what the runs have written."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet

from examples.small_models import guessing
from outdo.extras.quickstart.model import build
from outdo.extras.reward_models.model import RewardModel
from outdo.models.loading import without_bars
from outdo.run.checkpoints.checkpoint import latest, weights_hash
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import tiny_model

SECONDS = 600
"""After so many a command has failed on a GPU. A processor takes as long as it takes."""

SCORE = '''
def score(completion):
    """A number that differs among the answers of an untrained model."""
    return sum(map(ord, completion)) % 7 / 7
'''
TINY = """
    model=HOME/model data.path=HOME/questions.jsonl rewards=HOME/score.py:score threads=1 precision=float32 steps=2
    train.prompts=4 train.group_size=4 sampling.max_tokens=16 optim.lr=1e-4 eval.every=0 checkpoint.every=1000
"""
"""The settings of a run. HOME stands for the folder with the models and the data."""


class CommandError(Exception):
    """A command has failed; the second argument is all that it has printed."""


class Trained:
    """A run on the disk, and what it has printed."""

    def __init__(self, folder: Path, output: str) -> None:
        self.folder = folder
        self.output = output

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of each step."""
        return read_metrics(self.folder / "metrics.jsonl")

    def tokens(self, step: int) -> list[list[int]]:
        """Return the answers of a step, in the order of its groups."""
        table = pyarrow.parquet.read_table(self.folder / f"tokens/step_{step:06}.parquet")
        rows = table.select(["group", "rollout", "token_ids"]).to_pylist()
        return [row["token_ids"] for row in sorted(rows, key=lambda row: (row["group"], row["rollout"]))]

    @property
    def checkpoint(self) -> Path:
        """The folder of the last checkpoint."""
        saved = latest(self.folder / "checkpoints")
        assert saved is not None, f"{self.folder} has no checkpoint"
        return saved.path

    @property
    def weights(self) -> str:
        """The SHA-256 of the weights after the last step."""
        return weights_hash(self.checkpoint)

    @property
    def micro_batch_tokens(self) -> Mapping[str, int]:
        """The tokens of a micro-batch that were asked for, and that have fitted."""
        state = json.loads((self.checkpoint / "state/state.json").read_text())
        return state["models"]["policy"]["micro_batch_tokens"]


class Bench:
    """The runs on a device, which has `gpus` of its kind. Equal settings are trained once."""

    def __init__(self, device: str, gpus: int, home: Path) -> None:
        self.device = device
        self.gpus = gpus
        self.home = home.absolute()
        self.names = {"HOME": str(self.home)}
        """What stands for what in settings. A row adds what it finds on this machine."""
        self._trained: dict[tuple[Any, ...], Trained] = {}
        shutil.rmtree(home, ignore_errors=True)
        write_home(self.home)

    def train(
        self, settings: str, *, recipe: str = "", again: bool = False, memory: int = 0, then: str | None = None
    ) -> Trained:
        """Train by `outdo train`, and resume the run with the settings `then`, if they are given.

        Without a recipe a tiny model is trained, by `TINY`. `again` makes a second run with equal settings. `memory`
        limits the MiB that torch takes of a GPU.
        """
        key = (settings, recipe, again, memory, then)
        if key not in self._trained:
            folder = self.home / f"run-{len([*self.home.glob('run-*')]) + 1}"
            words = [f"device={self.device}", *shlex.split(settings if recipe else TINY + settings), f"run={folder}"]
            program = ["-m", "benchmarks.gpu.limited", str(memory)] if memory else ["-m", "outdo"]
            output = self.run([*program, "train", "--verbose", *[recipe] * bool(recipe), *self._last(words)])
            if then is not None:
                output += self.run(["-m", "outdo", "resume", str(folder), *shlex.split(then)])
            self._trained[key] = Trained(folder, output)
        return self._trained[key]

    def run(self, arguments: Sequence[str]) -> str:
        """Run Python with these arguments; return what it prints. Raises `CommandError` if it fails."""
        status, output = start(arguments, None if self.device == "cpu" else SECONDS)
        if status:
            last = (output.strip().splitlines() or ["it printed nothing"])[-1]
            raise CommandError(f"status {status}: {last}", f"python {' '.join(arguments)}\n{output}")
        return output

    def _last(self, words: Sequence[str]) -> list[str]:
        """Return settings, of those with one key the last; what names stand for is written out."""
        settings = {word.partition("=")[0]: word for word in words}
        for name, meant in self.names.items():
            settings = {key: word.replace(name, meant) for key, word in settings.items()}
        return list(settings.values())


def start(arguments: Sequence[str], seconds: float | None) -> tuple[int, str]:
    """Run Python with these arguments in a process of its own; return its exit status and what it has printed."""
    command = [sys.executable, *arguments]
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return 1, f"{(error.output or b'').decode(errors='replace')}\nit did not end within {seconds} seconds"
    return ended.returncode, ended.stdout.decode(errors="replace")


def write_home(home: Path) -> None:
    """Write the models, the questions and the reward of all runs."""
    home.mkdir(parents=True)
    with without_bars():
        tiny_model(home / "model", hidden=128)
        tiny_model(home / "wide", hidden=64, vocab=120_000)
    build(home / "player", 0, tokens=guessing.TOKENS)
    folder = Path(guessing.__file__).parent
    shutil.copy(folder / "template.jinja", home / "player/chat_template.jinja")
    shutil.copy(folder / "guessing.py", home)
    RewardModel.from_policy(home / "model", device="cpu").save(home / "reward_model")
    (home / "score.py").write_text(SCORE)
    questions = [{"prompt": f"What is {a} plus {a + 3}?", "answer": str(2 * a + 3)} for a in range(8)]
    games = guessing.rows(0)["held_out"][:8]
    for name, rows in {"questions": questions, "games": games}.items():
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
