"""Examples of recipes and of Python in the documentation: what they name exists, and takes what they give it.

`test_python_of_pages.py` says which test runs which Python example; here are all, also those that cannot run.
"""

import ast
import importlib
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import outdo
from outdo.config.file import load
from outdo.utils.errors import UserError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(toml|python)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OF_THE_READER = re.compile(
    r"no such file|no such Python module|required|does not exist|cannot be read|is not set|there are no held-out"
    r"|data.eval_path names no set"
)
"""What is said of the files of the reader, which are not here, and of settings that the rest of a recipe has."""
COMMAND = re.compile(r"(?:^|[`\s])outdo (?:train|check) ([^`\n#|]*)")
SETTING = re.compile(r"[a-z_]+(\.[a-z_0-9]+)*=(?!\$|\.\.\.|…)")
USUAL = {"model": "model", "data.path": "data.jsonl", "rewards": "exact"}


def examples(language: str) -> list[Any]:
    """The examples of all pages in a language, with their page and number."""
    found = []
    for page in PAGES:
        texts = [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]
        name = str(page.relative_to(ROOT))
        found += [pytest.param(text, id=f"{name}-{number}") for number, text in enumerate(texts, 1)]
    return found


def recipes(text: str) -> Iterator[str]:
    """Yield the recipe that an example is, or, where it has a setting in several ways, one for each of them."""
    try:
        tomllib.loads(text)
        yield text
        return
    except tomllib.TOMLDecodeError:
        pass
    table, statement = "", ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line
        elif line.strip() and not line.startswith("#"):
            statement += line + "\n"
            try:
                tomllib.loads(statement)
            except tomllib.TOMLDecodeError:  # it goes on in the next line
                continue
            yield f"{table}\n{statement}"
            statement = ""
    assert not statement, statement


@pytest.mark.parametrize("text", examples("toml"))
def test_a_recipe_of_a_page_has_settings_that_exist_with_values_that_fit(text: str, tmp_path: Path):
    assert mistakes(text, tmp_path) == []


def test_a_wrong_example_is_found(tmp_path: Path):
    wrong = 'rewards = "exact"\nrewards = "exat"\n[train]\ngroup = 4\nobjective = {name = "grpo", bta = 1}\n'
    found = " ".join(mistakes(wrong, tmp_path))
    for part in ('nothing is called "exat"', "train.group: unknown setting", "train.objective.bta: unknown option"):
        assert part in found
    with pytest.raises(AttributeError):
        check_names("import outdo\noutdo.Polcy.load('m')")
    with pytest.raises(TypeError):
        check_names("from outdo import Policy\nPolicy.load('m', devise='cpu', path='n')")


def commands(page: Path) -> list[list[str]]:
    """The settings of each command `outdo train` and `outdo check` that a page shows, without placeholders."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    found = [shlex.split(line) for line in COMMAND.findall(text) if line.count("'") % 2 == 0]
    return [[word for word in words if SETTING.match(word)] for words in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_settings_of_a_command_have_values_that_fit(page: Path):
    for given in commands(page):
        keys = {word.partition("=")[0] for word in given}
        try:
            load(None, [*(f"{key}={value}" for key, value in USUAL.items() if key not in keys), *given])
        except UserError as error:
            found = [each for each in error.problems if not OF_THE_READER.search(each)]
        else:
            found = []
        assert found == [], given


def test_most_commands_are_found():
    assert sum(len(given) for page in PAGES for given in commands(page)) > 80


def mistakes(text: str, folder: Path) -> list[str]:
    """What outdo says of the recipes of an example, except of what is the reader's own."""
    found: list[str] = []
    for recipe in recipes(text):
        path = folder / "recipe.toml"
        path.write_text(recipe, encoding="utf-8")
        given = tomllib.loads(recipe)
        try:
            load(path, [f"{key}={value}" for key, value in USUAL.items() if not _has(given, key)])
        except UserError as error:
            found += [each for each in error.problems if not OF_THE_READER.search(each)]
    return found


def _has(given: dict[str, Any], key: str) -> bool:
    table, _, name = key.rpartition(".")
    return name in (given.get(table, {}) if table else given)


@pytest.mark.parametrize("text", examples("python"))
def test_python_of_a_page_names_what_outdo_has_and_calls_it_with_parameters_that_it_has(text: str):
    check_names(text)


def check_names(text: str) -> None:
    """Raise AttributeError, ImportError or TypeError for what a program takes from outdo and is not there."""
    names: dict[str, Any] = {"outdo": outdo}  # an example may go on with what one before it has imported
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {each.name: outdo for each in node.names if each.name == "outdo"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "outdo":
            module = importlib.import_module(node.module or "")
            for each in node.names:
                if not hasattr(module, each.name):
                    importlib.import_module(f"{node.module}.{each.name}")
                names[each.asname or each.name] = getattr(module, each.name)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            _resolved(node, names)
        elif isinstance(node, ast.Call) and (called := _resolved(node.func, names)) is not None:
            given = {each.arg: None for each in node.keywords if each.arg is not None}
            if not any(isinstance(each, ast.Starred) for each in node.args) and len(given) == len(node.keywords):
                inspect.signature(called).bind(*node.args, **given)


def _resolved(node: ast.expr, names: dict[str, Any]) -> Any:
    """What an expression such as `outdo.Policy.load` is; None if it is not of outdo."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := _resolved(node.value, names)) is not None:
        return getattr(owner, node.attr)
    return None
