"""The built-in engine in actors of Ray, on any machine of its cluster, each with a copy of the weights.

Ray starts the actors, all of them or none, and carries calls and weights (`outdo.extras.ray.cluster`). A delivery
sends the trained weights in buckets of bounded size, or through files in a folder that all machines share; frozen
weights are sent once, in the same way, when an actor has started.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outdo.extras.ray import cluster
from outdo.extras.ray.cluster import ADVICE, Role, connected, joins
from outdo.extras.remote_engines.process import PATIENCE
from outdo.extras.remote_engines.processes import BuiltinProcesses, EngineInProcess, arguments_of
from outdo.extras.remote_engines.weights_folder import Part, WeightsFolder
from outdo.models.adapter import trained_weights
from outdo.models.policy import Policy
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.modes import SamplingChoice
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.malloc import disable_trim
from outdo.utils.world import World

BUCKET = 2**26
"""Bytes of weights that are sent at a time."""
FILE = 2**30
"""Bytes of weights, about, in a file of a folder that the machines share."""


class WeightChunk(NamedTuple):
    """Neighbouring bytes of a weight, from `start` on."""

    name: str
    start: int
    content: NDArray[np.uint8]


def open_actors(policy: Policy, world: World, *, processes: int, **options: Any) -> "Callable[[PolicyView], RayActors]":
    """Return what makes the actors beside the replicas of a run, with `options` of `RayActors`.

    In a cluster that runs already, each has as many threads as the policy, and a device that Ray chooses.
    """
    if joins():
        elsewhere = {"devices": [policy.forward.device.type] * processes, "threads": torch.get_num_threads()}
        return partial(RayActors, copy_frozen=policy.forward.sharding.is_divided, **elsewhere, **options)
    return partial(RayActors, **arguments_of(policy, world, processes, None), **options)


class RayActors(BuiltinProcesses):
    """Samples in one actor for each of `devices`, all of one type. Ray chooses the machines, and the GPU of each actor.

    With `folder`, weights go through files there. The other arguments are those of `BuiltinProcesses`. Every method
    raises `EngineLostError` if an actor has ended, hangs, or makes no progress for `timeout` seconds.
    """

    def __init__(
        self, policy: PolicyView, *, devices: Sequence[str], folder: str | None = None, **options: Any
    ) -> None:
        super().__init__(policy, devices=devices, **options)
        self._parent = None if folder is None else Path(folder).expanduser().absolute()
        self._folder: WeightsFolder | None = None
        self._actors: list[Any] = []
        self._role: Role | None = None
        self._nodes: list[str] = []

    @property
    def places(self) -> Sequence[str]:
        """Where each actor computes."""
        kinds = [torch.device(device).type for device in self.devices]
        return [f"{kind} of {node} (Ray)" for kind, node in zip(kinds, self._nodes, strict=False)]

    def restart(self) -> None:
        """End the actors; the next update starts others."""
        self._version = None
        actors, self._actors, self._nodes = self._actors, [], []
        connected.kill(actors)

    def close(self) -> None:
        """End the actors, and the Ray that was started here, unless others use it."""
        try:
            self.restart()
        finally:
            if self._role is not None:
                connected.leave(self._role)
                self._role = None
            if self._folder is not None:
                self._folder.close()
                self._folder = None

    def _deliver(self, policy: PolicyView) -> int:
        """Send the trained weights to all actors; return their bytes."""
        if not self._actors:
            self._begin(policy)
        return self._send(trained_weights(policy.model), policy.version)

    def _begin(self, policy: PolicyView) -> None:
        """Start the actors, with the frozen weights."""
        count, kind = len(self.devices), torch.device(self.devices[0]).type
        if self._role is None:
            gpus = [torch.device(device).index or 0 for device in self.devices if kind == "cuda"]
            bundle = {"CPU": self.threads, **({"GPU": 1} if gpus else {})}
            self._role = connected.join("the engine", [bundle] * count, gpus)
        try:
            self._actors = connected.start(self._role, EngineActor, self.threads)
            self._nodes = self._call("node", [()] * count, cluster.START)
            model, weights = _without_weights(policy.model), dict(policy.model.named_parameters())
            forward = policy.forward.with_model(model)
            forward.device, forward.routers = torch.device(kind), policy.forward.routers
            view = replace(PolicySnapshot.of(policy), model=model, forward=forward)
            trained = trained_weights(policy.model)
            shapes = {name: (weight.shape, weight.dtype) for name, weight in weights.items()}
            model_of_all = (view, shapes, list(trained), self.seed, self.choice)
            held = connected.ask(lambda ray: ray.put(model_of_all))
            self._call("hold", [(held,)] * count, cluster.START)
            frozen = {name: weight for name, weight in weights.items() if name not in trained}
            self._send(frozen, policy.version)
        except BaseException:
            self.restart()
            raise

    def _send(self, weights: Mapping[str, Tensor], version: int) -> int:
        """Send weights to all actors, bucket by bucket or file by file; return their bytes."""
        if self._parent is not None:
            self._folder = self._folder or WeightsFolder(parent=self._parent)
            published = self._folder.publish(version, files(weights))
            for file in sorted(published.iterdir()):
                self._call("read", [(str(file),)] * len(self._actors), PATIENCE)
        else:
            for bucket in buckets(weights):
                sent = connected.ask(lambda ray, bucket=bucket: ray.put(bucket))
                self._call("take", [(sent,)] * len(self._actors), PATIENCE)
        return sum(weight.numel() * weight.element_size() for weight in weights.values())

    def _call(self, method: str, calls: Sequence[tuple[Any, ...]], seconds: float | None = None) -> list[Any]:
        """Call a method of as many actors as there are `calls` at the same time; return the results in order."""
        asked = self._actors[: len(calls)]
        if len(asked) < len(calls) or self._role is None:
            raise EngineLostError(f"the actors of the engine have ended{ADVICE}")
        silence = cluster.SILENCE if self._nodes else cluster.START
        patience = self.timeout if seconds is None else seconds
        return connected.call(self._role, asked, method, calls, seconds=patience, silence=silence)


class EngineActor:
    """An actor: the engine in a process that Ray has started, with `threads` threads."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.weights: dict[str, Tensor] = {}
        self.engine: EngineInProcess | None = None
        disable_trim()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of this class, or else of the engine."""
        torch.set_num_threads(self.threads)  # it is a number of each thread
        of_actor = method in ("node", "hold", "take", "read", "load")
        return getattr(self if of_actor else self.engine, method)(*arguments)

    def progress(self) -> int:
        """Return a number that changes while the engine samples."""
        return 0 if self.engine is None else self.engine.progress

    def node(self) -> str:
        """Return the name of this machine."""
        return os.uname().nodename

    def load(self, version: int) -> list[int]:
        """Take the weights that were sent; see `EngineInProcess.load`."""
        assert self.engine is not None
        sums = self.engine.load(version)
        self.weights = dict(self.engine.trained)  # frozen ones are on the device now, and do not come again
        return sums

    def hold(
        self,
        held: tuple[PolicySnapshot, Mapping[str, tuple[torch.Size, torch.dtype]], Sequence[str], int, SamplingChoice],
    ) -> None:
        """Make the engine. Its weights have no content yet."""
        view, shapes, trained, seed, choice = held
        self.weights = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in shapes.items()}
        for name, weight in view.model.named_parameters():
            weight.data = self.weights[name]
        taken = {name: self.weights[name] for name in trained}
        self.engine = EngineInProcess(view, taken, seed=seed, choice=choice)

    def take(self, bucket: Sequence[WeightChunk]) -> None:
        """Write pieces of weights to their places in main memory; `load` brings them to the device."""
        for piece in bucket:
            whole = _bytes_of(self.weights[piece.name])
            whole[piece.start : piece.start + len(piece.content)] = piece.content

    def read(self, file: str) -> None:
        """Copy the weights of a file to their places, as `take` does."""
        try:
            for name, weight in load_file(file).items():
                self.weights[name].copy_(weight)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"{self.node()} cannot read {file}: {error}; engine.folder has to be a folder that all machines share"
            ) from error


def files(weights: Mapping[str, Tensor]) -> Iterator[Part]:
    """Yield what writes some weights, whole, into files of about `FILE` bytes."""
    content, size = dict[str, Tensor](), 0
    for name, weight in weights.items():
        content[name] = _copied(weight)
        size += weight.numel() * weight.element_size()
        if size >= FILE:
            yield partial(_save, content, f"from-{next(iter(content))}.safetensors")
            content, size = {}, 0
    if content:
        yield partial(_save, content, f"from-{next(iter(content))}.safetensors")


def _save(weights: dict[str, Tensor], name: str, folder: Path) -> None:
    save_file(weights, folder / name)


def buckets(weights: Mapping[str, Tensor]) -> Iterator[list[WeightChunk]]:
    """Yield all bytes of some weights in lists of pieces, with at most `BUCKET` bytes in each list."""
    bucket, room = list[WeightChunk](), BUCKET
    for name, weight in weights.items():
        whole, start = _bytes_of(_copied(weight)), 0
        while start < len(whole):
            content = whole[start : start + room]
            bucket.append(WeightChunk(name, start, content))
            start, room = start + len(content), room - len(content)
            if not room:
                yield bucket
                bucket, room = [], BUCKET
    if bucket:
        yield bucket


def _copied(weight: Tensor) -> Tensor:
    """Return a copy: memory that an array refers to cannot be dropped, as gathered weights of a divided model are."""
    return weight.detach().to("cpu", copy=True).contiguous()


def _bytes_of(weight: Tensor) -> NDArray[np.uint8]:
    """Return the memory of a contiguous tensor of the CPU."""
    return weight.view(-1).view(torch.uint8).numpy()


def _without_weights(model: nn.Module) -> Any:
    """Return a copy of a model whose weights have no numbers; its buffers are copied."""
    copies: dict[int, Any] = {id(buffer): buffer.detach().cpu() for buffer in model.buffers()}
    for weight in model.parameters():
        copies[id(weight)] = nn.Parameter(torch.empty(0, dtype=weight.dtype), requires_grad=False)
    return copy.deepcopy(model, copies)
