"""Test that an MCP server that sends nonsense is one sentence, and that no result of a call ends a run."""

import gzip
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
from hostile_server import OK, hostile_server, whole
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outdo.extras.episodes.tools import ToolError
from outdo.extras.tools import mcp_clients
from outdo.extras.tools.mcp_clients import Program, Service
from outdo.extras.tools.mcp_server import McpServer
from outdo.utils.errors import UserError

SERVER = """
import json, os, sys

if os.path.exists("garbage"):
    sys.stdout.buffer.write(b"garbage\\xff\\n" * 5000)
    sys.stdout.flush()
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    if method == "initialize":
        info = {"name": "test", "version": "1"}
        version = request["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif method in ("tools/list", "tools/call"):
        result = json.load(open(method.partition("/")[2]))
    else:
        unknown = {"error": {"code": -32601, "message": "unknown"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **unknown}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
TOOL = {"name": "add", "inputSchema": {"type": "object"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def open_server(folder: Path, listed: Any) -> McpServer:
    (folder / "list").write_text(json.dumps(listed))
    return McpServer(Program((sys.executable, "server.py")), 600.0)


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ({"tools": [{"name": "add", "inputSchema": 7}]}, "inputSchema"),
        ({"tools": 5}, "tools"),
        ({"tools": [], "nextCursor": "again"}, "its list of tools has no end: 0 so far"),
        ({"tools": [TOOL] * 400, "nextCursor": "again"}, "its list of tools has no end: 1200 so far"),
    ],
)
def test_a_server_whose_list_of_tools_cannot_be_read_is_one_sentence(folder: Path, listed: Any, reason: str) -> None:
    with pytest.raises(UserError) as error:
        open_server(folder, listed)
    (sentence,) = error.value.problems
    assert sentence.startswith("the MCP server ")
    assert reason in sentence
    assert len(sentence) < 1000
    assert "\n" not in sentence


def test_lines_that_are_no_messages_are_not_repeated_on_the_terminal(folder: Path, capfd: Any, caplog: Any) -> None:
    (folder / "garbage").touch()
    server = open_server(folder, {"tools": [TOOL]})
    (folder / "call").write_text(json.dumps({"content": [{"type": "text", "text": "5"}]}))
    assert server.call("add", {}) == "5"
    server.close()
    assert len(capfd.readouterr().err) < 2000
    assert len(caplog.records) < 10  # without the handlers of pytest, Python writes each of them to stderr


def test_a_program_that_prints_a_line_without_end_is_one_sentence_and_fills_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_clients, "MOST_BYTES", 2**20)
    (tmp_path / "server.py").write_text("while True:\n    print('x' * 2**16, end='')\n")
    tracemalloc.start()
    with pytest.raises(UserError, match="cannot be used: it printed a line of more than 1048576 characters"):
        McpServer(Program((sys.executable, f"{tmp_path}/server.py")), 600.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
CONTENT = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "resource"]) | JSON}, optional={"text": JSON}
)
# What is no JSON of objects is no message: the library drops it, and the call ends at its deadline.
RESULT = st.dictionaries(st.text(max_size=6), JSON, max_size=3) | st.fixed_dictionaries(
    {"content": JSON | st.lists(CONTENT, max_size=3)}, optional={"isError": JSON, "structuredContent": JSON}
)


@pytest.mark.parametrize("examples", [300, pytest.param(10_000, marks=pytest.mark.long)])
def test_whatever_a_server_sends_as_a_result_is_a_text_or_an_error_of_the_tool(folder: Path, examples: int) -> None:
    server = open_server(folder, {"tools": [TOOL]})

    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(RESULT)
    def fuzz(result: Any) -> None:
        (folder / "call").write_text(json.dumps(result))
        with suppress(ToolError):
            assert isinstance(server.call("add", {}), str)

    try:
        fuzz()
    finally:
        server.close()


def endless() -> Iterator[bytes]:
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    yield from repeat(b"10000\r\n" + b" " * 2**16 + b"\r\n")


BOMB = whole(gzip.compress(bytes(2**28)), b"Content-Encoding: gzip\r\n")


@pytest.mark.parametrize("reply", [endless, lambda: BOMB])
def test_a_server_at_a_url_whose_response_has_no_end_is_one_sentence_and_fills_no_memory(
    reply: Callable[[], Iterable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_clients, "MOST_BYTES", 2**20)
    with hostile_server(reply) as url:
        tracemalloc.start()
        with pytest.raises(UserError, match=r"the MCP server http://127\.0\.0\.1"):
            McpServer(Service(url), 600.0)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**26
