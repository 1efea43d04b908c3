"""Run tests with the newest version of every package, whatever upper bounds pyproject.toml has: `make test-newest`.

Its last lines say what fails. It says nothing about the versions of constraints.txt, which `make test` tests.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree.ElementTree import parse

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
TOOLS = ("pytest", "hypothesis", "beartype")
"""What the tests need of the extra `dev`."""


def main() -> None:
    """Bring the environment up to date, run the tests, and end with status 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the interpreter of the environment")
    parser.add_argument("--extras", required=True, help="extras of pyproject.toml, with commas")
    parser.add_argument("--torch", choices=("locked", "newest"), default="locked")
    parser.add_argument("--pip-args", default="", help="more arguments of pip install")
    parser.add_argument("tests", nargs="+")
    arguments = parser.parse_args()
    python: Path = arguments.python
    lock = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    wanted = unbounded(ROOT / "pyproject.toml", arguments.extras.split(","))
    if arguments.torch == "locked":
        wanted.append(f"torch=={lock['torch']}")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments.pip_args.split()]
    if run([*install, "--upgrade", "--upgrade-strategy", "eager", *wanted]) or run([*install, "--no-deps", "-e", "."]):
        sys.exit("make test-newest: the newest versions cannot be installed together.")
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True)
    newer = newer_than(lock, json.loads(listed.stdout))
    print(f"Newer than in constraints.txt: {', '.join(newer) or 'nothing'}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-m", "not long", "-W", "default", f"--junitxml={report}"]
        command = [python, "-m", "pytest", *options, *arguments.tests]
        status = run(command)
        said = outcome(status, report)
    print(f"make test-newest: {said} with the newest versions ({', '.join(newer) or 'those of the lock'}).")
    if status:
        sys.exit("This says nothing about the versions of constraints.txt, which `make test` tests.")


def run(command: Sequence[str | Path]) -> int:
    """Run a command in the root of the repository, and return its exit status."""
    return subprocess.run(command, cwd=ROOT).returncode


def pinned(lines: Iterable[str]) -> dict[str, str]:
    """Return the versions of a constraints file that hold for this Python and platform."""
    found = [Requirement(line) for line in lines if not line.startswith("#")]
    applies = [each for each in found if each.marker is None or each.marker.evaluate()]
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in applies}


def unbounded(pyproject: Path, extras: Iterable[str]) -> list[str]:
    """Return the requirements of the project, of some of its extras and of its tests, with their lower bounds alone."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for name in extras for line in project["optional-dependencies"][name])]
    found = []
    for each in map(Requirement, lines):
        each.specifier = SpecifierSet(",".join(str(one) for one in each.specifier if one.operator in (">=", ">", "!=")))
        found.append(str(each))
    return [*found, *TOOLS]


def newer_than(lock: dict[str, str], installed: Iterable[dict[str, str]]) -> list[str]:
    """Return name and version of each installed package that is newer than in the lock."""
    return [
        f"{each['name']} {each['version']}"
        for each in installed
        if canonicalize_name(each["name"]) in lock
        and Version(Version(each["version"]).public) > Version(lock[canonicalize_name(each["name"])])
    ]


def outcome(status: int, report: Path) -> str:
    """Return how many tests failed, as pytest's report in XML has it."""
    if not report.exists():
        return f"pytest ended with status {status} before it ran a test"
    counts = [suite.attrib for suite in parse(report).iter("testsuite")]
    failed, tests = (
        sum(int(each[name]) for each in counts for name in names) for names in (("failures", "errors"), ("tests",))
    )
    return f"{failed} of {tests} tests fail"


if __name__ == "__main__":
    main()
