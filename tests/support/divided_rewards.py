"""What two replicas that divide a reward model among them check together."""

import gc
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from divided_cases import assert_equal, dividing, peak_memory, saved_model
from safetensors.torch import load_file, save_file

from outdo.extras.replicas.replicas import Replicas
from outdo.extras.reward_models.model import RewardModel
from outdo.extras.reward_models.online_model import OnlineRewardModel, reward_model
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards.comparisons import Comparison
from outdo.rewards.context import RewardContext
from outdo.rewards.types import RewardInput
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.types import Group, Prompt
from outdo.utils.errors import ModelError, NonFiniteWeightsError
from outdo.utils.sharded_tensors import is_sharded, own_part, whole

LEARNING = OptimiserSettings(lr=1e-3)


def saved_classifier(replicas: Replicas, name: str, **how: object) -> Path:
    """A tiny reward model that the first replica writes, for both to read."""
    policy = saved_model(replicas, f"{name}-policy", **how)
    replicas.from_first(lambda: RewardModel.from_policy(policy, device="cpu").save(Path(name)))
    return Path(name)


def loaded(folder: Path, replicas: Replicas, **how: Any) -> tuple[RewardModel, RewardModel]:
    """The reward model in one process, and in parts."""
    settings: dict[str, Any] = {"device": "cpu", "optimiser": LEARNING, "micro_batch_tokens": 64, **how}
    return RewardModel.load(folder, **settings), RewardModel.load(folder, world=dividing(replicas), **settings)


def a_divided_reward_model_scores_as_one_process_does(replicas: Replicas) -> None:
    """Every architecture, stored in either precision, however few answers there are."""
    for arch in ("qwen3", "gpt2", "gemma3_text"):
        folder = saved_classifier(replicas, f"scores-{arch}", arch=arch)
        for stored in ("float32", "bfloat16"):
            alone, parts = loaded(folder, replicas, base_weights=stored)
            held = sum(own_part(weight).numel() for weight in parts.model.parameters())
            assert held <= 0.52 * alone.model.num_parameters()
            for count in (0, 1, 2, 3, 20):  # also fewer answers than replicas
                inputs = [
                    RewardInput(prompt=f"{n}+8=", completion="15" * (n * n % 7), answer=None) for n in range(count)
                ]
                found, expected = ([each.value for each in model(inputs)] for model in (parts, alone))
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
                assert len(set(replicas.together(lambda: tuple(found)))) == 1  # noqa: B023


def comparisons(count: int, *, seed: int = 0) -> list[Comparison]:
    """Comparisons with several answers each, of any length."""
    random = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=random))

    return [
        Comparison(
            prompt=f"{number(0, 99)}+8=",
            completions=tuple("3" * number(0, 20) + str(place) for place in range(size)),
            values=tuple(float(place) for place in range(size)),
        )
        for size in (number(2, 5) for _ in range(count))
    ]


def a_divided_reward_model_learns_as_one_process_does(replicas: Replicas) -> None:
    """Gradients, metrics and weights, for every loss, also where one replica has no comparison."""
    folder = saved_classifier(replicas, "learns")
    for loss in ("pairs", "regression"):
        alone, parts = loaded(folder, replicas)
        for step, count in enumerate((1, 7, 2, 5)):
            data = comparisons(count, seed=step)
            (ranking, metrics), (expected, of_one) = (model.update(data, loss) for model in (parts, alone))  # type: ignore[arg-type]
            assert ranking == expected
            assert metrics == pytest.approx(of_one, rel=1e-5, abs=1e-6)
        found = whole(parts.model.state_dict())
        for name, weight in alone.model.state_dict().items():
            torch.testing.assert_close(found[name], weight, rtol=0, atol=3e-6)
        assert all(map(is_sharded, parts.optimiser.weights.values()))


def a_divided_reward_model_goes_on_from_its_state(replicas: Replicas) -> None:
    """Bit for bit; and one process goes on from it as well."""
    folder = saved_classifier(replicas, "resumed")
    alone, first = loaded(folder, replicas)
    first.update(comparisons(6))
    tree, tensors = pack(whole(first.state()))
    state = unpack(tree, {name: each.clone() for name, each in tensors.items()})
    alone.load_state(state)
    assert_equal(alone.state(), whole(first.state()))
    _, second = loaded(folder, replicas)
    second.load_state(state)
    for model in (first, second):
        model.update(comparisons(5, seed=1))
    assert_equal(whole(first.state()), whole(second.state()))


def a_reward_model_of_a_run_is_refreshed_in_parts(replicas: Replicas) -> None:
    """By the name of the piece in a recipe."""
    folder = saved_classifier(replicas, "refreshed")
    models = [
        reward_model(context, path=str(folder), labels="exact", every=1, steps=3, batch=3, lr=1e-3, device="cpu")
        for context in (RewardContext(), RewardContext(world=dividing(replicas)))
    ]
    groups = [group_of(number) for number in range(5)]
    measured = []
    for model in models:
        assert isinstance(model, OnlineRewardModel)
        measured.append([model.after_step(step, groups) for step in (1, 2)])
        model.close()
    assert models[1].is_divided
    for found, expected in zip(*measured, strict=True):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def group_of(number: int) -> Group:
    """Two answers, one of them right."""
    from toys import rollout

    answers = (str(number), str(number + 1))
    prompt = Prompt(id=f"{number}", text=f"{number}?", token_ids=(5,), answer=str(number))
    return Group(prompt=prompt, rollouts=tuple(rollout(3, 0.0, text=text) for text in answers))


def faults_of_one_part_of_a_reward_model_are_named_by_all(replicas: Replicas) -> None:
    """A number that is not finite is refused when it is read, and before it is saved."""
    folder = saved_classifier(replicas, "faulty")
    _, parts = loaded(folder, replicas)
    own_part(next(parts.model.parameters()).detach()).fill_(torch.inf)
    with pytest.raises(NonFiniteWeightsError, match="the reward model"):
        parts.state()
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name][-1, -1] = torch.nan
    replicas.from_first(lambda: save_file(tensors, folder / "model.safetensors", {"format": "pt"}))
    with pytest.raises(ModelError, match=re.escape("1 of")) as refused:
        RewardModel.load(folder, device="cpu", world=dividing(replicas))
    assert len(set(replicas.together(lambda: str(refused.value)))) == 1


def a_divided_reward_model_takes_a_part_of_the_memory(replicas: Replicas) -> None:
    """While it is read, too."""
    how = {"hidden": 512, "layers": 12}
    folder = saved_classifier(replicas, "large", **how)
    replicas.from_first(lambda: RewardModel.load(folder, device="cpu").model.bfloat16().save_pretrained(folder))
    gc.collect()
    size = 2 * (folder / "model.safetensors").stat().st_size  # in float32
    world = dividing(replicas)
    with peak_memory() as of_parts:
        parts = RewardModel.load(folder, device="cpu", world=world)
    with peak_memory() as of_all:
        RewardModel.load(folder, device="cpu")
    assert of_all[0] > 0.9 * size
    assert of_parts[0] < 0.65 * size
    del parts
