"""A run of a few seconds, and the command line in processes that can be killed."""

import gc
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import outdo.cli.main
from outdo.extras.replicas.launch import RENDEZVOUS
from outdo.run.checkpoints import checkpoint
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import tiny_model

SCORE = '''
def score(completion, answer):
    """The share of letters and digits: it tells the answers of an untrained model apart."""
    return sum(each.isalnum() for each in completion) / 8
'''
RECIPE = """
model = "model"
steps = 30
threads = 1
device = "cpu"
rewards = "score.py:score"
data = {path = "train.jsonl", eval_path = "held_out.jsonl"}
sampling = {max_tokens = 8}
train = {prompts = 2, group_size = 4, objective = {name = "grpo", beta = 0.0}}
optim = {lr = 1e-3}
eval = {every = 10, rows = 4}
checkpoint = {every = 1}
"""
SOURCE = str(Path(outdo.__file__).parent.parent)
PATIENCE = 1200.0
"""Seconds after which a test gives up waiting: a busy machine is slow, and that is no fault."""

MAY_MOUNT = bool(shutil.which("unshare")) and subprocess.run(["unshare", "-rm", "true"]).returncode == 0
"""Whether a test may mount small disks, in a namespace of its own."""

TIMES = ("seconds", "tokens_per_second", "record/seconds", "time/", "tools/seconds/", "engine/", "judge/", "replicas/")
"""How the names of metrics begin that depend on the clock, or on what an earlier process has asked already."""

# A new interpreter loads torch and transformers for seconds. This server has them loaded, and forks for each command.
# pyarrow imports pandas, where it is installed, when the first record of a run is made.
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    [
        "outdo.cli.main",
        "outdo.cli.train",
        "outdo.cli.resume",
        "outdo.run.check.preflight",
        "outdo.run.training",
        "outdo.run.export.export",
        "transformers.models.qwen3",
        "peft",
        "pyarrow.pandas_compat",
    ]
)


def write_home(folder: Path) -> Path:
    """What a run needs: an untrained model, questions, a reward and a recipe."""
    tiny_model(folder / "model")
    rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(3)]
    write_rows(folder / "train.jsonl", rows)
    write_rows(folder / "held_out.jsonl", [rows[0], *({"prompt": f"{a}+5=", "answer": str(a + 5)} for a in range(3))])
    (folder / "score.py").write_text(SCORE)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Command:
    """`outdo ARGUMENTS` in the folder `home`, under way; with some more environment variables."""

    def __init__(
        self,
        home: Path,
        *arguments: str | Path,
        variables: Mapping[str, str] | None = None,
        main: Callable[[], None] = outdo.cli.main.main,
    ) -> None:
        self.arguments = [str(each) for each in arguments]
        self.log = home / f"log-{time.monotonic_ns()}"
        self.process = WARM.Process(
            target=run_outdo, args=(self.arguments, str(home), str(self.log), variables or {}, main)
        )
        self.process.start()
        assert self.process.pid
        self.pid: int = self.process.pid

    @property
    def running(self) -> bool:
        return self.process.is_alive()

    def wait(self, seconds: float = PATIENCE) -> int:
        """Its exit status once it has ended; minus the signal that killed it."""
        self.process.join(seconds)
        status = self.process.exitcode
        if status is None:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s:\n{self.said}")
        return status

    @property
    def said(self) -> str:
        """All that it wrote."""
        return self.log.read_text() if self.log.exists() else ""


def run_outdo(
    arguments: list[str],
    home: str,
    log: str,
    variables: Mapping[str, str],
    main: Callable[[], None] = outdo.cli.main.main,
) -> None:
    """Become `outdo ARGUMENTS` in the folder `home`, which writes to the file `log`."""
    gc.freeze()  # a collection would visit, and so copy, all that was loaded before the fork
    os.environ.update(variables)
    os.chdir(home)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["outdo", *arguments]
    main()


