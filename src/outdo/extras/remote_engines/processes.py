"""The built-in engine in processes of its own, each with a copy of the weights, beside the trainer.

A delivery writes the weights that are trained into shared memory, and each process takes them from there to its device.
On a CPU the processes compute with the shared memory itself. Frozen weights are sent once, at the start; on a CPU they
are shared with the trainer.

Which process answers a request does not change the answer: on a CPU in float32 it depends only on the request, its
random numbers and the weights.
"""

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from outdo.extras.remote_engines.devices import devices_of, on_this_machine
from outdo.extras.remote_engines.divide import Places, in_order
from outdo.extras.remote_engines.process import PATIENCE, Process, results_of
from outdo.extras.remote_engines.remote import TIMEOUT
from outdo.extras.remote_engines.weights_folder import SHARED_MEMORY
from outdo.models.adapter import trained_weights
from outdo.models.device import make_deterministic
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import Engine, PolicySnapshot, PolicyView
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.choose_batching import choose_mode
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, Request
from outdo.utils.bit_sums import bit_sums
from outdo.utils.errors import DeliveryError, EngineError, EngineLostError, WorkerError
from outdo.utils.out_of_memory import is_out_of_memory
from outdo.utils.rng import Stream
from outdo.utils.world import World


def open_processes(
    policy: Policy, world: World, *, processes: int, devices: Sequence[str] | None = None, **options: Any
) -> "Callable[[PolicyView], BuiltinProcesses]":
    """Return what makes the processes beside the replicas of a run, with `options` of `BuiltinProcesses`."""
    return partial(BuiltinProcesses, **arguments_of(policy, world, processes, devices), **options)


