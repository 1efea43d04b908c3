"""Episodes of agents that exist already: they call the policy over HTTP, and what the engine sampled is trained.

The agents run in threads. Their calls arrive in any order; those that wait are sampled together. Which ones are
together changes no token, as in `Dialogue`.
"""

from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from outdo.extras.agents.chat import CallError, ChatAnswer, ChatCall
from outdo.extras.agents.endpoint import Endpoint
from outdo.extras.agents.rows import lay_out
from outdo.extras.agents.running import AgentFunction, RunningAgent, row_of
from outdo.extras.agents.session import Prepared, Session, SessionLimits
from outdo.extras.episodes.conversation import (
    Conversation,
    Episodes,
    groups_of,
    play_episodes,
    score_conversations,
)
from outdo.extras.episodes.episode import LateError
from outdo.extras.episodes.template import Template
from outdo.models.prompt_encoding import Tool
from outdo.rewards.environment import NAME
from outdo.rewards.in_process import RewardLike, as_reward
from outdo.rewards.right import verdicts_of_function
from outdo.rewards.types import FailureCount, RewardOutput, Status, output_without_value
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.environments.base import Environment, check_completions
from outdo.types import Completion, FinishReason, Group, Prompt
from outdo.utils.errors import UserError
from outdo.utils.timing import span

GATHER = 0.02
"""Seconds in which further calls may arrive, after one has: the calls of several agents are sampled at once."""


