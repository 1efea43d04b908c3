"""Environments of other libraries run unchanged: those that are installed, and classes of the same form."""

import random
import re
import time
from dataclasses import replace
from typing import Any

import gymnasium
import pytest
import torch
from episode_cases import dialogue, question
from gymnasium.spaces import Text
from gymnasium.wrappers import TimeLimit
from skyrl_gym.envs.gsm8k.multi_turn_env import GSM8kMultiTurnEnv

from outdo.extras.episodes.adapt import episode_maker
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine
from outdo.types import Rollout

SAMPLING = SamplingParams(max_tokens=600)


def play(make: Any, *turns: str, options: dict[str, Any] | None = None, **columns: Any) -> tuple[str, Rollout]:
    """The prompt and the rollout of one episode, in which the policy writes these turns."""
    prompts, rollouts = play_all(make, [turns], options=options, **columns)
    return prompts, rollouts[0]


def play_all(
    make: Any, scripts: list[tuple[str, ...]], *, options: dict[str, Any] | None = None, **columns: Any
) -> tuple[str, list[Rollout]]:
    """The prompt and the rollouts of one question, one for each script."""
    environment = dialogue(episode_maker(make, options or {}))
    left = [list(turns) for turns in scripts]
    engine = ScriptedEngine(lambda request: left[request.stream.sample].pop(0), environment.template.tokenizer)
    prompt = replace(question(environment.template), columns=columns)
    (group,) = environment.rollouts(engine, [prompt], len(scripts), SAMPLING, step=1, purpose="train")
    return group.prompt.text if isinstance(group.prompt.text, str) else group.prompt.text[-1]["content"], list(
        group.rollouts
    )


def read(rollout: Rollout) -> str:
    """What the policy read after its first turn."""
    tokenizer = dialogue().template.tokenizer
    return str(tokenizer.decode([t for t, own in zip(rollout.token_ids, rollout.loss_mask, strict=True) if not own]))


def turn_rewards(rollout: Rollout) -> list[float]:
    assert rollout.token_rewards is not None
    return [reward for reward in rollout.token_rewards if reward]


# --------------------------------------------------------------------------------------------------------------- SkyRL


def test_an_environment_of_skyrl_runs_unchanged():
    columns = {"reward_spec": {"ground_truth": "5"}, "extra_info": {"max_turns": 3}}
    prompt, rollout = play(GSM8kMultiTurnEnv, "I think #### 6", "Let me see. #### 5", **columns)
    assert prompt == "What is 2 + 3?"
    assert turn_rewards(rollout) == pytest.approx([0.2 / 3, 1.0])
    assert rollout.reward == pytest.approx(1.0 + 0.2 / 3)
    assert "tentative numeric answer" in read(rollout)


class Recorded:
    """An environment in the form of SkyRL's that shows what it was made with."""

    seen: dict[str, Any]

    def __init__(self, env_config: Any, extras: dict[str, Any]) -> None:
        Recorded.seen = {"config": env_config, "extras": extras, "actions": []}

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": "Begin."}], {}

    def step(self, action: str) -> dict[str, Any]:
        Recorded.seen["actions"].append(action)
        return {"observations": [], "reward": 0.5, "done": True, "metadata": {}}

    def close(self) -> None:
        Recorded.seen["closed"] = True


def test_a_class_of_skyrl_gets_its_configuration_the_row_and_the_text_of_a_turn():
    turn = "<think>2 + 3</think> <answer>5</answer> "
    prompt, _ = play(Recorded, turn, options={"env_config": {"search": {"url": "here"}}}, level=3)
    assert prompt == "Begin."
    seen = Recorded.seen
    assert seen["config"].search.url == seen["config"]["search"]["url"] == "here"
    assert seen["config"].missing is None
    assert seen["extras"] == {"prompt": "What is 2 + 3?", "answer": "5", "level": 3}
    assert seen["actions"] == [turn]
    assert seen["closed"]


# ----------------------------------------------------------------------------------------------------------- gymnasium


class Higher(gymnasium.Env[str, str]):
    """Guess a number that the seed decides."""

    observation_space = Text(1000)
    action_space = Text(1000)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert options is not None
        self.secret = int(self.np_random.integers(10)) if "secret" not in options else options["secret"]
        return f"Guess (secret {self.secret}).", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == str(self.secret)
        return ("" if right else "No."), float(right) - 0.25, right, False, {}


