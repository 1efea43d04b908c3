"""The vLLM engine with a server elsewhere, with a small HTTP server in the place of vLLM."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from engine_cases import fresh, requests

from outdo.extras.vllm.engine import vllm
from outdo.extras.vllm.receiver import ENDPOINT
from outdo.models.adapter import adapter_config, attach
from outdo.models.policy import Policy
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import tiny_model
from outdo.types import FinishReason
from outdo.utils.errors import EngineError, EngineLostError

SAMPLING = SamplingParams(max_tokens=6)


class Handler(BaseHTTPRequestHandler):
    """Answers like vLLM. `server.seen` has the requests; `server.status` is the next status of `/inference`."""

    def do_GET(self) -> None:
        if self.path == ENDPOINT:
            self.server.status = 404
        self._answer({"data": [{"id": "base", "parent": None}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body))
        if self.path != "/inference/v1/generate":
            self.server.loaded.append(sorted(path.name for path in Path(body.get("lora_path", "/nowhere")).glob("*")))
            self._answer({})
            return
        params = body["sampling_params"]
        if "prompt_logprobs" in params:
            of_tokens = [None, *({str(token): {"logprob": -2.0}} for token in body["token_ids"][1:])]
            self._answer({"prompt_logprobs": of_tokens, "choices": []})
            return
        tokens = [params["seed"] % 200 + 5] * params["max_tokens"]
        content = [{"token": "x", "logprob": -1.0} for _ in tokens]
        choice = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": "length"}
        self._answer({"choices": [choice]})

    def _answer(self, body: Any) -> None:
        status, self.server.status = self.server.status, 200
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.seen, made.loaded, made.status = [], [], 200
    Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/"


def adapted() -> Policy:
    model, tokenizer = tiny_model()
    attach(model, adapter_config("lora", r=4))
    return Policy(model, tokenizer)


def test_each_version_of_an_adapter_has_a_name_and_a_folder_of_its_own(server):
    policy = adapted()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    policy.optimiser.steps = 1
    engine.update_weights(policy)
    engine.generate(requests()[:1], SAMPLING)
    paths = [path for path, _ in server.seen]
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    assert paths == [load, load, unload, "/inference/v1/generate"]
    first, second, dropped, asked = (body for _, body in server.seen)
    assert first["lora_name"] == dropped["lora_name"] != second["lora_name"] == asked["model"]
    assert first["lora_path"] != second["lora_path"]
    assert server.loaded[:2] == [["adapter_config.json", "adapter_model.safetensors"]] * 2
    engine.close()
    assert not Path(second["lora_path"]).exists()


def test_a_folder_that_the_server_shares_has_whole_versions(server, tmp_path):
    policy = adapted()
    engine = vllm(policy, url=url(server), folder=str(tmp_path))
    for steps in (0, 1, 2):
        policy.optimiser.steps = steps
        engine.update_weights(policy)
    loaded = [Path(body["lora_path"]) for path, body in server.seen if path == "/v1/load_lora_adapter"]
    assert [path.name for path in loaded] == ["0-1", "1-2", "2-3"]
    assert {path.parent.parent for path in loaded} == {tmp_path}
    assert [path.exists() for path in loaded] == [False, True, True]
    assert engine.delivered_bytes == (loaded[2] / "adapter_model.safetensors").stat().st_size
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_token_ids_go_in_and_come_out(server):
    policy = fresh()
    engine = vllm(policy, url=url(server), seed=4)
    engine.update_weights(policy)
    batch = requests(siblings=2)
    answers = engine.generate(batch, SAMPLING)
    assert [len(each.token_ids) for each in answers] == [min(6, each.max_tokens) for each in batch]
    assert {each.finish_reason for each in answers} == {FinishReason.length}
    assert engine.score([[5, 6, 7]]) == [[-2.0, -2.0]]
    by_prompt = {tuple(body["token_ids"]): body for path, body in server.seen if path.endswith("generate")}
    assert by_prompt.keys() >= {each.token_ids for each in batch}
    assert {body["model"] for body in by_prompt.values()} == {"base"}


def test_a_text_that_ends_an_answer_may_be_that_of_a_special_token(server):
    """vLLM looks for it in the text of the answer, which has no special tokens unless that is asked for."""
    policy = fresh()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    engine.generate(requests()[:1], SamplingParams(max_tokens=6, stop=("<|end|>",)))
    params = server.seen[-1][1]["sampling_params"]
    assert params["stop"] == ["<|end|>"]
    assert params["skip_special_tokens"] is False


@pytest.mark.parametrize(("status", "error"), [(500, EngineLostError), (503, EngineLostError), (400, EngineError)])
def test_a_failing_server_is_lost_and_a_refused_request_is_an_error(server, status, error):
    policy = fresh()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    server.status = status
    with pytest.raises(EngineError, match=f"HTTP {status}") as raised:
        engine.generate(requests()[:1], SAMPLING)
    assert type(raised.value) is error
    engine.restart()
    engine.update_weights(policy)
    assert engine.generate(requests()[:1], SAMPLING)


def test_a_whole_model_with_new_weights_is_refused(server):
    policy = fresh()
    engine = vllm(policy, url=url(server))
    engine.update_weights(policy)
    policy.optimiser.steps = 1
    with pytest.raises(EngineError, match="this server gets no weights but adapters"):
        engine.update_weights(policy)
