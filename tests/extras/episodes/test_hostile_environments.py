"""Test that an environment that returns nonsense or raises anything fails its own episode, and ends no run."""

from typing import Any

import pytest
from episode_cases import dialogue, question

from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine

LONE_SURROGATE = "\ud83d"


class Hostile:
    """Fails at the place that the text of the question names; other questions end after one turn."""

    def begin(self, prompt: Any) -> Any:
        self.text = prompt.text
        if "begin returns" in self.text:
            return LONE_SURROGATE
        if "begin is interrupted" in self.text:
            raise KeyboardInterrupt
        return ""

    def reply(self, message: dict[str, Any]) -> Any:
        if "reply returns" in self.text:
            return LONE_SURROGATE
        if "reply is interrupted" in self.text:
            raise KeyboardInterrupt
        return None

    async def final_reward(self) -> float:
        if "reward is interrupted" in self.text:
            raise KeyboardInterrupt
        return 1.0


@pytest.mark.parametrize(
    "fault",
    [
        "begin returns a lone surrogate",
        "begin is interrupted",
        "reply returns a lone surrogate",
        "reply is interrupted",
        "reward is interrupted",
    ],
)
def test_a_fault_of_an_environment_fails_its_episode_alone(fault: str) -> None:
    environment = dialogue(Hostile)
    engine = ScriptedEngine(lambda _: "a", environment.template.tokenizer)
    prompts = [question(environment.template, text, text) for text in (fault, "sound", "sound too")]
    failed, *others = environment.rollouts(engine, prompts, 2, SamplingParams(max_tokens=99), step=1, purpose="train")
    assert [(rollout.status, rollout.reward) for rollout in failed.rollouts] == [("failed", 0.0)] * 2
    assert {rollout.reward for group in others for rollout in group.rollouts} == {1.0}


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_environment_that_cannot_be_made_is_a_verdict_whatever_it_raises(error: type[BaseException]) -> None:
    class Broken:
        def __init__(self) -> None:
            raise error

    environment = dialogue(Broken, max_failed=1.0)
    engine = ScriptedEngine(lambda _: "a", environment.template.tokenizer)
    prompts = [question(environment.template)]
    (group,) = environment.rollouts(engine, prompts, 1, SamplingParams(max_tokens=99), step=1, purpose="train")
    assert [rollout.status for rollout in group.rollouts] == ["failed"]