def arguments_of(policy: Policy, world: World, processes: int, devices: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments of `BuiltinProcesses`. All processes together have at most the threads of the policy's.

    One of them has at most as many as one of the policy's, because the last bits may depend on their number.
    """
    threads, replicas = torch.get_num_threads(), on_this_machine(len(world))
    return {
        "devices": devices_of(policy.forward.device, processes, devices, replicas=replicas),
        "threads": max(1, min(threads, threads * replicas // processes)),
        "copy_frozen": policy.forward.sharding.is_divided,
    }


class BuiltinProcesses(Engine):
    """Samples in one process for each of `devices`; each has `threads` threads. `seed` is the seed of the run.

    `timeout` is how many seconds a process may make no progress. Frozen weights on a CPU are shared with the policy,
    unless they are to be copied (`copy_frozen`), because the policy drops its own between two deliveries.
    """

    def __init__(
        self,
        policy: PolicyView,
        *,
        devices: Sequence[str],
        threads: int = 1,
        seed: int = 0,
        timeout: float = TIMEOUT,
        copy_frozen: bool = False,
    ) -> None:
        self.policy = policy
        self.devices = devices
        self.threads = threads
        self.seed = seed
        self.timeout = timeout
        self.copy_frozen = copy_frozen
        self.choice: SamplingChoice = choose_mode(policy)  # once, not in every process
        self.places_of_episodes = Places(len(devices))
        self._shared: SharedCopy | None = None
        self._processes: list[Process] = []
        self._version: int | None = None

    def notes(self) -> list[str]:
        """Return where the processes compute."""
        return [f"engine: processes on {', '.join(self.places)}, threads of each: {self.threads}"]

    @property
    def places(self) -> Sequence[str]:
        """Where each process computes."""
        return self.devices

    @property
    def version(self) -> int:
        if self._version is None:
            raise EngineError("the engine has no weights yet: call `update_weights(policy)` first")
        return self._version

    def update_weights(self, policy: PolicyView) -> None:
        """Deliver the weights of this policy; start the processes first if they do not run yet.

        Raises `DeliveryError` unless all processes have these weights then, bit for bit.
        """
        self._version = None
        if not _have_the_same_model(policy, self.policy):
            self.restart()
            self._shared = None
            self.policy, self.choice = policy, choose_mode(policy)
        self.delivered_bytes = self._deliver(policy)
        loaded = self._call("load", [(policy.version,)] * len(self.devices), PATIENCE)
        self._compare(loaded, trained_weights(policy.model))
        self._version = policy.version

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self.policy.tokenizer

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        parts = self.places_of_episodes.divide(requests)
        return in_order(parts, self._call("generate", [([requests[i] for i in part], sampling) for part in parts]))

    def end_episodes(self, episodes: Sequence[Stream]) -> None:
        """Drop the keys and values of episodes that have ended."""
        self._call("end_episodes", [(of_engine,) for of_engine in self.places_of_episodes.end(episodes)])

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the log-probability of each token after the first of each sequence, by all processes in turn."""
        every = range(len(sequences))
        parts = [part for start in range(len(self.devices)) if (part := every[start :: len(self.devices)])]
        return in_order(parts, self._call("score", [([sequences[i] for i in part],) for part in parts]))

    def health(self) -> None:
        """Raise `EngineError` unless all processes answer."""
        self._call("health", [()] * len(self.devices))

    def restart(self) -> None:
        """End the processes; the next update starts others."""
        self._version = None
        for process in self._processes:
            process.close()
        self._processes = []

    def close(self) -> None:
        """End the processes, and release the copy of the weights."""
        self.restart()
        self._shared = None

    def _deliver(self, policy: PolicyView) -> int:
        """Write the weights to where all processes take them from; return their bytes."""
        self._shared = self._shared or SharedCopy(policy, copy_frozen=self.copy_frozen)
        if not self._processes:
            self._start(self._shared)
        return self._shared.write(policy)

    def _start(self, shared: "SharedCopy") -> None:
        try:
            self._processes = [Process(self.threads) for _ in self.devices]
            for process, device in zip(self._processes, self.devices, strict=True):
                view = shared.view(self.policy, device)
                process.hold(0, EngineInProcess(view, shared.trained, seed=self.seed, choice=self.choice))
        except WorkerError as error:
            raise EngineLostError(str(error)) from error

    def _compare(self, loaded: Sequence[Sequence[int]], trained: Mapping[str, Tensor]) -> None:
        expected = bit_sums(trained.values())
        for number, sizes in enumerate(loaded, 1):
            if different := [name for name, mine, its in zip(trained, expected, sizes, strict=True) if mine != its]:
                raise DeliveryError(
                    f"process {number} of the engine does not have the policy's weights after a delivery: "
                    f"{len(different)} of {len(trained)} differ, such as {different[0]}"
                )

    def _call(self, method: str, calls: Sequence[tuple[Any, ...]], seconds: float | None = None) -> list[Any]:
        """Call a method in as many processes as there are `calls` at the same time; return the results in order.

        Raises: EngineLostError if a process has ended, hangs, or makes no progress for `seconds`.
        """
        try:
            asked = self._processes[: len(calls)]
            for process, arguments in zip(asked, calls, strict=True):
                process.call(0, method, arguments)
            return results_of(asked, self.timeout if seconds is None else seconds)
        except WorkerError as error:
            raise EngineLostError(str(error)) from error


class SharedCopy:
    """A copy of the model of a policy in shared memory. `trained` are the weights that a delivery changes, by name.

    Frozen weights on a CPU are those of the policy, unless `copy_frozen`.
    """

    def __init__(self, policy: PolicyView, *, copy_frozen: bool = False) -> None:
        model = policy.model
        trained = trained_weights(model)
        sent = [
            weight
            for weight in model.parameters()
            if weight.requires_grad or copy_frozen or weight.device.type != "cpu"
        ]
        _check_room(sum(weight.numel() * weight.element_size() for weight in sent))
        self.trained = {name: _on_cpu(weight).clone() for name, weight in trained.items()}
        copies: dict[int, Any] = {id(buffer): _on_cpu(buffer) for buffer in model.buffers()}
        for name, weight in model.named_parameters():
            copied = self.trained[name] if name in trained else _on_cpu(weight)
            if copy_frozen and name not in trained and weight.device.type == "cpu":
                copied = copied.clone()
            copies[id(weight)] = nn.Parameter(copied, requires_grad=False)
        self.model = copy.deepcopy(model, copies)

    @torch.no_grad()
    def write(self, policy: PolicyView) -> int:
        """Write the trained weights of the policy into the copy; return their bytes."""
        for name, weight in trained_weights(policy.model).items():
            self.trained[name].copy_(weight)
        return sum(weight.numel() * weight.element_size() for weight in self.trained.values())

    def view(self, policy: PolicyView, device: str) -> PolicySnapshot:
        """Return the policy with this copy in place of its model, to be computed on `device`."""
        forward = policy.forward.with_model(self.model)
        forward.device, forward.routers = torch.device(device), policy.forward.routers
        return replace(PolicySnapshot.of(policy), forward=forward, model=self.model)


class EngineInProcess(BuiltinEngine):
    """The engine in one of the processes, on the device of its view. `trained` are the weights in shared memory."""

    def __init__(
        self, view: PolicySnapshot, trained: Mapping[str, Tensor], *, seed: int, choice: SamplingChoice
    ) -> None:
        super().__init__(view, seed=seed, choice=choice)
        self.view = view
        self.trained = trained

    def load(self, version: int) -> list[int]:
        """Take the weights that are in shared memory, those after `version` optimiser steps; return their bit sums."""
        model, device = self.view.model, self.view.forward.device
        make_deterministic(device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        try:
            nn.Module.to(model, device)  # the frozen ones too, the first time
            for name, weight in model.named_parameters():
                if name in self.trained:
                    weight.data = self.trained[name].to(device)  # on a CPU it is the shared memory
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise EngineError(f"the memory of {device} does not suffice for a copy of the weights: {error}") from error
        self.policy = replace(self.view, version=version)
        weights = dict(model.named_parameters())
        return bit_sums(weights[name] for name in self.trained)


def _have_the_same_model(first: PolicyView, second: PolicyView) -> bool:
    """Return whether two policies differ at most in their trained weights, as a policy and its snapshots do."""
    if first.forward is second.forward:
        return True
    mine, its = (dict(policy.model.named_parameters()) for policy in (first, second))
    return (
        first.tokenizer is second.tokenizer
        and first.model.config.to_dict() == second.model.config.to_dict()
        and trained_weights(first.model).keys() == trained_weights(second.model).keys()
        and all(weight is its.get(name) for name, weight in mine.items() if not weight.requires_grad)
    )


def _on_cpu(weight: Tensor) -> Tensor:
    return weight.detach().cpu()


def _check_room(needed: int) -> None:
    """Raise `EngineError` if shared memory has not so many bytes free: writing beyond them would end this process."""
    if SHARED_MEMORY.exists() and (free := shutil.disk_usage(SHARED_MEMORY).free) < needed:
        raise EngineError(
            f"{SHARED_MEMORY} has {free / 2**20:,.0f} MiB free, and the engine's copy of the weights needs "
            f"{needed / 2**20:,.0f}; in a container, --shm-size=1g gives more"
        )
