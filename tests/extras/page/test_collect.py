"""What a page shows of a run folder: the telling steps, whole groups within the budget, and never a secret."""

import base64
import fcntl
import gzip
import json
import os
from pathlib import Path

import numpy
import pyarrow
import pytest
from encoded_pages import unpack
from pyarrow import parquet
from run_folders import start_run, write_run, write_small_run, write_watched_run

from outdo.extras.page import collect, select
from outdo.extras.page.collect import RunData, View, collect_run, metrics_since, step_tokens
from outdo.extras.page.select import (
    LEADING_STEPS,
    encoded_step,
    informative_steps,
    select_rows,
)
from outdo.extras.record import parquet as files
from outdo.run.folder.run_folder import RunFolder, is_alive
from outdo.utils.errors import RunFolderError


def header(entry: dict) -> dict:
    return unpack(gzip.decompress(base64.b64decode(entry["blob"])))[0]


def edit(folder: Path, name: str, change) -> None:
    path = folder / name
    path.write_text(change(path.read_text()))


def texts(run: dict) -> str:
    return "\n".join(finding["text"] for finding in run["findings"])


# ------------------------------------------------------------------------------------------------------------ the run


def test_metrics_have_six_digits_and_a_glossary_entry(small_run: Path):
    run = collect_run(small_run)
    lines = [json.loads(line) for line in (small_run / "metrics.jsonl").read_text().splitlines()]
    assert run["metrics"]["steps"] == [0, 1, 2, 3, 4, 5, 6]
    assert run["metrics"]["values"]["reward"][0] is None
    assert run["metrics"]["values"]["reward"][1:] == pytest.approx([line["reward"] for line in lines], rel=1e-5)
    assert run["metrics"]["values"]["eval/greedy"][:2] == [0.25, None]  # before the first step, as summary.json has it
    assert all(len(f"{value!r}") <= 12 for value in run["metrics"]["values"]["entropy"][1:])
    assert run["words"]["reward"]["title"]
    assert set(run["words"]["reward"]) == {"title", "what", "healthy", "otherwise", "better", "topic", "n"}
    assert run["recorded"] == [1, 2, 3, 4, 5, 6]
    assert run["alive"] is False
    assert json.loads(json.dumps(run, allow_nan=False)) == run


def test_the_parts_of_the_reward_are_told_apart_by_their_weights(tmp_path: Path):
    run = collect_run(write_watched_run(tmp_path / "hack", topic=(0.9, 0.1)))
    assert run["reward_parts"] == [
        {"name": "mine.score", "watched": False, "first": 0.43, "last": 0.75, "change": "rose"},
        {"name": "topic.score", "watched": True, "first": 0.9, "last": 0.1, "change": "fell"},
    ]
    assert [each["rule"] for each in run["findings"] if each["level"] == "warning"] == ["watched_reward_fell"]
    trained = collect_run(write_watched_run(tmp_path / "both", topic=(0.9, 0.1), weight=0.5))
    assert [part["watched"] for part in trained["reward_parts"]] == [False, False]


def test_without_the_doctor_a_page_says_that_it_is_not_there(small_run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collect, "DIAGNOSIS", "outdo.extras.deleted.shown:shown_diagnosis")
    run = collect_run(small_run)
    assert [each["text"] for each in run["findings"]] == [
        "the diagnosis: needs outdo.extras.deleted, which this installation of outdo does not have"
    ]
    assert run["reward_parts"] == []


def test_the_best_step_comes_from_the_summary(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"best": {"step": 4}}))
    assert {entry["step"]: entry["why"] for entry in collect_run(folder)["chosen"]}[4].endswith("best evaluation")
    (folder / "summary.json").unlink()
    edit(folder, "metrics.jsonl", lambda text: text.replace("eval/greedy", "eval/other"))
    whys = [entry["why"] for entry in collect_run(folder)["chosen"]]
    assert "highest reward" in " ".join(whys)


def test_steps_with_events_are_chosen_most_important_first():
    metrics = [{"step": step, "moved_as_intended": 0.9 - (step == 30) * 0.5} for step in range(1, 101)]
    metrics[49]["updates/refused"] = 1.0
    finding = {"first": 70, "last": 80, "level": "warning", "metric": "entropy"}
    chosen = informative_steps(range(1, 101), metrics, [finding], best=90)
    assert list(chosen) == [1, 100, 90, 50, 70, 30]
    assert chosen[50] == "an update was refused"
    assert chosen[70] == "a warning begins (entropy)"
    assert chosen[30] == "fewest tokens moved as intended"
    many = [{**finding, "first": step} for step in range(60, 80)]
    assert len(informative_steps(range(1, 101), metrics, many, best=90)) == LEADING_STEPS
    metrics[39]["step_kl"], metrics[40]["step_kl"] = 0.02, 0.01
    assert next(iter(informative_steps(range(1, 101), metrics, many).items())) == (40, "moved most")
    assert next(iter(informative_steps(range(1, 40), metrics, many).items())) == (1, "first recorded")