def test_an_environment_of_gymnasium_runs_unchanged():
    prompt, rollout = play(Higher, "3", "7", secret=7)
    assert prompt == "What is 2 + 3?\n\nGuess (secret 7)."
    assert turn_rewards(rollout) == [-0.25, 0.75]
    assert "No." in read(rollout)
    assert rollout.finish_reason == "stop"


def test_an_episode_that_gymnasium_truncates_has_not_ended_by_itself():
    _, rollout = play(lambda: TimeLimit(Higher(), max_episode_steps=1), "3", "7", secret=7)
    assert turn_rewards(rollout) == [-0.25]
    assert (rollout.finish_reason, rollout.truncated) == ("turns", True)


# ------------------------------------------------------------------------------------------------------------ OpenRLHF


class Agent:
    """An agent in the form of OpenRLHF's: it returns tensors, and text that is no message."""

    states: list[dict[str, Any]]

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        Agent.states = [states]
        return {"observation": states["observation"]}

    async def step(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        Agent.states.append(states)
        done = states["action_text"] == states["label"]
        return {
            "rewards": torch.tensor(float(done)),
            "scores": torch.tensor(float(done)),
            "environment_feedback": "" if done else "\nHuman: No.\nAssistant:",
            "done": done,
        }


def test_an_agent_of_openrlhf_runs_unchanged():
    _, rollout = play(Agent, "4", "5")
    assert rollout.reward == 1.0
    assert read(rollout) == "\nHuman: No.\nAssistant:"  # as it is, without the chat template
    assert [each["observation_text"] for each in Agent.states[1:]] == [
        "What is 2 + 3?",
        "What is 2 + 3?4\nHuman: No.\nAssistant:",
    ]


# ----------------------------------------------------------------------------------------------------------- TextArena


class Game:
    """A game in the form of TextArena's: it draws from Python's global random numbers, and repeats the own moves."""

    def reset(self, num_players: int, seed: int | None = None) -> None:
        assert num_players == 1
        random.seed(seed)
        time.sleep(0.01)
        self.secret, self.turns, self.rewards = random.randrange(10**6), 0, None
        self.seen = [(-1, f"Guess {self.secret}.", "prompt")]

    def get_observation(self) -> tuple[int, list[Any]]:
        seen, self.seen = self.seen, []
        return 0, seen

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        self.turns += 1
        drawn = random.randrange(10**6)
        time.sleep(0.01)
        self.seen = [(0, action, "action"), (-1, f"It is not. {drawn} {random.randrange(10**6)}", "message")]
        if self.turns == 3:
            self.rewards = {0: 0.75}
        return self.turns == 3, {}

    def close(self) -> Any:
        return self.rewards, {}


class Wrapped:
    """A wrapper that returns the whole history as text, and changes actions."""

    def __init__(self) -> None:
        self.env = Game()

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.env.reset(num_players=num_players, seed=seed)

    def get_observation(self) -> tuple[int, str]:
        raise AssertionError("it repeats what was seen before")

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        return self.env.step(f"[{action}]")

    def close(self) -> Any:
        return self.env.close()


@pytest.mark.parametrize("make", [Game, Wrapped])
def test_a_game_of_textarena_runs_unchanged(make: Any):
    prompt, rollout = play(make, "a", "b", "c")
    assert prompt.startswith("What is 2 + 3?\n\nGuess ")
    assert rollout.reward == 0.75
    assert read(rollout).count("It is not.") == 2
    assert "[a]" not in read(rollout)


def test_games_at_the_same_time_do_not_share_random_numbers():
    random.seed(5)
    rollout = play(Game, "a", "b", "c")[1]
    alone = rollout.token_ids
    assert len(set(re.findall("It is not. [0-9]+", read(rollout)))) == 2  # each move draws further numbers
    _, together = play_all(Game, [("a", "b", "c")] * 12)
    assert {rollout.token_ids for rollout in together} == {alone}
    expected = random.Random(5).random()
    assert random.random() == expected  # and those of everybody else are as they were
