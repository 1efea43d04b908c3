"""Whatever outdo writes about a run, the glossary explains."""

import io
import tomllib
from pathlib import Path

import pytest
from rich.console import Console

from outdo.config.file import load
from outdo.extras.page import glossary
from outdo.extras.page.glossary_command import TOPICS, command
from outdo.run.check.preflight import Report
from outdo.run.display import Display
from outdo.run.folder.run_folder import read_metrics
from outdo.run.training import start
from outdo.testing import tiny_model
from outdo.utils.errors import UserError

SCORE = '''
def score(completion):
    """Tells the answers of an untrained model apart."""
    if completion[:1] == "a":
        raise ValueError("an a")
    return sum(each.isalnum() for each in completion) / 4


def short(completion):
    """Another part."""
    return float(len(completion) < 6)
'''
RUNS = {
    "grpo, two updates, adaptive coefficients, rewards that fail": (
        'train.objective={name="grpo", beta={start=0.1, target=0.1}}',
        "train.passes=2",
        'train.stop={name="first_of", reached=0.9, kl=1e-9}',
        'rewards=["score.py:score", "score.py:short"]',
        "record.after=all",
    ),
    "ppo with a critic": ('train.objective="ppo"', 'train.advantage="gae"', 'train.critic="head"'),
    "targets": ('train.objective="target"', "record.after=all", "train.passes=2"),
    "refill": ('train.objective="dapo"', "train.dynamic_sampling=2"),
    "remax": ('train.objective="remax"',),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    tiny_model(folder / "model")
    (folder / "score.py").write_text(SCORE)
    rows = [f'{{"prompt": "{a}+{b}=", "answer": "{a + b}"}}\n' for a in range(3) for b in range(3)]
    (folder / "train.jsonl").write_text("".join(rows))
    (folder / "held_out.jsonl").write_text("".join(rows[:2]))
    return folder


def test_a_sample_size_is_a_metric_with_an_entry() -> None:
    sizes = {each.name: each.n for each in glossary.entries() if each.n}
    assert sizes["reward"] == "num_scored"
    assert not [name for name in sizes.values() if glossary.entry(name) is None]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.release] * (place > 1)) for place, name in enumerate(RUNS)]
)
def test_every_metric_of_a_run_has_an_entry(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(home)
    usual = (
        "model=model",
        "data.path=train.jsonl",
        "data.eval_path=held_out.jsonl",
        "rewards=score.py:score",
        "steps=4",
    )
    small = (
        "device=cpu",
        "threads=1",
        "train.prompts=3",
        "train.group_size=3",
        "sampling.max_tokens=8",
        "optim.lr=1e-3",
    )
    recipe = load(None, [*usual, *small, "eval.rows=2", "reward_limits.max_failed=1.0", *RUNS[name]])
    assert start(Report(recipe=recipe, errors=()), tmp_path / "run", Display(Console(file=io.StringIO()))) == 0
    names = {name for line in read_metrics(tmp_path / "run" / "metrics.jsonl") for name in line} - {"step"}
    assert {"reward", "frac_reward_zero_std", "certain", "eval/greedy_reward_low"} <= names
    assert not [name for name in sorted(names) if glossary.entry(name) is None]


def test_every_entry_has_a_definition_healthy_values_and_advice() -> None:
    for entry in glossary.entries():
        assert min(map(len, (entry.title, entry.what, entry.healthy))) >= 2, entry.name
        assert entry.what.endswith("."), entry.name
        assert entry.healthy.endswith("."), entry.name
        assert entry.otherwise.endswith("."), entry.name
        assert entry.better in (None, "up", "down")


def test_no_entry_is_hidden_by_another_or_written_under_an_unknown_topic() -> None:
    for entry in glossary.entries():
        found = glossary.entry(entry.name.replace("*", "x"))
        assert found is not None
        assert found.what == entry.what
    written = tomllib.loads(Path(glossary.__file__).with_suffix(".toml").read_text())
    assert set(written) - {"words"} == set(glossary.TOPICS) == set(TOPICS)


def test_a_name_without_a_similar_one_is_reported_with_the_list_command() -> None:
    with pytest.raises(UserError, match="lists all of them"):
        command("qqqqqqqq")


def test_the_command_prints_an_entry_and_without_a_metric_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    command("kl")
    command()
    said = capsys.readouterr().out
    assert "Distance from the reference" in said
    assert "otherwise: Above 0.5" in said
    assert all(entry.name in said for entry in glossary.entries())
    assert all(question in said for question in TOPICS.values())
