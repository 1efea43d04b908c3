"""Change files in every way that mutmut knows, and list the changes that no test notices: `make mutate`.

    make mutate FILES="src/outdo/algorithms/advantages/*.py" TESTS=tests/algorithms/test_advantages.py

The table of guards has what must never be lost. This looks for what no test guards: each comparison, constant, operator
and argument of the files is changed, one at a time, and the tests run once for each that they reach. mutmut works in a
copy of the repository, which is removed afterwards.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MUTMUT = Path(sys.executable).with_name("mutmut")
SETTINGS = """
[tool.mutmut]
source_paths = ["src/outdo/"]
only_mutate = {files}
also_copy = ["tests", "examples", "benchmarks", "docs"]
pytest_add_cli_args = ["-m", "not long", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = {tests}
"""


def main() -> int:
    """Run the command line; return 0 if the tests notice every change, else 1."""
    parser = argparse.ArgumentParser(prog="mutate", description=__doc__)
    parser.add_argument("--files", nargs="+", required=True, help="files or patterns, from the root of the repository")
    parser.add_argument("--tests", nargs="+", required=True, help="tests that pytest runs for each change")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutate-") as folder:
        copy = Path(folder)
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["cp", "--parents", "--target-directory", copy, *tracked.decode().split("\0")[:-1]], cwd=ROOT)
        with (copy / "pyproject.toml").open("a") as project:
            project.write(SETTINGS.format(files=options.files, tests=options.tests))
        if status := subprocess.run([MUTMUT, "run"], cwd=copy).returncode:
            return status
        found = subprocess.run([MUTMUT, "results"], cwd=copy, capture_output=True, text=True, check=True).stdout
        survived = [line.partition(":")[0].strip() for line in found.splitlines() if line.endswith(": survived")]
        for name in survived:
            subprocess.run([MUTMUT, "show", name], cwd=copy)
    print(f"{len(survived)} changes that no test notices.")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
