"""Every way in which an episode can end, for every reason of its last turn: one table, of docs/environments.md."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from agent_cases import agent
from episode_cases import add, dialogue, question

from outdo.algorithms.advantages import gae, group_centred, per_token, without_truncated
from outdo.extras.agents.agent import Agent
from outdo.extras.episodes.adapt import adapt, episode_maker
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.rewards import load_reward
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.evaluation.evaluation import Evaluation
from outdo.run.metrics.metrics import step_metrics
from outdo.testing import ScriptedEngine
from outdo.types import Batch, Completion, FinishReason, Group, Request, Sampled, Step

STOP, LENGTH, TURNS, ABORT, ERROR = FinishReason
ROOM = 120
"""`sampling.max_tokens` of the episodes here."""


# ---------------------------------------------------------------------------------------------------- the environments


class Says:
    """Answers every turn with the same."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    def reply(self, message: dict[str, Any]) -> Any:
        answer = self.replies.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FailsAtTheEnd(Says):
    def final_reward(self) -> float:
        raise RuntimeError("cannot score")


class OfGymnasium:
    def __init__(self, terminated: bool, truncated: bool, observation: str = "") -> None:
        self.result = (observation, 0.5, terminated, truncated, {})

    def reset(self, *, seed: int, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return "Begin.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self.result


class OfSkyrl:
    done = True

    def __init__(self, env_config: Any, extras: Any) -> None: ...

    def init(self, prompt: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return prompt, {}

    def step(self, action: str) -> dict[str, Any]:
        return {"observations": [], "reward": 0.5, "done": self.done}


class OfSkyrlWithoutAnObservation(OfSkyrl):
    done = False


class OfOpenRlhf:
    def __init__(self, done: bool) -> None:
        self.done = done

    def reset(self, states: dict[str, Any]) -> dict[str, Any]:
        return states

    def step(self, states: dict[str, Any]) -> dict[str, Any]:
        return {"rewards": 0.5, "environment_feedback": "", "done": self.done}


class OfTextArena:
    def reset(self, num_players: int, seed: int) -> None: ...

    def get_observation(self) -> tuple[int, list[Any]]:
        return 0, []

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        return True, {}

    def close(self) -> Any:
        return {0: 0.5}, {}


class OfTinker:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def initial_observation(self) -> tuple[list[int], list[int]]:
        return self.tokenizer.encode("Begin."), []

    def step(self, action: list[int]) -> Any:
        class Result:
            reward, episode_done, next_observation, next_stop_condition = 0.5, True, [], []

        return Result


class OfTrl:
    """Its methods are tools, and the policy calls none."""

    def reset(self, **row: Any) -> None: ...

    def get_reward(self) -> float:
        return 0.5


AGAIN = [{"role": "user", "content": "Again."}]


def saying(*replies: Any, made: type[Says] = Says, **options: Any) -> Dialogue:
    return dialogue(lambda: made(*replies), **options)


def made_by(make: Any, **options: Any) -> Dialogue:
    return dialogue(episode_maker(make, options))


def asking(**limits: Any) -> Callable[..., float]:
    """An agent that asks once."""

    def run(row: dict[str, Any], base_url: str) -> float:
        with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
            client.chat.completions.create(model="any", messages=row["messages"], **limits)
        return 0.5

    return run


def asking_until_refused(calls: int) -> Callable[..., float]:
    """An agent that goes on, for so many calls at most, until one gets nothing."""

    def run(row: dict[str, Any], base_url: str) -> float:
        messages = list(row["messages"])
        with openai.OpenAI(base_url=base_url, api_key="any", max_retries=0) as client:
            for _ in range(calls):
                answer = client.chat.completions.create(model="any", messages=messages).choices[0].message
                messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "x" * 40}]
                if not answer.content:
                    break
        return 0.5

    return run


def failing(row: dict[str, Any], base_url: str) -> float:
    asking()(row, base_url)
    raise RuntimeError("cannot work")


