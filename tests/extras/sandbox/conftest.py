"""The sandboxes that attacks are tried on, one of each tier. None is probed here: the probe is a guard of its own.

A test of one tier alone says so: `@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)`.
"""

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from subprocess import CalledProcessError

import pytest
from sandbox_calls import PR_SET_CHILD_SUBREAPER

from outdo.extras.sandbox import Ending, Sandbox, choose
from outdo.extras.sandbox.interpreter import user_of_programs

TIERS = dict(choose.TIERS)  # a test may replace those of `choose`


@pytest.fixture(scope="session", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    reason = ""
    try:
        for each in TIERS[request.param]():
            outcome = each.run("print(1)")
            if outcome.ending is not Ending.infrastructure:
                return each
            reason = outcome.stderr
    except (OSError, CalledProcessError) as error:
        if isinstance(error, FileNotFoundError) and os.environ.get("CI_NEEDS_SANDBOX") == "1":
            pytest.fail(f"{request.param}: {error}")
        reason = str(error)
    pytest.skip(f"no {request.param} on this machine: {reason}")


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[dict[str, object]]:
    """What an attack reaches for: a file, sockets, memory, and a process of the user that programs have."""
    user = user_of_programs()
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    file = tmp_path / "canary"
    file.write_text("a secret")
    file.chmod(0o666)
    if user is not None:
        os.chown(file, user, -1)
    path, abstract = str(tmp_path / "socket"), f"\0outdo-{tmp_path}"
    victim = subprocess.Popen(["sleep", "600"], user=user, group=user)
    libc = ctypes.CDLL(None)
    segment = libc.shmget(0, 4096, 0o1666)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
        socket.socket(socket.AF_UNIX) as hidden,
    ):
        for listening, address in ((local, path), (hidden, abstract)):
            listening.bind(address)
            listening.listen()
        os.chmod(path, 0o777)
        yield {
            "file": str(file),
            "folder": str(tmp_path),
            "segment": segment,
            "victim": victim.pid,
            "port": server.getsockname()[1],
            "path": path,
            "abstract": abstract,
        }
    libc.shmctl(segment, 0, None)
    victim.kill()
    victim.wait()


@pytest.fixture
def orphans_are_ours() -> Iterator[None]:
    """Processes whose parent has ended become children of this one, as they would of process 1 of a container."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)
