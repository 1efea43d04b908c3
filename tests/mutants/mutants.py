"""Take out each guard in turn and run its test: `make mutants`.

Each guard of `guards/*.toml` is taken out of a temporary copy of `src`, and the one test that it names must fail there:
it is red. A test that stays green without the guard proves nothing about it. Before that, the tests have to pass with
every guard in place.

What was found is kept in `.mutants_cache`, by a hash of the source, the guard and its test, so that a second call goes
on where the first was stopped. The exit status is 0 if every test is red, and else 1.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

import pytest
from guard_table import ROOT, Guard, read_guards

CACHE = ROOT / ".mutants_cache"
LIMIT = 900.0
"""Seconds for each test, after which they are killed. That proves nothing: a test has to end also without the guard."""

LOG = "pytest.log"
"""What the tests have printed that were run last, in the temporary folder."""

PRELOADED = ("torch", "transformers.models.qwen3.modeling_qwen3", "pyarrow.parquet", "hypothesis", "beartype.door")
"""Slow imports of the tests, made once. Each test runs in a fork, in which outdo itself is imported."""


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="mutants", description="Take out each guard in turn and run its test.")
    parser.add_argument("names", nargs="*", metavar="GUARD", help="take out these guards only")
    parser.add_argument("--again", action="store_true", help="also where the result is known")
    parser.add_argument("--output", action="store_true", help="show what the tests print")
    options = parser.parse_args(arguments)
    guards = read_guards()
    if unknown := [name for name in options.names if name not in guards]:
        parser.error(f"no such guard: {', '.join(unknown)}")
    chosen = [guards[name] for name in options.names] or list(guards.values())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the test that runs is killed first
    os.environ |= {"OMP_NUM_THREADS": "1"}  # read when torch is imported; a process with threads should not be forked
    for module in PRELOADED:
        importlib.import_module(module)
    return take_out_each(chosen, ROOT, CACHE, again=options.again, output=options.output)


def take_out_each(
    guards: Sequence[Guard], root: Path, cache: Path, *, again: bool = False, output: bool = False
) -> int:
    """Take out the guards one after the other, and print a line for each; return the exit status.

    `root` has the folders `src/outdo` and `tests`. With `again`, guards whose result is in `cache` are tried once more.
    """
    results = Results(cache, root)
    todo = [guard for guard in guards if again or not results.get(guard)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(root / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        if todo and run_tests({guard.test for guard in todo}, root, copy, output=output) != pytest.ExitCode.OK:
            failed = [line for line in (Path(folder) / LOG).read_text().splitlines() if line.startswith("FAILED")]
            print("\n".join(["Some of the tests fail with every guard in place; --output shows why.", *failed]))
            return 1
        wrong: list[str] = []
        for guard in guards:
            started, known = time.monotonic(), guard not in todo
            result = results.get(guard) if known else take_out(guard, root, copy, output=output)
            took = "known" if known else f"{time.monotonic() - started:.0f} s"
            print(f"{result:<8} {guard.file:<44} {guard.name} ({took})", flush=True)
            if not known:
                results.put(guard, result)
            if result != "red":
                wrong.append(guard.name)
    print(f"{len(guards) - len(wrong)} of {len(guards)} guards turn their test red when they are taken out.")
    if wrong:
        print(f"Not red: {', '.join(wrong)}")
    return 1 if wrong else 0


def take_out(guard: Guard, root: Path, copy: Path, *, output: bool = False) -> str:
    """Run the test of a guard without the guard. Return "red" if it fails, "GREEN" if it passes, "BROKEN" otherwise."""
    original, changed = root / "src/outdo" / guard.file, copy / "outdo" / guard.file
    changed.write_text(guard.taken_out_of(original.read_text(encoding="utf-8")), encoding="utf-8")
    try:
        status = run_tests([guard.test], root, copy, output=output)
    finally:
        shutil.copy2(original, changed)  # with its time, by which Python knows that it has compiled another text
    return {pytest.ExitCode.TESTS_FAILED: "red", pytest.ExitCode.OK: "GREEN"}.get(status, "BROKEN")


def run_tests(tests: Iterable[str], root: Path, source: Path, *, output: bool) -> int:
    """Run tests with the package in `source`, in a fork; return pytest's exit status, or minus a signal's number."""
    names = sorted(tests)
    sys.stdout.flush()
    if not (child := os.fork()):
        _run_pytest(names, root, source, output=output)
    deadline = time.monotonic() + LIMIT * len(names)
    try:
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        return os.waitstatus_to_exitcode(ended[1])
    finally:
        with suppress(ProcessLookupError):  # what the tests have started, or all if this process was interrupted
            os.killpg(child, signal.SIGKILL)


def _run_pytest(tests: Sequence[str], root: Path, source: Path, *, output: bool) -> None:
    """Run tests in this process, which is a fork, and end it."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(root)
    if not output:
        log = os.open(source.parent / LOG, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for standard in (0, 1, 2):
            os.dup2(log, standard)
    sys.path.insert(0, str(source))
    needs = {
        "CI_NEEDS_BROWSER": "1",
        "CI_NEEDS_SANDBOX": "1",
        "CI_NEEDS_MODEL": "1",
    }  # a test that is skipped would be green
    os.environ |= {"PYTHONPATH": str(source), **needs}
    # Assertions of the modules that are preloaded are not rewritten. They are not those of the tests.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += ["-m", "not long"]  # those of `make test-release` too
    status = -1
    try:
        status = int(pytest.main([*options, *(f"tests/{test}" for test in tests)]))
    finally:
        sys.stdout.flush()
        os._exit(status)


class Results:
    """What was found, in `folder/results.json`. A result counts until source, guard or test change."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.file = folder / "results.json"
        self.tests = root / "tests"
        self.source = digest([*(root / "src").rglob("*"), *(self.tests / "support").rglob("*")])
        self.known: dict[str, str] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def get(self, guard: Guard) -> str:
        """Return the result of a guard; an empty text if it is not known."""
        return self.known.get(self.key(guard), "")

    def put(self, guard: Guard, result: str) -> None:
        """Keep the result of a guard."""
        self.known[self.key(guard)] = result
        self.file.parent.mkdir(exist_ok=True)
        whole = self.file.with_suffix(".new")
        whole.write_text(json.dumps(self.known, indent=1))
        whole.replace(self.file)

    def key(self, guard: Guard) -> str:
        """Return what a result depends on, as a hash."""
        test = digest([self.tests / guard.test.partition("::")[0]])
        return hashlib.sha256(repr((self.source, test, astuple(guard))).encode()).hexdigest()


def digest(files: Iterable[Path]) -> str:
    """Return a hash of the names and contents of files; folders, and files that Python has compiled, do not count."""
    own = sorted(file for file in files if file.is_file() and file.suffix != ".pyc")
    parts = [(str(file), hashlib.sha256(file.read_bytes()).hexdigest()) for file in own]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
