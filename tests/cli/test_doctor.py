"""`outdo doctor`: what it prints, for one run and for several, and its exit status."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from doctor_cases import HEALTHY, steps
from rich.console import Console

from outdo.extras.doctor.command import run_doctor
from outdo.utils.errors import UserError


def write_run(folder: Path, lines: list[dict[str, Any]], **files: str) -> Path:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


def said_of(*runs: Path, **how: bool) -> str:
    said = io.StringIO()
    run_doctor(runs, Console(file=said, width=1000), **how)
    return said.getvalue()


FAR = {"kl": 2.0}


def test_the_command_prints_symptoms_beneath_their_cause(tmp_path: Path) -> None:
    lines = steps((9, {"reward_length_correlation": 1.0, "completions/clipped_ratio": 0.9}))
    counted, cause, symptom = said_of(write_run(tmp_path / "run", lines)).splitlines()
    assert counted.endswith("9 steps: 1 warning")
    assert cause.startswith("warning: steps 1 to 9: within groups the reward follows the length")
    assert symptom == "  symptom: steps 1 to 9: 90% of the answers are truncated."


def test_several_runs_are_diagnosed_one_after_another(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "sick", steps((9, FAR))), write_run(tmp_path / "healthy", HEALTHY)]
    said = said_of(*runs)
    assert said.index("sick: 9 steps: 1 warning") < said.index("healthy: 30 steps: no problem was found")
    found = [json.loads(line) for line in said_of(*runs, as_json=True).splitlines()]
    assert {(each["run"], each["level"]) for each in found} == {(str(runs[0]), "warning"), (str(runs[1]), "good")}


def test_the_exit_status_is_1_after_a_warning_only_if_strict(outdo, tmp_path: Path) -> None:
    sick, healthy = write_run(tmp_path / "sick", steps((9, FAR))), write_run(tmp_path / "healthy", HEALTHY)
    assert [outdo("doctor", sick).status, outdo("doctor", "--strict", healthy).status] == [0, 0]
    both = outdo("doctor", "--strict", "--json", healthy, sick)
    assert both.status == 1
    assert [json.loads(line)["rule"] for line in both.out.splitlines()][-1] == "kl_explosion"
    missing = outdo("doctor", "--strict", healthy, tmp_path / "a", tmp_path / "b")
    assert (missing.status, missing.out) == (2, "")
    assert missing.error.count("no such folder") == 2


def test_the_command_reads_recipe_and_summary_if_they_exist(tmp_path: Path) -> None:
    lines = steps((8, {"completions/clipped_ratio": 0.5}), (1, {"eval/greedy": 0.9}))
    recipe, summary = "[sampling]\nmax_tokens = 77\n", '{"before": {"greedy": 0.2}}'
    said = said_of(write_run(tmp_path / "run", lines, recipe_toml=recipe, summary_json=summary))
    assert "max_tokens = 77" in said
    assert "at the start it was 20.0%" in said


def test_the_command_reports_that_nothing_was_found(tmp_path: Path) -> None:
    assert "no problem was found" in said_of(write_run(tmp_path / "run", HEALTHY))
    assert "most rules need five steps" in said_of(write_run(tmp_path / "young", steps((2, FAR))))


def test_an_unknown_run_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run is there"):
        said_of(tmp_path)
    write_run(tmp_path / "sums", steps((1, {})))
    with pytest.raises(UserError, match="no such folder; did you mean sums"):
        said_of(tmp_path / "sum")
    with pytest.raises(UserError, match="this is a file"):
        said_of(tmp_path / "sums" / "metrics.jsonl")


def test_a_run_without_a_finished_step_is_an_error_with_what_became_of_it(outdo, tmp_path: Path) -> None:
    broken = '{"message": "the reward raised\\nValueError"}'
    run = write_run(tmp_path / "run", [], recipe_toml="steps = 9", failure_json=broken)
    done = outdo("doctor", run, write_run(tmp_path / "healthy", HEALTHY))
    assert (done.status, done.out) == (2, "")
    assert "no step is finished (failed at step 0 of 9: the reward raised ValueError)" in done.error


def test_damaged_files_are_named_and_the_rest_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", steps((9, FAR)), summary_json="{")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "k')  # the last line of a run that goes on
    assert "2 nats per token" in said_of(run)
    assert "summary.json cannot be read" in capsys.readouterr().err


def test_control_characters_from_a_run_are_not_printed(tmp_path: Path) -> None:
    lines = steps((1, {"reads/[red]a\x1b]8;;x": 20.1}), (8, {}), (1, {"reads/[red]a\x1b]8;;x": 0.3}))
    said = said_of(write_run(tmp_path / "run", lines))
    assert "\x1b" not in said
    assert 'no longer read the word in "[red]a␛]8;;x"' in said
