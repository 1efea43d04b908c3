"""Two machines on one: Linux namespaces with a network card, a host name and a view of the disk each, and a cable.

No right of root is needed where user namespaces are allowed. When the first process of a machine ends, nothing of it
is left: no name, no interface and no mounted folder.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from run_cases import SOURCE, alive

CARD = "eth0"
NAMES = ("first", "second")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
MAKE = ("unshare", "--user", "--map-root-user", "--net", "--uts", "--mount")


def _may_make() -> str:
    """Why two machines cannot be made here; nothing if they can."""
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        return f"needs {missing[0]}"
    dummy = (*MAKE, "sh", "-c", "ip link add eth0 type veth peer name eth1")
    return "" if subprocess.run(dummy, capture_output=True).returncode == 0 else "namespaces are not permitted"


WHY_NOT = _may_make()
"""Why tests that need two machines are skipped."""


@dataclass(frozen=True)
class Machine:
    """One of the two: whatever `popen` starts has this network, host name and mounts."""

    name: str
    address: str
    holder: int  # the process that keeps the namespaces

    def popen(self, *command: str, cwd: Path, **environment: str) -> "subprocess.Popen[str]":
        """Start a command on this machine; what it writes comes through one pipe."""
        sources = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [*_enter(self.holder), "sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": sources, "COLUMNS": "300"} | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *command: str) -> None:
        """Run a command of the administrator on this machine."""
        subprocess.run([*_enter(self.holder), *command], check=True, capture_output=True)

    def processes(self) -> list[int]:
        """All processes of this machine but the one that keeps it."""
        found = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [each for each in found if each != self.holder and alive(each) and _network(each) == self._network]

    @property
    def _network(self) -> str:
        return _network(self.holder)

    def pull_the_plug(self) -> None:
        """Cut this machine off: connections stay open, and nothing arrives any more."""
        self.run("ip", "link", "set", CARD, "down")

    def put_the_plug_back(self) -> None:
        """Connect this machine again."""
        self.run("ip", "link", "set", CARD, "up")

    def cover(self, place: Path, other: Path) -> None:
        """Let this machine find `other` where the other one finds `place`."""
        self.run("mount", "--bind", str(other), str(place))


@contextmanager
def two_machines(folder: Path, own_name_is: str | None = None) -> Iterator[tuple[Machine, Machine]]:
    """Make two machines that share the disk; `folder` is for their files of host names.

    On Debian a machine finds its own name at 127.0.1.1: `own_name_is` is such an address.
    """
    holders: list[subprocess.Popen[str]] = []
    try:
        holders.append(_hold(*MAKE))
        holders.append(_hold(*_enter(holders[0].pid, "user"), "unshare", "--net", "--uts", "--mount"))
        machines = tuple(Machine(*each) for each in zip(NAMES, ADDRESSES, (one.pid for one in holders), strict=True))
        machines[0].run("ip", "link", "add", CARD, "type", "veth", "peer", "name", CARD, "netns", str(holders[1].pid))
        for machine in machines:
            _configure(machine, folder, own_name_is)
        yield machines
    finally:
        for number, holder in enumerate(holders):
            for process in Machine(NAMES[number], "", holder.pid).processes():
                os.kill(process, signal.SIGKILL)
            holder.kill()
            holder.communicate()


def _configure(machine: Machine, folder: Path, own_name_is: str | None) -> None:
    addresses = {"localhost": "127.0.0.1", **dict(zip(NAMES, ADDRESSES, strict=True))}
    if own_name_is:
        addresses[machine.name] = own_name_is
    hosts = folder / f"hosts-{machine.name}"
    hosts.write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))
    machine.cover(Path("/etc/hosts"), hosts)
    machine.run("hostname", machine.name)
    machine.run("ip", "link", "set", "lo", "up")
    machine.run("ip", "address", "add", f"{machine.address}/24", "dev", CARD)
    machine.run("ip", "link", "set", CARD, "up")


def _hold(*make: str) -> "subprocess.Popen[str]":
    """Start a process in new namespaces, and wait until it is in them."""
    command = [*make, "sh", "-c", "echo ready; exec sleep infinity"]
    holder = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    return holder


def _enter(process: int, *kinds: str) -> tuple[str, ...]:
    spaces = [f"--{kind}" for kind in kinds or ("user", "net", "uts", "mount")]
    return ("nsenter", f"--target={process}", "--preserve-credentials", *spaces, "--")


def _network(process: int) -> str:
    try:
        return os.readlink(f"/proc/{process}/ns/net")
    except OSError:  # it has ended
        return ""
