"""Test the tools of MCP servers: a lost server is replaced or ends the run, and no process is left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from episode_cases import call, question, tool_template
from run_cases import alive, state

from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.tools import LateError, ToolBox, ToolError
from outdo.extras.tools import mcp_server
from outdo.extras.tools.mcp_clients import Program
from outdo.extras.tools.mcp_server import McpServer
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine
from outdo.types import Rollout
from outdo.utils.errors import MachineError, UserError

SERVER = """
import json, os, signal, sys, threading, time

with open("started", "a") as file:
    file.write(f"{os.getpid()}\\n")
if os.path.exists("broken"):
    sys.exit("broken")


def end_once():
    if not os.path.exists("ended"):
        open("ended", "w").close()
        os._exit(3)
    return "survived"


CALLS = {
    "add": lambda a, b=1: str(a + b),
    "refuse": lambda reason: 1 / 0,
    "end": lambda: os._exit(3),
    "wait": lambda seconds: time.sleep(seconds) or "waited",
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "end_once": end_once,
}
TYPES = {"a": "integer", "b": "integer", "reason": "string", "seconds": "number"}


def schema(call):
    names = call.__code__.co_varnames[: call.__code__.co_argcount]
    required = names[: len(names) - len(call.__defaults__ or ())]
    properties = {name: {"type": TYPES[name]} for name in names}
    return {"type": "object", "properties": properties, "required": list(required)}


def result_of(method, params):
    if method == "initialize":
        info = {"name": "test", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": schema(call)} for name, call in CALLS.items()]}
    try:
        text, failed = CALLS[params["name"]](**params["arguments"]), False
    except ZeroDivisionError:
        text, failed = params["arguments"]["reason"], True
    return {"content": [{"type": "text", "text": text}], "isError": failed}


def answer(request):
    if request["method"] in ("initialize", "tools/list", "tools/call"):
        outcome = {"result": result_of(request["method"], request["params"] if "params" in request else {})}
    else:
        outcome = {"error": {"code": -32601, "message": "no such method"}}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}) + "\\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        threading.Thread(target=answer, args=[request], daemon=True).start()
