"""`make gpu` on a processor: every row passes, and fails with a fault in outdo or in what it calls.

Each command is a process of its own, and some start others: replicas, engines, actors of Ray. A fault is a few lines
that each of these processes executes at the end of a module when it imports it.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.gpu import __main__ as program
from benchmarks.gpu.bench import Bench, Trained
from benchmarks.gpu.rows import ROWS

pytestmark = pytest.mark.long

SITE = """
import sys
from importlib.machinery import PathFinder


class WithFault:
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            exec(LINES, vars(module))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, WithFault())
"""
"""The `sitecustomize` that Python imports when it starts, after `MODULE` and `LINES`."""


class Fault(NamedTuple):
    """Lines that are put at the end of a module, and a part of what the row says then."""

    row: str
    module: str
    lines: str
    says: str


REPLICAS = "outdo.extras.replicas.replicas"
ULYSSES = "outdo.extras.replicas.ulysses"
SHARDING = "outdo.extras.replicas.sharding"
PROCESSES = "outdo.extras.remote_engines.processes"

NO_PROOF = """
from outdo.extras.remote_engines.proof import Proof
Proof.check = BuiltinProcesses._compare = lambda self, *arguments: None
"""
"""Nothing compares the weights of an engine with those of the policy."""

FEW_ROWS = """
def forward(self, x, forward={layer}.forward):
    return {few} if x.shape[-2] <= 32 else forward(self, x)
{layer}.forward = forward
"""
"""A layer that computes something else for the few tokens of a step of sampling than for those of a batch."""

FAULTS = {
    "moments that come back from 8 bits four times as large": Fault(
        "adamw8bit",
        "outdo.models.optimiser",
        """
in_8_bits = adamw8bit
def adamw8bit(weights):
    made = in_8_bits(weights)
    step = made.step
    def spoiling(closure=None):
        result = step(closure)
        for state in made.state.values():
            if "absmax2" in state:
                state["absmax2"] *= 4
        return result
    made.step = spoiling
    return made
""",
        "step_kl",
    ),
    "a base in 8 bits that is another one for few tokens": Fault(
        "int8",
        "outdo.models.base_weights",
        FEW_ROWS.format(layer="Int8Linear", few="1.02 * forward(self, x)"),
        "sampling/sampling_logp_difference/max",
    ),
    "an adapter on 8 bits that sampling leaves out": Fault(
        "int8",
        "peft.tuners.lora.layer",
        FEW_ROWS.format(layer="Linear", few="self.base_layer(x)"),
        "sampling/sampling_logp_difference/max",
    ),
    "a base in 4 bits that is another one for few tokens": Fault(
        "nf4",
        "bitsandbytes.nn.modules",
        FEW_ROWS.format(layer="Linear4bit", few="1.02 * forward(self, x)"),
        "sampling/sampling_logp_difference/max",
    ),
    "an adapter on 4 bits that sampling leaves out": Fault(
        "nf4",
        "peft.tuners.lora.bnb",
        FEW_ROWS.format(layer="Linear4bit", few="self.base_layer(x)"),
        "sampling/sampling_logp_difference/max",
    ),
    "updates that are lost because the weights are rounded to bfloat16": Fault(
        "smollm2",
        "torch.optim.adamw",
        """
def step(self, closure=None, step=AdamW.step):
    result = step(self, closure)
    for group in self.param_groups:
        for weights in group["params"]:
            weights.data.copy_(weights.data.bfloat16())
    return result
AdamW.step = step
""",
        "step_kl",
    ),
    "a compiled layer that has the weights of the first one": Fault(
        "compile",
        "outdo.models.fast.forward",
        """
@cache
def _compiled(forward):
    layers = []
    def of_the_first(layer, *arguments, **options):
        layers.append(layer)
        return forward(layers[0], *arguments, **options)
    return torch.compile(of_the_first, dynamic=True)
""",
        "grad_norm",
    ),
    "gradients that replicas do not add up": Fault(
        "replicas",
        REPLICAS,
        "Replicas.add_up = lambda self, tensors: None",
        "the weights of replica 1 are no longer those of the first one",
    ),
    "gradients of which replicas take the mean": Fault(
        "replicas",
        REPLICAS,
        """
def add_up(self, tensors, add_up=Replicas.add_up):
    add_up(self, tensors)
    for tensor in tensors:
        tensor.div_(len(self))
Replicas.add_up = add_up
""",
        "grad_norm",
    ),
    "heads that come back in another order": Fault(
        "ulysses",
        ULYSSES,
        """
def all_heads(self, x):
    parts = x[0].unflatten(0, (len(self.sequence), -1))
    return self._exchange(parts).flip(0).transpose(0, 1).flatten(1, 2)[None]
HeadsForTokens._all_heads = all_heads
""",
        "compute other log-probabilities of a sequence than one does",
    ),
    "gradients of tokens and heads that are not exchanged": Fault(
        "ulysses",
        ULYSSES,
        "_Exchange.backward = staticmethod(once_differentiable(lambda ctx, gradient: (gradient, None)))",
        "grad_norm",
    ),
    "gradients of which divided models take the mean": Fault(
        "divided",
        SHARDING,
        "FSDPModule.set_gradient_divide_factor = lambda self, factor: None\n"
        "FSDPModule.set_force_sum_reduction_for_comms = lambda self, enable: None",
        "grad_norm",
    ),
    "moments that one process does not take over from two": Fault(
        "divided",
        "outdo.models.optimiser",
        """
