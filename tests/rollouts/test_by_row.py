"""Test questions of several environments in one step: each is played in its own, as it would be alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from episode_cases import dialogue, question

from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.rewards import load_reward
from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment
from outdo.rollouts.environments.by_row import ByRow
from outdo.rollouts.environments.single_turn import SingleTurn
from outdo.testing import ScriptedEngine
from outdo.types import Group, Prompt, Request
from outdo.utils.errors import RewardError, UserError

SAMPLING = SamplingParams(max_tokens=200)
HAS_FIVE = load_reward("last_number")


class Twice:
    """Answers one turn, with a reward for each."""

    def reply(self, message: Mapping[str, Any]) -> Reply:
        return Reply(messages=[{"role": "user", "content": "Again."}], reward=0.25)


class Broken:
    def reply(self, message: Mapping[str, Any]) -> Reply:
        raise RuntimeError("out of order")


def of(make: Any) -> Dialogue:
    return dialogue(make, turns=2, reward=HAS_FIVE, max_failed=1.0)


def by_row(max_failed: float = 0.5) -> ByRow:
    environments: dict[str | None, Environment] = {
        "broken": of(Broken),
        "twice": of(Twice),
        None: SingleTurn(HAS_FIVE, max_failed=1.0),
    }
    return ByRow(environments, lambda prompt: prompt.columns.get("environment"), max_failed=max_failed)


def prompts(*names: str | None) -> list[Prompt]:
    template = of(Twice).template
    return [
        replace(question(template, f"{place}?", str(place)), columns={"environment": name} if name else {})
        for place, name in enumerate(names)
    ]


def play(environment: Environment, asked: Sequence[Prompt], **more: Any) -> list[Group]:
    def script(request: Request) -> str:
        return f"{request.stream.prompt_id} {request.stream.sample} {request.position} is 5"

    engine = ScriptedEngine(script, of(Twice).template.tokenizer)
    return environment.rollouts(engine, asked, 2, SAMPLING, step=1, purpose="train", **more)


def test_each_question_is_played_in_the_environment_of_its_row_and_the_order_is_kept() -> None:
    asked = prompts("twice", None, "twice")
    groups = play(by_row(), asked)
    assert [group.prompt.id for group in groups] == ["0", "1", "2"]
    assert [[sum(turns_of(group)[row]) for row in range(2)] for group in groups] == [[2, 2], [1, 1], [2, 2]]
    assert [dict(group.rollouts[0].counts).get("environments/twice") for group in groups] == [1, None, 1]
    assert [group.rollouts[0].reward for group in groups] == [1.5, 1.0, 1.5]


def turns_of(group: Group) -> list[list[bool]]:
    """Where a turn of the policy begins, of each rollout."""
    return [
        [own and not before for before, own in zip((False, *each.loss_mask), each.loss_mask, strict=False)]
        for each in group.rollouts
    ]


def test_an_episode_is_that_of_its_environment_alone() -> None:
    asked = prompts("twice", None, "twice", None)
    groups = play(by_row(), asked)
    for environment, places in ((of(Twice), (0, 2)), (SingleTurn(HAS_FIVE), (1, 3))):
        for group, alone in zip(
            [groups[p] for p in places], play(environment, [asked[p] for p in places]), strict=True
        ):
            kept = [replace(each, counts={}) for each in group.rollouts]
            assert kept == [replace(each, counts={}) for each in alone.rollouts]


def test_failures_are_counted_over_all_environments() -> None:
    failures = FailureCount()
    groups = play(by_row(), prompts("broken", None, "twice", None), failures=failures)
    assert [each.status for each in groups[0].rollouts] == ["failed", "failed"]
    assert (len(failures.failed), failures.rewards) == (2, 8)
    with pytest.raises(RewardError, match="2 of 8 rewards of this step have no value"):
        play(by_row(max_failed=0.2), prompts("broken", None, "twice", None))


def test_an_environment_whose_rollouts_are_no_single_answers_has_no_requests_for_partial_rollouts():
    with pytest.raises(UserError, match="partial rollouts: a rollout of ByRow is more than one answer"):
        by_row().requests(prompts("twice"), 2, SAMPLING, step=1, purpose="train")
