"""What the options of divided models change, checked by two replicas together: main memory, and narrow gradients."""

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch
from divided_cases import M_MMAP_THRESHOLD, OBJECTIVE, assert_equal, dividing, peak_memory, saved_model, step_of
from policy_cases import prepared
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from outdo.algorithms.advantages import gae
from outdo.config.file import load
from outdo.extras.replicas import sharding
from outdo.extras.replicas.replicas import Replicas
from outdo.models.bundle import Models
from outdo.models.inspect_folder import inspect_folder
from outdo.models.optimiser import Optimiser, OptimiserSettings, adafactor, adamw, adamw8bit, polyak, sgd
from outdo.models.policy import Policy
from outdo.run.check import cost
from outdo.testing import tiny_model
from outdo.utils.errors import UserError
from outdo.utils.sharded_tensors import whole

CPU = torch.device("cpu")


def models_of(folder: Path, replicas: Replicas, **how: Any) -> Models:
    return Models.of(Policy.load(folder, device="cpu", world=dividing(replicas, **how)), OBJECTIVE, advantage=gae)


def weights_of(models: Models) -> Any:
    return whole([dict(models.policy.model.state_dict()), models.state()])


def offloaded_models_compute_the_same_bits(replicas: Replicas) -> None:
    """On a CPU nothing is copied, and every part of FSDP and of the models takes the path of the policy."""
    folder, handed = saved_model(replicas, "offloaded"), list[dict[str, Any]]()
    divide = sharding.fully_shard

    def fully_shard(*arguments: Any, **how: Any) -> Any:
        handed.append(how)
        return divide(*arguments, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "fully_shard", fully_shard)
        offloaded = models_of(folder, replicas, offload=True)
    assert len(handed) >= 3 * 3  # policy, reference and critic: each layer, and the root
    assert {type(each["offload_policy"]) for each in handed} == {CPUOffloadPolicy}
    plain = models_of(folder, replicas)
    for models in (offloaded, plain):
        step_of(models)
        step_of(models)
    assert_equal(weights_of(offloaded), weights_of(plain))


def gradients_are_summed_in_the_dtype_that_is_asked_for(replicas: Replicas) -> None:
    """In bfloat16 the gradient of a step is off by its rounding, and the weights stay float32."""
    folder, norms = saved_model(replicas, "narrow"), []
    for reduce_dtype in (None, torch.bfloat16):
        models = models_of(folder, replicas, reduce_dtype=reduce_dtype)
        gradients: list[Any] = []
        step = models.policy.optimiser.step

        def kept(loss: float, step: Any = step, models: Any = models, gradients: Any = gradients) -> dict[str, float]:
            gradients.extend(whole(weight.grad) for weight in models.policy.optimiser.weights.values())
            return step(loss)

        models.policy.optimiser.step = kept  # type: ignore[method-assign]
        step_of(models)
        norms.append(torch.cat([each.flatten().double() for each in gradients]))
        assert {each.dtype for each in models.policy.optimiser.weights.values()} == {torch.float32}
    difference = float((norms[0] - norms[1]).norm() / norms[0].norm())
    assert 1e-5 < difference < 1e-2


def algorithms_step_as_on_whole_weights_or_are_refused(replicas: Replicas) -> None:
    """The step of `polyak` is as long as the gradient of all parts says; others have no operators for parts."""

    def linear(*, divided: bool) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        return sharding.fully_shard(model, mesh=dividing(replicas).how["mesh"]) if divided else model

    for algorithm in (adamw, sgd, polyak):
        stepped: list[list[torch.Tensor]] = []
        for divided in (False, True):
            model = linear(divided=divided)
            optimiser = Optimiser(model, OptimiserSettings(lr=1.0, algorithm=algorithm, clip_norm=1e9))
            model(torch.arange(8.0).view(2, 4)).square().sum().backward()
            optimiser.step(2.0)
            stepped.append([whole(weight.detach()) for weight in model.parameters()])
        torch.testing.assert_close(*stepped)
    for refused in (adafactor, adamw8bit):
        with pytest.raises(UserError, match="does not work on weights that are divided"):
            Optimiser(linear(divided=True), OptimiserSettings(algorithm=refused))


def the_memory_of_a_replica_is_what_the_check_of_a_recipe_says(replicas: Replicas) -> None:
    """In training, and while the policy is gathered."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)  # freed memory is given back at once
    folder = Path("estimated")
    replicas.from_first(lambda: tiny_model(folder, hidden=512, layers=12)[0].bfloat16().save_pretrained(folder))
    lengths = ["train.prompts=1", "data.max_prompt_tokens=8", "sampling.max_tokens=8"]
    recipe = load(None, [*lengths, "model=m", "data.path=x", "cluster.replicas=2", "cluster.shard=true", "device=cpu"])
    expected = cost.memory(inspect_folder(folder), recipe, reference=True)
    expected.pop(cost.COPY)  # nothing is saved here
    expected.pop(cost.LIBRARIES)  # they are there before
    batch = prepared()
    with peak_memory() as of_training:
        policy = Policy.load(folder, device="cpu", world=dividing(replicas))
        models = Models.of(policy, OBJECTIVE)
        models.update(batch.with_(ref_logprobs=models.reference.logprobs(batch)), OBJECTIVE)  # type: ignore[union-attr]
    with peak_memory() as of_sampling, policy.forward.gathered():
        pass
    training = sum(size for name, size in expected.items() if not name.endswith("while sampling"))
    ratios = of_training[0] / training, of_sampling[0] / expected["all weights, gathered while sampling"]
    found = replicas.together(lambda: ratios)
    assert all(0.75 < trained < 1.15 and 0.9 < sampled < 1.15 for trained, sampled in found), (found, expected)