def load_state(self, state):
    self.steps = state["steps"]
Optimiser.load_state = load_state
""",
        "step_kl",
    ),
    "scores of a sequence whose gradient counts for each replica": Fault(
        "divided_ulysses",
        ULYSSES,
        """
def backward(ctx, gradient):
    (own,) = ctx.saved_tensors
    total = gradient.clone()
    dist.all_reduce(total)
    return total[own], None, None
_Joined.backward = staticmethod(once_differentiable(backward))
""",
        "grad_norm",
    ),
    "parts in main memory that are copied to the device once only": Fault(
        "offload",
        "torch.distributed.fsdp._fully_shard._fsdp_param",
        """
def all_gather_inputs(self, inputs=FSDPParam.all_gather_inputs.fget):
    if not self.offload_to_cpu:
        return inputs(self)
    if not hasattr(self, "on_device"):
        self.on_device = [each.clone() for each in inputs(self)]
    return self.on_device
FSDPParam.all_gather_inputs = property(all_gather_inputs)
""",
        "other token_ids",
    ),
    "gradients in bfloat16 that are halved": Fault(
        "reduce_dtype",
        SHARDING,
        """
def init(self, model, device, how, head=None, init=Sharded.__init__):
    init(self, model, device, how, head)
    if how["mp_policy"].reduce_dtype is not None:
        for part in self.parts:
            part.set_gradient_divide_factor(2.0)
Sharded.__init__ = init
""",
        "grad_norm",
    ),
    "scores of the reward model that another replica keeps": Fault(
        "divided_rewards",
        "outdo.extras.replicas.lockstep",
        """
def in_lockstep(self, micro_batches, compute):
    return [compute(rows) for rows in filled(self, micro_batches)][: len(micro_batches)]
LockstepReplicas.in_lockstep = in_lockstep
""",
        "% apart",
    ),
    "weights that are not written for the engine": Fault(
        "engine",
        PROCESSES,
        "SharedCopy.write = lambda self, policy: 0",
        "of the engine does not have the policy's weights after a delivery",
    ),
    "the same where nothing compares weights": Fault(
        "engine", PROCESSES, f"{NO_PROOF}\nSharedCopy.write = lambda self, policy: 0", "other token_ids"
    ),
    "weights that Ray sends once only, where nothing compares them": Fault(
        "ray",
        "outdo.extras.ray.actors",
        f"""
{NO_PROOF}
def send(self, weights, version, send=RayActors._send):
    return send(self, weights, version) if version == 0 else 0
RayActors._send = send
""",
        "other token_ids",
    ),
    "an engine that gets the weights of the start from divided models": Fault(
        "engine_and_replicas",
        "outdo.extras.remote_engines.remote",
        """
from copy import deepcopy
def whole(self, policy, whole=RemoteEngine._whole):
    if not hasattr(self, "first"):
        found = whole(self, policy)
        weights = {id(each): torch.nn.Parameter(each.detach().clone()) for each in found.model.parameters()}
        model = deepcopy(found.model, weights)
        self.first = replace(found, model=model, forward=found.forward.with_model(model))
    return replace(self.first, version=policy.version)
RemoteEngine._whole = whole
""",
        "the engine still has the weights after 0 optimiser steps",
    ),
    "parts of an answer that end when the time is over": Fault(
        "ahead",
        "outdo.extras.staleness.partial_rollouts",
        """
import time
def limit(self, steps, limit=PartialRollouts._limit):
    return limit(self, steps) - (time.time_ns() // 1000 % 8 if steps else 0)
PartialRollouts._limit = limit
""",
        "other token_ids",
    ),
}
"""What is wrong in outdo, or in what it calls. It is in the run of the row; the one beside has no fault."""


class Faulty(Bench):
    """Runs with the fault of a folder; what they are compared with is trained by the bench `sound`."""

    def __init__(self, sound: Bench, folder: Path) -> None:
        self.device, self.gpus, self.home, self.names = sound.device, sound.gpus, sound.home, sound.names
        self.sound, self.folder = sound, folder
        self._trained = {}

    def train(self, settings: str, **how: Any) -> Trained:
        if "again" in how:  # the run beside
            return self.sound.train(settings, **how)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(self.folder), prepend=os.pathsep)
            return super().train(settings, **how)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Three processors, and runs without a fault."""
    return Bench("cpu", 3, tmp_path_factory.mktemp("gpu") / "home")


def result(row: str, bench: Bench) -> dict[str, Any]:
    found = program.result(ROWS[row], bench)
    print(row, found["verdict"], found["said"], found.get("output", ""), sep="\n")
    if found["verdict"] == "not applicable":
        pytest.skip(found["said"])
    return found


@pytest.mark.parametrize("row", dict.fromkeys(fault.row for fault in FAULTS.values()))
def test_a_row_passes_on_a_processor(row: str, sound: Bench):
    assert result(row, sound)["verdict"] == "pass"


@pytest.mark.parametrize("name", FAULTS)
def test_a_row_fails_with_a_fault(name: str, sound: Bench, tmp_path: Path):
    fault = FAULTS[name]
    (tmp_path / "sitecustomize.py").write_text(f"MODULE, LINES = {fault.module!r}, {fault.lines!r}\n{SITE}")
    found = result(fault.row, Faulty(sound, tmp_path))
    assert found["verdict"] == "fail"
    assert fault.says in found["said"]
