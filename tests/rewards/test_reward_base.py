"""What a reward may be, and what its wrappers pass on."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outdo.extras.reward_models.model import RewardModel
from outdo.extras.reward_models.online_model import OnlineRewardModel
from outdo.rewards import InProcessReward, Reward, RewardInput, RewardOutput, WeightedSum
from outdo.rewards.first_rank import FirstRankReward, score_on_first_rank
from outdo.rewards.in_process import as_reward
from outdo.rewards.types import to_output
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.utils.errors import UserError
from outdo.utils.world import ALONE, World

Sample = Callable[..., RewardInput]
OFFERED = [name for name in vars(Reward) if not name.startswith("_") or name == "__call__"]
"""Everything that a run may ask of a reward."""


class FullReward(Reward):
    """A reward that answers to everything with something else than the default."""

    name = "length"
    source = "mine"
    is_paid = True
    is_divided = True
    has_numbers = True
    sandboxes = ("a box",)
    labels = InProcessReward(lambda completion: 1.0, "labels")

    def __init__(self):
        self.called = []

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        return [to_output(len(each.completion), self.name) for each in inputs]

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.called.append(("load_state", state))

    def start(self) -> list[str]:
        return ["length in a process"]

    def after_step(self, step: int, groups: Sequence[Any]) -> dict[str, float]:
        return {"length/step": float(step)}

    def metrics(self) -> dict[str, float]:
        return {"asked": 2.0}

    def state(self) -> dict[str, Any]:
        return {"count": 3}

    def close(self) -> None:
        self.called.append(("close", None))


class Two(World):
    """Two processes, of which this one is the first."""

    def __len__(self) -> int:
        return 2


WRAPPERS: dict[str, Callable[[Reward], Reward]] = {
    "first rank": lambda reward: FirstRankReward(reward, Two()),
    "sum": lambda reward: WeightedSum([(reward, 1.0)], right="length"),
    "sum of the first rank": lambda reward: WeightedSum([(FirstRankReward(reward, Two()), 1.0)], right="length"),
    "sum within a sum": lambda reward: WeightedSum([(WeightedSum([(reward, 1.0)], right="length"), 1.0)]),
}


def test_the_full_reward_has_no_default():
    assert not [name for name in OFFERED if getattr(FullReward, name) is getattr(Reward, name)]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", OFFERED)
def test_a_wrapper_passes_on_everything_that_a_reward_offers(wrapper: str, name: str, sample: Sample):
    reward = FullReward()
    wrapped = WRAPPERS[wrapper](reward)
    wrapped([sample("four")])
    if name == "__call__":
        assert [output.value for output in wrapped([sample("four"), sample("")])] == [4.0, 0.0]
    elif name == "after_step":
        assert wrapped.after_step(7, []) == {"length/step": 7.0}
    elif name == "metrics":
        assert list(wrapped.metrics().values()) == [2.0]
    elif name in ("state", "load_state"):
        wrapped.load_state(wrapped.state())
        assert reward.called == [("load_state", {"count": 3})]
    elif name == "close":
        wrapped.close()
        assert reward.called == [("close", None)]
    elif name == "start":
        assert list(wrapped.start()) == ["length in a process"]
    else:
        assert getattr(wrapped, name) in (getattr(reward, name), list(reward.sandboxes))


def test_a_reward_model_that_learns_passes_on_what_its_labels_offer():
    labels, model = FullReward(), SimpleNamespace(name="model", is_divided=True, close=lambda: None)
    reward = OnlineRewardModel(cast(RewardModel, model), labels, every=1)
    assert (reward.name, reward.is_divided, reward.is_paid, reward.labels) == ("model", True, True, labels)
    assert (reward.sandboxes, reward.start(), reward.metrics()) == (("a box",), ["length in a process"], {"asked": 2.0})
    reward.close()
    assert labels.called == [("close", None)]


def test_the_first_rank_scores_all_but_divided_rewards_and_a_sum_keeps_its_rule(sample: Sample):
    divided, whole = FullReward(), InProcessReward(lambda completion: 1.0, "whole")
    total = WeightedSum([(divided, 1.0), (whole, 0.0)], right="whole")
    together = score_on_first_rank(total, Two())
    assert together.rewards[0] is divided
    assert isinstance(together.rewards[1], FirstRankReward)
    (output,) = together([sample("four")])
    assert (output.value, output.right) == (4.0, True)
    assert score_on_first_rank(total, ALONE) is total


class Unrelated:
    """A class of a user that inherits from nothing, and has the signature of a reward function."""

    def __call__(self, completion: str, answer: str) -> float:
        return float(completion == answer)


class Almost:
    """A class of a user that looks like a reward and is none."""

    name = "almost"

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        return [to_output(1.0, self.name) for _ in inputs]

    def close(self) -> None: ...


class Minimal(Reward):
    """The least that a user has to write."""

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        return [to_output(each.completion == each.answer, self.name) for each in inputs]


@pytest.mark.parametrize("reward", [lambda completion, answer: completion == answer, Unrelated(), Minimal()])
def test_a_function_and_a_class_of_a_user_are_rewards(reward: Any, sample: Sample):
    for taken in (SingleTurn(reward).reward, WeightedSum([(reward, 1.0)])):
        outputs = taken([sample("1"), sample("2")])
        assert [output.value for output in outputs] == [1.0, 0.0]
        assert (taken.metrics(), taken.state(), taken.start()) == ({}, {}, type(taken.start())())
        taken.close()


def test_a_class_that_takes_inputs_is_told_what_to_inherit_from():
    with pytest.raises(UserError, match=r"RewardInput, Almost has to inherit from outdo\.rewards\.Reward$"):
        as_reward(Almost())
    with pytest.raises(UserError, match="known are") as caught:
        as_reward(lambda question: 1.0)
    assert "inherit" not in str(caught.value)


def test_a_reward_without_a_call_says_so():
    with pytest.raises(NotImplementedError, match=r"Reward has no __call__\(inputs\)"):
        Reward()([])
