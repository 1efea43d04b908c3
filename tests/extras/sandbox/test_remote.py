"""The sandbox of a service, with a stand-in on loopback that has the form of SandboxFusion."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from typing import Any

import pytest
from hostile_server import OK, hostile_server, whole

from outdo.extras.sandbox import Ending, Limits, Outcome, open_sandbox, remote
from outdo.extras.sandbox.local import UnsafeLocal
from outdo.extras.sandbox.remote import Remote
from outdo.rewards import RewardInput, load_reward
from outdo.utils.errors import UserError

Reply = tuple[int, Mapping[str, Any] | bytes, Mapping[str, str]]


def finished(stdout: Any = "", stderr: str = "", status: Any = 0, seconds: Any = 0.25) -> dict[str, Any]:
    ran = {"status": "Finished", "execution_time": seconds, "return_code": status, "stdout": stdout, "stderr": stderr}
    return {"status": "Failed" if status else "Success", "message": "", "compile_result": None, "run_result": ran}


class StandIn(ThreadingHTTPServer):
    """Answers with `replies`, the last one again and again; without any it runs the programs, unsafely."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def reply(self, request: Mapping[str, Any]) -> Reply:
        if not self.replies:
            ran = UnsafeLocal().run(request["code"], request["stdin"], Limits(seconds=request["run_timeout"]))
            return 200, finished(ran.stdout, ran.stderr, ran.exit_status or 0), {}
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        self.server.keys.append(self.headers.get("Authorization"))
        self.send_error(404)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({"path": self.path, **request})
        self.server.keys.append(self.headers.get("Authorization"))
        status, body, headers = self.server.reply(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving() -> Iterator[StandIn]:
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    open_sandbox.cache_clear()
    with serving() as server:
        yield server


def test_a_program_and_its_input_are_sent_with_the_limits(service: StandIn):
    outcome = Remote(service.url + "/").run("print(input() * 2)", "ab \ud800", Limits(seconds=3, memory=100))
    assert outcome == Outcome(ending=Ending.exited, stdout="ab ?ab ?\n", exit_status=0, seconds=0.25)
    assert service.requests == [
        {
            "path": "/run_code",
            "language": "python",
            "code": "print(input() * 2)",
            "stdin": "ab ?",
            "compile_timeout": 3,
            "run_timeout": 3,
            "memory_limit_MB": 100,
        }
    ]
    assert service.keys == [None]


@pytest.mark.parametrize(
    ("reply", "ending", "status"),
    [
        (finished("1\n"), Ending.exited, 0),
        (finished("1\n", "no", 3), Ending.exited, 3),
        (finished(status=-11), Ending.exited, 128 + 11),
        (finished(stderr="Traceback\nMemoryError\n", status=1), Ending.resource, None),
        (finished(status=-9), Ending.resource, None),
        (finished("a" * 200), Ending.resource, None),
        ({"status": "Failed", "run_result": {"status": "TimeLimitExceeded", "stdout": "a"}}, Ending.timeout, None),
        ({"status": "SandboxError", "message": "no container"}, Ending.infrastructure, None),
        ({**finished("1\n"), "status": "SandboxError"}, Ending.infrastructure, None),
        ({"status": "Success", "run_result": None}, Ending.infrastructure, None),
        (b"<html>", Ending.infrastructure, None),
        (finished(["1"], seconds="soon"), Ending.exited, 0),
        (finished(seconds=10**400), Ending.exited, 0),
        (finished(seconds=[]), Ending.exited, 0),
        (finished(status="0"), Ending.infrastructure, None),
        ({"status": "Success", "run_result": "Finished"}, Ending.infrastructure, None),
    ],
)
def test_the_ending_of_a_program_in_a_service(
    reply: Mapping[str, Any] | bytes, ending: Ending, status: int | None, service: StandIn
):
    service.replies = [(200, reply, {})]
    outcome = Remote(service.url).run("print(1)", limits=Limits(output=100))
    assert (outcome.ending, outcome.exit_status) == (ending, status)
    assert len(outcome.stdout) <= 100


@pytest.mark.parametrize(
    ("replies", "sent", "ending"),
    [
        ([(429, b"busy", {"Retry-After": "0"}), (503, b"", {}), (200, finished("1\n"), {})], 3, Ending.exited),
        ([(200, {"status": "SandboxError", "message": "?"}, {}), (200, finished("1\n"), {})], 2, Ending.exited),
        ([(503, b"", {"Retry-After": "\xb2"}), (200, finished("1\n"), {})], 2, Ending.exited),
        ([(500, b"broken", {})], 3, Ending.infrastructure),
        ([(302, b"", {"Location": "/run_code"})], 1, Ending.infrastructure),
        ([(401, b"your key?", {})], 1, Ending.infrastructure),
        ([(404, b"", {})], 1, Ending.infrastructure),
    ],
)
def test_a_busy_service_is_asked_again_and_one_that_refuses_is_not(
    replies: list[Reply], sent: int, ending: Ending, service: StandIn
):
    service.replies = replies
    assert Remote(service.url).run("print(1)").ending is ending
    assert len(service.requests) == sent


def chunked(part: bytes, pause: float = 0.0) -> Iterator[bytes]:
    yield OK + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"%x\r\n%b\r\n" % (len(part), part)
        sleep(pause)


@pytest.mark.parametrize(
    ("reply", "seconds", "ending"),
    [
        (lambda: chunked(b" " * 2**16), 600, Ending.resource),
        (lambda: chunked(b" ", pause=0.05), 1, Ending.infrastructure),
        (lambda: whole(b"[" * 200_000), 600, Ending.infrastructure),
        (lambda: [OK[:20]], 600, Ending.infrastructure),
        (lambda: [OK + b"Content-Length: 99\r\n\r\n{"], 600, Ending.infrastructure),
    ],
    ids=["endless", "drip", "deep", "headers cut off", "body cut off"],
)
def test_a_reply_that_has_no_end_or_cannot_be_read_ends_the_request(
    reply: Callable[[], Iterable[bytes]], seconds: float, ending: Ending, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    with hostile_server(reply) as url:
        assert Remote(url).run("print(1)", limits=Limits(wall_seconds=seconds)).ending is ending


def test_a_service_that_is_gone_is_no_reward(service: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("outdo.rewards.signatures.RETRY_AFTER", (0.0,))
    reward = load_reward({"name": "code", "sandbox": service.url}, workers=1)
    try:
        tests = {"inputs": ["1"], "outputs": ["1"]}
        program = "```python\nprint(input())\n```"
        right = RewardInput(prompt="1?", completion=program, answer=tests, columns={}, completion_ids=(1, 2))
        assert reward([right])[0].value == 1.0
        assert "outputs" not in json.dumps(service.requests)
        service.replies = [(401, b"gone", {})]
        assert reward([right])[0].status == "unavailable"
    finally:
        reward.close()


def test_a_service_that_does_not_answer_is_refused_before_anything_is_loaded(service: StandIn):
    service.replies = [(503, b"starting", {})]
    with pytest.raises(UserError, match=rf"the sandbox does not answer: {service.url}: HTTP 503: starting"):
        load_reward({"name": "code", "sandbox": service.url})
    service.replies = [(200, finished("hello\n"), {})]
    with pytest.raises(UserError, match=r"does not run Python: print\(input\(\)\) printed 'hello'"):
        load_reward({"name": "code", "sandbox": service.url})


def test_the_key_is_sent_and_written_nowhere(service: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SANDBOX_KEY", "a-secret-key")
    service.replies = [(403, b"not with a-secret-key", {})]
    spec = {"name": "code", "sandbox": service.url, "api_key": {"env": "SANDBOX_KEY"}}
    with pytest.raises(UserError) as refused:
        load_reward(spec)
    assert "not with ***" in str(refused.value)
    assert service.keys == ["Bearer a-secret-key"]
    assert "secret" not in repr(Remote(service.url, "a-secret-key"))


def test_the_key_goes_to_no_other_host(service: StandIn):
    with serving() as other:
        service.replies = [(302, b"", {"Location": f"{other.url}/run_code"})]
        assert Remote(service.url, "a-secret-key").run("print(1)").ending is Ending.infrastructure
        assert other.keys == []
