"""`outdo cluster check`: what each process of a run finds on its machine, and what would keep them from one run."""

import os
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outdo.extras.replicas.launch import LOOPBACK
from outdo.extras.replicas.network import INTERFACE
from outdo.run.assemble.hardware import device_memory
from outdo.run.folder.provenance import versions
from outdo.utils.errors import UserError
from outdo.utils.text import counted
from outdo.utils.world import World

APART = 1.0
"""Seconds that clocks may be apart."""

FREE = 2**30
"""Bytes that have to be free where runs are written."""

EQUAL = 0.9
"""The least share of its memory that a machine reports if another one of the same kind reports all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """What one process finds."""

    host: str
    cores: int
    memory: int  # bytes
    free: int  # bytes, where runs are written
    gpus: tuple[str, ...]
    versions: Mapping[str, str | None]
    clock: float = 0.0  # seconds ahead of the first process
    shares: bool = True  # it finds what the first process writes where runs are written
    files: Mapping[str, int | None]  # bytes in the files of the recipe, by their path; None where there is nothing


def look(runs: Path, files: Sequence[str], world: World) -> list[ProcessReport]:
    """Return the reports of all processes, in their order; of this one if it is alone.

    `runs` is where runs are written, `files` are what a run reads.
    """
    sees, clock = (_shares(runs, world), _clock(world)) if len(world) > 1 else (True, 0.0)

    def report() -> ProcessReport:
        gpus = range(torch.cuda.device_count())
        return ProcessReport(
            host=socket.gethostname(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory=device_memory("cpu"),
            free=shutil.disk_usage(_existing(runs)).free,
            gpus=tuple(torch.cuda.get_device_name(number) for number in gpus),
            versions=versions(),
            clock=clock,
            shares=sees,
            files={file: _size(Path(file)) for file in files},
        )

    return world.together(report)


def problems(reports: Sequence[ProcessReport]) -> list[str]:
    """Return a sentence for all that would keep these processes from one run, or make its result another one."""
    lines = [*_unequal_machines(reports), *_unequal_versions(reports), *_unequal_files(reports)]
    first = reports[0].host
    for host, (number, report) in _by_host(reports).items():
        if abs(report.clock) > APART:
            lines.append(f"the clock of {host} is {report.clock:+.1f} s from that of {first}: synchronise them (NTP)")
        if report.free < FREE and report.shares:
            lines.append(f"{host}: {_gib(report.free)} are free where runs are written: checkpoints will not fit")
        if not report.shares:
            lines.append(
                f"process {number} on {host} does not find what process 0 on {first} writes into the folder of runs: "
                "put it on a file system that all machines share, or `outdo resume` cannot read the checkpoints"
            )
    return lines


def network_hints() -> list[str]:
    """Return what often keeps processes of several machines from meeting, as far as this machine shows it."""
    interface = os.environ.get(INTERFACE, "")
    hints = [f"is the port of MASTER_ADDR={os.environ.get('MASTER_ADDR', 'unset')} open, and every process started?"]
    if interface == LOOPBACK:
        hints.append(f"{INTERFACE}={interface} reaches this machine only: name the interface of the network")
    elif interface:
        hints.append(f"{socket.gethostname()} listens on {interface}, at any port: does a firewall close some of them?")
    return hints


def _unequal_machines(reports: Sequence[ProcessReport]) -> Iterator[str]:
    facts: dict[str, Callable[[ProcessReport], Any]] = {
        "GPUs": lambda report: ", ".join(report.gpus) or "none",
        "CPU cores": lambda report: report.cores,
    }
    for name, fact in facts.items():
        if len({fact(report) for report in reports}) > 1:
            yield f"unequal {name}: {_listed(reports, fact)}; the slowest process decides the speed of all"
    least, most = (choose(reports, key=lambda report: report.memory) for choose in (min, max))
    if least.memory < EQUAL * most.memory:
        yield f"unequal memory: {_gib(least.memory)} on {least.host}, {_gib(most.memory)} on {most.host}"
    for host, (_, report) in _by_host(reports).items():
        count = sum(other.host == host for other in reports)
        if report.gpus and count > len(report.gpus):
            yield f"{host}: {count} processes and {counted(len(report.gpus), 'GPU')}: start one process for each GPU"


def _unequal_versions(reports: Sequence[ProcessReport]) -> Iterator[str]:
    for name in reports[0].versions:

        def version(report: ProcessReport, name: str = name) -> str | None:
            return report.versions.get(name)

        if len({version(report) for report in reports}) > 1:
            yield f"{name}: {_listed(reports, version)}; install equal versions, or the weights will differ"


def _unequal_files(reports: Sequence[ProcessReport]) -> Iterator[str]:
    for file, size in reports[0].files.items():
        for number, report in enumerate(reports):
            if report.files[file] is None:
                yield f"{file} is not there for process {number} on {report.host}: copy or mount it, or use a full path"
            elif size is not None and report.files[file] != size:
                yield (
                    f"{file}: {size} bytes for process 0 on {reports[0].host}, {report.files[file]} for process "
                    f"{number} on {report.host}: make them equal"
                )


def _listed(reports: Sequence[ProcessReport], fact: Callable[[ProcessReport], Any]) -> str:
    """Return `2.11.0 on a, 2.12.0 on b`, with each host once, or with the number of the process if they share one."""
    seen = dict.fromkeys(
        (fact(report), report.host if len(_by_host(reports)) > 1 else f"process {number}")
        for number, report in enumerate(reports)
    )
    return ", ".join(f"{value} on {where}" for value, where in seen)


def _by_host(reports: Iterable[ProcessReport]) -> dict[str, tuple[int, ProcessReport]]:
    """Return for each host its process with the most to report: one that does not share the folder, or the first."""
    first_by_file: dict[str, tuple[int, ProcessReport]] = {}
    for number, report in enumerate(reports):
        if report.host not in first_by_file or (first_by_file[report.host][1].shares and not report.shares):
            first_by_file[report.host] = (number, report)
    return first_by_file


def _shares(runs: Path, world: World) -> bool:
    """Return whether this process finds a file that the first one writes."""

    def write() -> str:
        name = f".outdo-check-{uuid.uuid4().hex}"
        try:
            (_existing(runs) / name).touch()
        except OSError as error:
            raise UserError([f"{_existing(runs)}: runs cannot be written there: {error.strerror}"]) from error
        return name

    file = _existing(runs) / world.from_first(write)
    exists = file.exists()
    world.together(lambda: exists)  # all have looked
    if world.first:
        file.unlink()
    return exists


def _clock(world: World) -> float:
    """Return how far the clock of this process is ahead of that of the first one: the least of several readings."""
    readings = []
    for _ in range(5):
        world.together(lambda: None)  # all go on at the same time, or nearly so
        first, *_ = times = world.together(time.time)
        readings.append(times[world.rank] - first)
    return min(readings, key=abs)


def _existing(path: Path) -> Path:
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())


def _size(path: Path) -> int | None:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size if path.exists() else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
