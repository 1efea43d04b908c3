"""All weights to a server elsewhere, with the real receiver in a small HTTP server in the place of vLLM."""

import asyncio
import json
import socket
import tempfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from engine_cases import fresh, requests
from safetensors.torch import load_file
from test_vllm_http import SAMPLING, Handler, url

from outdo.config.engines import whole_model_mistakes
from outdo.config.recipe import Piece
from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.vllm import http
from outdo.extras.vllm.engine import vllm
from outdo.extras.vllm.receiver import ENDPOINT, Receiver
from outdo.models.adapter import adapter_config, attach
from outdo.models.policy import Policy
from outdo.testing import tiny_model
from outdo.utils.errors import EngineError, EngineLostError

Answer = tuple[int, dict[str, str]]


def asked(receiver: Receiver, method: str, path: str, *pieces: bytes, is_cut_off: bool = False) -> Answer | None:
    """The answer of the receiver; None if it gives none."""
    sent: list[dict[str, Any]] = []
    messages = [{"type": "http.request", "body": each, "more_body": True} for each in pieces]
    messages.append({"type": "http.disconnect"} if is_cut_off else {"type": "http.request"})

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(receiver({"type": "http", "method": method, "path": path}, receive, send))
    return (sent[0]["status"], json.loads(sent[1]["body"])) if sent else None


class ReceivingHandler(Handler, BaseHTTPRequestHandler):
    """Answers like vLLM with the receiver. The connection of the PUT with the number `server.cut` is cut off."""

    def do_GET(self) -> None:
        if self.path == ENDPOINT:
            self._receive()
        else:
            super().do_GET()

    def do_DELETE(self) -> None:
        self._receive()

    def do_PUT(self) -> None:
        self.server.puts += 1
        if self.server.puts == self.server.cut:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if late := self.server.late:  # a piece that the network had kept
            self.server.late = ""
            asked(self.server.receiver, "PUT", late, b"old")
        self._receive()

    def do_POST(self) -> None:
        if self.path.startswith("/inference"):
            super().do_POST()
            return
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.calls.append(self.path)
        if self.path == "/collective_rpc":
            assert body["method"] == "load_received"
            self.server.weights = load_file(Path(*body["args"]) / "model.safetensors")
        self.server.label = body.get("new_version", self.server.label)
        self._answer({})

    def _receive(self) -> None:
        self.server.calls.append(self.command)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer = asked(self.server.receiver, self.command, self.path, body)
        assert answer is not None
        self.server.status, found = answer
        self._answer(found)

    def _answer(self, body: Any) -> None:
        if "choices" in body:
            versions = [{"version": self.server.label, "start": 0, "end": 1}]
            body["choices"] = [choice | {"weight_versions": versions} for choice in body["choices"] or [{}]]
        super()._answer(body)


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setattr(http, "PIECE", 4096)
    made = ThreadingHTTPServer(("127.0.0.1", 0), ReceivingHandler)
    made.seen, made.loaded, made.status = [], [], 200
    made.calls, made.puts, made.cut, made.late, made.weights, made.label = [], 0, 0, "", {}, "default"
    made.receiver = Receiver(lambda scope, receive, send: asyncio.sleep(0))
    Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def moved(policy: Policy) -> Policy:
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1.5)
    policy.optimiser.steps += 1
    return policy


def has_weights_of(server: ThreadingHTTPServer, policy: Policy) -> bool:
    own = policy.model.state_dict()
    return bool(server.weights) and all(torch.equal(own[name], weight) for name, weight in server.weights.items())


def test_all_weights_go_in_pieces_and_are_loaded_while_nothing_is_answered(server):
    policy = fresh()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    engine.update_weights(moved(policy))
    assert has_weights_of(server, policy)
    one = [call for call in server.calls[: len(server.calls) // 2] if call != "PUT"]
    assert one == ["GET", "DELETE", "/pause", "/collective_rpc", "/update_weight_version", "/resume", "DELETE"]
    assert server.puts > 20
    assert engine.generate(requests()[:2], SAMPLING)[0].policy_version == 1
    assert engine.score([[5, 6, 7]]) == [[-2.0, -2.0]]
    assert list(server.receiver.folder.iterdir()) == []


def test_an_adapter_that_vllm_does_not_serve_is_sent_merged(server):
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=4, use_dora=True))
    policy = Policy(model, tokenizer)
    vllm(policy, url=url(server)).update_weights(policy)
    assert not [name for name in server.weights if "lora" in name]
    assert "model.layers.0.self_attn.q_proj.weight" in server.weights


