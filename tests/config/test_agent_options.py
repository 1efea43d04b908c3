"""Test how a recipe names an agent, and which of its options are refused; the code of the agent is never run."""

from pathlib import Path
from typing import Any

import pytest

from outdo.config.environments import environment_mistakes, kind_of
from outdo.config.names import AGENT
from outdo.config.recipe import Piece, Recipe
from outdo.config.rules import refusals
from outdo.extras.agents.check import code_of, own_options

CODE = """
raise RuntimeError("this code is read, and not run")

async def run(row, *, base_url, http_client, rounds=3): ...
async def short(data, **given): ...
def plain(row, base_url, must, may=1): ...
def no_row(): ...

class Workflow:
    def __init__(self, rounds=1): ...
    async def run(self, data, **given): ...

class Remote:
    def __init__(self, base_url): ...
    def reply(self, message): ...
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "agent.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "agent"),
    [
        ("agent.py:run", {}, "agent.py:run"),
        ("agent.py:short", {}, "agent.py:short"),
        ("agent.py:plain", {"must": 1}, "agent.py:plain"),
        ("agent", {"run": "agent.py:Workflow", "rounds": 2}, "agent.py:Workflow"),
        ("agent.py:Remote", {"base_url": "http://there"}, None),
        ("tools", {"functions": "agent.py:plain"}, None),
    ],
)
def test_an_agent_is_told_by_its_signature(name: str, options: dict[str, Any], agent: str | None) -> None:
    piece = Piece(name=name, options={**options, "timeout": 5})
    assert (kind_of(piece) == AGENT) == (agent is not None)
    assert list(environment_mistakes(piece)) == []
    if agent is not None:
        assert code_of(piece) == agent
        assert piece.options.keys() - own_options(piece).keys() == options.keys() - {"run"}


@pytest.mark.parametrize(
    ("name", "options", "mistake"),
    [
        ("agent", {}, 'environment.run: expected "file.py:function"'),
        ("agent", {"run": "agent.py:rum"}, 'agent.py has no "rum"; did you mean run?'),
        ("agent.py:run", {"round": 2}, "environment.round: unknown option; did you mean rounds?"),
        ("agent.py:run", {"base_url": "a"}, "environment.base_url: outdo sets it itself"),
        ("agent.py:run", {"calls": 0}, "environment.calls: expected a whole number of 1 or more"),
        ("agent.py:plain", {}, "environment.must: required by agent.py:plain"),
        ("agent", {"run": "agent.py:no_row"}, "has no parameter for the row"),
    ],
)
def test_a_wrong_agent_is_refused_in_one_sentence(name: str, options: dict[str, Any], mistake: str) -> None:
    (found,) = environment_mistakes(Piece(name=name, options=options))
    assert mistake in found


@pytest.mark.parametrize("agent", ["agent.py:run", {"name": "agent", "run": "agent.py:Workflow"}])
def test_the_turns_of_agents_are_not_compared_one_by_one(agent: Any) -> None:
    def mistakes(advantage: str) -> list[str]:
        settings = {"model": "m", "data": {"path": "d.jsonl"}, "train": {"advantage": advantage}, "environment": agent}
        return refusals(Recipe.model_validate(settings))

    (mistake,) = mistakes("turn_centred")
    assert mistake.startswith("train.advantage: turn_centred compares turns with turns, and an agent decides")
    assert mistake.endswith("use turn_to_go")
    assert mistakes("turn_to_go") == []
