"""What a page shows of a run folder: the telling steps, whole groups within the budget, and never a secret."""

import base64
import fcntl
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy
import pyarrow
import pytest
from encoded_pages import unpack
from pyarrow import parquet
from run_folders import start_run, write_long_run, write_run, write_small_run, write_watched_run

from outdo.extras.page import collect
from outdo.extras.page.collect import RunData, View, collect_run, metrics_since, step_tokens
from outdo.extras.page.select import (
    LEADING_STEPS,
    MOST_ENTRIES,
    encoded_step,
    informative_steps,
    select_rows,
    spread_out,
)
from outdo.extras.record import parquet as files
from outdo.run.folder import run_files
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


def test_a_part_of_the_reward_rose_or_fell_only_beyond_chance(tmp_path: Path):
    run = collect_run(write_watched_run(tmp_path / "run", topic=(0.9, 0.88)))
    assert [(part["last"], part["change"]) for part in run["reward_parts"]] == [(0.75, "rose"), (0.88, "steady")]
    assert not [each for each in run["findings"] if each["level"] == "warning"]


def test_the_parts_of_a_short_run_or_of_one_without_a_recipe(tmp_path: Path, small_run: Path):
    unknown = {"watched": False, "first": None, "last": None, "change": ""}
    assert collect_run(small_run)["reward_parts"] == [{"name": name} | unknown for name in ("exact", "format")]
    folder = write_watched_run(tmp_path / "run", topic=(0.9, 0.1))
    (folder / "recipe.toml").unlink()
    assert [part["watched"] for part in collect_run(folder)["reward_parts"]] == [False, False]


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
    metrics = [{"step": step, "moved_right_way": 0.9 - (step == 30) * 0.5} for step in range(1, 101)]
    metrics[49]["updates/refused"] = 1.0
    finding = {"first": 70, "last": 80, "level": "warning", "metric": "entropy"}
    chosen = informative_steps(range(1, 101), metrics, [finding], best=90)
    assert list(chosen) == [1, 100, 90, 50, 70, 30]
    assert chosen[50] == "an update was refused"
    assert chosen[70] == "a warning begins (entropy)"
    assert chosen[30] == "fewest tokens moved as intended"
    many = [{**finding, "first": step} for step in range(60, 80)]
    assert len(informative_steps(range(1, 101), metrics, many, best=90)) == LEADING_STEPS
    assert next(iter(informative_steps(range(1, 101), metrics, many, moved_most=40).items())) == (40, "moved most")


def test_the_nearest_recorded_step_replaces_a_missing_one():
    assert informative_steps([10, 20, 30], [], [], best=21) == {
        10: "first recorded",
        20: "best evaluation at step 21",
        30: "last recorded",
    }
    assert informative_steps([], [{"step": 1, "reward": 1.0}], []) == {}


def test_requested_steps_replace_the_default_ones(small_run: Path):
    assert [entry["step"] for entry in collect_run(small_run, View(steps=[5, 2]))["chosen"]] == [2, 5]


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


def test_metrics_since_a_step_contain_only_later_steps(small_run: Path):
    told = metrics_since(RunData(small_run), after=4)
    assert told["metrics"]["steps"] == [5, 6]
    assert told["recorded"] == [1, 2, 3, 4, 5, 6]
    assert told["chosen"] == []
    assert set(told) == {*collect_run(small_run), "evaluated"}


# -------------------------------------------------------------------------------------------------------- the tokens


def test_whole_groups_within_the_budget_measured_and_mixed_first(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=1, groups=6, group_size=8, length=24)
    table = files.read(folder, 1)
    whole = {g: sum(len(row["token_ids"]) for row in table.to_pylist() if row["group"] == g) for g in range(6)}
    rows = select_rows(folder, 1, tokens=sum(whole.values()) // 2)
    shown = rows.table["group"].to_pylist()
    assert rows.groups == 6
    assert "omitted" not in rows.table.column_names
    assert 0 < sum(whole[g] for g in set(shown)) <= sum(whole.values()) // 2
    assert all(shown.count(g) == 8 for g in set(shown))
    measured = {row["group"] for row in table.to_pylist() if row["measured"]}
    assert set(shown) & measured
    one = set(select_rows(folder, 1, groups=1).table["group"].to_pylist())
    rewards = {row["reward"] for row in table.to_pylist() if row["group"] in one} - {None}
    assert one <= measured
    assert len(rewards) > 1


def test_measured_and_mixed_groups_come_first(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=1, groups=4, group_size=2, length=24)
    table = files.read(folder, 1)
    told = {"measured": [False] * 4 + [True] * 4, "reward": [0.0, 0.0, 1.0, 0.0] * 2}
    for name, values in told.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, pyarrow.array(values, table.schema.field(name).type))
    files.write(folder, 1, table)
    shown = [set(select_rows(folder, 1, groups=groups).table["group"].to_pylist()) for groups in (1, 2, 3, 4)]
    assert shown == [{3}, {2, 3}, {1, 2, 3}, {0, 1, 2, 3}]


