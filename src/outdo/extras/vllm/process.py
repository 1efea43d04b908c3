"""vLLM as a process of this run: which model it starts with, and how new weights reach it.

The weights go through files in shared memory. vLLM serves a LoRA adapter beside its base, and gets a new folder for
each version; all other weights, and adapters that vLLM does not serve, replace those of the whole model.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.extras.remote_engines.weights_folder import WeightsFolder
from outdo.extras.vllm.child import Child, command
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


class ProcessServer:
    """A process with its own interpreter that runs vLLM, and the folder through which it gets weights."""

    def __init__(
        self,
        python: str,
        options: Mapping[str, Any],
        *,
        timeout: float,
        arguments: Sequence[str] | None = None,
    ) -> None:
        self.options = dict(options)
        environment = {name: os.environ.get(name, value) for name, value in DEFAULT_ENVIRONMENT.items()} | ENVIRONMENT
        self.child = Child(arguments or command(python), timeout=timeout, environment=environment)
        self.folder: WeightsFolder | None = None
        self.merged_because = ""
        """Why the adapter is merged into the weights; empty if vLLM serves it."""

    def update(self, policy: PolicyView) -> int:
        """Load the weights of the policy; start the process first if it does not run yet. Return their bytes."""
        if self.folder is None:
            self.folder = WeightsFolder(bytes_of(policy.model))
        as_adapter = has_adapter(policy.model) and not (why := why_merged(policy.model))
        if has_adapter(policy.model) and not as_adapter:
            self.merged_because = why
        folder = self.folder.new()
        write_weights(policy, folder, as_adapter=as_adapter)
        if self.child.pid is None:
            self._start(policy, folder, as_adapter=as_adapter)
        arguments = {"version": policy.version, "folder": str(folder), "is_adapter": as_adapter}
        self.child.request("update", loads=True, **arguments)
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
            rank = next(each for each in RANKS if each >= rank_of(policy.model))
            options |= {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 1, "max_lora_rank": rank}
            options["lora_target_modules"] = targets_of(policy.model)  # with the head too, prompts cannot be scored
        if policy.context is not None:
            options["max_model_len"] = policy.context
        if policy.forward.device.type == "cpu":
            options["enforce_eager"] = True  # compiling takes longer than it saves in small models
        self.child.start({**options, **self.options})

    def generate(self, requests: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sample an answer to each request."""
        return self.child.request("generate", requests=list(requests), sampling=dict(sampling))

    def score(self, sequences: Sequence[Sequence[int]]) -> Mapping[str, Any]:
        """Score the tokens of sequences."""
        return self.child.request("score", sequences=list(sequences))

    def health(self) -> None:
        """Raise `EngineError` unless the process answers."""
        self.child.request("health")

    def restart(self) -> None:
        """End the process; the next update starts another one."""
        self.child.kill()

    def close(self) -> None:
        """End the process, and remove the weights."""
        self.child.kill()
        if self.folder is not None:
            self.folder.close()
            self.folder = None
