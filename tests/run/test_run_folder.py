"""One run at a time in a folder, one line for each step, and a resumed run that is the run it says it is."""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from checkpoint_faults import FaultyOs

from outdo.config.resume import differences, refused_differences
from outdo.run.folder.begin import why_taken
from outdo.run.folder.provenance import describe_environment, without_secrets
from outdo.run.folder.run_files import MetricsFile
from outdo.run.folder.run_folder import RunFolder, read_metrics
from outdo.utils import atomic
from outdo.utils.atomic import write_json_atomically, write_text_atomically
from outdo.utils.errors import RunFolderError


@contextlib.contextmanager
def another_process(script: str, folder: Path):
    """A process that runs `script` with `folder` open; gives it and its first line of output."""
    start = (
        "import os, signal, sys, time\nfrom pathlib import Path\nfrom outdo.run.folder.run_folder import RunFolder\n"
    )
    command = [sys.executable, "-c", f"{start}folder = RunFolder(Path(sys.argv[1]))\n{script}", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


WAIT = "print('open', flush=True); time.sleep(600)"


def test_a_second_run_in_the_folder_is_refused_with_the_process_that_holds_it(tmp_path):
    with another_process(WAIT, tmp_path) as (process, line):
        assert line == "open"
        with pytest.raises(RunFolderError, match=rf"in use by process {process.pid} on {os.uname().nodename} since 2"):
            RunFolder(tmp_path)


def test_one_process_cannot_open_the_folder_twice_either(tmp_path):
    with RunFolder(tmp_path), pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
        RunFolder(tmp_path)
    with RunFolder(tmp_path) as folder:
        assert folder.notice is None, "the one before was closed in order"


def test_the_lock_of_a_killed_run_is_taken_over_with_a_notice(tmp_path):
    with another_process(WAIT, tmp_path) as (process, _):
        process.kill()
        process.wait()
    with RunFolder(tmp_path) as folder:
        assert f"process {process.pid} on " in folder.notice
        assert "ended without closing it; taken over" in folder.notice


def test_a_worker_that_outlives_a_killed_run_does_not_keep_the_folder_locked(tmp_path):
    forks = "if os.fork() == 0: print(os.getpid(), flush=True)  # the child, once its locks are closed\ntime.sleep(600)"
    with another_process(forks, tmp_path) as (process, worker):
        try:
            process.kill()
            process.wait()
            os.kill(int(worker), 0)  # it lives
            RunFolder(tmp_path).close()
        finally:
            os.kill(int(worker), signal.SIGKILL)


def test_closing_twice_does_not_close_what_another_opened(tmp_path):
    first = RunFolder(tmp_path / "a")
    first.close()
    second = RunFolder(tmp_path / "b")
    first.close()
    with pytest.raises(RunFolderError):
        RunFolder(tmp_path / "b")
    second.close()


def test_a_child_that_closes_the_folder_of_its_parent_touches_nothing(tmp_path):
    """The kernel gives the number of the lock, which is closed in a child, to the next file that the child opens."""
    other = tmp_path / "other"
    other.write_text("content")
    with RunFolder(tmp_path / "run") as folder:
        child = os.fork()
        if child == 0:
            for _ in range(100):
                os.open(other, os.O_RDWR)
            folder.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert json.loads((tmp_path / "run/lock").read_text())["pid"] == os.getpid()
    assert other.read_text() == "content"


def test_a_path_that_cannot_be_a_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be used as a run folder"):
        RunFolder(tmp_path / "file" / "run")


def test_metrics_are_read_back_as_written_with_null_for_nan(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.append_metrics(1, {"reward": 0.25, "kl": math.nan, "per": {"a": [math.inf, 1]}, "text": "ü\ud800\n"})
        folder.append_metrics(2, {"step": 99, "reward": 0.5})
    assert read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "reward": 0.25, "kl": None, "per": {"a": [None, 1]}, "text": "ü\ud800\n"},
        {"step": 2, "reward": 0.5},
    ]


def test_a_metric_of_an_earlier_version_is_read_under_its_new_name(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "moved_right_way": 0.5}\n')
    renamed = [{"step": 1, "moved_as_intended": 0.5}]
    assert read_metrics(tmp_path / "metrics.jsonl") == MetricsFile(tmp_path).read(print) == renamed


