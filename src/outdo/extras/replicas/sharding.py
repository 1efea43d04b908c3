"""Models whose weights, gradients and moments are divided among the replicas: FSDP2 (`fully_shard`) of torch.

Each replica holds a part of every weight. A layer gathers its weights before it computes, forward and backward, and
drops them afterwards; gradients are summed, and each replica keeps its part. The replicas therefore have to run the
model equally often, which `LockstepScoring` takes care of. To sample, which runs the model as often as the longest of
its own answers, a replica gathers all weights of the policy (`Sharded.gathered`).

No replica ever holds all weights of a model otherwise: models are divided while they have none, and each replica reads
its part (`outdo.models.loading`), or copies it from another divided model (`Sharded.copied`).

Sources: `torch.distributed.fsdp`; Zhao et al., PyTorch FSDP, arXiv 2304.11277.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from outdo.extras.replicas.lockstep import LockstepReplicas, fatal_errors
from outdo.extras.replicas.placements import placements, shared_by_layers
from outdo.models.sharding import Sharding
from outdo.models.text_part import leave_out_as
from outdo.utils.sharded_tensors import own_part

HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""The attributes of a module in which FSDP registers what gathers and drops weights."""

Copied = TypeVar("Copied", bound=nn.Module)
Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])


class DividingReplicas(LockstepReplicas):
    """Replicas that divide models among them: each holds a part of every weight.

    Args:
        timeout: how long a replica is waited for.
        device: where each of them computes.
        share: how many neighbours share each sequence; see `LockstepReplicas`.
        offload: hold the parts of weights, gradients and moments in main memory; a layer is copied to the device when
            it is gathered, and the optimiser computes on the processor.
        reduce_dtype: in which gradients are sent and summed; unset: that of the weights, float32.
    """

    divides_models = True

    def __init__(
        self,
        *,
        timeout: timedelta,
        device: torch.device,
        share: int = 1,
        offload: bool = False,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(timeout=timeout, share=share)
        self.device = device
        self.storage = torch.device("cpu") if offload else device
        pinned = device.type == "cuda"  # memory of which copies to a GPU are quick
        self.how = {
            "mesh": init_device_mesh(device.type, (len(self),)),
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=reduce_dtype),
            "offload_policy": CPUOffloadPolicy(pin_memory=pinned) if offload else OffloadPolicy(),
        }

    def from_pretrained(self, auto: Any, folder: Path, **options: Any) -> Any:
        """See `World.from_pretrained`."""
        kind = self._divided(auto, options["config"])
        options["device_map"] = {"": self.storage}  # where the parts are read to
        model, report = kind.from_pretrained(folder, **options)
        model.__class__ = kind.__base__
        move_buffers(model, self.device)
        return model, report

    def _divided(self, auto: Any, config: PretrainedConfig) -> Any:
        """Return the class of models that `auto` loads, with models that are divided when they are made.

        transformers makes a model without weights, and reads of a weight that is divided only this process's part.
        """
        with torch.device("meta"):
            kind = type(auto.from_config(copy.deepcopy(config)))

        def make(model: Any, *arguments: Any, **options: Any) -> None:
            kind.__init__(model, *arguments, **options)
            model.tie_weights()
            Sharded(model, self.device, self.how)

        # transformers renames the stored weights of its own classes only, which it knows by their module.
        return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})


