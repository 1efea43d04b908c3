"""Read the table of guards: a file for each folder of `src/outdo` and of `outdo.extras`, and `outdo.toml` for the rest.

[name-of-the-guard]
guards = "One sentence: what does not happen because of it."
file = "rewards/worker_process.py"      # in src/outdo
code = "the exact text; it occurs once in the file"
without = "what stands in its place if the guard is taken out"
test = "rewards/test_reward_protocol.py::test_..."      # in tests; it fails then
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent / "guards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A piece of code that prevents a fault, and the test that fails without it."""

    name: str
    guards: str
    file: str
    code: str
    without: str
    test: str

    def taken_out_of(self, source: str) -> str:
        """Return the text of the file without the guard.

        Raises `ValueError` if its code does not occur exactly once.
        """
        if (count := source.count(self.code)) != 1:
            raise ValueError(f"{self.name}: its code occurs {count} times in {self.file}, and not once")
        return source.replace(self.code, self.without)


def read_guards(tables: Path = TABLES) -> dict[str, Guard]:
    """Return all guards by name, in the order of the files and of their tables.

    Raises `ValueError` if two guards have the same name.
    """
    guards: dict[str, Guard] = {}
    for table in sorted(tables.rglob("*.toml")):
        for name, fields in tomllib.loads(table.read_text(encoding="utf-8")).items():
            if name in guards:
                raise ValueError(f"{table.name}: there is another guard {name}")
            guards[name] = Guard(name=name, **fields)
    return guards
