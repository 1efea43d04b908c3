"""Stand-ins for the commands of SLURM that templates call: `sbatch`, `srun` and `scontrol`.

    python slurm_stand_in.py sbatch [--nodes=2 ...] SCRIPT ARGUMENT...

`sbatch` runs the script, with the options of its `#SBATCH` lines and of the command line, as often as the script puts
itself back into the queue. `srun` starts its command once for each task, with the variables that SLURM sets, and
returns the highest exit status. Where `NODES` names processes, tasks of a node run in the namespaces of its process.
Options that mean nothing here are accepted if SLURM has them, and refused otherwise.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

NODES = "STAND_IN_NODES"
"""The environment variable with the holders of the nodes' namespaces (see `two_machines.py`), or with nothing."""

QUEUE = "STAND_IN_QUEUE"
"""The environment variable with the file that `scontrol requeue` writes."""

OPTIONS = frozenset(
    [
        *("job-name", "nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "cpus-per-task"),
        *("time", "requeue", "open-mode", "signal", "kill-on-bad-exit"),
    ]
)

NAMES = ("first", "second")


def sbatch(arguments: Sequence[str]) -> int:
    """Run a job; return the exit status of its last start."""
    given, (script, *rest) = _split(arguments)
    written = [line.split()[1] for line in Path(script).read_text().splitlines() if line.startswith("#SBATCH ")]
    options = _split(written)[0] | given
    nodes, tasks = int(options["nodes"]), int(options["ntasks-per-node"])
    assert nodes <= len(NAMES)
    with tempfile.TemporaryDirectory() as folder:
        for tool in ("srun", "scontrol"):
            _write_tool(Path(folder) / tool, tool)
        queue = Path(folder) / "queue"
        environment = os.environ | {
            "PATH": os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]]),
            QUEUE: str(queue),
            "SLURM_JOB_ID": "4711",
            "SLURM_JOB_NODELIST": f"[{','.join(NAMES[:nodes])}]" if os.environ.get(NODES) else "localhost",
            "SLURM_NNODES": str(nodes),
            "SLURM_NTASKS": str(nodes * tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
            "SLURM_GPUS_ON_NODE": options["gpus-per-node"],
        }
        for starts in range(100):
            job = subprocess.Popen(["bash", script, *rest], env=environment | {"SLURM_RESTART_COUNT": str(starts)})
            status = job.wait()
            if not queue.exists():
                return status
            queue.unlink()
    raise AssertionError("put back into the queue a hundred times")


def srun(arguments: Sequence[str]) -> int:
    """Run a command as the tasks of a step; return the highest exit status."""
    options, command = _split(arguments)
    holders = os.environ.get(NODES, "").split()
    nodes, tasks = int(os.environ["SLURM_NNODES"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: FrameType | None) -> None:
        for task in started:
            task.send_signal(number)

    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, forward)
    for rank in range(nodes * tasks):
        node = rank // tasks
        where = _inside(holders[node]) if holders else ()
        numbers = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % tasks, "SLURM_NODEID": node}
        environment = os.environ | {name: str(number) for name, number in numbers.items()}
        started.append(subprocess.Popen([*where, *command], env=environment))
    while options.get("kill-on-bad-exit") == "1" and any(task.poll() is None for task in started):
        if any(task.poll() for task in started):  # SLURM kills what is left then
            for task in started:
                task.terminate()
            break
        time.sleep(0.1)
    statuses = [task.wait() for task in started]
    return max(status if status >= 0 else 128 - status for status in statuses)


def scontrol(arguments: Sequence[str]) -> int:
    """Print the names of a list of hosts, or put the job back into the queue."""
    match arguments:
        case ["show", "hostnames", hosts]:
            print("\n".join(hosts.strip("[]").split(",")))
        case ["requeue", job] if job == os.environ["SLURM_JOB_ID"]:
            Path(os.environ[QUEUE]).touch()
        case _:
            raise AssertionError(f"scontrol {arguments}")
    return 0


def _inside(holder: str) -> tuple[str, ...]:
    spaces = ("--user", "--net", "--uts", "--mount")
    there = ("sh", "-c", 'cd "$0" && exec "$@"', os.getcwd())
    return ("nsenter", f"--target={holder}", "--preserve-credentials", *spaces, "--", *there)


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the options at the beginning, and what comes after them."""
    options: dict[str, str] = {}
    for number, argument in enumerate(arguments):
        if not argument.startswith("--"):
            return options, list(arguments[number:])
        name, _, value = argument.removeprefix("--").partition("=")
        assert name in OPTIONS, f"SLURM has no --{name}, or nobody has looked whether it has"
        options[name] = value
    return options, []


def _write_tool(path: Path, name: str) -> None:
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).absolute()}" {name} "$@"\n')
    path.chmod(0o755)


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
