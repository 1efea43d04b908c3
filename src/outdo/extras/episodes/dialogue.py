"""Episodes of several turns: the policy and an environment write in turn, and the tokens are kept as they were sampled.

A rollout is one list of tokens: the first turn as it was sampled, the tokens of the environment's messages, the second
turn as it was sampled, and so on. Only the policy's tokens are trained.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from itertools import accumulate

from outdo.extras.episodes.conversation import (
    Conversation,
    Episodes,
    groups_of,
    play_episodes,
    score_conversations,
)
from outdo.extras.episodes.episode import Player, Reply, as_exception
from outdo.extras.episodes.template import Parsed, Template
from outdo.models.completion_text import completion_text
from outdo.models.prompt_encoding import Message
from outdo.rewards.environment import NAME
from outdo.rewards.in_process import RewardLike, as_reward
from outdo.rewards.right import verdicts_of_function
from outdo.rewards.types import FailureCount
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment, check_completions
from outdo.types import Completion, FinishReason, Group, Prompt, Request
from outdo.utils.errors import UserError
from outdo.utils.timing import span

GATHER = 0.02
"""Seconds in which further episodes may get ready, after one is: a turn of several episodes is sampled at once."""

MOST_THREADS = 256
"""Episodes that answer at the same time."""


class Dialogue(Environment):
    """Runs `n` episodes of each prompt, at most `turns` turns each, and scores them.

    `make` begins the user's side of an episode. `reward` scores the last turn of the policy, as in `SingleTurn`; the
    rewards of the environment are added to it. An episode, with everything that the environment writes, has at most
    `sampling.max_tokens` tokens, and one turn at most `turn_tokens`.

    The episodes wait for their environments in threads of their own: a turn is sampled for those that are ready. The
    tokens of an episode depend only on its stream and its position in it, and not on the time, the order and the
    company in which its turns are sampled.
    """

    def __init__(
        self,
        make: Callable[[], Player],
        template: Template,
        reward: RewardLike | None = None,
        *,
        turns: int = 8,
        turn_tokens: int | None = None,
        context: int | None = None,
        max_failed: float = 0.5,
        step_timeout: float | None = None,
    ) -> None:
        self.make = make
        self.template = template
        self.reward = None if reward is None else as_reward(reward)
        self.verdicts = verdicts_of_function(NAME)
        self.turns = turns
        self.turn_tokens = turn_tokens
        self.context = context
        self.max_failed = max_failed
        self.step_timeout = float("inf") if step_timeout is None else step_timeout

    def rollouts(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        n: int,
        sampling: SamplingParams,
        *,
        step: int,
        purpose: str,
        failures: FailureCount | None = None,
    ) -> list[Group]:
        """Return `n` rollouts of each prompt. A group has the prompt with what the environment added to it."""
        conversations = play_episodes(
            engine, prompts, n, lambda asked, groups: self._play(asked, groups, sampling), step=step, purpose=purpose
        )
        outputs = score_conversations(
            conversations,
            engine.tokenizer,
            self.reward,
            self.verdicts,
            failures=failures or FailureCount(),
            max_failed=self.max_failed,
            step_timeout=self.step_timeout,
        )
        return groups_of(conversations, outputs, sampling, n)

    # -------------------------------------------------------------------------------------------------------- playing

    def _play(self, engine: Engine, groups: Sequence[Episodes], sampling: SamplingParams) -> list[Conversation]:
        """Return the finished episodes of some groups."""
        with ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="outdo episodes") as threads:
            conversations = self._begin(groups, threads, version=engine.version)
            try:
                self._run(engine, conversations, sampling, threads)
                list(threads.map(_score_group, _split(conversations, [len(streams) for _, streams in groups])))
            finally:
                list(threads.map(_end, conversations))
        return conversations

    def _begin(self, groups: Sequence[Episodes], threads: ThreadPoolExecutor, *, version: int) -> list[Conversation]:
        """Return the episodes, begun; those of a prompt are neighbours, so that the engine prefills it once."""
        nothing = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.length, policy_version=version)
        begun = [
            [Conversation(prompt=prompt, stream=stream, last_turn=nothing) for stream in streams]
            for prompt, streams in groups
        ]
        every = [conversation for group in begun for conversation in group]
        list(threads.map(self._make_one, every))
        list(threads.map(self._begin_group, begun))
        added = threads.map(_begin_one, every)
        for group in begun:
            try:
                self._add_to_prompt(group, [next(added) for _ in group])
            except UserError:
                raise
            except Exception as error:  # what `begin` returned may be no text that a tokenizer reads
                _fail_all(group, error)
        return every

    def _make_one(self, conversation: Conversation) -> None:
        try:
            conversation.player = self.make()
        except BaseException as error:
            conversation.fail(as_exception(error))

    def _begin_group(self, group: Sequence[Conversation]) -> None:
        players = [conversation.player for conversation in group if conversation.player is not None]
        try:
            for first in players[:1]:
                first.begin_group([player.episode for player in players], group[0].prompt, self.template)
        except Exception as error:
            _fail_all(group, error)

    def _add_to_prompt(
        self, group: Sequence[Conversation], added: Sequence[str | Sequence[Message] | tuple[int, ...]]
    ) -> None:
        """Add what the episodes of a group begin with to the prompt, which they share."""
        begins = [begin for episode, begin in zip(group, added, strict=True) if episode.failure is None]
        if not any(begins):
            return
        prompt = group[0].prompt
        if any(begin != begins[0] for begin in begins):
            raise UserError(
                [
                    f"question {prompt.id}: `begin` returned something else to other samples of the same question, "
                    "whose rewards could not be compared; let it depend on the prompt alone"
                ]
            )
        if isinstance(begins[0], tuple):  # an environment on tokens has made the prompt
            for conversation in group:
                conversation.prompt = replace(prompt, token_ids=begins[0])
            return
        *earlier, last = [{"role": "user", "content": prompt.text}] if isinstance(prompt.text, str) else prompt.text
        more = begins[0]
        if isinstance(more, str):
            last, more = {**last, "content": last["content"] + more}, []
        text = [*earlier, last, *more]
        token_ids = tuple(self.template.prompt(text, where=f"question {prompt.id}"))
        for conversation in group:
            conversation.prompt = replace(prompt, text=text, token_ids=token_ids)

    def _run(
        self,
        engine: Engine,
        conversations: Sequence[Conversation],
        sampling: SamplingParams,
        threads: ThreadPoolExecutor,
    ) -> None:
        """Sample and answer turns until every episode has ended."""
        ready = [
            conversation
            for conversation in conversations
            if conversation.failure is None and self._room(conversation, sampling) > 0
        ]
        waiting: dict[Future[Reply], Conversation] = {}
        while ready or waiting:
            for conversation, parsed in self._sample(engine, ready, sampling) if ready else ():
                waiting[threads.submit(_player(conversation).answer, parsed)] = conversation
            with span("environment"):
                wait(waiting, return_when=FIRST_COMPLETED)
                done = wait(waiting, GATHER).done
            answered = [(waiting.pop(reply), reply) for reply in list(waiting) if reply in done]
            ready = [conversation for conversation, reply in answered if self._continue(conversation, reply, sampling)]
            if ended := [conversation.stream for conversation, _ in answered if conversation.finish_reason is not None]:
                engine.end_episodes(ended)

    def _sample(
        self, engine: Engine, ready: Sequence[Conversation], sampling: SamplingParams
    ) -> Iterator[tuple[Conversation, Parsed]]:
        """Sample a turn of each episode; yield those that the environment has to answer, and the turn as a message."""
        requests = [self._request(conversation, sampling) for conversation in ready]
        with span("sample"):
            completions = engine.generate(requests, sampling)
        check_completions(requests, completions)
        for conversation, request, completion in zip(ready, requests, completions, strict=True):
            text = completion_text(engine.tokenizer, completion.token_ids)
            begins = () if conversation.turns else conversation.prompt.text
            conversation.add_turn(completion, text, self.template.prefill(request.token_ids, begins))
            parsed = replace(self.template.parse(completion.token_ids, request.token_ids), completion=completion)
            conversation.messages.append(parsed.message)
            if completion.finish_reason is FinishReason.abort:
                conversation.finish_reason = FinishReason.abort
            else:
                yield conversation, parsed

    def _request(self, conversation: Conversation, sampling: SamplingParams) -> Request:
        room = self._room(conversation, sampling)
        return Request(
            token_ids=(*conversation.prompt.token_ids, *conversation.token_ids),
            stream=conversation.stream,
            position=sum(conversation.sampled),  # each sampled token has used one random number
            max_tokens=room if self.turn_tokens is None else min(room, self.turn_tokens),
            prompt_length=len(conversation.prompt.token_ids),
            episode=conversation.stream,
            inputs=conversation.prompt.inputs,
        )

    def _room(self, conversation: Conversation, sampling: SamplingParams) -> int:
        """Return how many tokens an episode may still have."""
        longest = sampling.max_tokens
        if self.context is not None:
            longest = min(longest, self.context - len(conversation.prompt.token_ids))
        return longest - len(conversation.token_ids)

    def _continue(self, conversation: Conversation, answer: Future[Reply], sampling: SamplingParams) -> bool:
        """Take the answer of the environment; return whether the episode goes on."""
        turn = conversation.last_turn
        try:
            reply = answer.result()
            if reply.reward is not None:
                last = len(conversation.token_ids) - 1
                conversation.rewards[last] = conversation.checked_reward(reply.reward)
            following = [] if reply.ends else self._following(turn, reply)
        except Exception as error:
            conversation.fail(error)
            return False
        if reply.ends:
            conversation.finish_reason = reply.finish_reason(turn.finish_reason)
        elif conversation.turns == self.turns:
            conversation.finish_reason = FinishReason.turns
        elif self._room(conversation, sampling) <= len(following):  # no token would be left for the next turn
            conversation.finish_reason = FinishReason.length
        else:
            text = reply.text or completion_text(self.template.tokenizer, following)
            conversation.add_environment(following, reply.messages or [{"role": "user", "content": text}])
        return conversation.finish_reason is None

    def _following(self, turn: Completion, reply: Reply) -> list[int]:
        """Return the token ids of what the environment answers to a turn."""
        if reply.token_ids:
            return list(reply.token_ids)
        if reply.text:
            return self.template.following_text(reply.text)
        return self.template.following(turn.token_ids, reply.messages)


def _player(conversation: Conversation) -> Player:
    assert conversation.player is not None, "an episode that could not be made has failed"
    return conversation.player


def _split(conversations: Sequence[Conversation], sizes: Sequence[int]) -> list[Sequence[Conversation]]:
    """Return the episodes as groups of some sizes."""
    ends = list(accumulate(sizes))
    return [conversations[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _begin_one(conversation: Conversation) -> str | list[Message] | tuple[int, ...]:
    if conversation.failure is not None:
        return []
    try:
        return _player(conversation).begin(conversation.prompt)
    except Exception as error:
        conversation.fail(error)
        return []


def _score_group(group: Sequence[Conversation]) -> None:
    """Add the rewards that the environment gives to a group together; episodes that failed have none."""
    played = [conversation for conversation in group if conversation.failure is None]
    if not played:
        return
    try:
        rewards = _player(played[0]).group_rewards([_player(conversation).episode for conversation in played])
        for conversation, reward in zip(played, rewards or (), strict=False):
            conversation.group_reward = conversation.checked_reward(reward)
    except Exception as error:
        _fail_all(played, error)


def _fail_all(group: Sequence[Conversation], error: Exception) -> None:
    for conversation in group:
        if conversation.failure is None:  # else the first failure is the cause
            conversation.fail(error)


def _end(conversation: Conversation) -> None:
    """Add the final reward of the environment and its counts, and close it."""
    player, conversation.player = conversation.player, None
    if player is None:
        return
    conversation.counts.update(player.counts)
    conversation.tool_seconds = player.seconds
    try:
        try:
            reward = player.final_reward()
        finally:
            player.close()
        conversation.final_reward = None if reward is None else conversation.checked_reward(reward)
    except Exception as error:
        if conversation.failure is None:  # else the first failure is the cause
            conversation.fail(error)
