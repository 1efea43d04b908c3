"""vLLM as a process of this run: which model it starts with, how new weights reach it, and how it is asked.

The process runs `server.py` in the environment of vLLM. It sends a heartbeat every second, with the number of steps
that its engine has made: one that falls silent, or that makes no step while it should, is killed with all processes
that it started.

The weights go through files in shared memory. vLLM serves a LoRA adapter beside its base, and gets a new folder for
each version; all other weights, and adapters that vLLM does not serve, replace those of the whole model.
"""

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

from outdo.extras.remote_engines.weights_folder import WeightsFolder
from outdo.extras.vllm.base import Server
from outdo.extras.vllm.weights import (
    base_folder,
    bytes_in,
    bytes_of,
    rank_of,
    targets_of,
    why_merged,
    write_tokenizer,
    write_weights,
)
from outdo.models.adapter import has_adapter
from outdo.rollouts.engines.base import PolicyView
from outdo.utils.child import NONCE_BYTES, NOT_STARTED, Child, ChildLostError
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.text import escape_control
from outdo.utils.watchdog import Watchdog

SERVER = Path(__file__).with_name("server.py")
PROTOCOL = 2
HEARTBEAT = bytes(NONCE_BYTES)
LOADING = 1800.0
"""Seconds that an interpreter may take to start, and that loading a model or new weights may take."""
LARGEST = 1 << 32
"""Bytes of a response."""
LOG_BYTES, LOG_LINES = 8192, 12
"""The end of what the process has printed: it is kept, and an error shows its last lines."""
NOT_PASSED = ("PYTHON", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""How the names of variables begin that belong to this process: vLLM reads those of torchrun as its own."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process to kill
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # `load_weights` of server.py runs in the workers of this process
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
DEFAULT_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_CPU_KVCACHE_SPACE": "2"}
"""Variables that the user's environment may set otherwise. The cache of a CPU is in GiB."""

BLOCK = 32
"""Tokens of a block of vLLM's cache: the test sequences of the proof are longer, so that they use the prefix cache."""

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM accepts as the largest rank of an adapter."""


class ProcessServer(Server):
    """A process with its own interpreter that runs vLLM, and the folder through which it gets weights.

    `timeout` is how long it may be silent, or work without progress, in seconds. `options` are those of vLLM. With
    `sleeps` the trainer may have its memory between two samplings.
    """

    def __init__(
        self,
        python: str,
        options: Mapping[str, Any],
        *,
        timeout: float,
        sleeps: bool = False,
        server: str | Path = SERVER,
    ) -> None:
        self.command = [python, "-I", str(server)]  # neither folders nor variables of outdo's Python reach it
        self.options = dict(options)
        self.timeout = timeout
        self.sleeps = sleeps
        self.child: Child | None = None
        self.log = deque[int](maxlen=LOG_BYTES)
        self.folder: WeightsFolder | None = None
        self.merged_because = ""
        """Why the adapter is merged into the weights; empty if vLLM serves it."""

    def notes(self) -> list[str]:
        """Return how an adapter is delivered, where that is not as an adapter."""
        why = self.merged_because
        return [f"engine: the adapter is delivered merged into the weights, because {why}"] if why else []

    def update(self, policy: PolicyView) -> int:
        """Load the weights of the policy; start the process first if it does not run yet. Return their bytes."""
        if self.folder is None:
            self.folder = WeightsFolder(bytes_of(policy.model))
        as_adapter = has_adapter(policy.model) and not (why := why_merged(policy.model))
        if has_adapter(policy.model) and not as_adapter:
            self.merged_because = why
        folder = self.folder.new()
        write_weights(policy, folder, as_adapter=as_adapter)
        if self.child is None:
            self._start(policy, folder, as_adapter=as_adapter)
        arguments = {"version": policy.version, "folder": str(folder), "is_adapter": as_adapter}
        self._request("update", loads=True, **arguments)
        self.folder.drop_others(folder)
        return bytes_in(folder)

    def _start(self, policy: PolicyView, folder: Path, *, as_adapter: bool) -> None:
        write_tokenizer(policy, folder)
        options: dict[str, Any] = {
            "model": base_folder(policy.model) if as_adapter else str(folder),
            "tokenizer": str(folder),
            "dtype": policy.forward.precision_name,
            "logprobs_mode": "processed_logprobs",  # at the sampling temperature
            "block_size": BLOCK,
            "disable_log_stats": True,
        }
        if as_adapter:
            rank = next(rank_allowed for rank_allowed in RANKS if rank_allowed >= rank_of(policy.model))
            options |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
            options["lora_target_modules"] = targets_of(policy.model)  # with the head too, prompts cannot be scored
        if policy.context is not None:
            options["max_model_len"] = policy.context
        if policy.forward.device.type == "cpu":
            options["enforce_eager"] = True  # compiling takes longer than it saves in small models
        if self.sleeps:
            options["enable_sleep_mode"] = True
        self.start_process({**options, **self.options})

    def sleep(self) -> bool:
        """Release the memory until the next update, if it may; return whether it did."""
        if self.sleeps:
            self._request("sleep", loads=True)
        return self.sleeps

    def generate(self, requests: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sample an answer to each request."""
        return self._request("generate", requests=list(requests), sampling=dict(sampling))

    def score(self, sequences: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """Score the tokens of sequences."""
        return self._request("score", sequences=list(sequences))

    def health(self) -> None:
        """Raise `EngineError` unless the process answers."""
        self._request("health")

    def restart(self) -> None:
        """End the process; the next update starts another one."""
        if (child := self.child) is not None:  # `close` may be called in another thread meanwhile
            child.kill()
            self.child = None

    def close(self) -> None:
        """End the process, and remove the weights."""
        self.restart()
        if self.folder is not None:
            self.folder.close()
            self.folder = None

    def start_process(self, options: Mapping[str, Any]) -> None:
        """Start the process and let it load a model with these options of vLLM.

        Raises: EngineError if vLLM refuses the options or the model.
        """
        self.restart()
        self.log.clear()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED)}
        environment = {**DEFAULT_ENVIRONMENT, **inherited, **ENVIRONMENT}
        try:
            self.child = Child(self.command, self.log.extend, environment=environment)
            self._request("start", loads=True, protocol=PROTOCOL, options=dict(options))
        except OSError as error:
            raise EngineError(f"the engine's process cannot be started: {error}") from error
        except EngineLostError as error:  # with the same options it would fail again
            raise EngineError(str(error)) from None

    def _request(self, operation: str, *, loads: bool = False, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its response. `loads`: it loads weights, which makes no steps.

        Raises: EngineLostError, and kills the process, if it ends, hangs, fails or sends something else.
        """
        if (child := self.child) is None:
            raise EngineLostError("the engine's process does not run")
        limit = LOADING if operation == "start" else self.timeout
        try:
            request = json.dumps({"operation": operation, **arguments}).encode()
            nonce = child.send(request, monotonic() + limit)
            limit = self.timeout  # of a response that has begun
            response = self._response(child, nonce, LOADING if loads else self.timeout)
        except TimeoutError:
            self._lose(child, f"did not read a request, or send a response, for {limit:g} s")
        except ChildLostError as error:
            not_started = operation == "start" and error.status == NOT_STARTED
            self._lose(child, "cannot be started" if not_started else f"is lost: {error}")
        except BaseException:  # an interrupt may have left a part of a message
            self.restart()
            raise
        if "failed" in response:
            self._lose(child, f"failed: {response['failed']}")
        return response

    def _response(self, child: Child, nonce: bytes, patience: float) -> dict[str, Any]:
        """Return the response with this nonce. Older responses, of interrupted requests, are dropped."""
        watchdog = Watchdog(self.timeout, patience, first=patience)  # until Python has started, a process is silent
        while True:
            if child.is_readable(1.0) or not child.alive:
                answered, body = child.receive(monotonic() + self.timeout, LARGEST)
                if answered == nonce:
                    return body
                if answered == HEARTBEAT:
                    watchdog.hear(body.get("progress"))
            if complaint := watchdog.complaint():
                self._lose(child, complaint)

    def _lose(self, child: Child, reason: str) -> NoReturn:
        """Kill the process and raise the error that names the reason, with the end of what it has printed."""
        self.restart()
        lines = bytes(self.log).decode("utf-8", "replace").splitlines()[-LOG_LINES:]
        log = "".join(f"\n    {escape_control(line)}" for line in lines if line.strip())
        raise EngineLostError(f"the engine (process {child.pid}) {reason}{log}")