def test_every_step_has_tokens_on_the_page_while_they_fit(tmp_path: Path):
    folder = write_run(tmp_path / "run", steps=20, groups=2, group_size=4, length=12)
    run = collect_run(folder)
    assert [entry["step"] for entry in run["chosen"]] == [*range(1, 21)]
    leading = {entry["step"]: entry["why"] for entry in run["chosen"] if entry["why"]}
    assert len(leading) <= LEADING_STEPS
    assert "moved most" in leading[run["leverage"]["moved_most"]]
    size = sum(len(entry["blob"]) for entry in run["chosen"]) // 2
    half = collect_run(folder, View(size=size))["chosen"]
    assert sum(len(entry["blob"]) for entry in half) <= size
    assert LEADING_STEPS < len(half) < 20
    assert set(leading) <= {entry["step"] for entry in half}


def test_other_steps_are_spread_over_the_run():
    assert spread_out(range(8)) == [0, 4, 2, 6, 1, 5, 3, 7]
    assert sorted(spread_out(range(100))) == [*range(100)]
    assert spread_out([5]) == [5]
    assert spread_out([]) == []


def test_the_leading_steps_share_the_size_of_the_page(small_run: Path):
    whole = collect_run(small_run, View(steps=[2, 4]))["chosen"]
    size = sum(len(entry["blob"]) for entry in whole) // 2
    entries = collect_run(small_run, View(steps=[2, 4], size=size))["chosen"]
    assert [entry["step"] for entry in entries] == [2, 4]
    assert all(0 < len(header(entry)["rows"]) < 32 for entry in entries)
    assert sum(len(entry["blob"]) for entry in entries) < 1.5 * size
    assert all(entry["groups_in_all"] == 4 for entry in entries)


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


