"""Several processes of one implementation, as `torchrun` starts them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping

from benchmarks.suite.setting import Setting


def rank() -> int:
    """Return the number of this process; 0 for the first one, or for one alone."""
    return int(os.environ.get("RANK", "0"))


def start_others(name: str, setting: Setting, processes: int, variables: Mapping[str, str] = {}) -> None:
    """Start the other processes of the implementation `name`; they end with this one's connection.

    In one of the others nothing is started. `variables` are added to the environment of all.
    """
    if "RANK" in os.environ:
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"OMP_NUM_THREADS": "1", **variables}
    for number in range(1, processes):
        environment = {**os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)}
        command = [sys.executable, "-m", "benchmarks.suite.worker", name, setting.dumps()]
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.environ.update(shared, RANK="0", LOCAL_RANK="0")
