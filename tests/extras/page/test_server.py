"""The live page answers its own name, its own page and who knows the token; nothing in a request reaches the disk."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_folders import add_step, start_run, write_small_run
from starlette.testclient import TestClient

from outdo.extras.page.html import security_policy
from outdo.extras.page.server import HEADERS, app, serve
from outdo.extras.record import parquet
from outdo.run.evaluation import held_out_completions
from outdo.utils.errors import UserError

PORT, TOKEN = 8123, "right-token"
ADDRESS = f"http://127.0.0.1:{PORT}"


@pytest.fixture
def client(small_run: Path) -> TestClient:
    return TestClient(app([small_run], port=PORT, token=TOKEN), base_url=ADDRESS)


def with_token(path: str, token: str = TOKEN) -> str:
    return f"{path}{'&' if '?' in path else '?'}token={token}"


def test_the_served_page_contains_its_url_and_token(client: TestClient):
    answer = client.get(with_token("/"))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    (data,) = re.findall(r'id="outdo-data">(.*?)</script>', answer.text, re.DOTALL)
    told = json.loads(data)
    assert told["live"] == {"url": "/", "token": TOKEN}
    assert told["runs"][0]["chosen"]


def test_new_data_and_single_steps_are_served(client: TestClient):
    told = client.get(with_token("/data?after=4")).json()
    assert told["metrics"]["steps"] == [5, 6]
    assert told["chosen"] == []
    entry = client.get(with_token("/step/3")).json()
    assert entry["step"] == 3
    assert entry["blob"]


def test_the_answers_of_the_evaluations_are_served(tmp_path: Path):
    run = write_small_run(tmp_path / "run")
    client = TestClient(app([run], port=PORT, token=TOKEN), base_url=ADDRESS)
    assert client.get(with_token("/held_out")).json() is None
    answer = {
        "kind": "greedy",
        "id": "1",
        "sample": 0,
        "prompt": "1+1=",
        "answer": "2",
        "completion": "2",
        "right": True,
    }
    held_out_completions.write(held_out_completions.path_of(run, 4), [answer])
    assert client.get(with_token("/data")).json()["evaluated"] == [4]
    assert client.get(with_token("/held_out")).json()["steps"] == [4]
    assert client.get(with_token("/held_out", "wrong")).status_code == 403


@pytest.mark.parametrize("path", ["/", "/data", "/step/3", "/nothing", "/step/99"])
@pytest.mark.parametrize("token", [TOKEN, "wrong"])
def test_every_response_has_the_headers_and_none_is_for_who_does_not_know_the_token(
    client: TestClient, path: str, token: str
):
    answer = client.get(with_token(path, token))
    assert (answer.status_code == 403) == (token == "wrong")
    headers = answer.headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers["content-security-policy"].startswith(security_policy(live=True))
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_a_damaged_step_gives_an_error_response(tmp_path: Path):
    folder = write_small_run(tmp_path / "run")
    parquet.path_of(folder, 3).write_bytes(b"nonsense")
    answer = TestClient(app([folder], port=PORT, token=TOKEN), base_url=ADDRESS).get(with_token("/step/3"))
    assert answer.status_code == 500
    assert "step_000003.parquet" in answer.text
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_a_port_in_use_is_reported(small_run: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}.*--port 0 takes a free one"):
            serve([small_run], port=port)


# ------------------------------------------------------------------------------------------------------ a real process

PROGRAM = """
import sys
from pathlib import Path
from outdo.extras.page.server import serve
serve([Path(sys.argv[1])], port=0, report=lambda line: print(line, flush=True))
"""


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    folder = start_run(tmp_path / "growing", steps=4)
    add_step(folder, 1, steps=4)
    return folder


@pytest.fixture
def server(growing: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(growing)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def asked(port: int, request: str) -> tuple[int, str]:
    """Status and text of the answer to a request sent byte by byte as it is; 0 where there is none."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(request.encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def test_a_real_server_keeps_the_same_rules(server: subprocess.Popen[str], growing: Path):
    assert server.stdout
    address = server.stdout.readline()
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{40,})\n", address).groups()  # type: ignore

    def ask(target: str, *, method: str = "GET", host: str = f"127.0.0.1:{port}", more: str = "") -> tuple[int, str]:
        return asked(int(port), f"{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n")

    path = f"/data?token={token}"
    assert ask(path)[0] == 200
    assert ask(path, host="evil.example")[0] == 403
    assert ask(path, host=f"evil.example:{port}")[0] == 403
    assert ask(path, more=f"Host: 127.0.0.1:{port}\r\n")[0] in (400, 403)
    assert ask(path, more="Origin: https://evil.example\r\n")[0] == 403
    assert ask(path, more="X-Forwarded-Host: evil.example\r\nX-Forwarded-For: 8.8.8.8\r\n")[0] == 200
    assert ask("/data")[0] == 403
    for method in ("POST", "PUT", "DELETE"):
        assert ask(path, method=method)[0] == 405
        assert ask(path, method=method, more="Origin: https://evil.example\r\n")[0] == 403
    for target in ("/../recipe.toml", "/step/../../recipe.toml", "/%2e%2e/recipe.toml", "//evil", "/step/%2e%2e%2f1"):
        status, body = ask(f"{target}?token={token}")
        assert status == 404
        assert "model" not in body
    assert ask(f"http://evil.example{path}", host="evil.example")[0] == 403

    add_step(growing, 2, steps=4)
    assert json.loads(ask(f"{path}&after=1")[1])["metrics"]["steps"] == [2]
    assert json.loads(ask(f"/step/2?token={token}")[1])["step"] == 2
    assert not _reachable_from_outside(int(port))

    server.send_signal(signal.SIGINT)
    assert token not in "".join(server.communicate(timeout=600))  # the address is said once, and logged nowhere


def _reachable_from_outside(port: int) -> bool:
    """Whether another address of this machine answers: 127.0.0.2 is one on Linux."""
    try:
        with socket.create_connection(("127.0.0.2", port), timeout=600):
            return True
    except OSError:
        return False
