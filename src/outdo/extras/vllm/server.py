"""The process that holds vLLM. It runs in the environment of vLLM, as a script, and imports nothing of outdo.

A message is a header (the length of the body, and a nonce of 16 bytes) and a body in JSON. A response repeats the
nonce of its request. A message with the nonce `HEARTBEAT` arrives every second: it holds how many steps the engine
has made, so that the trainer tells work from a hang.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

PROTOCOL = 2
"""The number of the protocol: the trainer and this script have to have the same."""
HEADER = struct.Struct("!Q16s")
HEARTBEAT = bytes(16)


class FailureError(Exception):
    """A request that cannot be done; the message says why."""


class Connection:
    """The socket to the trainer, from which requests are read, and to which two threads write."""

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.requests = self.socket.makefile("rb")
        self.lock = threading.Lock()

    def receive(self) -> tuple[bytes, dict[str, Any]] | None:
        """Return the nonce and the body of the next request, or None when the trainer has ended."""
        header = self.requests.read(HEADER.size)
        if len(header) < HEADER.size:
            return None
        size, nonce = HEADER.unpack(header)
        return nonce, json.loads(self.requests.read(size))

    def send(self, nonce: bytes, body: dict[str, Any]) -> None:
        """Send a message."""
        data = json.dumps(body).encode()
        with self.lock:
            self.socket.sendall(HEADER.pack(len(data), nonce) + data)

    def beat(self, engine: "LLMServer") -> None:
        """Send a heartbeat every second, for ever."""
        with contextlib.suppress(OSError):
            while True:
                self.send(HEARTBEAT, {"progress": engine.progress})
                time.sleep(1.0)


def serve(engine: "LLMServer", descriptor: int) -> None:
    """Answer the requests on the socket `descriptor` until the trainer ends."""
    connection = Connection(descriptor)
    threading.Thread(target=connection.beat, args=(engine,), daemon=True).start()
    while (message := connection.receive()) is not None:
        nonce, request = message
        try:
            response = engine.answer(request)
        except Exception as error:
            traceback.print_exc()
            response = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        connection.send(nonce, response)
    os._exit(0)  # threads of the engine must not keep the process alive


class LLMServer:
    """The requests of the trainer, answered by an instance of `vllm.LLM` in this process."""

    def __init__(self) -> None:
        self.progress = 0  # steps of the engine
        self.version: int | None = None
        self.adapter: Any = None
        self.asleep = False
        self.llm: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request: a table with the name of the operation and its arguments."""
        operations = {
            "start": self.start,
            "update": self.update,
            "sleep": self.sleep,
            "generate": self.generate,
            "score": self.score,
            "health": dict,
        }
        arguments = {name: value for name, value in request.items() if name != "operation"}
        return operations[request["operation"]](**arguments)

    def start(self, protocol: int, options: dict[str, Any]) -> dict[str, Any]:
        """Load the model; `options` are those of `vllm.LLM`."""
        if protocol != PROTOCOL:
            raise FailureError(f"the trainer has protocol {protocol}, and this script has {PROTOCOL}")
        import vllm

        self.llm = vllm.LLM(**options)
        return {"vllm": vllm.__version__}

    def update(self, version: int, folder: str, is_adapter: bool) -> dict[str, Any]:
        """Use the weights in `folder` from now on: an adapter, or those of the whole model.

        An engine that sleeps gets back the memory of its weights, then the weights, then the memory of its cache.
        """
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        if is_adapter:
            self._load_adapter(version, folder)
        else:
            self.llm.collective_rpc(load_weights, args=(folder,))
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        if not self.llm.reset_prefix_cache():
            raise FailureError("the prefix cache was not reset, because requests still run")
        self.version = version
        return {"version": version}

    def _load_adapter(self, version: int, folder: str) -> None:
        """Load the adapter under a new name, number and folder, and drop the earlier one.

        vLLM loads nothing if it has an adapter of the same number, and the key of its prefix cache is the name and the
        folder.
        """
        from vllm.lora.request import LoRARequest

        number = 1 if self.adapter is None else self.adapter.lora_int_id + 1
        adapter = LoRARequest(lora_name=f"version-{version}-{number}", lora_int_id=number, lora_path=folder)
        if self.adapter is not None:
            self.llm.llm_engine.remove_lora(self.adapter.lora_int_id)
        if not self.llm.llm_engine.add_lora(adapter):
            raise FailureError(f"vLLM did not load the adapter in {folder}")
        self.adapter = adapter

    def sleep(self) -> dict[str, Any]:
        """Release the memory of weights and cache until the next update.

        The base of an adapter is kept in main memory (level 1). All other weights are dropped (level 2), because the
        next update brings them.
        """
        self.llm.sleep(level=2 if self.adapter is None else 1)
        self.asleep = True
        return {}

    def generate(self, requests: list[dict[str, Any]], sampling: dict[str, Any]) -> dict[str, Any]:
        """Sample one answer to each request."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=request["seed"],
                max_tokens=request["max_tokens"],
                logprobs=0,
                ignore_eos=True,  # `stop_token_ids` holds the tokens that end an answer
                detokenize=bool(sampling["stop"]),
                include_stop_str_in_output=True,
                **sampling,
            )
            for request in requests
        ]
        outputs = self._run([request["token_ids"] for request in requests], params)
        return {"version": self.version, "answers": [_answer(output.outputs[0]) for output in outputs]}

    def score(self, sequences: list[list[int]]) -> dict[str, Any]:
        """Compute the log-probability of each token after the first of each sequence."""
        from vllm import SamplingParams

        params = SamplingParams(prompt_logprobs=0, max_tokens=1, temperature=0, detokenize=False)
        outputs = self._run(sequences, [params] * len(sequences))
        scores = [
            _logprobs(sequence[1:], output.prompt_logprobs[1:])
            for sequence, output in zip(sequences, outputs, strict=True)
        ]
        return {"version": self.version, "scores": scores}

    def _run(self, prompts: Sequence[list[int]], params: Sequence[Any]) -> list[Any]:
        """Run requests to their end; return their outputs in order."""
        if self.asleep:
            raise FailureError("the engine sleeps, and has no weights until the next update")
        engine = self.llm.llm_engine
        for index, (token_ids, of_prompt) in enumerate(zip(prompts, params, strict=True)):
            engine.add_request(str(index), {"prompt_token_ids": token_ids}, of_prompt, lora_request=self.adapter)
        finished = {}
        while engine.has_unfinished_requests():
            finished.update({int(output.request_id): output for output in engine.step() if output.finished})
            self.progress += 1
        return [finished[index] for index in range(len(prompts))]


def _answer(output: Any) -> dict[str, Any]:
    return {
        "token_ids": list(output.token_ids),
        "logprobs": _logprobs(output.token_ids, output.logprobs),
        "finish_reason": output.finish_reason,
    }


def _logprobs(token_ids: Sequence[int], tables: Any) -> list[float]:
    return [table[token].logprob for token, table in zip(token_ids, tables, strict=True)]


def load_weights(worker: Any, folder: str) -> None:
    """Replace the weights of the model in a worker of vLLM by those in the safetensors files of `folder`."""
    worker.model_runner.reload_weights(weights_path=folder)
    _pack_tied_head(worker.model_runner.get_model())


class Loader:
    """An extension of the workers of `vllm serve`, for its endpoint `/collective_rpc`."""

    def load_received(self, folder: str) -> None:
        """Replace the weights of the model by those that a server has received (`receiver.py`)."""
        load_weights(self, folder)


def _pack_tied_head(model: Any) -> None:
    """Pack a head that shares the weight of the embedding again: vLLM on a CPU keeps a packed copy of it."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


if __name__ == "__main__":
    serve(LLMServer(), int(sys.argv[1]))
