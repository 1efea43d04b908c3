"""The tools of an episode: which functions can be one, and which calls fit them."""

from pathlib import Path
from typing import Any, Literal

import pytest

from outdo.config.recipe import Piece
from outdo.extras.episodes.environment import load_class
from outdo.extras.episodes.tools import ToolBox, ToolError
from outdo.utils.errors import UserError

CODE = '''
from functools import partial


def calc(x: int) -> str:
    """Compute.

    Args:
        x: A number.
    """
    return str(x)


def unknown_hint(x: "Nothing") -> str:
    """Compute.

    Args:
        x: A number.
    """


class Partial:
    tools = [partial(calc)]


class Text:
    tools = ["calc"]


class Hint:
    tools = [unknown_hint]


class One:
    tools = staticmethod(calc)


class Method:
    def tools(self):
        return [calc]


class Closes:
    def begin(self, prompt):
        self.game = open("/dev/null")

    def close(self):
        self.game.close()


class Ends:
    def __init__(self):
        raise SystemExit("no licence")
'''


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("Partial", "a tool has to be a function or a method, found functools.partial"),
        ("Text", "a tool has to be a function or a method, found 'calc'"),
        ("Hint", "the tool unknown_hint needs type hints, and a docstring .*: name 'Nothing' is not defined"),
        ("One", "environment: game.py:One: tools: expected a list of functions, found <function calc"),
        ("Method", "environment: game.py:Method: tools: expected a list of functions, found <bound method"),
        (
            "Closes",
            "environment: game.py:Closes: close raised AttributeError: .* 'game'; it is called before `begin` too",
        ),
        ("Ends", "environment: game.py:Ends raised SystemExit: no licence"),
    ],
)
def test_a_class_whose_tools_cannot_be_used_is_refused_in_one_sentence(
    name: str, mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "game.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=mistake):
        load_class(Piece(name=f"game.py:{name}", options={}))


def find(day: int | None = None, city: str = "") -> str:
    """Find a train.

    Args:
        day: Of the month; without it, any.
        city: Where it goes.
    """
    return f"{day} {city}"


def test_an_argument_that_may_be_nothing_takes_null() -> None:
    tools = ToolBox([find])
    arguments: dict[str, Any] = {"day": None, "city": "Rome"}
    assert tools.find("find", arguments).function(**arguments) == "None Rome"
    with pytest.raises(ToolError, match="find: day must be of type integer; city must be of type string"):
        tools.find("find", {"day": "5", "city": None})


def weather(unit: Literal["celsius", "kelvin"], days: Literal[1, 7] = 1) -> str:
    """Return the weather.

    Args:
        unit: Of the temperature.
        days: How many.
    """
    return f"{unit} {days}"


def test_an_argument_with_choices_takes_one_of_them() -> None:
    tools = ToolBox([weather])
    tools.find("weather", {"unit": "kelvin", "days": 7})
    with pytest.raises(ToolError, match='weather: unit must be one of "celsius", "kelvin"; days must be one of 1, 7'):
        tools.find("weather", {"unit": "rankine", "days": 2})
