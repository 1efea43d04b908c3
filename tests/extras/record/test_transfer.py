"""On a prompt's next visit, did fresh answers follow?"""

import json
from collections.abc import Sequence
from random import Random

import pytest
from record_cases import rollout

from outdo.extras.record.transfer import Transfer
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.types import Group, Prompt


def group(prompt: str, *rewards: float | None) -> Group:
    """Answers with these rewards; None: the reward failed."""
    answers = [rollout(1, 0.0, status="failed") if each is None else rollout(1, each) for each in rewards]
    return Group(prompt=Prompt(id=prompt, text="", token_ids=(1,)), rollouts=tuple(answers))


def seen(*steps: Sequence[Group]) -> dict[str, float]:
    """What the last of these steps says."""
    transfer = Transfer()
    return [transfer.observe(index, groups) for index, groups in enumerate(steps, 1)][-1]


def test_new_answers_are_compared_with_those_of_the_previous_visit():
    before = [group("a", 0.0, 1.0), group("b", 0.0, 0.0, 1.0, 1.0), group("c", 0.0, 0.5), group("d", 0.0, 1.0)]
    after = [group("a", 1.0, 1.0), group("b", 0.0, 1.0), group("c", 0.0, 0.0), group("new", 1.0, 0.0)]
    assert seen(before, after) == {
        "transfer": pytest.approx((0.5 + 0.0 - 0.25) / 3),
        "transfer/followed": pytest.approx(1 / 2),  # of a and c; b stays as it was
        "transfer/changed": 2.0,
        "transfer/prompts": 3.0,
        "transfer/visits": (2 + 2 + 2 + 1) / 4,
    }


@pytest.mark.parametrize(("easy", "dense"), [(0.05, False), (0.9, True)], ids=["right or wrong", "dense"])
def test_without_a_change_of_the_policy_a_rise_is_as_likely_as_a_fall(easy: float, dense: bool):
    """The share of rises is that of heads in `transfer/changed` throws, for easy and for hard questions."""
    random, transfer, rises, changed = Random(1), Transfer(), 0.0, 0.0
    for step in range(1, 60):
        groups = [
            group(str(n), *((random.random() < easy) + dense * random.gauss(0, 0.3) for _ in range(8)))
            for n in range(40)
        ]
        found = transfer.observe(step, groups)
        changed += found.get("transfer/changed", 0.0)
        rises += found.get("transfer/followed", 0.0) * found.get("transfer/changed", 0.0)
    assert changed > 700
    assert abs(2 * rises - changed) < 3 * changed**0.5


def test_a_repeated_step_is_not_compared_with_itself():
    transfer = Transfer()
    transfer.observe(3, [group("a", 0.0, 1.0)])
    assert transfer.observe(3, [group("a", 1.0, 1.0)]) == {}
    assert transfer.observe(4, [group("a", 1.0, 1.0)])["transfer/visits"] == 2


def test_visits_survive_a_checkpoint():
    before, resumed = Transfer(), Transfer()
    before.observe(1, [group("a", 0.0, 1.0), group("$b", 0.25, 0.5, 0.6)])
    tree, tensors = pack(before.state())
    assert not tensors
    resumed.load_state(unpack(json.loads(json.dumps(tree)), tensors))
    assert resumed.state() == before.state()
    after = [group("$b", 1.0), group("a", 1.0, 0.0, 0.0)]
    assert resumed.observe(2, after) == before.observe(2, after) != {}
    assert resumed.state() == before.state()