def test_curves_of_a_long_run_have_a_limited_number_of_points(tmp_path: Path):
    folder = start_run(tmp_path / "run", steps=9000)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 9001):
            evaluated = {"eval/greedy": step / 9000} if step % 7 == 0 else {}
            file.write(json.dumps({"step": step, "reward": step, **evaluated}) + "\n")
    run = collect_run(folder)
    steps, values = run["metrics"]["steps"], run["metrics"]["values"]
    assert 1000 < len(steps) <= 2000
    assert steps[-1] == 9000
    assert values["reward"] == steps  # the last of each few
    assert sum(value is not None for value in values["eval/greedy"]) > 1200  # a rare metric is not thinned away
    assert "of every 5 steps" in texts(run)


# -------------------------------------------------------------------------------------------------------- the tokens


def test_measured_and_mixed_groups_come_first(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=1, groups=4, group_size=2, length=24)
    table = files.read(folder, 1)
    told = {"measured": [False] * 4 + [True] * 4, "reward": [0.0, 0.0, 1.0, 0.0] * 2, "advantage": [0.0] * 8}
    for name, values in told.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pyarrow.array(values, table.schema.field(name).type))
    files.write(folder, 1, table)
    shown = [set(select_rows(folder, 1, groups=groups).table["group"].to_pylist()) for groups in (1, 2, 3, 4)]
    assert shown == [{3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3}]
    of_turns = [0.0, 0.0, 0.5, -0.5] * 2  # the sums of the rewards are equal, and those of the turns are not
    for name, values in {"advantage": of_turns, "reward": [1.0] * 8}.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pyarrow.array(values, table.schema.field(name).type))
    files.write(folder, 1, table)
    assert [set(select_rows(folder, 1, groups=n).table["group"].to_pylist()) for n in (1, 2)] == [{3}, {2, 3}]


def test_every_step_has_tokens_on_the_page_while_they_fit(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=20, groups=2, group_size=4, length=12)
    run = collect_run(folder)
    assert [entry["step"] for entry in run["chosen"]] == [*range(1, 21)]
    leading = {entry["step"]: entry["why"] for entry in run["chosen"] if entry["why"]}
    assert len(leading) <= LEADING_STEPS
    assert "moved most" in leading[run["moved_most"]]
    size = sum(len(entry["blob"]) for entry in run["chosen"]) // 2
    half = collect_run(folder, View(size=size))["chosen"]
    assert sum(len(entry["blob"]) for entry in half) <= size
    assert LEADING_STEPS < len(half) < 20
    assert set(leading) <= {entry["step"] for entry in half}


def test_a_long_completion_keeps_its_beginning_and_its_end(small_run: Path):
    rows = select_rows(small_run, 1, tokens=80)
    assert all(len(ids) <= 10 for ids in rows.table["token_ids"].to_pylist())
    whole = {(row["group"], row["rollout"]): row for row in files.read(small_run, 1).to_pylist()}
    cut = [row for row in rows.table.to_pylist() if row["omitted"]]
    assert cut
    for row in cut:
        before = whole[row["group"], row["rollout"]]
        assert row["omitted"] == len(before["token_ids"]) - 10
        assert row["token_ids"] == before["token_ids"][:7] + before["token_ids"][-3:]
        assert row["old_logprobs"] == before["old_logprobs"][:7] + before["old_logprobs"][-3:]
    entry = encoded_step(small_run, 1, "", tokens=80)
    assert [row["omitted"] for row in header(entry)["rows"]] == rows.table["omitted"].to_pylist()


# ------------------------------------------------------------------------------------------- what is damaged or missing


