"""Which Python interpreter runs programs, as which user, and what of this machine it needs to read."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"

_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_QUERY = "import os, sys; print(sys.version.split()[0], os.path.realpath(sys.executable), *sys.path[1:], sep=chr(10))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter of this machine."""

    python: str
    version: str
    visible: Sequence[str]
    """The files and folders that it reads: its own, its standard library, shared libraries."""


def user_of_programs() -> int | None:
    """Return the user id that a program gets, `None` if that of this process: programs of root belong to nobody.

    The kernel exempts root from the limit of threads.
    """
    return NOBODY if os.geteuid() == 0 else None


def interpreters() -> Iterator[Interpreter]:
    """Yield outdo's own interpreter, and that of the system.

    The user nobody cannot read an interpreter in root's home.

    Raises:
        OSError, CalledProcessError: an interpreter does not work.
    """
    for python in (sys.executable, SYSTEM_PYTHON):
        if os.path.exists(python):
            yield describe(python)


def describe(python: str) -> Interpreter:
    """Ask an interpreter where it lies and what it reads.

    Raises:
        OSError, CalledProcessError: it does not work.
    """
    query = [python, "-S", "-s", "-c", _QUERY]
    described = subprocess.run(query, env={}, capture_output=True, text=True, check=True)
    version, executable, *path = described.stdout.splitlines()
    prefix = os.path.dirname(os.path.dirname(executable))
    visible = [executable, *path, os.path.join(prefix, "lib"), *_LIBRARIES]
    return Interpreter(executable, version, [path for path in dict.fromkeys(visible) if os.path.exists(path)])
