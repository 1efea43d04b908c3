"""Environments on tokens, in the form of tinker's, run unchanged, and a group is scored together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from episode_cases import TEMPLATE, dialogue, question, tool_tokenizer

from outdo.config.recipe import Piece
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.environment import load_class
from outdo.extras.episodes.episode import Reply
from outdo.models.completion_text import completion_text
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine, tiny_model
from outdo.types import Batch, Rollout
from outdo.utils.errors import RewardError

SAMPLING = SamplingParams(max_tokens=200)
GUESS = '''
from dataclasses import dataclass, field


@dataclass
class ModelInput:
    tokens: list

    def to_ints(self):
        return list(self.tokens)


@dataclass
class StepResult:
    reward: float
    episode_done: bool
    next_observation: ModelInput
    next_stop_condition: list
    metrics: dict = field(default_factory=dict)
    logs: dict = field(default_factory=dict)


class GuessEnv:
    """A number from 0 to 9, and three guesses."""

    def __init__(self, tokenizer, secret, guesses=3):
        self.tokenizer, self.secret, self.left = tokenizer, secret, guesses
        self.stop = [tokenizer.convert_tokens_to_ids("<|end|>")]

    async def initial_observation(self):
        self.tokens = self.tokenizer.encode("<|user|>Guess.<|end|>\\n<|assistant|>")
        return ModelInput(self.tokens), self.stop

    async def step(self, action, *, extra=None):
        right = self.tokenizer.decode(action, skip_special_tokens=True) == self.secret
        self.left -= 1
        done = right or not self.left
        self.tokens = self.tokens + action + self.tokenizer.encode("\\n<|user|>No.<|end|>\\n<|assistant|>")
        return StepResult(1.0 if right else -0.25, done, ModelInput([] if done else self.tokens), self.stop)


def make(row, tokenizer, guesses=3):
    return GuessEnv(tokenizer, row["answer"], guesses)


class GuessGroup:
    """Compares the episodes of a group: who has needed the fewest turns gets more."""

    cleaned = 0

    def __init__(self, row, tokenizer, size=4):
        self.row, self.tokenizer, self.size = row, tokenizer, size

    async def make_envs(self):
        return [GuessEnv(self.tokenizer, self.row["answer"]) for _ in range(self.size)]

    async def compute_group_rewards(self, trajectory_group, env_group):
        assert all(env.left < 3 for env in env_group)
        turns = [len(each.transitions) for each in trajectory_group]
        assert all(len(each.ac.tokens) == len(each.ac.logprobs) for one in trajectory_group for each in one.transitions)
        return [(float(min(turns) == each), {"turns": each}) for each in turns]

    async def cleanup(self):
        GuessGroup.cleaned += 1
'''


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with environments in the form of tinker's, in the working folder."""
    (tmp_path / "guess.py").write_text(GUESS)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "guess.py"


def environment_of(name: str, **options: Any) -> Dialogue:
    """The environment that a recipe names."""
    episodes = load_class(Piece(name=name, options=options))
    environment = dialogue(max_failed=1.0)
    environment.make = episodes.make
    return environment


def play(environment: Dialogue, scripts: Sequence[Sequence[str]]) -> list[Rollout]:
    """The rollouts of a question, one for each script of turns."""
    left = [list(turns) for turns in scripts]
    engine = ScriptedEngine(lambda request: left[request.stream.sample].pop(0), environment.template.tokenizer)
    prompts = [question(environment.template)]
    (group,) = environment.rollouts(engine, prompts, len(scripts), SAMPLING, step=1, purpose="train")
    assert completion_text(engine.tokenizer, group.prompt.token_ids) in ("Guess.\n", "What is 2 + 3?\n")
    return list(group.rollouts)


def test_an_environment_on_tokens_runs_unchanged(code: Path) -> None:
    environment = environment_of("guess.py:make", guesses=2)
    right, wrong = play(environment, [["3", "5"], ["1", "2"]])
    tokenizer = environment.template.tokenizer
    said = "3<|end|>\n<|user|>No.<|end|>\n<|assistant|>5<|end|>"
    assert list(right.token_ids) == tokenizer.encode(said)
    assert [
        tokenizer.decode([t for t, own in zip(each.token_ids, each.loss_mask, strict=True) if own])
        for each in (right, wrong)
    ] == ["3<|end|>5<|end|>", "1<|end|>2<|end|>"]
    assert (right.reward, wrong.reward) == (0.75, -0.5)
    assert right.token_rewards is not None
    assert [reward for reward in right.token_rewards if reward] == [-0.25, 1.0]


def test_a_group_is_scored_together_and_cleaned_up_once(code: Path) -> None:
    environment = environment_of("guess.py:GuessGroup", size=3)
    rollouts = play(environment, [["5"], ["3", "5"], ["1", "2", "3"]])
    assert [each.reward for each in rollouts] == [2.0, 0.75, -0.75]
    assert environment.make().episode.make.cleaned == 1


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("self.tokens + action +", "self.tokens +", "does not add to the tokens so far"),
        ('convert_tokens_to_ids("<|end|>")', "encode('.')[0]", "ends turns at"),
        ("return GuessEnv(", "return print(", "expected an Env or an EnvGroupBuilder"),
    ],
)
def test_an_environment_whose_tokens_would_not_be_those_of_the_run_is_a_failure(
    code: Path, old: str, new: str, reason: str
) -> None:
    text = code.read_text()
    assert text.count(old) == 1
    code.with_name("other.py").write_text(text.replace(old, new))
    environment = environment_of("other.py:make")
    environment.max_failed = 0.0
    with pytest.raises(RewardError, match=reason):
        play(environment, [["3", "5"]])


def test_the_policy_gives_the_sampled_tokens_the_engines_probabilities(code: Path) -> None:
    policy = Policy(tiny_model()[0], tool_tokenizer(TEMPLATE))
    environment = environment_of("guess.py:make")
    environment.template, environment.turn_tokens = dialogue(tokenizer=policy.tokenizer).template, 8
    prompts = [question(environment.template, f"{n}?", str(n)) for n in range(2)]
    groups = environment.rollouts(BuiltinEngine(policy), prompts, 2, SAMPLING, step=1, purpose="train")
    batch = Batch.from_groups(groups)
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-5
    assert int(batch.turn.max()) == 2


# ------------------------------------------------------------------------------------------------- a class of outdo's


class Shortest:
    """The shortest answer of a group wins."""

    def reply(self, message: dict[str, Any]) -> Reply:
        self.length = len(message["content"])
        if message["content"] == "fail":
            raise RuntimeError("no")
        return Reply(reward=0.5, done=True)

    @staticmethod
    def group_rewards(episodes: "Sequence[Shortest]") -> list[float]:
        shortest = min(each.length for each in episodes)
        return [float(each.length == shortest) for each in episodes]


def test_a_class_may_score_the_episodes_of_a_question_together() -> None:
    environment = dialogue(Shortest, max_failed=1.0)
    rollouts = play(environment, [["four"], ["two"], ["fail"]])
    assert [(each.reward, each.status) for each in rollouts] == [(0.5, "ok"), (1.5, "ok"), (0.0, "failed")]
    assert rollouts[1].reward_parts["environment"] == 1.5


def test_a_group_that_cannot_be_scored_is_a_verdict_and_never_a_reward() -> None:
    class TooFew(Shortest):
        @staticmethod
        def group_rewards(episodes: Sequence[Shortest]) -> list[float]:
            return [1.0]

    rollouts = play(dialogue(TooFew, max_failed=1.0), [["four"], ["two"]])
    assert [each.status for each in rollouts] == ["failed", "failed"]