DECLARED = {STOP: STOP, LENGTH: STOP, ABORT: ABORT}
"""The environment declared the episode over; it is not asked about a turn that the engine gave up."""
OF_THE_TURN = {STOP: STOP, LENGTH: LENGTH, ABORT: ABORT}
"""Nothing follows the turn."""
LIMIT = {STOP: TURNS, LENGTH: TURNS, ABORT: ABORT}
"""A limit of turns, or one of the environment."""
NO_ROOM = {STOP: LENGTH, LENGTH: LENGTH, ABORT: ABORT}
FAILED = {STOP: ERROR, LENGTH: ERROR, ABORT: ABORT}

Way = tuple[Callable[[], Dialogue | Agent], Mapping[FinishReason, FinishReason]]
WAYS: dict[str, Way] = {
    "done": (partial(saying, Reply(reward=0.5, done=True)), DECLARED),
    "done, with messages": (partial(saying, Reply(messages=AGAIN, done=True)), DECLARED),
    "done in the last turn": (partial(saying, Reply(done=True), turns=1), DECLARED),
    "terminated of gymnasium": (partial(made_by, lambda: OfGymnasium(True, False)), DECLARED),
    "terminated and truncated of gymnasium": (partial(made_by, lambda: OfGymnasium(True, True)), DECLARED),
    "done of SkyRL": (partial(made_by, OfSkyrl), DECLARED),
    "done of OpenRLHF": (partial(made_by, OfOpenRlhf, done=True), DECLARED),
    "done of TextArena": (partial(made_by, OfTextArena), DECLARED),
    "episode_done of tinker": (partial(made_by, OfTinker), DECLARED),
    "None": (partial(saying, None), OF_THE_TURN),
    "an empty reply": (partial(saying, Reply(reward=0.5)), OF_THE_TURN),
    "no method reply": (partial(dialogue, lambda: None), OF_THE_TURN),
    "no call of a tool": (partial(dialogue, lambda: None, tools=[add]), OF_THE_TURN),
    "no call of a tool of TRL": (partial(dialogue, lambda: adapt(OfTrl())), OF_THE_TURN),
    "an agent returns": (partial(agent, asking()), OF_THE_TURN),
    "an agent asks for few tokens": (partial(agent, asking(max_tokens=4)), DECLARED),
    "an agent asks for too many tokens": (partial(agent, asking(max_tokens=999)), OF_THE_TURN),
    "truncated": (partial(saying, Reply(truncated=True)), LIMIT),
    "truncated and done": (partial(saying, Reply(truncated=True, done=True)), LIMIT),
    "truncated of gymnasium": (partial(made_by, lambda: OfGymnasium(False, True)), LIMIT),
    "nothing to read of SkyRL": (partial(made_by, OfSkyrlWithoutAnObservation), LIMIT),
    "nothing to read of OpenRLHF": (partial(made_by, OfOpenRlhf, done=False), LIMIT),
    "the limit of turns": (partial(saying, "Again.", turns=1), LIMIT),
    "the limit of turns, in the middle of calls": (partial(saying, Reply(messages=AGAIN), turns=1), LIMIT),
    "the limit of calls": (
        partial(agent, asking_until_refused(2), calls=1),
        {STOP: TURNS, LENGTH: TURNS, ABORT: TURNS},
    ),
    "no room for a reply": (partial(saying, "x" * ROOM), NO_ROOM),
    "no room in the context": (partial(saying, "Again.", context=30), NO_ROOM),
    "no room for a call": (partial(agent, asking_until_refused(9), calls=99), dict.fromkeys(NO_ROOM, LENGTH)),
    "the environment fails": (partial(saying, RuntimeError("no"), max_failed=1.0), FAILED),
    "the environment returns nonsense": (partial(saying, 7, max_failed=1.0), FAILED),
    "its last reward fails": (partial(saying, Reply(done=True), made=FailsAtTheEnd, max_failed=1.0), DECLARED),
    "an agent fails": (partial(agent, failing, max_failed=1.0), dict.fromkeys(FAILED, ERROR)),
}
"""What makes the environment, and for the reason of a turn that of its episode."""


