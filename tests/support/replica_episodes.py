"""Episodes of several turns that replicas play together, as bodies for `replica_cases.run_replicas`."""

from collections import Counter
from itertools import islice, repeat
from typing import Any

import pytest
from agent_cases import agent
from copied_engines import CopyingEngine
from engine_cases import fresh
from episode_cases import TEMPLATE, add, dialogue, question
from replica_cases import divided, shared

from outdo.algorithms.advantages.turns import turn_to_go
from outdo.algorithms.objectives.presets import grpo
from outdo.extras.episodes.conversation import TOKENS_READ
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.replicas.replicas import Replicas
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import Reward
from outdo.rewards.first_rank import FirstRankReward
from outdo.rewards.types import RewardInput, RewardOutput, Status
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import GroupSampler
from outdo.types import Group, Prompt, Step
from outdo.utils.errors import RewardError, WorkerError

SAMPLING = SamplingParams(max_tokens=150)
GAMES = Counter[str]()
"""How many episodes of each question were played in this process."""


class Game:
    """Three turns, each with a reward: the share of letters in it. The game of a question in `broken` fails."""

    broken: tuple[str, ...] = ()

    def begin(self, prompt: Prompt) -> None:
        self.left = 3
        GAMES[prompt.id] += 1
        if prompt.id in self.broken:
            raise RuntimeError("out of order")

    def reply(self, message: dict[str, Any]) -> Reply:
        self.left -= 1
        letters = sum(map(str.isalnum, message["content"])) / 8
        following = [{"role": "user", "content": f"{self.left} left."}] if self.left else []
        return Reply(messages=following, reward=letters)


class Length(Reward):
    """A reward that counts how often it was asked in this process."""

    name = "length"

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, inputs: Any) -> list[RewardOutput]:
        self.asked += len(inputs)
        return [self._score(each) for each in inputs]

    def _score(self, scored: RewardInput) -> RewardOutput:
        value = len(scored.completion) / 10
        return RewardOutput(value=value, status=Status.ok, parts={"length": value})

    def close(self) -> None: ...


def talking(**how: Any) -> Policy:
    """A policy whose chat template has tools."""
    policy = fresh(**how)
    policy.tokenizer.chat_template = TEMPLATE
    return policy


def game(policy: Policy, reward: Any = None, **options: Any) -> Dialogue:
    """The game, with a tool that the policy may call."""
    return dialogue(Game, tools=[add], tokenizer=policy.tokenizer, reward=reward, turn_tokens=8, **options)


def questions(environment: Any, names: str = "abcab") -> list[Prompt]:
    """Five questions, two of which come twice."""
    return [question(environment.template, f"{name * 3}?", name) for name in names]


def played(engine: Engine, environment: Any) -> list[Group]:
    """The groups of a step, without how many tokens the engine has read: it reads a prompt once in each process."""
    groups = environment.rollouts(engine, questions(environment), 3, SAMPLING, step=1, purpose="train")
    for rollout in (each for group in groups for each in group.rollouts):
        rollout.counts.pop(TOKENS_READ, None)
    return groups


def games_of_parts(replicas: Replicas) -> None:
    """Each replica plays the games of its questions, keeps what it has read of them, and all have all of them."""
    expected = played(BuiltinEngine(talking(), seed=3), game(talking(), Length()))
    assert all(rollout.token_rewards is not None for group in expected for rollout in group.rollouts)
    assert expected[0] != expected[3]  # the same question again, with other random numbers
    for make in (shared, divided):
        policy = make(talking(), replicas)
        policy.tokenizer.chat_template = TEMPLATE
        GAMES.clear()
        length, engine = Length(), ReplicatedEngine(BuiltinEngine(policy, seed=3), replicas)
        found = played(engine, game(policy, FirstRankReward(length, replicas)))
        assert found == expected
        assert sorted(GAMES.elements()) == sorted("ab" * 3 if replicas.first else "abc" * 3)
        assert length.asked == (15 if replicas.first else 0)
    tools = [rollout.counts["tools/calls"] for group in found for rollout in group.rollouts]
    assert tools == [0] * 15


