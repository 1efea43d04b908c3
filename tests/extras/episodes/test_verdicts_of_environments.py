"""Whether an episode is right by its environment, which may give True, False, numbers, or nothing."""

import pytest

from outdo.extras.episodes.conversation import NO_REWARD, Conversation
from outdo.rewards.environment import NAME
from outdo.rewards.right import verdicts_of_function
from outdo.types import Completion, FinishReason, Prompt
from outdo.utils.rng import Stream


def verdicts_of(*episodes: list[object]) -> list[bool | None]:
    played = []
    for number, rewards in enumerate(episodes):
        last = Completion(token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.stop, policy_version=0)
        prompt = Prompt(id=str(number), text="?", token_ids=(1,))
        episode = Conversation(prompt=prompt, stream=Stream("train", 1, str(number), 0), last_turn=last)
        for reward in rewards:
            episode.final_reward = episode.checked_reward(reward)
        played.append(episode)
    verdicts = verdicts_of_function(NAME)
    verdicts.note([output for each in played for output in each.given])
    return [each.add_rewards(NO_REWARD, verdicts).right for each in played]


@pytest.mark.parametrize(
    ("episodes", "right"),
    [
        (([True], [False], [-0.1, -0.1], []), [True, False, False, False]),  # only a success is True
        (([False], [1.0], [0.5], []), [False, True, False, False]),  # False in one branch, a number in the other
        (([0.2, True, -0.1],), [True]),
        (([1.0], [0.0], []), [None, None, None]),  # numbers alone
    ],
)
def test_an_environment_that_returns_true_or_false_gives_every_episode_a_verdict(
    episodes: list[list[object]], right: list[bool | None]
) -> None:
    assert verdicts_of(*episodes) == right