def play(environment: Dialogue | Agent, reason: FinishReason) -> Group:
    """An episode whose turns all end for this reason."""
    tokenizer = environment.template.tokenizer
    written = tokenizer.encode("Five.") + [tokenizer.eos_token_id] * (reason is STOP)

    def answer(request: Request) -> Completion:
        tokens = tuple(written[: request.max_tokens])
        ended = LENGTH if len(tokens) < len(written) and reason is STOP else reason
        return Completion(token_ids=tokens, logprobs=(-1.0,) * len(tokens), finish_reason=ended, policy_version=0)

    prompts, sampling = [question(environment.template)], SamplingParams(max_tokens=ROOM)
    environment.reward = load_reward({"name": "overlong", "max_tokens": ROOM, "cache": ROOM})
    engine = ScriptedEngine(answer, tokenizer)
    (group,) = environment.rollouts(engine, prompts, 1, sampling, step=1, purpose="train")
    return group


def trained(batch: Batch) -> bool:
    """Whether `train.mask_truncated` leaves tokens to train on."""
    return bool(without_truncated(per_token(group_centred)(batch)).loss_mask.any())


def value_after(batch: Batch) -> float:
    """V after the episode, by `gae(bootstrap=True)`, where the critic's is 5."""
    zeros = torch.zeros_like(batch.rollout_logprobs)
    batch = batch.with_(values=zeros, end_values=torch.full((1,), 5.0), token_rewards=zeros)
    returns = gae(batch, lam=1.0, whiten=False, bootstrap=True).returns
    assert returns is not None
    return float(returns.max())


def shares(group: Group) -> set[float]:
    """The share of truncated episodes by the metric of a step, and by an evaluation."""
    batch = Batch.from_groups([group])
    step = Step(index=1, sampled=Sampled(groups=[group]), batch=batch, updates=[])
    evaluated = Evaluation(groups=[group], k=1).summary()["truncated"]
    assert isinstance(evaluated, float)
    return {step_metrics(step)["completions/clipped_ratio"], evaluated}


@pytest.mark.parametrize("reason", [STOP, LENGTH, ABORT])
@pytest.mark.parametrize("way", WAYS)
def test_an_episode_ends_as_the_table_says_and_everybody_takes_it_so(way: str, reason: FinishReason) -> None:
    make, expected = WAYS[way]
    group = play(make(), reason)
    (rollout,) = group.rollouts
    assert rollout.finish_reason is expected[reason]
    assert rollout.scored is not any(word in way for word in ("fail", "nonsense")) or reason is ABORT
    cut = expected[reason] in (LENGTH, TURNS, ABORT)
    assert shares(group) == {float(cut)}
    if rollout.scored:
        batch = Batch.from_groups([group])
        assert rollout.reward_parts["overlong"] == -sum(rollout.loss_mask) / ROOM
        assert trained(batch) is not cut
        assert value_after(batch) == (5.0 if cut else 0.0)


def test_an_environment_that_is_not_done_and_shows_an_empty_text_goes_on() -> None:
    class Game(OfTextArena):
        def step(self, action: str) -> tuple[bool, dict[str, Any]]:
            return False, {}

    for make in (lambda: OfGymnasium(False, False), Game):
        environment = made_by(make)
        environment.turns = 3
        group = play(environment, STOP)
        assert int(Batch.from_groups([group]).turn.max()) == 2
        assert group.rollouts[0].finish_reason is TURNS


def test_the_table_of_the_documentation_names_every_reason() -> None:
    page = (Path(__file__).parents[3] / "docs/environments.md").read_text()
    table = page.partition("## How an episode ends")[2].partition("\n## ")[0]
    reasons = {reason for row in table.splitlines() for reason in FinishReason if f"`{reason}`" in row}
    assert reasons == {*FinishReason}