"""
"""A server that starts within milliseconds, as that of the library does not."""

OF_THE_LIBRARY = '''
from mcp.server import MCPServer

server = MCPServer("test", log_level="CRITICAL")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


server.run()
'''


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "server.py"
    path.write_text(SERVER)
    return path


@pytest.fixture
def server(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[McpServer]:
    """A server in an empty folder, in which it writes its process ids."""
    monkeypatch.chdir(tmp_path)
    server = McpServer(Program((sys.executable, str(code))), seconds=600.0)
    yield server
    server.close()
    assert not any(map(alive, started()))


def started() -> list[int]:
    """The process ids of the servers that were started."""
    return [int(line) for line in Path("started").read_text().split()]


def stopped(process: int) -> bool:
    return state(process) == "T"


def play(server: McpServer, script: list[str], timeout: float = 30.0) -> Rollout:
    """An episode in which the policy writes these turns."""
    box = ToolBox(server.tools())
    template = tool_template(tools=server.tools())
    environment = Dialogue(lambda: Player(None, box, timeout=timeout), template)
    engine = ScriptedEngine(script, template.tokenizer)
    sampling = SamplingParams(max_tokens=2000)
    (group,) = environment.rollouts(engine, [question(template)], 1, sampling, step=1, purpose="train")
    return group.rollouts[0]


def answers(rollout: Rollout, server: McpServer) -> str:
    tokenizer = tool_template(tools=server.tools()).tokenizer
    pairs = zip(rollout.token_ids, rollout.loss_mask, strict=True)
    return str(tokenizer.decode([token for token, own in pairs if not own]))


def test_the_tools_of_a_server_that_is_written_with_the_library(tmp_path: Path) -> None:
    path = tmp_path / "server.py"
    path.write_text(OF_THE_LIBRARY)
    server = McpServer(Program((sys.executable, str(path))), seconds=600.0)
    (schema,) = server.schemas
    function = schema["function"]
    assert (function["name"], function["description"]) == ("add", "Add two numbers.")
    types = {name: each["type"] for name, each in function["parameters"]["properties"].items()}
    assert types == {"a": "integer", "b": "integer"}
    assert function["parameters"]["required"] == ["a"]
    assert server.call("add", {"a": 2, "b": 3}) == "5"
    server.close()


def test_a_recipe_may_name_some_of_the_tools(server: McpServer) -> None:
    assert [tool.name for tool in server.tools(["refuse", "add"])] == ["refuse", "add"]
    with pytest.raises(UserError, match=r"has no tool ad; did you mean add\?"):
        server.tools(["ad"])


def test_the_policy_reads_results_and_faults_and_each_fault_is_counted(server: McpServer) -> None:
    script = [
        call("add", a=2, b=3),
        call("ad", a=2),
        call("add", a="two"),
        call("add", b=2),
        call("refuse", reason="not today"),
        "done",
    ]
    rollout = play(server, script)
    read = answers(rollout, server)
    assert "<tool_response>5</tool_response>" in read
    assert "there is no tool ad; did you mean add?" in read
    assert "a must be of type integer" in read
    assert "a is missing" in read
    assert "not today" in read
    assert +Counter(rollout.counts) == {"tools/calls": 5, "tools/unknown": 1, "tools/unparsed": 2, "tools/raised": 1}
    assert len(started()) == 1


def test_a_late_call_is_a_message_is_counted_and_does_not_end_the_server(server: McpServer) -> None:
    server.seconds = 1.0
    rollout = play(server, [call("wait", seconds=3600.0), "done"])
    assert "wait had no result after 1 s" in answers(rollout, server)
    assert +Counter(rollout.counts) == {"tools/calls": 1, "tools/timed_out": 1}
    server.seconds = 600.0
    assert server.call("add", {"a": 1}) == "2"
    assert len(started()) == 1


def test_a_server_that_hangs_is_replaced(server: McpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "ANSWER", 0.5)
    server.seconds = 0.5
    os.kill(started()[0], signal.SIGSTOP)
    with suppress(LateError, ToolError):  # its own server may be too slow for this deadline, and is asked all the same
        server.call("add", {"a": 1})
    assert len(started()) == 2
    server.seconds = 600.0
    assert server.call("add", {"a": 1}) == "2"
    assert not alive(started()[0])


def test_a_call_that_lost_its_server_is_repeated_and_the_policy_notices_nothing(server: McpServer) -> None:
    os.kill(started()[0], signal.SIGKILL)
    assert server.call("add", {"a": 1, "b": 1}) == "2"
    assert server.call("end_once", {}) == "survived"
    assert server.call("add", {"a": 2, "b": 2}) == "4"


def test_a_call_that_ends_the_server_fails_alone(server: McpServer) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = [threads.submit(server.call, "wait", {"seconds": 0.5}) for _ in range(3)]
        time.sleep(0.2)
        with pytest.raises(ToolError, match="the server ended, or hung, during this call"):
            server.call("end", {})
        assert [each.result() for each in waiting] == ["waited"] * 3
    rollout = play(server, [call("end"), call("add", a=1), "done"])
    assert +Counter(rollout.counts) == {"tools/calls": 2, "tools/raised": 1}
    assert "<tool_response>2</tool_response>" in answers(rollout, server)


def test_a_server_that_cannot_be_started_again_ends_the_run_with_a_sentence(server: McpServer) -> None:
    Path("broken").touch()
    os.kill(started()[0], signal.SIGKILL)
    with pytest.raises(MachineError, match=r"the MCP server .*server\.py was lost and cannot be used again"):
        play(server, [call("add", a=1), "done"])


def test_a_server_that_ends_in_each_call_ends_the_run(server: McpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "MOST_LOST", 2)
    with pytest.raises(ToolError):
        server.call("end", {})
    with pytest.raises(MachineError, match="in each of the last 2 calls"):
        play(server, [call("end"), "done"])


def test_a_server_that_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the MCP server .* cannot be used: Connection closed"):
        McpServer(Program((sys.executable, "-c", "pass")), seconds=600.0)
    with pytest.raises(UserError, match="the MCP server no-such-program: no such program"):
        McpServer(Program(("no-such-program",)), seconds=600.0)
    with pytest.raises(UserError, match="the environment variable NO_SUCH_KEY is not set"):
        McpServer(Program((sys.executable,), ("NO_SUCH_KEY",)), seconds=60.0)


@pytest.mark.parametrize("way", [pytest.param("exit", marks=pytest.mark.release), "kill"])
def test_a_server_ends_with_the_process_that_started_it(code: Path, tmp_path: Path, way: str) -> None:
    program = f"""
        import os, signal, sys, threading, time
        from pathlib import Path
        from outdo.extras.tools.mcp_clients import Program
        from outdo.extras.tools.mcp_server import open_server
        server = open_server(Program((sys.executable, {str(code)!r})), 3600.0)
        threading.Thread(target=server.call, args=("stop", {{}}), daemon=True).start()
        process = Path("/proc", Path("started").read_text().strip(), "stat")
        while process.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.05)
        if {way!r} == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=tmp_path, env=environment, timeout=600)
    processes = [int(line) for line in (tmp_path / "started").read_text().split()]
    assert processes
    try:
        assert not any(map(stopped, processes))  # the signal that ends it has woken it
        while any(map(alive, processes)):
            time.sleep(0.05)
    finally:
        for process in filter(alive, processes):
            os.kill(process, signal.SIGKILL)