def move_buffers(model: nn.Module, device: torch.device) -> None:
    """Move the buffers of a model, which are not divided, to a device."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)


class Root(nn.Module):
    """The root of FSDP: outdo calls body and head of a model separately, and FSDP gathers the weights of the root when
    its `forward` is called.
    """

    def __init__(self, model: nn.Module, head: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.head = head

    def forward(self, compute: Callable[[], Tensors]) -> Tensors:
        """Call `compute`, which runs the model."""
        return compute()


class Sharded(Sharding):
    """How a model is divided among the replicas; see `outdo.models.sharding.Sharding`."""

    is_divided = True

    def __init__(
        self, model: PreTrainedModel, device: torch.device, how: Mapping[str, Any], head: nn.Module | None = None
    ) -> None:
        """Divide `model`, with a `head` together with that, as the arguments `how` of `fully_shard` say."""
        self.device = device
        model.sharding = model.base_model.sharding = self  # type: ignore[assignment]
        self.how = how
        self.root = Root(model, head)
        how = {**how, "shard_placement_fn": placements(model, how["mesh"].size())}
        of_all = shared_by_layers(model)  # the root gathers them
        for layer in reversed(list(model.modules())):  # a layer within another one first
            if isinstance(layer, GradientCheckpointingLayer) and not of_all.issuperset(layer.parameters()):
                fully_shard(layer, **how, ignored_params=of_all)
        # Also after a forward pass the parameters of the root have to be its parts, which an optimiser and a state see.
        fully_shard(self.root, **how, reshard_after_forward=True)
        self.parts = [part for part in self.root.modules() if isinstance(part, FSDPModule)]
        for part in self.parts:
            # A sum, not a mean: totals are those of the whole batch.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)
        self._is_gathered = False

    def __call__(self, compute: Callable[[], Tensors]) -> Tensors:
        """See `Sharding.__call__`. If `compute` fails, the weights that it gathered are dropped."""
        try:
            return self.root(compute)
        except BaseException:
            for part in self.parts:
                part.reshard()
            raise

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Hold all weights during a `with` block, which must not compute gradients.

        A block within another one does nothing: an engine that samples may choose its mode in it.
        """
        if self._is_gathered:
            yield
            return
        for part in self.parts:
            part.set_reshard_after_forward(False)
        with fatal_errors():
            for part in self.parts:
                part.unshard()
        self._is_gathered = True
        try:
            yield
        finally:
            self._is_gathered = False
            for part in self.parts:
                part.set_reshard_after_forward(True)
                part.reshard()

    def whole(self, model: Copied) -> Copied:
        """See `Sharding.whole`. Call it while the weights are gathered."""
        shared: dict[int, Any] = {id(self): None}
        for module in model.modules():
            shared |= {
                id(tensor): tensor for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
            }
            shared |= {id(hooks): type(hooks)() for hooks in map(vars(module).get, HOOKS)}  # they gather weights
            shared |= {id(value): None for value in vars(module).values() if _is_of_fsdp(value)}
        return _deep_copy(model, shared)

    @torch.no_grad()
    def copied(self, model: PreTrainedModel, head: nn.Module | None = None) -> PreTrainedModel:
        """See `Sharding.copied`."""
        with torch.device("meta"):
            made = type(model)(copy.deepcopy(model.config)).eval()
        leave_out_as(model, made)
        made.tie_weights()
        Sharded(made, self.device, self.how, head)
        made.to_empty(device=model.device)
        made.tie_weights()
        for weight, other in zip(made.parameters(), model.parameters(), strict=True):
            own_part(weight).copy_(own_part(other))
        for weight, other in zip(made.buffers(), model.buffers(), strict=True):
            weight.copy_(other)
        move_buffers(made, self.device)
        return made

    def on_same_parts(self, model: Copied, shared: dict[int, Any]) -> Copied:
        """See `Sharding.on_same_parts`."""
        for module in model.modules():
            if not any(weight.requires_grad for weight in module.parameters(recurse=False)):
                shared[id(module._parameters)] = module._parameters  # a layer puts the weights there that it gathers
        parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        # The hooks of a layer and of its copy belong to one state, which gathers the weights for both.
        states = [part._get_fsdp_state() for part in parts]
        shared |= {id(state): state for state in (self, *states)}
        return _deep_copy(model, shared)


def _is_of_fsdp(value: Any) -> bool:
    """Return whether the value of a module's attribute is what `fully_shard` keeps there."""
    return isinstance(value, dict) and fully_shard.__name__ in {getattr(key, "__name__", key) for key in value}


def _deep_copy(model: Copied, shared: dict[int, Any]) -> Copied:
    """Return a deep copy of a divided model, in which no module has FSDP's own class: that refuses to be copied."""
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    kinds = [type(part) for part in parts]
    try:
        for part in parts:
            part.__class__ = type(part).__bases__[1]
        return copy.deepcopy(model, shared)
    finally:
        for part, kind in zip(parts, kinds, strict=True):
            part.__class__ = kind
