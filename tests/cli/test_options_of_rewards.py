"""An option of a reward, one that is misspelt, and one that is missing: every way to name a reward says the same."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_cases import SMALL

from outdo import SingleTurn, load_reward
from outdo.config.file import load
from outdo.rewards import Reward, RewardInput, Status, WeightedSum
from outdo.utils.errors import UserError

CODE = "def score(completion, answer, length):\n    return float(len(completion) == length)\n"
NEEDED = "score needs length; the data has "


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(CODE)
    rows = [{"question": f"{n}+1=", "answer": "1234", "wide": 4} for n in range(4)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "filled.jsonl").write_text("".join(json.dumps(row | {"length": 4}) + "\n" for row in rows))
    return tmp_path


def function() -> Callable[..., float]:
    names: dict[str, Any] = {}
    exec(CODE, names)
    return names["score"]


IN_PYTHON: dict[str, Callable[..., Reward]] = {
    "a name": lambda **options: load_reward({"name": "my.py:score", **options}),
    "a list": lambda **options: load_reward([{"name": "my.py:score", "weight": 1.0, **options}]),
    "a function": lambda **options: load_reward({"name": function(), **options}),
}


@pytest.mark.parametrize("make", IN_PYTHON.values(), ids=IN_PYTHON)
def test_python_takes_an_option_refuses_a_misspelt_one_and_fails_without_it(home: Path, make: Callable[..., Reward]):
    for options, columns, value in (({"length": 4}, {}, 1.0), ({}, {"length": 4}, 1.0), ({}, {}, 0.0)):
        reward = make(**options)
        try:
            (output,) = reward([RewardInput(prompt="1", completion="1234", answer="1", columns=columns)])
        finally:
            reward.close()
        assert output.value == value
        assert (NEEDED in output.reason) == (output.status is Status.failed) == (value == 0.0)
    with pytest.raises(UserError) as caught:
        make(lenght=4)
    assert "lenght: unknown option; did you mean length?" in str(caught.value)


def test_a_parameter_that_no_column_fills_is_named_with_the_nearest_column():
    reward = load_reward(function())
    (output,) = reward([RewardInput(prompt="1", completion="1234", answer="1", columns={"lenght": 4})])
    assert output.reason.endswith("answer; did you mean lenght?")


def test_an_environment_takes_a_function_or_a_reward_and_refuses_what_load_reward_takes(home: Path):
    sample = RewardInput(prompt="1", completion="1234", answer="1")
    made = load_reward({"name": function(), "length": 4})
    for reward in (partial(function(), length=4), made):
        (output,) = SingleTurn(reward).reward([sample])
        assert output.value == 1.0
    (output,) = SingleTurn(function()).reward([sample])
    assert NEEDED in output.reason
    for spec in ("my.py:score", {"name": "my.py:score", "length": 4}, [function()]):
        for takes in (SingleTurn, lambda given: WeightedSum([(given, 1.0)])):
            with pytest.raises(UserError) as caught:
                takes(spec)
            assert "outdo.load_reward(...) makes a reward of it" in str(caught.value)


def test_a_recipe_and_the_commands_say_the_same(home: Path, outdo: Callable[..., Any], model: Path):
    right, wrong = (f'{{name = "my.py:score", {name} = 4}}' for name in ("length", "lenght"))
    said = "lenght: unknown option; did you mean length?"
    usual = [f"model={model}", *SMALL]
    assert load(None, [*usual, "data.path=data.jsonl", f"rewards={right}"]).rewards[0].options == {"length": 4}
    for rewards, data, status, message in (
        (right, "data.jsonl", 0, "No errors"),
        ("my.py:score", "filled.jsonl", 0, "No errors"),
        ("my.py:score", "data.jsonl", 2, NEEDED),
        (wrong, "data.jsonl", 2, said),
    ):
        done = outdo("check", *usual, f"data.path={data}", f"rewards={rewards}")
        assert done.status == status, done.out + done.error
        assert message in " ".join((done.out + done.error).split())
    for rewards, data, status, message in (
        (right, "data.jsonl", 0, "reward"),
        ("my.py:score", "filled.jsonl", 0, "reward"),
        (wrong, "data.jsonl", 2, said),
    ):
        done = outdo("eval", model, "--data", data, "--rewards", rewards, "--max-tokens", 2)
        assert done.status == status, done.out + done.error
        assert message in " ".join((done.out + done.error).split())
