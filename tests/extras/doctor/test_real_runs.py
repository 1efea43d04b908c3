"""What the doctor says about runs that were made: their metrics are kept, so that rules are judged without training.

`benchmarks/kept_runs.py` says what a row has, and `docs/doctor.md` how many rows were used to choose a rule.
"""

import json
from typing import Any

import pytest

from benchmarks import kept_runs
from outdo.extras.doctor import RULES
from outdo.extras.doctor.hacks import HACKS

ROWS = [row for file in sorted(kept_runs.KEPT.glob("*.jsonl")) for row in kept_runs.read(file)]
SICK, HEALTHY = ([row for row in ROWS if bool(row["rules"]) == sick] for sick in (True, False))


def name(row: dict[str, Any]) -> str:
    return f"{row['name']}-{row['recipe'].get('seed')}-{row['machine']}"


@pytest.mark.parametrize("row", SICK, ids=name)
def test_the_first_finding_about_a_run_describes_its_mistake(row: dict[str, Any]) -> None:
    first = kept_runs.diagnosed(row)[0]
    assert (first.level, first.cause) == ("warning", "")
    assert first.rule in row["rules"], first.text
    assert (first.rule in HACKS) >= row["hack"]


@pytest.mark.parametrize("row", HEALTHY, ids=name)
def test_a_healthy_run_that_was_made_gets_no_warning(row: dict[str, Any]) -> None:
    assert [each.text for each in kept_runs.diagnosed(row) if each.level == "warning"] == []


def test_rows_are_told_apart_and_name_rules_and_no_folder_of_a_machine() -> None:
    assert len({name(row) for row in ROWS}) == len(ROWS)
    assert {rule for row in ROWS for rule in row["rules"]} <= {rule.__name__ for rule in RULES}
    assert not [row["name"] for row in ROWS if "/" in json.dumps(row["recipe"])]


def test_a_row_that_is_kept_again_keeps_what_was_noted_about_it(tmp_path: Any) -> None:
    file, row = tmp_path / "runs.jsonl", ROWS[0]
    kept_runs.keep(file, [row | {"set_on": True, "note": "first"}])
    kept_runs.keep(file, [row | {"set_on": False, "note": "", "rules": ["memorised"]}, row | {"machine": "another"}])
    again, other = kept_runs.read(file)
    assert (again["set_on"], again["note"], again["rules"]) == (True, "first", ["memorised"])
    assert other["machine"] == "another"
    assert kept_runs.lines_of(other) == kept_runs.lines_of(row)
