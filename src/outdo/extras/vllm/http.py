"""vLLM as a server elsewhere: `vllm serve`, with its endpoints for token ids and for weights.

The server reads an adapter from a folder that it shares with the trainer, which it allows with `--enable-lora` and
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1. All weights are sent to it in pieces (`receiver.py`), and get a label, which vLLM
returns with each answer: an answer of other weights, such as those with which a server was started again, is refused.
A server without a receiver keeps the weights that it has: it can be evaluated, and a run that changes them is refused.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from outdo.extras.remote_engines.weights_folder import WeightsFolder
from outdo.extras.vllm.base import Server
from outdo.extras.vllm.check import CANNOT_GET
from outdo.extras.vllm.receiver import ENDPOINT
from outdo.extras.vllm.weights import bytes_in, bytes_of, why_merged, write_weights
from outdo.models.adapter import has_adapter
from outdo.rollouts.engines.base import PolicyView
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.http import UNREACHED, ReplyError, send

CONNECTIONS = 64
"""Requests that are sent at a time; the server batches them."""
PIECE = 2**26
"""Bytes of a file of weights that are sent at a time."""
LONGEST_REPLY = 2**28
"""Bytes of a response: the log-probabilities of a sequence are a hundred bytes for each token."""
WAIT = 600.0
"""Seconds in which a server that does not answer may come back."""


class HttpServer(Server):
    """A server of vLLM. `model` is the name that it serves; unset, it is the only one.

    It reads weights from `folder`, which it shares with the trainer. Unset, adapters come from the trainer's shared
    memory, and all weights over HTTP.
    """

    def __init__(self, url: str, *, model: str | None, timeout: float, folder: Path | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.base = model
        self.model: str | None = None  # the name that requests have
        self.version: int | None = None
        self.label: str | None = None  # that answers have, if all weights were sent
        self.parent = folder
        self.folder: WeightsFolder | None = None

    def update(self, policy: PolicyView) -> int:
        """Let the server load the weights of the policy; return their bytes."""
        base, adapted = self._base(), has_adapter(policy.model)
        if adapted and not (why := why_merged(policy.model)):
            return self._load_adapter(policy, base)
        if self._send("GET", ENDPOINT, missing=True) is not None:
            return self._replace(policy, base)
        if adapted:
            raise EngineError(f"{self.url}: {why}; {CANNOT_GET}")
        if self.version not in (None, policy.version):
            raise EngineError(f"{self.url}: {CANNOT_GET}")
        self.model, self.version = base, policy.version
        return 0

    def _load_adapter(self, policy: PolicyView, base: str) -> int:
        """Let the server load the adapter of the policy under a new name."""
        folder = self._publish(policy, as_adapter=True)
        name = f"outdo-{folder.parent.name}-{folder.name}"
        self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        earlier, self.model, self.version = self.model, name, policy.version
        if earlier not in (None, base):
            self._post("/v1/unload_lora_adapter", {"lora_name": earlier})
        return bytes_in(folder)

    def _replace(self, policy: PolicyView, base: str) -> int:
        """Replace all weights of the server, while it answers nothing, and give them a label of their own."""
        folder = self._publish(policy, as_adapter=False)
        self.model, self.label = base, f"{folder.parent.name}-{folder.name}"
        self._send("DELETE", ENDPOINT)  # what a delivery that was cut off has left
        received = str(folder) if self.parent else self._upload(folder, self.label)
        self._post("/pause", {})  # ends the requests that nobody waits for, and empties the caches
        self._post("/collective_rpc", {"method": "load_received", "args": [received]})
        self._post("/update_weight_version", {"new_version": self.label})
        self._post("/resume", {})
        self._send("DELETE", ENDPOINT)
        self.version = policy.version
        return bytes_in(folder)

    def _publish(self, policy: PolicyView, *, as_adapter: bool) -> Path:
        self.folder = self.folder or WeightsFolder(bytes_of(policy.model), self.parent)
        return self.folder.publish(policy.version, [partial(write_weights, policy, as_adapter=as_adapter)])

    def _upload(self, folder: Path, name: str) -> str:
        """Send the files of a folder; return the folder of the server that has them then."""
        received = ""
        for file in folder.iterdir():
            with file.open("rb") as source:
                for offset in range(0, file.stat().st_size, PIECE):
                    path = f"{ENDPOINT}/{name}/{file.name}/{offset}"
                    received = str(self._send("PUT", path, source.read(PIECE))["folder"])
        return received

    def generate(self, requests: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sample an answer to each request."""

        def answer(request: Mapping[str, Any]) -> dict[str, Any]:
            params = {"seed": request["seed"], "max_tokens": request["max_tokens"], "logprobs": 0, "ignore_eos": True}
            params |= {"include_stop_str_in_output": True, **sampling}
            response = self._generate(request["token_ids"], params)
            choice = response["choices"][0]
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            return {
                "token_ids": choice["token_ids"],
                "logprobs": logprobs,
                "finish_reason": choice["finish_reason"],
            }

        return {"version": self.version, "answers": self._together(answer, requests)}

    def score(self, sequences: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """Score the tokens of sequences."""

        def score(sequence: Sequence[int]) -> list[float]:
            params = {"prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
            of_tokens = self._generate(sequence, params)["prompt_logprobs"][1:]
            return [of_token[str(token)]["logprob"] for token, of_token in zip(sequence[1:], of_tokens, strict=True)]

        return {"version": self.version, "scores": self._together(score, sequences)}

    def health(self) -> None:
        """Raise `EngineError` unless the server answers."""
        self._send("GET", "/health")

    def restart(self) -> None:
        """Forget what the server had loaded, and wait until it answers: whoever runs it starts it again."""
        self.model = self.version = self.label = None
        deadline = monotonic() + WAIT
        while True:
            try:
                self.health()
                return
            except EngineLostError:
                if monotonic() > deadline:
                    raise
            sleep(1.0)

    def close(self) -> None:
        """Remove the weights from the folder; the server goes on."""
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    def _together(self, work: Any, items: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(min(CONNECTIONS, max(1, len(items)))) as pool:
            return list(pool.map(work, items))

    def _base(self) -> str:
        """Return the name of the model that is served."""
        if self.base is None:
            served = [str(model["id"]) for model in self._send("GET", "/v1/models")["data"] if not model.get("parent")]
            if len(served) != 1:
                raise EngineError(f"{self.url}: serves {', '.join(served)}; name one of them in engine.served_model")
            self.base = served[0]
        return self.base

    def _generate(self, token_ids: Sequence[int], params: Mapping[str, Any]) -> Any:
        """Return the answer to a request. Raises `EngineLostError` if it is not of the weights that were sent."""
        body = {"model": self.model, "token_ids": list(token_ids), "sampling_params": dict(params)}
        answer = self._post("/inference/v1/generate", body)
        if self.label is not None:
            labels = {span["version"] for span in answer["choices"][0].get("weight_versions") or ()}
            if labels != {self.label}:
                raise EngineLostError(
                    f"{self.url}: the answer is not of the weights that were sent last; was the server started again?"
                )
        return answer

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._send("POST", path, json.dumps(body).encode())

    def _send(self, method: str, path: str, body: bytes | None = None, *, missing: bool = False) -> Any:
        """Send a request; return the JSON of the response, or None if it has none, or is `missing` and may be.

        Raises: EngineLostError if the server does not answer in time or fails; EngineError if it refuses the request.
        """
        try:
            reply = send(method, self.url + path, content=body, seconds=self.timeout, most=LONGEST_REPLY)
        except (*UNREACHED, ReplyError) as error:
            raise EngineLostError(f"{self.url}{path}: no answer: {str(error) or type(error).__name__}") from None
        if missing and reply.status == 404:
            return None
        if reply.status >= 300:
            kind = EngineLostError if reply.status >= 500 else EngineError
            raise kind(f"{self.url}{path}: HTTP {reply.status}: {reply.text[:400]}")
        try:
            return reply.json() if reply.content else None
        except ValueError:
            return None