class Replicas:
    """`outdo ARGUMENTS` as two replicas, under way. They are started as torchrun starts them, without a launcher.

    The second one may work in another folder.
    """

    def __init__(self, home: Path, *arguments: str | Path, second_home: Path | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        meet = {
            RENDEZVOUS: (Path(self.folder.name) / "rendezvous").as_uri(),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }
        self.commands = [
            Command(folder, *arguments, variables=meet | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank, folder in enumerate((home, second_home or home))
        ]

    @property
    def running(self) -> bool:
        """Whether the first one is."""
        return self.commands[0].running

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send one of them a signal."""
        os.kill(self.commands[rank].pid, number)

    def wait(self) -> list[int]:
        """Their exit statuses once both have ended."""
        statuses = [each.wait() for each in self.commands]
        self.folder.cleanup()
        return statuses

    @property
    def said(self) -> str:
        """All that they wrote."""
        return "".join(each.said for each in self.commands)


def together(home: Path, *arguments: str | Path) -> str:
    """Run a command as two replicas, to its end; what they said."""
    replicas = Replicas(home, *arguments)
    assert replicas.wait() == [0, 0], replicas.said
    return replicas.said


def outdo_(home: Path, *arguments: str | Path, status: int = 0) -> str:
    """Run a command to its end, with the exit status that is expected; what it said."""
    command = Command(home, *arguments)
    found = command.wait()
    said = command.said
    assert found == status, f"status {found}:\n{said}"
    assert "Traceback" not in said
    return said


def cold(home: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The same as a user starts it: in a new interpreter."""
    return subprocess.Popen(
        [sys.executable, "-m", "outdo.cli.main", *arguments],
        cwd=home,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(command: "subprocess.Popen[str]") -> tuple[int, str]:
    """Its exit status once it has ended, and what it said."""
    said, _ = command.communicate(timeout=600)
    return command.returncode, said


def of_process(process: int, file: str) -> bytes:
    """A file of a process in /proc; empty if the process has ended, be it while the file is read."""
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:
        return b""


def command_line(process: int) -> bytes:
    """The arguments of a process, each with a zero after it; empty if it has ended."""
    return of_process(process, "cmdline")


def state(process: int) -> str:
    """The state of a process, as the kernel writes it: T if it is stopped ...; X if there is none."""
    stat = of_process(process, "stat").rpartition(b")")[2].split()
    return stat[0].decode() if stat else "X"


def alive(process: int) -> bool:
    """Still there, and more than what its parent has not asked about yet."""
    return state(process) not in ("X", "Z")


def family(process: int) -> list[int]:
    """A process's children, and theirs; a thread or a child that ends meanwhile is left out."""
    children: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):  # each thread has children of its own
        with suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, path.read_text().split()):
                children += [child, *family(child)]
    return children


def wait_until(
    happened: Callable[[], Any],
    command: "Command | Replicas | subprocess.Popen[str] | None" = None,
    seconds: float = PATIENCE,
) -> None:
    """Look every millisecond, until it happened or the command ended."""
    deadline = time.monotonic() + seconds
    while not happened() and (command is None or is_running(command)):
        said = "" if command is None or isinstance(command, subprocess.Popen) else command.said
        assert time.monotonic() < deadline, f"did not happen within {seconds} s:\n{said}"
        time.sleep(0.001)


def wait_for_end(processes: Iterable[int]) -> None:
    """Wait until each of some processes has ended once: its number may then be that of a thread of another process."""
    deadline, left = time.monotonic() + PATIENCE, [*processes]
    while left := [each for each in left if alive(each)]:
        assert time.monotonic() < deadline, f"have not ended: {[command_line(each) for each in left]}"
        time.sleep(0.001)


def is_running(command: "Command | Replicas | subprocess.Popen[str]") -> bool:
    return command.poll() is None if isinstance(command, subprocess.Popen) else command.running


def metrics(run: Path) -> list[dict[str, Any]]:
    """The run's metrics, a line per step."""
    return read_metrics(run / "metrics.jsonl")


def timeless(run: Path) -> list[dict[str, Any]]:
    """The run's metrics without those that depend on the clock."""
    return [{name: value for name, value in line.items() if not name.startswith(TIMES)} for line in metrics(run)]


def steps_done(run: Path) -> int:
    """How many whole lines its metrics have."""
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(run: Path) -> list[int]:
    """Steps that have a checkpoint."""
    return sorted(int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*"))


def weights(run: Path, step: int | None = None) -> str:
    """The hash of the weights after a step; of the newest checkpoint if none is named."""
    step = saved(run)[-1] if step is None else step
    return checkpoint.weights_hash(run / "checkpoints" / f"step_{step:06d}")


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