def test_long_prompts_count_towards_the_budget(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    table = files.read(folder, 1)
    long = pyarrow.array([[1] * 50_000] * len(table), pyarrow.list_(pyarrow.int32()))
    pieces = pyarrow.array([["x"] * 50_000] * len(table), pyarrow.list_(pyarrow.string()))
    table = table.set_column(table.schema.get_field_index("prompt_token_ids"), "prompt_token_ids", long)
    table = table.set_column(table.schema.get_field_index("prompt_pieces"), "prompt_pieces", pieces)
    files.write(folder, 1, table)
    assert len(set(select_rows(folder, 1).table["group"].to_pylist())) == 1


def test_a_large_record_needs_memory_for_one_column_at_a_time(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    small = files.read(folder, 1)
    n, length = 64, 4096
    numbers = numpy.arange(n, dtype=numpy.int32)
    lists = pyarrow.list_(pyarrow.float32())
    values = pyarrow.ListArray.from_arrays(
        numpy.arange(n + 1, dtype=numpy.int32) * length, pyarrow.array(numpy.random.rand(n * length), pyarrow.float32())
    )
    whole = n * length * 4
    ids = pyarrow.ListArray.from_arrays(values.offsets, pyarrow.array(numpy.ones(n * length, numpy.int32)))
    pieces = pyarrow.ListArray.from_arrays(values.offsets, pyarrow.array(["x"] * (n * length)))
    names = [name for name in small.column_names if small[name].type == lists]
    assert len(names) >= 10
    columns = {"group": numbers // 8, "rollout": numbers % 8, "token_ids": ids, "pieces": pieces}
    table = pyarrow.table({**columns, **dict.fromkeys(names, values)})
    files.write(folder, 1, table.replace_schema_metadata(small.schema.metadata))
    del table, columns, ids, pieces
    before = pyarrow.total_allocated_bytes()
    tracemalloc.start()
    peak_before = pyarrow.default_memory_pool().max_memory()
    rows = select_rows(folder, 1, tokens=length * 8)
    tracemalloc.stop()
    assert len(rows.table) == 8
    kept = pyarrow.total_allocated_bytes() - before
    assert kept < 0.5 * whole * len(names)
    assert pyarrow.default_memory_pool().max_memory() - peak_before < 6 * whole


def test_tokens_of_a_single_step(small_run: Path):
    entry = step_tokens(small_run, 3)
    assert entry is not None
    assert header(entry)["step"] == 3
    assert step_tokens(small_run, 99) is None


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


def test_a_record_with_inconsistent_columns_is_left_out(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    table = files.read(folder, 6)
    empty = pyarrow.array([[1.0]] * len(table), pyarrow.list_(pyarrow.float32()))
    files.write(folder, 6, table.set_column(table.schema.get_field_index("entropy"), "entropy", empty))
    assert "entropy does not have one entry per token" in texts(collect_run(folder))
    files.write(folder, 6, table.drop_columns(["pieces"]))
    assert "no column pieces" in texts(collect_run(folder))
    files.write(folder, 6, table.set_column(table.schema.get_field_index("group"), "group", pyarrow.nulls(len(table))))
    assert "The tokens of step 6 are left out" in texts(collect_run(folder))


def test_damaged_and_incomplete_lines_are_left_out(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    edit(folder, "metrics.jsonl", lambda text: '{"reward": 1}\nnonsense\n' + text + '{"step": 7, "rew')
    run = collect_run(folder)
    assert run["metrics"]["steps"] == [0, 1, 2, 3, 4, 5, 6]
    assert "line 2: not a JSON object" in texts(run)
    assert "line 1: not a JSON object with a step" in texts(run)


def test_values_that_are_not_finite_numbers_are_left_out(tmp_path: Path):
    folder = start_run(tmp_path / "run", steps=2)
    lines = [
        '{"step": 2, "reward": NaN, "kl": 1e999, "note": "text", "big": 1%s}' % ("0" * 400),
        '{"step": 1, "kl": 2}',
    ]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert collect_run(folder)["metrics"] == {"steps": [1, 2], "values": {"kl": [2.0, None]}}


@pytest.mark.parametrize("name", ["recipe.toml", "summary.json", "environment.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe", b"[" * 100_000, b"[1, 2]", b" " * 1_000_001])
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


def test_an_empty_folder_gives_an_empty_page(tmp_path: Path):
    run = collect_run(tmp_path)
    assert run["metrics"] == {"steps": [], "values": {}}
    assert run["chosen"] == run["recorded"] == []


# -------------------------------------------------------------------------------------------------- about, and secrets


def test_the_run_is_described(small_run: Path):
    about = dict(collect_run(small_run)["about"])
    assert about["method"] == "grpo"
    assert about["model"] == "models/small"
    assert about["data"] == "questions.jsonl"
    assert about["seed"] == "0"
    assert about["torch"] == "2.13.0"


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


def test_a_summary_with_unexpected_content_raises_nothing(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    for before in ("text", [1], {"greedy": "text"}, {"greedy": None}):
        (folder / "summary.json").write_text(json.dumps({"before": before, "best": before}))
        assert collect_run(folder)["metrics"]["steps"] == [1, 2, 3, 4, 5, 6]


def test_checking_whether_a_run_is_alive_releases_the_lock(tmp_path: Path):
    (tmp_path / "lock").write_text(json.dumps({"pid": os.getpid(), "host": os.uname().nodename}))
    assert not is_alive(tmp_path)
    RunFolder(tmp_path).close()


def test_a_long_run_is_collected_with_its_last_step(tmp_path: Path):
    run = collect_run(write_long_run(tmp_path / "run"))
    assert run["recorded"] == [1, 500, 1000]
    assert len(run["metrics"]["steps"]) == 1001
    assert [entry["step"] for entry in run["chosen"]][-1] == 1000


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


@pytest.mark.parametrize("name", ["recipe.toml", "summary.json", "environment.json"])
def test_a_table_outside_the_run_folder_is_left_out(tmp_path: Path, name: str):
    folder = write_small_run(tmp_path / "run")
    elsewhere(tmp_path, folder, name)
    assert f"{name} cannot be read" in texts(collect_run(folder))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_reading_does_not_wait_for_a_pipe(tmp_path: Path, make: Callable[[Path], None]):
    folder = write_small_run(tmp_path / "run")
    files.path_of(folder, 6).unlink()
    make(files.path_of(folder, 6))
    assert "is not a file" in texts(collect_run(folder))


def test_a_very_long_line_is_left_out(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    long = '{"step": 7, "x": "' + "a" * 3_000_000 + '"}\n{"step": 8, "reward": 0.5}\n{"step": 9, "reward": '
    edit(folder, "metrics.jsonl", lambda text: text + long)
    run = collect_run(folder)
    assert run["metrics"]["steps"] == [0, 1, 2, 3, 4, 5, 6, 8]
    assert "line 7: longer than the limit" in texts(run)


def test_only_the_last_lines_of_very_large_metrics_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [json.dumps({"step": step, "reward": 0.5}) + "\n" for step in range(1, 2001)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    monkeypatch.setattr(run_files, "FARTHEST_BACK", 1000)
    run = collect_run(tmp_path)
    steps = run["metrics"]["steps"]
    assert 20 < len(steps) < 40
    assert steps == [*range(steps[0], 2001)]
    assert "metrics.jsonl is very large" in texts(run)


def test_a_run_with_very_many_metrics_shows_some_of_them(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, **{f"m{n}": 1.0 for n in range(5000)}}) + "\n")
    run = collect_run(tmp_path)
    assert len(run["metrics"]["values"]) == 1000
    assert "The page shows 1,000 of 5,000 metrics" in texts(run)


def test_a_small_file_with_a_huge_column_is_not_read(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    table = files.read(folder, 6)
    n = MOST_ENTRIES + 1
    values = pyarrow.ListArray.from_arrays(pyarrow.array([0, n], pyarrow.int32()), numpy.zeros(n, numpy.int8))
    bomb = pyarrow.table({"group": [0], "token_ids": values}).replace_schema_metadata(table.schema.metadata)
    parquet.write_table(bomb, files.path_of(folder, 6), compression="zstd")
    assert files.path_of(folder, 6).stat().st_size < 100_000
    with pytest.raises(RunFolderError, match=f"has {n:,} entries .* too many to show"):
        step_tokens(folder, 6)
