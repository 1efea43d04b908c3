"""A run can be resumed from any folder, and what is published has no path of this machine."""

from pathlib import Path

import pytest

from outdo.config.file import dump, load
from outdo.config.paths import code_of, with_absolute_paths, with_file_names
from outdo.config.recipe import Recipe
from outdo.utils.errors import UserError


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for name in ("questions.jsonl", "held_out.jsonl", "rates.jsonl", "key"):
        (tmp_path / name).write_text("")
    (tmp_path / "mine.py").write_text(
        "def score(completion, api_key=None, folder=None): ...\ndef push(*arguments): ...\n"
    )
    rewards = 'rewards=[{name="mine.py:score", weight=0.5, api_key={file="key"}, folder="/srv/private/cache"}, "exact"]'
    settings = ["model=model", "run=/home/me/runs/one", "data.path=questions.jsonl", "data.eval_path=held_out.jsonl"]
    settings += ["data.select={file='rates.jsonl'}", "train.objective={name='grpo', surrogate='mine.py:push'}"]
    return load(None, [*settings, rewards, "reference.model=/srv/models/old"])


def test_paths_become_absolute(recipe: Recipe, tmp_path: Path):
    changed = with_absolute_paths(recipe)
    assert changed.model == str(tmp_path / "model")
    assert changed.rewards[0].name == f"{tmp_path}/mine.py:score"
    assert changed.rewards[0].options["api_key"] == {"file": str(tmp_path / "key")}
    assert changed.train.objective.options["surrogate"] == f"{tmp_path}/mine.py:push"


def test_a_link_to_a_file_keeps_its_ending_and_a_link_to_a_folder_is_followed(recipe: Recipe, tmp_path: Path):
    (tmp_path / "blob").write_text("")
    (tmp_path / "linked.jsonl").symlink_to("blob")
    (tmp_path / "newest").symlink_to("model")
    linked = load(None, ["model=newest", "data.path=linked.jsonl", "rewards=exact"])
    assert with_absolute_paths(linked).data.path[0].path == str(tmp_path / "linked.jsonl")
    assert with_absolute_paths(linked).model == str(tmp_path / "model")


def test_file_names_stand_in_place_of_all_local_paths(recipe: Recipe, tmp_path: Path):
    published = dump(with_file_names(with_absolute_paths(recipe)))
    assert "/" not in published.replace("/tmp", "/")
    for name in ("model", "one", "questions.jsonl", "rates.jsonl", "mine.py:score", "mine.py:push", "cache", "old"):
        assert f'"{name}"' in published
    assert 'api_key = { file = "key" }' in published or 'api_key = {file = "key"}' in published


def test_the_code_that_a_recipe_names_is_listed(recipe: Recipe, tmp_path: Path):
    assert code_of(with_absolute_paths(recipe)) == [f"{tmp_path}/mine.py:score", f"{tmp_path}/mine.py:push"]
    assert code_of(load(None, ["model=m", "data.path=x.jsonl"])) == []


@pytest.mark.parametrize("option", ["api_key='abcdefgh'", "folder='sk-abcdefghijklmnopqrstuvwx'"])
def test_a_secret_in_a_recipe_is_refused_without_being_shown(recipe: Recipe, option: str):
    with pytest.raises(UserError) as caught:
        load(None, ["model=m", "data.path=x.jsonl", f"rewards={{name='mine.py:score', {option}}}"])
    (mistake,) = caught.value.problems
    assert "looks like a secret" in mistake
    assert option.split("'")[1] not in mistake
    place = "api_key={env='MY_API_KEY'}"
    assert load(None, ["model=m", "data.path=x.jsonl", f"rewards={{name='mine.py:score', {place}}}"])