@dataclass(slots=True, kw_only=True, eq=False)
class Episode:
    """An agent at work, or one that has ended."""

    prompt: Prompt
    session: Session
    address: str = ""
    running: RunningAgent | None = None
    deadline: float = float("inf")  # in seconds of `monotonic`
    closed: bool = False
    error: Exception | None = None
    returned: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A call that waits for its answer."""

    episode: Episode
    call: ChatCall
    answer: "Future[ChatAnswer]" = field(default_factory=Future)


Inbox = SimpleQueue[Arrived | Episode]
"""What the agents send: a call, or the episode itself when its agent has ended."""


class Agent(Environment):
    """Runs an agent `n` times for each prompt, and trains what the policy answered to its calls.

    `run(row, *, base_url, api_key, http_client, model)` gets those of the arguments that it has parameters for. It
    returns the reward of its episode: a number, True or False, `{"reward": number}`, or None, if `reward` alone scores
    the episode; otherwise `reward` is added. An episode has at most `calls` calls and `timeout` seconds; `at_once` of
    them run at the same time.

    The calls of an episode that continue one another are a conversation, of at most `sampling.max_tokens` tokens after
    its first prompt, which has at most `longest_prompt`. A call that does not continue an earlier one begins a further
    conversation (`agents/forks`). All conversations of an episode are one row, the longest first: each answer is
    trained once, and an episode counts once. An agent that raises, is late or makes no call gives a verdict, and no
    reward.
    """

    def __init__(
        self,
        run: AgentFunction,
        template: Template,
        reward: RewardLike | None = None,
        *,
        calls: int = 16,
        at_once: int = 64,
        timeout: float = 600.0,
        turn_tokens: int | None = None,
        longest_prompt: int | None = None,
        context: int | None = None,
        max_failed: float = 0.5,
        step_timeout: float | None = None,
    ) -> None:
        self.run = run
        self.reward = None if reward is None else as_reward(reward)
        self.verdicts = verdicts_of_function(NAME)
        self.at_once = at_once
        self.timeout = timeout
        self.limits = SessionLimits(
            calls=calls, tokens=0, turn_tokens=turn_tokens, prompt=longest_prompt, context=context
        )
        self.max_failed = max_failed
        self.step_timeout = float("inf") if step_timeout is None else step_timeout
        self.template = template
        self._templates: dict[str, Template] = {}  # by their tools

    @cached_property
    def endpoint(self) -> Endpoint:
        """The server that the agents call; the first episodes start it."""
        return Endpoint()

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
        """Return `n` rollouts of each prompt. The prompt of a group is what its conversations have in common.

        Raises `UserError` for a prompt with inputs beside its tokens: an agent writes what the policy reads.
        """
        for prompt in prompts:
            if prompt.inputs:
                raise UserError([f"question {prompt.id} brings {', '.join(prompt.inputs)}, and agents send text alone"])
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
        final = [
            _unless_unscored(conversation, output) for conversation, output in zip(conversations, outputs, strict=True)
        ]
        return groups_of(conversations, final, sampling, n)

    # -------------------------------------------------------------------------------------------------------- playing

    def _play(self, engine: Engine, groups: Sequence[Episodes], sampling: SamplingParams) -> list[Conversation]:
        """Return the finished episodes of some groups."""
        limits = replace(self.limits, tokens=sampling.max_tokens)
        begun = [
            [Episode(prompt=prompt, session=Session(stream, self._template_of, sampling, limits)) for stream in streams]
            for prompt, streams in groups
        ]
        episodes = [episode for group in begun for episode in group]
        inbox: Inbox = SimpleQueue()
        try:
            self._run(engine, episodes, sampling, inbox)
        finally:
            for episode in episodes:
                self._close(episode)
            _refuse_all(inbox)
        played: list[Conversation] = []
        for group in begun:
            conversations = [_conversation(episode, engine.version) for episode in group]
            lay_out([episode.session for episode in group], conversations)
            played += conversations
        return played

    def _template_of(self, tools: Sequence[Tool]) -> Template:
        key = repr(tools)
        if key not in self._templates:
            self._templates[key] = self.template.with_tools(tools)
        return self._templates[key]

    def _run(self, engine: Engine, episodes: Sequence[Episode], sampling: SamplingParams, inbox: Inbox) -> None:
        """Run all agents to their ends, and answer their calls."""
        order = {id(episode): index for index, episode in enumerate(episodes)}
        waiting, running = deque(episodes), set[Episode]()
        while waiting or running:
            while waiting and len(running) < self.at_once:
                running.add(self._start(waiting.popleft(), inbox))
            with span("environment"):
                calls, ended = _gather(inbox, running)
            for episode in ended & running:
                _take_outcome(episode)
            for episode in {late for late in running if late.deadline <= monotonic()} - ended:
                episode.error = LateError(f"the agent had no result after {self.timeout:g} s")
                ended.add(episode)
            self._end(engine, ended & running)
            running -= ended
            calls.sort(key=lambda call: order[id(call.episode)])  # neighbours share their prompts
            self._answer(engine, [call for call in calls if _is_open(call)], sampling)

    def _start(self, episode: Episode, inbox: Inbox) -> Episode:
        def submit(call: ChatCall) -> "Future[ChatAnswer]":
            arrived = Arrived(episode=episode, call=call)
            inbox.put(arrived)
            if episode.closed:  # nobody may look into the inbox any more
                arrived.answer.cancel()
            return arrived.answer

        episode.address = self.endpoint.open(submit)
        episode.deadline = monotonic() + self.timeout
        episode.running = RunningAgent(
            self.run,
            row_of(episode.prompt),
            episode.address,
            lambda: inbox.put(episode),
            client_timeout=self.timeout,
        )
        return episode

    def _end(self, engine: Engine, episodes: Collection[Episode]) -> None:
        """Tell the engine that some episodes have ended, and close them."""
        if episodes:
            engine.end_episodes([episode.session.stream for episode in episodes])
        for episode in episodes:
            self._close(episode)

    def _close(self, episode: Episode) -> None:
        """Answer no further calls of an episode, and cancel its agent if it is still at work."""
        if episode.running is None or episode.closed:
            return
        episode.closed = True
        self.endpoint.close_session(episode.address)
        if not episode.running.outcome.done():
            episode.running.cancel()

    def _answer(self, engine: Engine, calls: Sequence[Arrived], sampling: SamplingParams) -> None:
        """Answer calls: those with the same stop texts are sampled at once."""
        try:
            sampled: list[tuple[Arrived, Prepared]] = []
            for arrived in calls:
                if (prepared := _prepare(arrived)) is not None:
                    sampled.append((arrived, prepared))
            for stop, same in groupby(sorted(sampled, key=_stop_texts), key=_stop_texts):
                self._sample(engine, list(same), replace(sampling, stop=(*sampling.stop, *stop)))
        except BaseException:
            for arrived in calls:
                if not arrived.answer.done():
                    arrived.answer.set_exception(CallError("the run has ended", code="no_session", status=404))
            raise

    def _sample(self, engine: Engine, calls: Sequence[tuple[Arrived, Prepared]], sampling: SamplingParams) -> None:
        requests = [prepared.request for _, prepared in calls]
        with span("sample"):
            completions = engine.generate(requests, sampling)
        check_completions(requests, completions)
        for (arrived, prepared), completion in zip(calls, completions, strict=True):
            try:
                answer = arrived.episode.session.record(prepared, completion)
            except Exception as error:
                arrived.answer.set_exception(_as_call_error(error))
            else:
                arrived.answer.set_result(answer)


def _gather(inbox: Inbox, running: set[Episode]) -> tuple[list[Arrived], set[Episode]]:
    """Return the calls that wait, and the episodes that have ended: at the latest at the next deadline of one.

    After the first it waits for further ones, until every agent has sent something or none has for `GATHER` seconds.
    """
    calls: list[Arrived] = []
    ended: set[Episode] = set()
    patience = max(0.0, min(episode.deadline for episode in running) - monotonic())
    while running - ended - {call.episode for call in calls}:
        try:
            sent = inbox.get(timeout=patience)
        except Empty:
            break
        if isinstance(sent, Episode):
            ended.add(sent)
        else:
            calls.append(sent)
        patience = GATHER
    return calls, ended


def _is_open(arrived: Arrived) -> bool:
    """Return whether a call still waits for its answer; one of an episode that has ended is cancelled."""
    if arrived.episode.closed:
        arrived.answer.cancel()
    return arrived.answer.set_running_or_notify_cancel()


def _prepare(arrived: Arrived) -> Prepared | None:
    """Return the tokens of a call; None if it is answered already, with an error or with nothing."""
    try:
        prepared = arrived.episode.session.prepare(arrived.call)
    except Exception as error:  # a tokenizer or a chat template may raise anything at what an agent has written
        arrived.answer.set_exception(_as_call_error(error))
        return None
    if isinstance(prepared, Prepared):
        return prepared
    arrived.answer.set_result(prepared)
    return None


def _as_call_error(error: Exception) -> CallError:
    if isinstance(error, CallError):
        return error
    return CallError(f"this call cannot be answered: {type(error).__name__}: {error}")


def _stop_texts(call: tuple[Arrived, Prepared]) -> tuple[str, ...]:
    return call[1].call.stop


def _take_outcome(episode: Episode) -> None:
    """Keep what an agent that has ended returned or raised."""
    assert episode.running is not None, "an episode that has ended was started"
    try:
        episode.returned = episode.running.outcome.result()
    except Exception as error:
        episode.error = error


def _refuse_all(inbox: Inbox) -> None:
    """Cancel the calls that nobody will answer."""
    while not inbox.empty():
        sent = inbox.get()
        if isinstance(sent, Arrived):
            sent.answer.cancel()


def _conversation(episode: Episode, version: int) -> Conversation:
    """Return a finished episode with its reward or its failure; its tokens are added by `lay_out`."""
    nothing = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.length, policy_version=version)
    conversation = Conversation(prompt=episode.prompt, stream=episode.session.stream, last_turn=nothing)
    error = episode.error
    if error is None and not episode.session.nodes:
        error = RuntimeError("the agent made no call that was answered")
    try:
        if error is None and episode.returned is not None:
            conversation.final_reward = conversation.checked_reward(episode.returned)
    except ValueError as wrong:
        error = wrong
    if error is not None:
        conversation.fail(error)
    return conversation


def _unless_unscored(conversation: Conversation, output: RewardOutput) -> RewardOutput:
    """Return the reward, or the verdict `not_applicable` if neither the agent nor a function of the recipe gave one."""
    if conversation.failure is None and conversation.final_reward is None and output.parts.keys() <= {NAME}:
        return output_without_value(Status.not_applicable, "the agent returned no reward", NAME)
    return output
