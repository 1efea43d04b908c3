"""Environment variables, files and dates that rewards read: `check` names what is missing, a run keeps the rest."""

from pathlib import Path

import pytest
from run_cases import write_home

from outdo.config.file import load
from outdo.config.resume import accepted_changes
from outdo.data.splits import load_questions
from outdo.models.template_header import with_date
from outdo.rewards import load_reward
from outdo.rewards.types import RewardInput
from outdo.run.assemble.assemble import identity_of
from outdo.run.check.preflight import check
from outdo.run.check.reward_inputs import dated_reward_models

REWARD = """
import os
from pathlib import Path

LIMIT = float(os.environ.get("MY_LIMIT", "0"))
WORDS = Path("words.txt").read_text() if Path("words.txt").is_file() else ""
LATER = Path("later.txt").read_text() if Path("later.txt").is_file() else ""


def score(completion, answer):
    return LIMIT + len(WORDS)


def order(completion):
    return float(hash("a") % 1000)
"""
GIVEN = "reward_limits.environment=['MY_LIMIT']"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_home(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MY_LIMIT", raising=False)
    (tmp_path / "limited.py").write_text(REWARD)
    return tmp_path


def warnings(*overrides: str) -> list[str]:
    report = check(load("recipe.toml", ["rewards=limited.py:score", *overrides]))
    return [each for each in report.warnings if "MY_LIMIT" in each]


def test_a_variable_that_is_set_and_not_passed_on_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings() == []  # it is not set, so that the reward is what it is anywhere
    monkeypatch.setenv("MY_LIMIT", "5")
    (warning,) = warnings()
    assert warning == (
        "rewards: MY_LIMIT: read by reward functions and set here, but their processes do not get it; "
        'reward_limits.environment = ["MY_LIMIT"] passes it on'
    )
    assert warnings(GIVEN) == []


@pytest.mark.parametrize("change", ["variable", "file"])
def test_another_variable_or_file_that_a_reward_reads_is_refused_on_resume(
    change: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_LIMIT", "5")
    (home / "words.txt").write_text("one")
    recipe = load("recipe.toml", ["rewards=limited.py:score", GIVEN])

    def identity() -> dict[str, object]:
        return {**identity_of(recipe, load_questions(recipe)), "settings": {}}

    saved = identity()
    assert "5" not in str(saved["variables"]).split("'")  # a hash, not the value
    assert accepted_changes(saved, identity(), home) == []
    (home / "later.txt").write_text("made by the run")
    assert accepted_changes(saved, identity(), home) == []
    if change == "variable":
        monkeypatch.setenv("MY_LIMIT", "6")
        expected = "MY_LIMIT: the environment variable, which a reward reads, has another value; this changes the run"
    else:
        (home / "words.txt").write_text("two")
        expected = f"{home / 'words.txt'}: the code of the run has changed"
    with pytest.raises(Exception, match="changes the run") as refused:
        accepted_changes(saved, identity(), home)
    assert expected in str(refused.value)


def test_a_reward_model_that_reads_the_date_is_named(home: Path) -> None:
    reward_model = home / "reward_model"
    reward_model.mkdir()
    recipe = load("recipe.toml", [f"rewards={{name='reward_model', path='{reward_model}'}}"])
    (reward_model / "chat_template.jinja").write_text("{{ messages }}")
    assert list(dated_reward_models(recipe)) == []
    (reward_model / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}")
    (warning,) = dated_reward_models(recipe)
    assert f"the chat template of {reward_model} writes today's date, on which its values depend" in warning
    (reward_model / "chat_template.jinja").write_text(with_date("{{ strftime_now('%Y') }}", "2026-11-28"))
    assert list(dated_reward_models(recipe)) == []


def test_sets_have_one_order_in_every_worker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        reward = load_reward("limited.py:order")
        (output,) = reward([RewardInput(prompt="?", completion="a", answer=None)])
        values.add(output.value)
        reward.close()
    assert len(values) == 1
