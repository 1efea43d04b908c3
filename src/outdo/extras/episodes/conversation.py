"""An episode while it runs: its tokens, which of them the policy sampled, and its rewards."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

from transformers import PreTrainedTokenizerBase

from outdo.extras.episodes.episode import LateError, Player
from outdo.models.completion_text import rendered_text
from outdo.models.prompt_encoding import Message
from outdo.rewards.base import Reward
from outdo.rewards.environment import NAME
from outdo.rewards.failures import output_of_error
from outdo.rewards.reward_sum import reward_sum
from outdo.rewards.right import Verdicts
from outdo.rewards.types import (
    FailureCount,
    RewardOutput,
    Status,
    output_without_value,
    reward_input,
    to_output,
)
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Completion, FinishReason, Group, Prompt, Rollout
from outdo.utils.errors import MachineError
from outdo.utils.rng import Stream
from outdo.utils.timing import span

TOKENS_READ = "engine/tokens_read"
"""The count of the tokens that the model computed in an episode."""


@dataclass(slots=True, kw_only=True)
class Conversation:
    """An episode so far. Index t of `token_ids`, `sampled`, `logprobs` and `rewards` is about the same token."""

    prompt: Prompt
    stream: Stream
    player: Player | None = None  # None: it could not be made, or the episode has ended
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rewards: dict[int, float] = field(default_factory=dict)  # of turns, by the place of their last token
    final_reward: float | None = None
    group_reward: float | None = None  # by comparison with the other episodes of its group
    given: list[RewardOutput] = field(default_factory=list)  # every reward of the environment, in their order
    messages: list[Message] = field(default_factory=list)
    turns: int = 0
    last_turn: Completion
    text: str = ""  # of the last turn
    prefill: str = ""  # what was written already of the last turn: see `RewardInput.prefill`
    finish_reason: FinishReason | None = None  # None: it goes on
    failure: RewardOutput | None = None
    counts: Counter[str] = field(default_factory=Counter)  # of events; those of the player when it has ended
    tool_seconds: dict[str, list[float]] = field(default_factory=dict)  # see `Rollout.tool_seconds`; the same
    forks: list[tuple[int, int]] = field(default_factory=list)  # see `Rollout.forks`

    @property
    def episode_ids(self) -> list[int]:
        """The tokens of `messages`: from the first that was sampled, up to further conversations of an agent."""
        return self.token_ids[self._of_messages]

    @property
    def sampled_ids(self) -> list[int]:
        """Those of `episode_ids` that the policy sampled."""
        of_messages = self._of_messages
        return list(compress(self.token_ids[of_messages], self.sampled[of_messages]))

    @property
    def _of_messages(self) -> slice:
        end = self.forks[0][0] - len(self.prompt.token_ids) if self.forks else len(self.token_ids)
        return slice(self.sampled.index(True) if any(self.sampled) else end, end)

    def add_turn(self, completion: Completion, text: str, prefill: str) -> None:
        """Append what the policy sampled."""
        self.token_ids += completion.token_ids
        self.sampled += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs
        self.turns += 1
        if completion.tokens_read is not None:
            self.counts[TOKENS_READ] += completion.tokens_read
        self.last_turn = completion
        self.text, self.prefill = text, prefill

    def add_environment(self, token_ids: Sequence[int], messages: Sequence[Message]) -> None:
        """Append what the environment wrote."""
        self.token_ids += token_ids
        self.sampled += [False] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)
        self.messages += messages

    def fail(self, error: Exception) -> None:
        """End the episode, if it has not ended, because the environment failed: it has a verdict, and no reward.

        A `MachineError` is raised again: without what a tool needs, no episode can go on.
        """
        if isinstance(error, MachineError):
            raise error
        late = isinstance(error, LateError)
        self.failure = (
            output_without_value(Status.timed_out, str(error), NAME) if late else output_of_error(error, NAME)
        )
        self.finish_reason = self.finish_reason or FinishReason.error

    def checked_reward(self, reward: object) -> float:
        """Return a reward of the environment, and keep it for the verdict (`verdict`).

        Raises `ValueError` if it is not a finite number.
        """
        output = to_output(reward, NAME)
        if output.status is not Status.ok:
            raise ValueError(output.reason or "a reward of the environment is not a number")
        self.given.append(output)
        return output.value

    def verdict(self, verdicts: Verdicts) -> bool | None:
        """Return whether the environment finds the episode right: by its last True or False, or else its last reward.

        An environment that gives verdicts and no reward to this episode finds it wrong. None where it gives none.
        """
        told = [output for output in self.given if output.right is not None]
        last = [*(told or self.given)][-1:]
        return verdicts.of(last[0] if last else NO_REWARD)

    def add_rewards(self, output: RewardOutput, verdicts: Verdicts) -> RewardOutput:
        """Add the rewards of the environment to that of the recipe; they are its part `environment`.

        Where the recipe's rewards give no verdict, the environment's counts.
        """
        if output.status.is_failure:
            return output
        right = self.verdict(verdicts) if output.right is None else output.right
        further = [reward for reward in (self.final_reward, self.group_reward) if reward is not None]
        rewards = [*self.rewards.values(), *further]
        if not rewards:
            return replace(output, right=right)
        total = to_output(reward_sum([output.value, *rewards]), NAME)
        return replace(total, parts={**output.parts, NAME: reward_sum(rewards)}, right=right)

    def rollout(self, output: RewardOutput, temperature: float) -> Rollout:
        """Return the finished episode with its reward. The rewards of turns are on the last tokens of these turns."""
        rewards: list[float] | None = None
        if self.rewards and output.status is Status.ok:
            rewards = [self.rewards.get(column, 0.0) for column in range(len(self.token_ids))]
            last = max(column for column, sampled in enumerate(self.sampled) if sampled)
            rewards[last] += output.value - sum(self.rewards.values())
        return Rollout(
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(self.sampled),
            logprobs=tuple(self.logprobs),
            text=self.text,
            prefill=self.prefill,
            reward=output.value,
            right=output.right,
            status=str(output.status),
            reward_parts=output.parts,
            finish_reason=self.finish_reason or FinishReason.length,  # None: there was no room for a turn
            policy_version=self.last_turn.policy_version,
            temperature=temperature,
            token_rewards=None if rewards is None else tuple(rewards),
            routes=self.last_turn.routes,  # the last request had all tokens before it
            counts=dict(self.counts),
            tool_seconds={name: tuple(seconds) for name, seconds in self.tool_seconds.items()},
            forks=tuple(self.forks),
        )


Episodes = tuple[Prompt, Sequence[Stream]]
"""A prompt, and the streams of random numbers of its episodes."""


def play_episodes(
    engine: Engine,
    prompts: Sequence[Prompt],
    n: int,
    play: Callable[[Engine, Sequence[Episodes]], list[Conversation]],
    *,
    step: int,
    purpose: str,
) -> list[Conversation]:
    """Return `n` finished episodes of each prompt, neighbours; of several replicas the engine says who plays which.

    A prompt that is in `prompts` twice gets 2n different samples: no random number is used twice, whoever plays.
    """
    samples: Counter[str] = Counter()
    groups: list[Episodes] = []
    for prompt in prompts:
        first = samples[prompt.id]
        samples[prompt.id] += n
        groups.append((prompt, [Stream(purpose, step, prompt.id, sample) for sample in range(first, first + n)]))
    return engine.divide_episodes(groups, play)


def groups_of(
    conversations: Sequence[Conversation], outputs: Sequence[RewardOutput], sampling: SamplingParams, n: int
) -> list[Group]:
    """Return scored episodes as groups of `n`. A group has the prompt with what the episodes have added to it."""
    rollouts = [
        conversation.rollout(output, sampling.temperature or 1.0)
        for conversation, output in zip(conversations, outputs, strict=True)
    ]
    return [
        Group(prompt=conversations[first].prompt, rollouts=tuple(rollouts[first : first + n]))
        for first in range(0, len(rollouts), n)
    ]


def score_conversations(
    conversations: Sequence[Conversation],
    tokenizer: PreTrainedTokenizerBase,
    reward: Reward | None,
    verdicts: Verdicts,
    *,
    failures: FailureCount,
    max_failed: float,
    step_timeout: float,
) -> list[RewardOutput]:
    """Return the reward of each episode, or the verdict on an environment that failed.

    `verdicts` are those that the environment has given so far.

    Raises `RewardError` if more than the share `max_failed` of the episodes of the step has failed.
    """
    prompts = {conversation.prompt.token_ids for conversation in conversations}
    rendered = {token_ids: rendered_text(tokenizer, token_ids) for token_ids in prompts}
    inputs = [
        reward_input(
            conversation.prompt,
            conversation.text,
            conversation.last_turn.token_ids,
            rendered_prompt=rendered[conversation.prompt.token_ids],
            prefill=conversation.prefill,
            messages=conversation.messages,
            episode_ids=conversation.episode_ids,
            sampled_ids=conversation.sampled_ids,
        )
        for conversation in conversations
    ]
    scored = [index for index, conversation in enumerate(conversations) if conversation.failure is None]
    with span("reward"), failures.within(step_timeout):
        of_recipe = reward([inputs[index] for index in scored]) if reward and scored else None
    by_index = dict(zip(scored, of_recipe or [NO_REWARD] * len(scored), strict=True))
    outputs = _with_rewards_of_environment(conversations, by_index, verdicts)
    failures.check(outputs, inputs, max_failed)
    return outputs


def _with_rewards_of_environment(
    conversations: Sequence[Conversation], by_index: Mapping[int, RewardOutput], verdicts: Verdicts
) -> list[RewardOutput]:
    """Add the rewards of the environment to those of the recipe, which are `given` by the place of the episode."""
    verdicts.note([output for conversation in conversations for output in conversation.given])
    return [
        conversation.failure or conversation.add_rewards(by_index[index], verdicts)
        for index, conversation in enumerate(conversations)
    ]


NO_REWARD = RewardOutput(value=0.0, status=Status.ok, parts={})
"""What the rewards of the environment are added to where no reward function is given."""
