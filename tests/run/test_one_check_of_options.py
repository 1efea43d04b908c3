"""A recipe, the command line and Python accept and refuse the same options, of pieces of every kind."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outdo.cli import adapter_option
from outdo.config.file import load
from outdo.config.messages import to_toml
from outdo.config.recipe import Piece, Recipe
from outdo.config.rules import refusals
from outdo.extras.explain.command import named_objective
from outdo.extras.trackers import command as track
from outdo.models.loading import AdapterFit
from outdo.rewards import load_reward
from outdo.run.assemble.engines import named_engine
from outdo.run.assemble.environment import tools_of
from outdo.utils.errors import UserError
from outdo.utils.imports import resolve

CODE = """
def score(completion, length, scale=1, words=(), *, difficulty=0): return 1.0
def engine(policy, *, seed, depth, name="a"): ...
def note(metrics, step, colour="red"): ...
def divide(logprobs, ref_logprobs, *, power=2): ...

class Game:
    def __init__(self, rounds, depth=-1): ...
    def reply(self, message): ...
"""
SCORE, TOOL = 'rewards."mine.py:score"', "environment.functions.python"
JUDGE = {"name": "judge", "url": "http://127.0.0.1:1/v1", "model": "m", "rubric": "r"}

CASES: Sequence[tuple[str, dict[str, Any], Sequence[str]]] = [
    ("rewards", {"name": "mine.py:score", "length": 4}, []),
    ("rewards", {"name": "mine.py:score", "scale": -0.5, "words": ["a", "b"]}, []),
    (
        "rewards",
        {"name": "mine.py:score", "lenght": 4, "scale": "2", "words": "a", "answer": "4", "wieght": 2},
        [
            f"{SCORE}.lenght: unknown option; did you mean length? mine.py:score takes length, scale, words, diff",
            f"{SCORE}.scale: expected a number such as 1, found '2'",
            f"{SCORE}.words: expected a list such as [], found 'a'",
            f"{SCORE}.answer: outdo sets it itself: it belongs to the completion",
            f"{SCORE}.wieght: unknown option; did you mean weight?",
        ],
    ),
    ("rewards", {"name": "overlong", "max_tokens": 9, "cache": 3}, []),
    (
        "rewards",
        {"name": "overlong", "max_tokens": 9, "cach": 3},
        [
            "rewards.overlong.cach: unknown option; did you mean cache? overlong takes max_tokens, cache",
            "rewards.overlong.cache: required by overlong",
        ],
    ),
    ("rewards", {"name": "exact", "x": 3}, ["rewards.exact.x: unknown option; exact takes no options"]),
    (
        "rewards",
        {"name": "code", "seconds": 0, "unsafe_local": True},
        ["rewards.code.seconds: expected a whole number of 1 or more, found 0"],
    ),
    ("rewards", {**JUDGE, "limits": {"at_once": 3}, "price": {"input": 1}}, []),
    (
        "rewards",
        {**JUDGE, "scale": 0, "limits": {"at_onc": 3}, "price": {"input": "1"}},
        [
            "rewards.judge.scale: expected a number above 0, found 0",
            "rewards.judge.limits.at_onc: unknown option; did you mean at_once? limits takes at_once, requests_per_min",
            "rewards.judge.price.input: expected a number such as 0.0, found '1'",
        ],
    ),
    ("environment", {"name": "mine.py:Game", "rounds": 2, "depth": -3, "turns": 4}, []),
    (
        "environment",
        {"name": "mine.py:Game", "round": 2, "depth": "3", "turns": 0},
        [
            "environment.round: unknown option; did you mean rounds? mine.py:Game takes rounds, depth, turns, turn_tok",
            "environment.depth: expected a number such as -1, found '3'",
            "environment.turns: expected a whole number of 1 or more, found 0",
            "environment.rounds: required by mine.py:Game",
        ],
    ),
    (
        "environment",
        {"name": "tools", "functions": [{"name": "python", "second": 3, "memory": 8}], "turn": 2},
        [
            "environment.turn: unknown option; did you mean turns? tools takes functions, turns, turn_tokens, timeout",
            f"{TOOL}.second: unknown option; did you mean seconds? python takes seconds, memory, characters, sandbox,",
            f"{TOOL}.memory: expected a whole number of MiB, 64 or more, found 8",
        ],
    ),
    (
        "engine",
        {"name": "builtin", "processes": 1, "across_updates": True},
        ["engine.across_updates: unknown option; it is called partial_rollouts"],
    ),
    ("engine", {"name": "mine.py:engine", "depth": -2, "max_difference": 0.1}, []),
    (
        "engine",
        {"name": "mine.py:engine", "seed": 2, "name_": 3, "partial_rollouts": 1},
        [
            "engine.seed: unknown option; mine.py:engine takes depth, name, max_difference, partial_rollouts, dtype",
            "engine.name_: unknown option; did you mean name?",
            "engine.partial_rollouts: expected true or false, found 1",
            "engine.depth: required by mine.py:engine",
        ],
    ),
    (
        "engine",
        {"name": "builtin", "processes": 2, "timeot": 3, "max_difference": 0},
        [
            "engine.timeot: unknown option; did you mean timeout? builtin takes processes, place, folder, devices,",
            "engine.max_difference: expected a number above 0, found 0",
        ],
    ),
    (
        "engine",
        {"name": "vllm", "url": "h", "served_modl": "m", "seed": 1},
        [
            "engine.url: expected a URL such as",
            "engine.served_modl: unknown option; did you mean served_model? vllm takes python, url, served_model,",
            "engine.seed: outdo sets it itself: `seed` of the recipe",
        ],
    ),
    (
        "attention",
        {"name": "shared", "replicas": 2},
        ["attention.replicas: unknown option; shared takes no options"],
    ),
    ("train.objective", {"name": "grpo", "clip_low": 0.1, "beta": {"start": 0.1, "target": 1.0}}, []),
    (
        "train.objective",
        {"name": "grpo", "clip_lo": 0.1, "beta": {"start": 0.1}, "weigt": "total", "bypass": 1},
        [
            "train.objective.clip_lo: unknown option; did you mean clip_low? grpo takes clip_low, clip_high, beta,",
            "train.objective.beta.target: required by beta",
            "train.objective.weigt: unknown option; did you mean weight?",
            "train.objective.bypass: expected true or false, found 1",
        ],
    ),
    ("train.advantage", {"name": "gae", "lamb": 1.0}, ["train.advantage.lamb: unknown option; did you mean lam?"]),
    ("train.kl_in_reward", {"name": "k1", "beta": 0.1}, []),
    (
        "train.kl_in_reward",
        {"name": "k1", "bta": 0.1, "after_baseline": "no"},
        [
            "train.kl_in_reward.bta: unknown option; did you mean beta? k1 takes beta, after_baseline",
            "train.kl_in_reward.after_baseline: expected true or false, found 'no'",
            "train.kl_in_reward.beta: required by k1",
        ],
    ),
    ("train.critic", {"name": "head", "sed": 1}, ["train.critic.sed: unknown option; did you mean seed?"]),
    ("train.stop", {"name": "first_of", "klm": 1}, ["train.stop.klm: unknown option; did you mean kl?"]),
    ("optim.algorithm", {"name": "adamw", "beta": 0.9}, ["optim.algorithm.beta: unknown option; did you mean betas?"]),
    ("optim.schedule", {"name": "linear", "warmup": 0.5}, ["optim.schedule.warmup: expected a whole number such as 0"]),
    ("train.adapter", {"name": "lora", "rank": 4}, []),
    (
        "train.adapter",
        {"name": "lora", "rnak": 4, "alpha": "8"},
        [
            "train.adapter.rnak: unknown option; did you mean rank? lora takes rank, alpha, targets,",
            "train.adapter.alpha: expected a number such as 8, found '8'",
        ],
    ),
    ("track", {"name": "mine.py:note", "colour": "blue", "completions": 3}, []),
    (
        "track",
        {"name": "mine.py:note", "color": "blue", "completions": "3"},
        [
            "track.mine.py:note.color: unknown option; did you mean colour? mine.py:note takes colour, completions,",
            "track.mine.py:note.completions: expected a number such as 16, found '3'",
        ],
    ),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistakes(make: Any, *arguments: Any) -> list[str]:
    """Return the sentences of a refusal, without the place that names the file or the command."""
    try:
        make(*arguments)
    except UserError as error:
        return [each.removeprefix("recipe.toml: ").removeprefix("command line: ") for each in error.problems]
    return []


def raw(setting: str, piece: dict[str, Any]) -> dict[str, Any]:
    table, _, name = setting.rpartition(".")
    data = {"model": "m", "data": {"path": "x.jsonl"}}
    return data | ({table: {name: piece}} if table else {name: piece})


def in_python(setting: str, piece: dict[str, Any]) -> list[str]:
    return refusals(Recipe.model_validate(raw(setting, piece)))


def by_itself(setting: str, piece: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str] | None:
    """Give a piece to what takes it alone: a function of Python, or an option of a command; None if there is none."""
    match setting:
        case "rewards":
            return mistakes(lambda: load_reward(piece).close())
        case "environment":
            return mistakes(tools_of, Piece.model_validate(piece))
        case "engine":
            return mistakes(named_engine, to_toml(piece))
        case "train.objective":
            options = [f"{name}={to_toml(value)}" for name, value in piece.items() if name != "name"]
            found = mistakes(lambda: named_objective(piece["name"], options, length=8))
            return [each.replace("explain.", "train.objective.", 1) for each in found]
        case "train.adapter":
            facts = SimpleNamespace(adapter=None)
            monkeypatch.setattr(adapter_option, "inspect_folder", lambda *_: facts)
            monkeypatch.setattr(adapter_option, "fit_adapter", lambda *_: AdapterFit(None, []))
            found = mistakes(adapter_option.read_adapter, to_toml(piece), "m", "auto")
            return [each.replace("--adapter.", "train.adapter.", 1) for each in found]
        case "track":
            for file in ("recipe.toml", "environment.json", "metrics.jsonl"):
                Path("run", file).parent.mkdir(exist_ok=True)
                Path("run", file).touch()
            monkeypatch.setattr(track, "sending", lambda *_, **__: nullcontext([]))
            return mistakes(track.command, Path("run"), [to_toml(piece)])
    return None


@pytest.mark.parametrize(("setting", "piece", "beginnings"), CASES)
def test_the_ways_to_name_a_piece_accept_and_refuse_the_same_options(
    setting: str, piece: dict[str, Any], beginnings: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = in_python(setting, piece)
    assert len(found) == len(beginnings), found
    assert all(map(str.startswith, found, beginnings)), found
    (folder / "recipe.toml").write_text("".join(f"{key} = {to_toml(v)}\n" for key, v in raw(setting, piece).items()))
    assert mistakes(load, "recipe.toml") == found
    assert mistakes(load, None, ["model=m", "data.path=x.jsonl", f"{setting}={to_toml(piece)}"]) == found
    alone = by_itself(setting, piece, monkeypatch)
    assert alone is None or alone == found


@pytest.mark.parametrize(
    ("piece", "beginnings"), [(each[1], each[2]) for each in CASES if SCORE[8:] == each[1]["name"]]
)
def test_a_function_of_python_takes_the_options_that_its_file_takes(
    piece: dict[str, Any], beginnings: Sequence[str]
) -> None:
    found = mistakes(lambda: load_reward({**piece, "name": resolve(piece["name"])}).close())
    assert len(found) == len(beginnings)
    expected = [each.replace("mine.py:score", "score") for each in beginnings]
    assert all(map(str.startswith, found, expected)), found


def test_a_parameter_without_a_default_that_is_no_option_may_be_a_column(folder: Path) -> None:
    (folder / "mine.py").write_text("def score(completion, difficulty, *, weighted, length=3): return 1.0\n")
    assert in_python("rewards", {"name": "mine.py:score", "length": 4}) == []
    assert mistakes(lambda: load_reward({"name": "mine.py:score", "length": 4}).close()) == []
