"""Choose the strongest sandbox that works on this machine. Each is tried before it is used: a name proves nothing."""

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from subprocess import CalledProcessError

from outdo.extras.sandbox.base import DEFAULT_LIMITS, Ending, Limits, Outcome, Sandbox
from outdo.extras.sandbox.bubblewrap import Bubblewrap, bubblewraps
from outdo.extras.sandbox.landlock import landlocks
from outdo.extras.sandbox.local import UnsafeLocal
from outdo.extras.sandbox.remote import open_remote
from outdo.utils.errors import UserError
from outdo.utils.options import no_such_name
from outdo.utils.text import one_line

TIERS: Mapping[str, Callable[[], Iterator[Sandbox]]] = {"bubblewrap": bubblewraps, "landlock": landlocks}
"""The kinds of sandbox, the strongest first. A function yields those that may work, or raises `OSError`
or `CalledProcessError`."""

_PROBE = """
import os, socket, threading
reached = []

def attempt(name, function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    reached.append(name)

attempt("a file of this machine", open, {path!r})
attempt("the network", lambda: socket.create_connection(("127.0.0.1", {port}), timeout=10).close())
attempt("another process", os.kill, {process}, 0)
if set(os.environ) - {{"PYTHONHASHSEED", "LC_CTYPE", "PWD"}}:
    reached.append("environment variables")
thread = threading.Thread(target=print, args=["reached:"])
thread.start()
thread.join()
print(*reached, sep=", ")
"""


@cache
def open_sandbox(name: str | None = None, *, api_key: str = "", unsafe_local: bool = False) -> Sandbox:
    """Return the sandbox called `name`, or the strongest one that works on this machine.

    A URL names a service that runs programs, with its `api_key`. With `unsafe_local`, programs run without any sandbox
    where none works.

    Raises:
        UserError: there is none; the message has the reasons and what to install.
    """
    if name is not None and name.startswith(("http://", "https://")):
        return open_remote(name, api_key)
    if name not in (None, *TIERS):
        raise UserError([no_such_name("sandbox", name, list(TIERS), own="the URL of a service")])
    reasons: list[str] = []
    for tier in TIERS if name is None else [name]:
        try:
            for sandbox in TIERS[tier]():
                fault = probe(sandbox)
                if fault is None:
                    return sandbox
                reasons.append(f"{tier}: {fault}")
        except (OSError, CalledProcessError) as error:
            reasons.append(f"{tier}: {error}")
    if unsafe_local:
        return UnsafeLocal()
    raise UserError(
        [
            f"no sandbox for programs of the model works on this machine ({'; '.join(reasons)}). Install one, which "
            "needs Linux: `apt-get install bubblewrap`; or name a service that runs programs: sandbox = "
            '"http://HOST:PORT"; or accept that programs can read and change everything that you can: '
            "unsafe_local = true"
        ]
    )


def probe(sandbox: Sandbox) -> str | None:
    """Run a program that reaches for a file, the network and a process of this machine; return what is wrong."""
    with tempfile.NamedTemporaryFile() as file, socket.create_server(("127.0.0.1", 0)) as server:
        os.fchmod(file.fileno(), 0o644)  # a program of another user could read it
        port = server.getsockname()[1]
        outcome = sandbox.run(_PROBE.format(path=file.name, port=port, process=os.getpid()))
    if outcome.ending is not Ending.exited or outcome.exit_status != 0 or "reached:" not in outcome.stdout:
        return one_line(outcome.stderr.strip())[:200]
    reached = outcome.stdout.removeprefix("reached:").strip()
    return f"a program in it reached {reached}" if reached else None


def run(program: str, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> Outcome:
    """Run the source of a Python program in the strongest sandbox of this machine.

    Raises:
        UserError: no sandbox works here.
    """
    return open_sandbox().run(program, stdin, limits)


def open_bubblewrap() -> Bubblewrap:
    """Return the sandbox that can run a command of this machine: `Bubblewrap.run_command`.

    Raises:
        UserError: bubblewrap does not work here.
    """
    sandbox = open_sandbox("bubblewrap")
    assert isinstance(sandbox, Bubblewrap)
    return sandbox
