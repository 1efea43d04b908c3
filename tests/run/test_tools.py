"""Test the tools that a recipe names: what they return, and which are refused before a model loads."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from outdo.config.environments import environment_mistakes
from outdo.config.file import load
from outdo.config.recipe import Piece
from outdo.config.resume import source_files
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.tools.environment import TOOLS
from outdo.extras.tools.loading import load_tools
from outdo.extras.tools.settings import tools_in
from outdo.utils.errors import UserError

DOCUMENTS = [
    {"text": "The heron eats fish."},
    {"text": "It lives in Peru and eats leaves.", "title": "Llama"},
    {"text": "It lives in Chile and eats grass.", "title": "Alpaca"},
    {"text": "Äpfel aus Österreich, 7 Sorten."},
    {"text": "x" * 30},
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "docs.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in DOCUMENTS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tools(*functions: Any) -> Piece:
    """The environment with these tools, as a recipe names it."""
    return Piece(name="tools", options={"functions": list(functions)})


def box(*functions: Any) -> ToolBox:
    return ToolBox(load_tools(tools_in({"functions": list(functions)}), timeout=30.0))


def search(query: str, **options: Any) -> str:
    """What the tool `search` returns."""
    tool = box({"name": "search", "corpus": "docs.jsonl", **options}).find("search", {"query": query})
    return tool.function(query=query)


def test_a_search_returns_the_documents_with_the_most_of_its_words() -> None:
    assert search("What eats FISH?", results=1) == "[1] The heron eats fish."
    assert search("llama", results=2) == "[2] Llama\nIt lives in Peru and eats leaves."
    assert search("äpfel 7") == "[4] Äpfel aus Österreich, 7 Sorten."


def test_documents_with_the_same_score_come_in_the_order_of_the_corpus() -> None:
    equal = "\n".join(json.dumps({"text": f"the same word {number}"}) for number in range(200))
    Path("docs.jsonl").write_text(equal)
    found = search("same word", results=5)
    assert found == "\n\n".join(f"[{number + 1}] the same word {number}" for number in range(5))


def test_a_search_without_a_known_word_says_so() -> None:
    for query in ("", "?!", "zebra"):
        assert search(query) == "No document has any of these words."


def test_a_long_document_is_cut() -> None:
    assert search("x" * 30, characters=10) == f"[5] {'x' * 10} ..."


def test_another_column_of_the_corpus_can_be_searched() -> None:
    Path("docs.jsonl").write_text('{"body": "one"}\n{"body": "two"}\n')
    assert search("two", column="body") == "[2] two"


def test_the_schema_of_a_search_is_part_of_the_prompt() -> None:
    (schema,) = TOOLS.tools(tools({"name": "search", "corpus": "docs.jsonl"}))
    assert schema["function"]["name"] == "search"
    assert list(schema["function"]["parameters"]["properties"]) == ["query"]


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        ('{"body": "text"}\n', 'docs.jsonl, row 1: expected text in the column "text", found None'),
        ('{"text": "good"}\n{"text": 7}\n', 'docs.jsonl, row 2: expected text in the column "text", found 7'),
        ('{"text": \n', "docs.jsonl, row 1"),
        ('{"text": "?! "}\n', 'no row has any word in the column "text"'),
    ],
)
def test_a_corpus_that_cannot_be_searched_is_refused(content: str, mistake: str) -> None:
    Path("docs.jsonl").write_text(content)
    with pytest.raises(UserError, match=mistake):
        box({"name": "search", "corpus": "docs.jsonl"})


def test_a_search_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match=r"the tool search needs bm25s: pip install 'outdo\[search\]'"):
        box({"name": "search", "corpus": "docs.jsonl"})


def test_two_tools_of_the_same_name_are_refused() -> None:
    twice = {"name": "search", "corpus": "docs.jsonl"}
    with pytest.raises(UserError, match="two tools are called search"):
        box(twice, twice)


@pytest.mark.parametrize(
    ("tool", "file"),
    [
        ('{name = "search", corpus = "docs.jsonl"}', "docs.jsonl"),
        ('{name = "mcp", command = ["python", "server.py"]}', "server.py"),
    ],
)
def test_a_resume_compares_the_files_of_tools(folder: Path, tool: str, file: str) -> None:
    (folder / "server.py").touch()
    given = f'environment={{name = "tools", functions = [{tool}]}}'
    recipe = load(None, ["model=m", "data.path=d.jsonl", given])
    assert source_files(recipe) == [folder / file]


def test_mcp_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "outdo.extras.tools.mcp_server", raising=False)
    with pytest.raises(UserError, match=r"the tools of an MCP server need mcp: pip install 'outdo\[mcp\]'"):
        box({"name": "mcp", "command": ["python"]})


@pytest.mark.parametrize(
    ("functions", "mistake"),
    [
        ([], "environment.functions: expected "),
        ([7], "environment.functions: expected "),
        (["serch"], 'nothing is called "serch"; did you mean search?'),
        (["other"], 'nothing is called "other"; expected search, mcp, python or file.py:name'),
        (["search"], "environment.functions.search.corpus: required by search"),
        (
            [{"name": "search", "corpus": "docs.jsonl", "result": 3}],
            "search.result: unknown option; did you mean results?",
        ),
        ([{"name": "search", "corpus": "docs.jsonl", "results": 0}], "search.results: expected a whole number of 1"),
        ([{"name": "search", "corpus": ["docs.jsonl"]}], 'search.corpus: expected a file such as "docs.jsonl"'),
        (["mcp"], "mcp needs one of the options command and url"),
        ([{"name": "mcp", "command": ["a"], "url": "http://b"}], "mcp needs one of the options command and url"),
        ([{"name": "mcp", "url": "b:80"}], "mcp.url: expected a URL that begins with http:// or https://"),
        ([{"name": "mcp", "url": "http://b", "environment": ["A"]}], "mcp.environment: only with command"),
        ([{"name": "mcp", "url": "http://b", "headers": {"Authorization": "Bearer a"}}], "a secret is written as"),
        ([{"name": "mcp", "command": "python server.py"}], "mcp.command: expected a program and its arguments"),
        ([{"name": "python", "seconds": 0.5}], "python.seconds: expected a whole number of 1 or more, found 0.5"),
        ([{"name": "python", "memory": 8}], "python.memory: expected a whole number of MiB, 64 or more, found 8"),
        ([{"name": "python", "unsafe_local": 1}], "python.unsafe_local: expected true or false, found 1"),
        (["tool.py:calc"], "tool.py: no such file"),
    ],
)
def test_a_wrong_tool_is_refused_in_one_sentence(functions: list[Any], mistake: str) -> None:
    found = list(environment_mistakes(tools(*functions)))
    assert len(found) == 1
    assert mistake in found[0]