async def ask_twice(row: dict[str, Any], base_url: str, http_client: Any) -> float:
    """Two calls; the reward is the share of letters in the second answer."""
    GAMES[row["messages"][-1]["content"]] += 1
    messages = list(row["messages"])
    for _ in range(2):
        request = {"messages": messages, "max_tokens": 8}
        answer = (await http_client.post(f"{base_url}/chat/completions", json=request)).json()["choices"][0]["message"]
        messages += [answer, {"role": "user", "content": "Go on."}]
    return sum(map(str.isalnum, answer["content"] or "")) / 8


def agents_of_parts(replicas: Replicas) -> None:
    """Each replica runs the agents of its questions, at an endpoint of its own."""
    expected = played(BuiltinEngine(talking(), seed=3), agent(ask_twice, tokenizer=talking().tokenizer))
    GAMES.clear()
    policy = shared(talking(), replicas)
    environment = agent(ask_twice, tokenizer=policy.tokenizer)
    found = played(ReplicatedEngine(BuiltinEngine(policy, seed=3), replicas), environment)
    assert found == expected
    assert GAMES.total() == (6 if replicas.first else 9)
    assert environment.endpoint.port != replicas.together(lambda: environment.endpoint.port)[1 - replicas.rank]


def failed_games_of_all(replicas: Replicas) -> None:
    """The games that fail are counted over all replicas, whoever has played them."""
    policy = shared(talking(), replicas)
    engine = ReplicatedEngine(BuiltinEngine(policy, seed=3), replicas)
    Game.broken = ("c",)  # all of one question of the second replica: a third of its games, a fifth of all
    found = played(engine, game(policy, max_failed=0.2))
    assert [rollout.status for rollout in found[2].rollouts] == ["failed"] * 3
    with pytest.raises(RewardError, match="3 of 15 rewards of this step have no value"):
        played(engine, game(policy, max_failed=0.19))
    Game.broken = ()
    environment = game(policy)
    environment.template.parse = _defect if not replicas.first else environment.template.parse  # type: ignore[method-assign]
    with pytest.raises(WorkerError if replicas.first else KeyError, match="a defect"):
        played(engine, environment)
    assert replicas.together(lambda: replicas.rank) == [0, 1]


def _defect(*arguments: object) -> Any:
    raise KeyError("a defect")


def games_of_the_first(replicas: Replicas) -> None:
    """Beside an engine of the first replica, it plays all games; all of them again, if the engine is lost."""
    alone = talking()
    expected = played(BuiltinEngine(alone), game(alone))
    policy = shared(talking(), replicas)
    engine = RemoteEngine(CopyingEngine, policy, Proof(FLOAT32), world=replicas)
    engine.update_weights(policy)
    GAMES.clear()
    assert played(engine, game(policy)) == expected
    assert GAMES.total() == (15 if replicas.first else 0)
    if replicas.first:
        engine.engine.losses = 1
    assert played(engine, game(policy)) == expected
    assert GAMES.total() == (45 if replicas.first else 0)
    assert engine.restarts == 1


def training_on_games(replicas: Replicas) -> None:
    """Three steps of training on games, with credit per turn: the tokens of one process, and its weights."""
    optimiser = OptimiserSettings(lr=1e-4)
    alone, both = talking(optimiser=optimiser), talking(optimiser=optimiser, world=replicas)
    before = {name: weight.clone() for name, weight in alone.model.named_parameters()}
    expected = trained(alone, BuiltinEngine(alone, seed=3))
    found = trained(both, ReplicatedEngine(BuiltinEngine(both, seed=3), replicas))
    assert [tokens(step) for step in found] == [tokens(step) for step in expected]
    theirs = dict(alone.model.named_parameters())
    for name, weight in both.model.named_parameters():
        assert (weight - theirs[name]).abs().max() <= 3e-6, name
    assert all((weight - before[name]).abs().max() > 5e-5 for name, weight in theirs.items())


def tokens(step: Step) -> list[tuple[int, ...]]:
    return [rollout.token_ids for group in step.groups for rollout in group.rollouts]


def trained(policy: Policy, engine: Engine) -> list[Step]:
    environment = game(policy)
    sampler = GroupSampler(engine, environment, group_size=3, sampling=SAMPLING)
    rollouts = in_turn(policy, repeat(questions(environment, "abc")), sampler)
    return list(islice(train(Models(policy=policy), rollouts, turn_to_go, grpo(beta=0.0)), 3))
