"""Test the tools of MCP servers at a URL: a session that ends costs nothing, and no header is written anywhere."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from outdo.config.recipe import Piece
from outdo.extras.episodes.tools import ToolError
from outdo.extras.tools.loading import load_tools
from outdo.extras.tools.mcp_clients import Service
from outdo.extras.tools.mcp_server import McpServer
from outdo.utils.errors import UserError

SERVER = '''
import json, os, sys, time, uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SESSIONS = set()
NUMBER = {"type": "integer"}
ADD = {"name": "add", "inputSchema": {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a"]}}
NAMES = ["add", "forget", "fail", "wait", "refuse"]
TOOLS = [{**ADD, "name": name} for name in NAMES]


def called(name, a, b=1):
    """The result of a call; `forget` and `fail` work the second time."""
    if name == "forget" and not os.path.exists("forgotten"):
        open("forgotten", "w").close()
        SESSIONS.clear()
        return 404
    if name == "fail":
        return 500
    if name == "wait":
        time.sleep(a)
    return {"content": [{"type": "text", "text": str(a + b)}], "isError": name == "refuse"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, result=None, session=None):
        body = b"" if result is None else json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.say(405)

    def do_DELETE(self):
        SESSIONS.discard(self.headers["Mcp-Session-Id"])
        self.say(200)

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, params, session = request["method"], request.get("params", {}), None
        if self.headers["X-Key"] != "the key":
            return self.say(401)
        if method == "initialize":
            session = uuid.uuid4().hex
            SESSIONS.add(session)
            info = {"name": "test", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        elif self.headers["Mcp-Session-Id"] not in SESSIONS:
            return self.say(404)
        elif "id" not in request:
            return self.say(202)
        elif method == "tools/list":
            result = {"tools": TOOLS}
        else:
            result = called(params["name"], **params["arguments"])
            if isinstance(result, int):
                return self.say(result)
        self.say(200, {"jsonrpc": "2.0", "id": request["id"], "result": result}, session)


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print(server.server_port, flush=True)
server.serve_forever()
'''


class Running:
    """A server that runs in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", SERVER, str(self.port)]
        self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.end()


@pytest.fixture
def server(running: Running) -> Iterator[McpServer]:
    server = McpServer(Service(running.url, (("X-Key", "the key"),)), seconds=600.0)
    yield server
    server.close()


def test_a_recipe_names_a_server_by_its_url_and_a_header_by_its_place(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"name": "mcp", "url": running.url, "headers": {"X-Key": {"env": "KEY_OF_THE_TEST"}}, "tools": ["add"]}
    with pytest.raises(UserError, match="X-Key: the environment variable KEY_OF_THE_TEST is not set"):
        load_tools([Piece.model_validate(options)], 600.0)
    monkeypatch.setenv("KEY_OF_THE_TEST", "the key")
    (tool,) = load_tools([Piece.model_validate(options)], 600.0)
    assert tool.name == "add"
    assert tool.function(a=2, b=3) == "5"
    assert "the key" not in repr(Service(running.url, (("X-Key", "the key"),)))


def test_a_call_whose_session_has_ended_is_repeated_in_a_new_one(server: McpServer) -> None:
    assert server.call("forget", {"a": 2}) == "3"
    assert server.call("add", {"a": 3}) == "4"


def test_a_call_waits_for_a_server_that_is_started_again(server: McpServer, running: Running) -> None:
    running.end()
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(server.call, "add", {"a": 2})
        with pytest.raises(TimeoutError):
            call.result(timeout=2)
        running.start()
        assert call.result() == "3"


def test_what_the_server_refuses_and_a_call_that_fails_twice_are_messages(server: McpServer) -> None:
    with pytest.raises(ToolError, match="7"):
        server.call("refuse", {"a": 6})
    with pytest.raises(ToolError, match="during this call"):
        server.call("fail", {"a": 6})
    assert server.call("add", {"a": 1}) == "2"


def test_a_server_that_does_not_know_the_key_or_is_not_there_is_refused(running: Running) -> None:
    with pytest.raises(UserError, match=r"the MCP server http://127.0.0.1:\d+/mcp cannot be used: "):
        McpServer(Service(running.url), seconds=600.0)
    running.end()
    with pytest.raises(UserError, match="cannot be used: "):
        McpServer(Service(running.url), seconds=600.0)
