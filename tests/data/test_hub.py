"""Data sets that the library `datasets` reads: configurations, revisions, splits, and folders on this machine."""

import json
import os

import pytest

from outdo.config.file import load
from outdo.config.paths import with_absolute_paths
from outdo.data import files
from outdo.data.data_set_names import DatasetName, hub_data_set
from outdo.data.files import read_rows
from outdo.data.splits import load_questions
from outdo.data.stored_rows import open_rows
from outdo.utils.errors import UserError

datasets = pytest.importorskip("datasets")
CARD = """---
configs:
- {config_name: main, data_files: [{split: train, path: main/train.jsonl}, {split: test, path: main/test.jsonl}]}
- {config_name: socratic, data_files: [{split: train, path: socratic/train.jsonl}]}
---
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def copy(tmp_path):
    """A copy of a data set of the Hub with two configurations, as `huggingface-cli download` makes one."""
    folder = tmp_path / "data" / "gsm8k"
    for file in ("main/train", "main/test", "socratic/train"):
        path = folder / f"{file}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"question": f"{file} {n}", "answer": "1"}) + "\n" for n in range(2)))
    (folder / "README.md").write_text(CARD)
    return folder


def questions(path):
    return [row["question"] for row in read_rows(str(path)).values.values()]


def refusal(path):
    with pytest.raises(UserError) as caught:
        read_rows(str(path))
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("openai/gsm8k", ("openai/gsm8k", None, None, None)),
        ("openai/gsm8k:test", ("openai/gsm8k", None, None, "test")),
        ("openai/gsm8k/main:train[:10%]", ("openai/gsm8k", "main", None, "train[:10%]")),
        ("openai/gsm8k/main@refs/pr/1", ("openai/gsm8k", "main", "refs/pr/1", None)),
        ("openai/gsm8k@cc7b047:test", ("openai/gsm8k", None, "cc7b047", "test")),
    ],
)
def test_a_name_on_the_hub_has_a_configuration_a_revision_and_a_split(path, parts):
    name, config, revision, split = parts
    assert hub_data_set(path) == DatasetName(name=name, config=config, revision=revision, split=split)
    assert str(hub_data_set(path)) == path


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("openai/gsm8k", "needs a configuration (configurations: main, socratic); write for example openai/gsm8k/main"),
        ("openai/gsm8k/mian", 'has no configuration "mian"; did you mean main? (configurations: main, socratic)'),
        (
            "openai/gsm8k/main@v1:tset[:5]",
            'has no split "tset"; did you mean test? (splits: train, test); write for example openai/gsm8k/main@v1:',
        ),
        ("openai/gsm8k/main:train", "cannot be loaded: ValueError: something else"),
    ],
)
def test_an_error_of_the_hub_names_what_is_available(path, sentence, monkeypatch):
    def load_dataset(path, **options):
        raise ValueError("something else")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets, "get_dataset_config_names", lambda name, **how: ["main", "socratic"])
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name, config, **how: ["train", "test"])
    assert refusal(path).startswith(f"{path}: the data set {sentence}")


def test_a_copy_of_a_data_set_has_its_configurations_and_splits(copy):
    assert questions("data/gsm8k/main") == ["main/train 0", "main/train 1"]
    assert questions(f"{copy}/main:test") == ["main/test 0", "main/test 1"]
    assert questions(f"{copy}/socratic:train[:1]") == ["socratic/train 0"]


def test_what_a_copy_lacks_is_answered_with_what_it_has(copy):
    assert "needs a configuration (configurations: main, socratic)" in refusal(copy)
    assert f"write for example {copy}/main" in refusal(copy)
    assert 'has no configuration "socratik"; did you mean socratic?' in refusal(f"{copy}/socratik")
    assert 'has no split "test" (splits: train)' in refusal(f"{copy}/socratic:test")


def test_a_folder_of_save_to_disk_is_read(tmp_path):
    rows = datasets.Dataset.from_list([{"question": "a"}])
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": rows, "test": rows.map(lambda row: {"question": "b"})}).save_to_disk(
        tmp_path / "two"
    )
    assert questions(tmp_path / "one") == questions(tmp_path / "two") == ["a"]
    assert questions(tmp_path / "two:test") == ["b"]
    assert 'has no split "dev" (splits: train, test)' in refusal(tmp_path / "two:dev")
    assert "has no splits; leave :test out" in refusal(tmp_path / "one:test")


def test_paths_of_data_sets_become_absolute_so_that_a_run_can_be_resumed_from_anywhere(copy):
    paths = ["data/gsm8k/main:test", "data/gsm8k", "data/gsm8k:train", "openai/gsm8k/main:test"]
    recipe = with_absolute_paths(load(None, ["model=m", f"data.path={json.dumps(paths)}", "data.eval_path=data/gsm8k"]))
    absolute = [f"{copy}/main:test", str(copy), f"{copy}:train", "openai/gsm8k/main:test"]
    assert [source.path for source in recipe.data.path] == absolute
    assert [each.path for each in recipe.data.eval_path or ()] == [str(copy)]


# ----------------------------------------------------------------------------------------------- what has no end


def test_pipes_and_devices_are_refused_before_they_are_read(tmp_path, copy):
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "null.jsonl").symlink_to("/dev/null")  # first: reading it ends
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    for path in ("null.jsonl", "pipe.jsonl", "zero.jsonl", "/dev/zero"):
        assert refusal(path) == f"{path}: is a pipe or a device; expected a file"
    os.mkfifo(copy / "main" / "more.jsonl")
    assert "more.jsonl: is a pipe, a device or a broken link" in refusal(f"{copy}/main")


# ---------------------------------------------------------------------------------------------- commits of the Hub

OLD, NEW = "a" * 40, "b" * 40


class Loaded(list):
    """What `load_dataset` returns: its copy is in a folder with the name of the commit."""

    def __init__(self, commit):
        super().__init__([{"question": "a", "answer": "1"}])
        self.cache_files = [{"filename": f"/cache/openai___gsm8k/main/0.0.0/{commit}/gsm8k-train.arrow"}]


def test_the_commit_of_a_data_set_is_known_and_is_read_again(monkeypatch):
    asked = []

    def load_dataset(path, revision=None, **options):
        asked.append(revision)
        return Loaded(revision or NEW)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    recipe = load(None, ["model=m", 'data.path=["openai/gsm8k/main:train", "openai/gsm8k/main@v1"]'])
    pinned = {"datasets/openai/gsm8k": OLD, "datasets/openai/gsm8k@v1": NEW}
    assert load_questions(recipe, pinned).commits == pinned
    assert asked == [OLD, NEW]
    assert read_rows("openai/gsm8k").commits == {"datasets/openai/gsm8k": NEW}
    assert open_rows("openai/gsm8k", pinned=pinned).commits == {"datasets/openai/gsm8k": OLD}
    assert load_questions(load(None, ["model=m", "data.path=openai/gsm8k"])).notes[0].endswith(f"; commit {NEW}")


def test_another_commit_than_that_of_the_run_is_refused(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **options: Loaded(NEW))  # as it does without the Hub
    for path, pinned in (("openai/gsm8k", {"datasets/openai/gsm8k": OLD}), (f"openai/gsm8k@{OLD}", None)):
        with pytest.raises(UserError) as caught:
            read_rows(path, pinned=pinned)
        assert str(caught.value) == f"{path}: the commit {OLD} cannot be had; on this machine is {NEW}"


@pytest.mark.parametrize("path", ["openai/gsm8k/main", "reasoning-gym:chain_sum"])
def test_data_whose_code_was_deleted_is_one_sentence(monkeypatch, path):
    deleted = dict.fromkeys(files.RECORDS, "outdo.extras.deleted:records")
    monkeypatch.setattr(files, "RECORDS", deleted)
    assert refusal(path) == f"{path}: needs outdo.extras.deleted, which this installation of outdo does not have"