def test_a_line_cut_off_by_a_crash_is_dropped_at_any_byte(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with RunFolder(tmp_path) as folder:
        folder.append_metrics(1, {"reward": 0.25})
        first = path.stat().st_size
        folder.append_metrics(2, {"reward": 0.5})
    content = path.read_bytes()
    for length in range(first, len(content)):
        path.write_bytes(content[:length])
        assert [record["step"] for record in read_metrics(path)] == [1], f"{length} bytes"
        with RunFolder(tmp_path) as folder:
            folder.append_metrics(2, {"reward": 0.5})
        assert path.read_bytes() == content, f"{length} bytes"


def test_a_resumed_run_writes_each_step_once(tmp_path):
    with RunFolder(tmp_path) as folder:
        for step in range(1, 8):
            folder.append_metrics(step, {"reward": step})
    with RunFolder(tmp_path) as folder:
        with pytest.raises(RunFolderError, match="step 5 cannot follow step 7"):
            folder.append_metrics(5, {})
        folder.rewind(4)
        for step in range(5, 10):
            folder.append_metrics(step, {"reward": step})
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 10))


def test_rewinding_to_the_start_leaves_an_empty_file(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.rewind(0)
        folder.append_metrics(1, {})
        folder.rewind(0)
        folder.append_metrics(1, {"again": True})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1, "again": True}]


def test_a_damaged_line_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"st\xff\x00\n[2]\n{"step": 3}\n')
    with pytest.warns(UserWarning, match=rf"^{re.escape(str(path))}, line [23]: not a JSON object") as said:
        records = read_metrics(path)
    assert records == [{"step": 1}, {"step": 3}]
    assert len(said) == 2


def test_a_line_that_was_written_in_part_is_removed(tmp_path, monkeypatch):
    def half(descriptor, content):
        if len(content) < 8:
            raise OSError(28, "No space left on device")
        return os.write(descriptor, content[: len(content) // 2])

    with RunFolder(tmp_path) as folder:
        folder.append_metrics(1, {"reward": 0.25})
        disk = FaultyOs(0, lambda: None)
        disk.write = half
        monkeypatch.setattr(atomic, "os", disk)
        with pytest.raises(RunFolderError, match="step 2 was not written: No space left"):
            folder.append_metrics(2, {"reward": 0.5})
        monkeypatch.setattr(atomic, "os", os)
        folder.append_metrics(2, {"reward": 0.5})
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_all_bytes_are_written_to_a_disk_that_accepts_a_part_of_them(tmp_path, monkeypatch):
    disk = FaultyOs(0, lambda: None)
    disk.write = lambda descriptor, content: os.write(descriptor, content[:3])
    monkeypatch.setattr(atomic, "os", disk)
    write_text_atomically(tmp_path / "summary.json", "ten letters")
    assert (tmp_path / "summary.json").read_text() == "ten letters"


@pytest.mark.parametrize("lasting", [False, True])
def test_a_small_file_is_the_old_one_or_the_new_one_at_every_failure(tmp_path, monkeypatch, lasting):
    def fault():
        raise OSError(5, "Input/output error")

    path = tmp_path / "summary.json"
    for n in range(1, 50):
        path.write_text("old")
        disk = FaultyOs(n, fault, lasting=lasting)
        monkeypatch.setattr(atomic, "os", disk)
        expected = ("old", "new")
        with contextlib.suppress(RunFolderError):
            write_text_atomically(path, "new")
            expected = ("new",)
        monkeypatch.setattr(atomic, "os", os)
        assert path.read_text() in expected, f"operation {n}"
        if disk.count < n:
            break
    assert n > 5


def test_a_summary_is_strict_json(tmp_path):
    write_json_atomically(tmp_path / "summary.json", {"accuracy": math.nan, "text": "ü\ud800"})
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"), parse_constant=pytest.fail)["accuracy"] is None


def test_the_environment_has_the_command_and_no_secret(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(sys, "argv", ["outdo", "train", "sampling.max_tokens=64", "hub.token=hf_secret"])
    environment = describe_environment(seed=3, threads=2, device="cpu")
    assert environment["command"] == ["outdo", "train", "sampling.max_tokens=64", "hub.token=***"]
    assert environment["seed"] == 3
    assert environment["torch"].startswith("2.")
    assert "hf_secret" not in json.dumps(environment)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["WANDB_API_KEY=abc"], ["WANDB_API_KEY=***"]),
        (["judge.password=a=b"], ["judge.password=***"]),
        (["token", "x"], ["token", "x"]),
        (["rewards={name='a', key='sk-aaaaaaaaaaaaaaaaaaaa'}"], ["rewards={name='a', key='***'}"]),
        (["max_tokens=5", "monkey=1"], ["max_tokens=5", "monkey=1"]),
    ],
)
def test_secrets_on_the_command_line_are_not_written_down(given, shown):
    assert without_secrets(given) == shown