def test_a_folder_that_the_server_shares_takes_the_place_of_pieces(server, tmp_path):
    policy = fresh()
    vllm(policy, url=url(server), folder=str(tmp_path)).update_weights(policy)
    assert has_weights_of(server, policy)
    assert server.puts == 0


def test_a_delivery_that_is_cut_off_changes_no_weight_and_is_made_again_from_its_beginning(server):
    policy = fresh()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    before = {name: weight.clone() for name, weight in server.weights.items()}
    server.cut = server.puts + 10
    with pytest.raises(EngineLostError, match="no answer"):
        engine.update_weights(moved(policy))
    assert all(torch.equal(before[name], weight) for name, weight in server.weights.items())
    with pytest.raises(EngineError, match="no weights yet"):
        _ = engine.version
    server.late = f"{ENDPOINT}/{engine.server.label}/model.safetensors/0"
    engine.restart()
    engine.update_weights(policy)
    assert has_weights_of(server, policy)
    assert list(server.receiver.folder.iterdir()) == []


@pytest.mark.parametrize("call", ["generate", "score"])
def test_a_server_that_was_started_again_gets_the_weights_again_before_anything_is_answered(server, capsys, call):
    policy = fresh()
    proof = Proof(FLOAT32)
    proof.check = lambda *how: None  # the stand-in is no model
    engine = RemoteEngine(lambda view: vllm(view, url=url(server)), policy, proof)
    engine.update_weights(policy)
    server.label, server.weights = "default", {}
    if call == "generate":
        assert {each.policy_version for each in engine.generate(requests()[:2], SAMPLING)} == {0}
    else:
        assert engine.score([[5, 6, 7]]) == [[-2.0, -2.0]]
    assert has_weights_of(server, policy)
    assert engine.restarts == 1
    assert "the answer is not of the weights that were sent last" in capsys.readouterr().err


def test_a_server_without_a_receiver_is_a_mistake_only_where_all_weights_have_to_reach_it(server):
    def mistakes(address: str) -> list[str]:
        return list(whole_model_mistakes(Piece(name="vllm", options={"url": address})))

    assert mistakes(url(server)) == []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as plain:
        plain.status = 200
        Thread(target=plain.serve_forever, daemon=True).start()
        (mistake,) = mistakes(url(plain))
        assert mistake.startswith("engine.url: this server gets no weights but adapters; ")
        plain.shutdown()
    assert mistakes("http://127.0.0.1:9") == []  # it may be started later
    assert list(whole_model_mistakes(Piece(name="vllm", options={"python": "p"}))) == []


# --------------------------------------------------------------------------------------------------------- the receiver


@pytest.fixture
def receiver() -> Receiver:
    return Receiver(lambda scope, receive, send: send({"status": 418, "type": "passed on"}))


def test_pieces_are_appended_in_order_and_one_that_is_cut_off_is_not_written(receiver):
    status, answer = asked(receiver, "PUT", f"{ENDPOINT}/one/a.safetensors/0", b"ab", b"c")
    folder = Path(answer["folder"])
    assert (status, (folder / "a.safetensors").read_bytes()) == (200, b"abc")
    assert asked(receiver, "PUT", f"{ENDPOINT}/one/a.safetensors/3", b"de", is_cut_off=True) is None
    assert (folder / "a.safetensors").read_bytes() == b"abc"
    assert asked(receiver, "PUT", f"{ENDPOINT}/one/a.safetensors/5", b"f")[0] == 400
    assert asked(receiver, "PUT", f"{ENDPOINT}/one/a.safetensors/3", b"de")[0] == 200
    assert (folder / "a.safetensors").read_bytes() == b"abcde"
    assert asked(receiver, "DELETE", ENDPOINT) == (200, {})
    assert not folder.exists()


@pytest.mark.parametrize("path", ["one/../0", "../etc/0", "one/a/b/0", "one/a/x", "one/.a/0", "one/a/-1"])
def test_a_name_that_could_leave_the_folder_is_refused(receiver, path):
    assert asked(receiver, "PUT", f"{ENDPOINT}/{path}", b"x")[0] == 400
    assert list(receiver.folder.iterdir()) == []


def test_other_requests_are_passed_on(receiver):
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    for scope in ({"type": "http", "path": "/health"}, {"type": "lifespan"}):
        asyncio.run(receiver(scope, None, send))
    assert [message["type"] for message in sent] == ["passed on"] * 2
