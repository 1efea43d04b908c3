"""What a reward reads of an episode: texts and token ids that belong together, and all tokens that were sampled."""

from typing import Any

import openai
import pytest
from agent_cases import agent
from agent_cases import play as play_agent
from episode_cases import add, call, dialogue, question

from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine
from outdo.types import Rollout

AGAIN = Reply(messages=[{"role": "user", "content": "again"}])


class Turns:
    """Ends the episode after so many turns."""

    def __init__(self, turns: int) -> None:
        self.left = turns

    def reply(self, message: dict[str, Any]) -> Reply:
        self.left -= 1
        return AGAIN if self.left else Reply(done=True)


def play(environment: Dialogue, script: list[str], max_tokens: int = 400) -> Rollout:
    engine = ScriptedEngine(script, environment.template.tokenizer)
    prompts, sampling = [question(environment.template)], SamplingParams(max_tokens=max_tokens)
    (group,) = environment.rollouts(engine, prompts, 1, sampling, step=1, purpose="train")
    return group.rollouts[0]


def penalty(sampled: int, limit: int, cache: int) -> float:
    """DAPO's equation 13."""
    return 0.0 if sampled <= limit - cache else -1.0 if sampled > limit else (limit - cache - sampled) / cache


EPISODES = [
    (200, [150, 1]),
    (200, [1, 150]),
    (200, [90, 90]),
    (160, [150, 1]),
    (150, [98]),
    (150, [49, 50]),
    (300, [80] * 3),
]
"""The limit of an episode, and the letters of its turns."""


@pytest.mark.parametrize(("limit", "lengths"), EPISODES)
def test_overlong_counts_the_sampled_tokens_of_all_turns_wherever_they_are(limit: int, lengths: list[int]) -> None:
    cache = 100
    reward = load_reward({"name": "overlong", "max_tokens": limit, "cache": cache})
    environment = dialogue(lambda: Turns(len(lengths)), reward=reward)
    rollout = play(environment, ["x" * length for length in lengths], max_tokens=limit)
    assert rollout.reward == pytest.approx(penalty(sum(rollout.loss_mask), limit, cache))
    assert rollout.reward < 0


def test_overlong_does_not_count_what_a_tool_writes() -> None:
    def long(times: int) -> str:
        """Write a long text.

        Args:
            times: How long it is.
        """
        return "y" * times

    reward = load_reward({"name": "overlong", "max_tokens": 400, "cache": 400})
    short, other = (
        play(dialogue(tools=[long], reward=reward), [call("long", times=times), "It is."]) for times in (10, 99)
    )
    assert len(other.token_ids) - len(short.token_ids) == 89
    assert short.reward == other.reward == -sum(short.loss_mask) / 400


seen: dict[str, Any] = {}
"""What the reward functions below got."""


def plain(completion: str, completion_ids: Any, sampled_ids: Any, messages: Any) -> float:
    seen["plain"] = completion, completion_ids, sampled_ids, messages
    return 0.0


def trl(prompts: Any, completions: Any, completion_ids: Any, **_: Any) -> list[float]:
    seen["trl"] = completions[0], completion_ids[0]
    return [0.0] * len(completions)


def cs336(response: str, ground_truth: str, completion_ids: Any, sampled_ids: Any) -> float:
    seen["cs336"] = response, completion_ids, sampled_ids
    return 0.0


def verl(data_source: Any, solution_str: str, ground_truth: Any) -> float:
    seen["verl"] = solution_str
    return 0.0


def sampled_of(rollout: Rollout) -> list[int]:
    return [token for token, sampled in zip(rollout.token_ids, rollout.loss_mask, strict=True) if sampled]


@pytest.mark.parametrize("script", [["It is 5."], [call("add", a=2, b=3), "It is 5."]])
def test_the_token_ids_that_a_function_gets_are_those_of_the_text_that_it_gets(script: list[str]) -> None:
    environment = dialogue(tools=[add], reward=load_reward([plain, trl, cs336, verl]))
    rollout = play(environment, script)
    tokenizer = environment.template.tokenizer
    last = tokenizer.encode("It is 5.<|end|>")
    whole, sampled = list(rollout.token_ids), sampled_of(rollout)
    roles = [message["role"] for message in seen["plain"][3]]
    assert roles == ["assistant", "tool", "assistant"][-2 * len(script) + 1 :]
    assert seen["plain"][:3] == ("It is 5.", last, sampled)
    assert seen["cs336"] == ("It is 5.", last, sampled)
    assert seen["verl"] == "It is 5."
    assert seen["trl"] == (seen["plain"][3], whole)  # as in TRL, with the results of tools
    assert [str(message["content"]) in tokenizer.decode(whole) for message in seen["trl"][0]] == [True] * len(roles)


def test_of_an_agent_they_are_those_of_its_longest_conversation() -> None:
    def run(row: dict[str, Any], base_url: str) -> float:
        with openai.OpenAI(base_url=base_url, api_key="any") as client:
            for text in ("Long?", "Short?"):
                messages: Any = [{"role": "user", "content": text}]
                for _ in range(2):
                    answer = client.chat.completions.create(model="any", messages=messages).choices[0].message
                    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "On."}]
        return 0.0

    penalised = {"name": "overlong", "max_tokens": 100, "cache": 100}
    environment = agent(run, reward=load_reward([plain, trl, penalised]))
    (rollout,) = play_agent(environment, ["long", "longest", "a", "b"])
    completion, ids, sampled, messages = seen["plain"]
    encode = environment.template.tokenizer.encode
    assert (completion, ids) == ("longest", encode("longest<|end|>"))
    assert [message["content"] for message in messages] == ["long", "On.", "longest"]
    assert seen["trl"] == (messages, encode("long<|end|>\n<|user|>On.<|end|>\n<|assistant|>longest<|end|>"))
    assert sampled == encode("long<|end|>longest<|end|>")
    assert rollout.reward_parts["overlong"] == -len(sampled) / 100
    assert sampled_of(rollout) == [*sampled, *encode("a<|end|>b<|end|>")]