def test_a_damaged_record_is_left_out_with_a_finding(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    path = files.path_of(folder, 6)
    path.write_bytes(path.read_bytes()[:-40])
    run = collect_run(folder)
    assert 6 not in [entry["step"] for entry in run["chosen"]]
    assert 1 in [entry["step"] for entry in run["chosen"]]
    assert "The tokens of step 6 are left out" in texts(run)
    assert path.name in texts(run)
    with pytest.raises(RunFolderError, match=path.name):
        step_tokens(folder, 6)


def test_damaged_and_incomplete_lines_are_left_out(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    edit(folder, "metrics.jsonl", lambda text: '{"reward": 1}\nnonsense\n' + text + '{"step": 7, "rew')
    run = collect_run(folder)
    assert run["metrics"]["steps"] == [0, 1, 2, 3, 4, 5, 6]
    assert "line 2: not a JSON object" in texts(run)
    assert "line 1: not a JSON object with a step" in texts(run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recipe.toml", b"\xff\xfe"),
        ("summary.json", b"[" * 100_000),
        ("summary.json", b"[1, 2]"),
        ("environment.json", b" " * 1_000_001),
    ],
)
def test_a_damaged_small_file_is_reported_and_the_rest_is_shown(tmp_path: Path, name: str, content: bytes):
    folder = write_small_run(tmp_path / "run")
    (folder / name).write_bytes(content)
    run = collect_run(folder)
    assert f"{name} cannot be read" in texts(run)
    assert len(run["chosen"]) > 1


def test_a_run_of_another_training_loop_is_shown(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    for name in ("recipe.toml", "environment.json", "summary.json"):
        (folder / name).unlink()
    run = collect_run(folder)
    assert len(run["chosen"]) > 1
    assert ["method", "grpo"] in run["about"]
    assert ["model", "models/small"] in run["about"]


# -------------------------------------------------------------------------------------------------- about, and secrets


def test_no_secret_is_shown(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    edit(
        folder,
        "recipe.toml",
        lambda text: (
            text.replace('"models/small"', '"https://me:hunter2@host/m?token=hunter2&rev=1"').replace(
                '"questions.jsonl"', '"s3://bucket/hf_abcdefghijklmnop/questions.jsonl"'
            )
            + '\n[hub]\ntoken = "hunter2"\n[[judges]]\nname = "judge.py:score"\napi_key = "hunter2"\n'
        ),
    )
    environment = json.loads((folder / "environment.json").read_text())
    changed = {**environment, "command": ["outdo", "--api-key", "hunter2"], "API_KEY": "hunter2"}
    (folder / "environment.json").write_text(json.dumps(changed))
    told = json.dumps(collect_run(folder))
    assert "hunter2" not in told
    assert "abcdefghijklmnop" not in told
    assert "https://***@host/m?***" in told


# ------------------------------------------------------------------------------------------------------------- alive


def test_a_run_is_alive_while_a_process_holds_its_folder(tmp_path: Path):
    assert not is_alive(tmp_path / "nowhere")
    folder = write_small_run(tmp_path / "run")
    assert not is_alive(folder)
    with RunFolder(folder):
        assert is_alive(folder)
        assert collect_run(folder)["alive"]
        assert metrics_since(RunData(folder), after=0)["alive"]
    assert not is_alive(folder)


def test_the_lock_of_a_dead_process_or_finished_run_is_not_tried(tmp_path: Path, monkeypatch):
    asked = []
    monkeypatch.setattr(fcntl, "flock", lambda *_: asked.append(1))
    (tmp_path / "lock").write_text("")
    assert not is_alive(tmp_path)
    dead = os.fork()
    if not dead:
        os._exit(0)
    os.waitpid(dead, 0)
    (tmp_path / "lock").write_text(json.dumps({"pid": dead, "host": os.uname().nodename}))
    assert not is_alive(tmp_path)
    assert not asked
    (tmp_path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename}))
    assert not is_alive(tmp_path)  # another process has its number
    assert asked


# ------------------------------------------------------------------------------ within bounds, and within the folder


def elsewhere(tmp_path: Path, folder: Path, name: str) -> None:
    """Put a link in the place of a file of the run, to where it now is: outside."""
    outside = tmp_path / "outside"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)


def test_a_record_outside_the_run_folder_is_not_read(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    elsewhere(tmp_path, folder, "tokens/step_000006.parquet")
    run = collect_run(folder)
    assert 6 not in [entry["step"] for entry in run["chosen"]]
    assert "leads out of the run folder" in texts(run)
    with pytest.raises(RunFolderError, match="leads out of the run folder"):
        step_tokens(folder, 6)


@pytest.mark.parametrize("name", ["metrics.jsonl", "tokens"])
def test_metrics_and_records_outside_the_run_folder_are_not_read(tmp_path: Path, name: str):
    folder = write_small_run(tmp_path / "run")
    elsewhere(tmp_path, folder, name)
    with pytest.raises(RunFolderError, match="leads out of the run folder"):
        collect_run(folder) if name == "metrics.jsonl" else step_tokens(folder, 6)


def test_a_very_long_line_is_left_out(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    long = '{"step": 7, "x": "' + "a" * 3_000_000 + '"}\n{"step": 8, "reward": 0.5}\n{"step": 9, "reward": '
    edit(folder, "metrics.jsonl", lambda text: text + long)
    run = collect_run(folder)
    assert run["metrics"]["steps"] == [0, 1, 2, 3, 4, 5, 6, 8]
    assert "line 7: longer than the limit" in texts(run)


def test_a_small_file_with_a_huge_column_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(select, "MOST_ENTRIES", 100_000)
    folder = write_small_run(tmp_path / "run")
    table = files.read(folder, 6)
    n = 100_001
    values = pyarrow.ListArray.from_arrays(pyarrow.array([0, n], pyarrow.int32()), numpy.zeros(n, numpy.int8))
    bomb = pyarrow.table({"group": [0], "token_ids": values}).replace_schema_metadata(table.schema.metadata)
    parquet.write_table(bomb, files.path_of(folder, 6), compression="zstd")
    assert files.path_of(folder, 6).stat().st_size < 100_000
    with pytest.raises(RunFolderError, match=f"has {n:,} entries .* too many to show"):
        step_tokens(folder, 6)