SAVED = {
    "model": "m",
    "steps": 100,
    "run": None,
    "rewards": ["exact"],
    "optim": {"lr": 1e-6},
    "eval": {"every": 0},
    "data": {"path": "a.jsonl", "template": "a: b"},
}


def test_equal_recipes_do_not_differ_also_after_a_file_made_lists_of_tuples():
    assert differences(SAVED, SAVED | {"rewards": ("exact",)}) == []
    assert differences(SAVED, {key: value for key, value in SAVED.items() if key != "run"}) == []


def test_changes_are_shown_and_those_that_make_another_run_are_refused():
    now = SAVED | {"steps": 200, "seed": 1, "optim": {"lr": 2e-6}, "eval": {"every": 5}, "data": {"path": "a.jsonl"}}
    refused = [
        'data.template: "a: b" in the saved run, unset now',
        "optim.lr: 1e-06 in the saved run, 2e-06 now",
        "seed: unset in the saved run, 1 now",
    ]
    allowed = ["eval.every: 0 in the saved run, 5 now", "steps: 100 in the saved run, 200 now"]
    assert refused_differences(SAVED, now) == refused
    assert differences(SAVED, now) == sorted(refused + allowed)


def test_the_history_is_appended_to_and_a_line_that_was_cut_off_is_dropped(tmp_path):
    with RunFolder(tmp_path) as folder:
        folder.append_history({"after_step": 0})
        with folder.history.open("a") as file:
            file.write('{"after_st')
        folder.append_history({"after_step": 2})
    lines = folder.history.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"after_step": 0}, {"after_step": 2}]


@pytest.mark.parametrize(
    "file", ["recipe.toml", "metrics.jsonl", "summary.json", "report.html", "tokens/ours.txt", "checkpoints/model"]
)
def test_a_file_that_a_run_would_change_keeps_a_new_run_out_of_a_folder(tmp_path, file):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("of the user")
    (tmp_path / "questions.jsonl").write_text("of the user")  # beside a run it does no harm
    said = why_taken(tmp_path)
    assert said is not None
    assert f"no run is there, and a run writes {file.partition('/')[0]}, which exists already" in said


@pytest.fixture
def closed():
    """A folder of somebody who is not root, which this test is then: root may write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        is_root = os.geteuid() == 0
        if is_root:
            os.chown(name, 65534, 65534)
            os.seteuid(65534)
        yield Path(name)
        os.chmod(name, 0o700)
        if is_root:
            os.seteuid(0)


def test_a_run_does_not_begin_where_nobody_may_write(closed):
    (closed / "inner").mkdir()
    assert why_taken(closed / "run") is None
    closed.chmod(0o500)
    assert f"run: cannot be used as a run folder: {closed} cannot be written" in (why_taken(closed / "run") or "")
    closed.chmod(0)
    assert "run: cannot be used as a run folder: Permission denied" in (why_taken(closed / "inner" / "run") or "")


def test_a_name_that_is_too_long_is_no_run_folder(tmp_path):
    assert "cannot be used as a run folder: File name too long" in (why_taken(tmp_path / ("a" * 300)) or "")


def test_a_run_does_not_begin_where_a_file_is_in_its_way(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "run", file / "runs" / "run"):
        assert f"{folder}: cannot be used as a run folder: {file} is a file" in (why_taken(folder) or "")
    monkeypatch.chdir(tmp_path)
    assert why_taken(Path("runs/new")) is None


def test_a_new_run_begins_where_an_earlier_start_has_failed(tmp_path):
    """It ended while it loaded the model, or was killed before it wrote the recipe."""
    with RunFolder(tmp_path) as folder:
        (tmp_path / "tokens").mkdir()
        folder.append_history({"after_step": 0})
    assert why_taken(tmp_path) is None
    (tmp_path / "history.jsonl").write_text('{"event": "of another program"}\n')
    assert "a run writes history.jsonl" in (why_taken(tmp_path) or "")
