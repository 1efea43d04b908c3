"""Test that keys and values of an episode are kept between its turns, and that this changes no bit of it."""

import dataclasses
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pytest
import torch
from engine_cases import begun, fresh, next_turn, shared
from episode_cases import TEMPLATE, dialogue, question, tool_tokenizer

from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Reply
from outdo.models.policy import Policy
from outdo.models.scorer import token_scores
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState
from outdo.rollouts.fast.continuous_batching import ContinuousBatch
from outdo.rollouts.fast.episode_cache import EpisodeCache
from outdo.testing import ARCHITECTURES, tiny_model
from outdo.types import Batch, Completion, Group, Request

SAMPLING = SamplingParams(max_tokens=400)
CORE = ("qwen3", "gemma2", "lfm2", "qwen3_5_text")
OTHERS = [pytest.param(arch, marks=pytest.mark.release) for arch in ARCHITECTURES if arch not in (*CORE, "mamba")]


class Talk:
    """Has something to say to every turn."""

    def reply(self, message: dict[str, Any]) -> Reply:
        return Reply(messages=[{"role": "user", "content": "ok"}])


def talk(arch: str = "qwen3", *, turns: int = 4, turn_tokens: int = 12) -> tuple[Policy, Dialogue]:
    """A policy, and an environment that it talks to."""
    policy = Policy(tiny_model(arch=arch)[0], tool_tokenizer(TEMPLATE))
    environment = dialogue(Talk, tokenizer=policy.tokenizer, turns=turns, turn_tokens=turn_tokens, timeout=600)
    return policy, environment


def play(environment: Dialogue, engine: BuiltinEngine, questions: Sequence[str] = "ab", n: int = 2) -> list[Group]:
    prompts = [question(environment.template, f"Tell me about {each}.", each) for each in questions]
    return environment.rollouts(engine, prompts, n, SAMPLING, step=1, purpose="train")


def sampled(groups: Sequence[Group]) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The tokens of all rollouts, and their log-probabilities by the engine."""
    return [(rollout.token_ids, rollout.logprobs) for group in groups for rollout in group.rollouts]


def read(groups: Sequence[Group]) -> int:
    """The number of tokens that the model computed."""
    return sum(rollout.counts["engine/tokens_read"] for group in groups for rollout in group.rollouts)


def without_keeping(engine: BuiltinEngine, **options: Any) -> BuiltinEngine:
    """An engine of the same policy that reads every turn from the beginning."""
    other = BuiltinEngine(engine.policy, choice=engine.choice, **options)
    other.batching.episode_cache = EpisodeCache(most=0)
    return other


class Counting(BuiltinEngine):
    """Notes how many requests each call has, and how many episodes are kept after it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.rounds: list[list[Request]] = []
        self.most_kept = self.most_bytes = 0

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
        self.rounds.append(list(requests))
        completions = super().generate(requests, sampling)
        self.most_kept = max(self.most_kept, len(self.batching.episode_cache))
        self.most_bytes = max(self.most_bytes, self.batching.episode_cache.size)
        return completions


# ------------------------------------------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("arch", [*CORE, *OTHERS])
def test_four_turns_have_the_same_bits_with_kept_keys_and_values_as_without(arch: str) -> None:
    policy, environment = talk(arch)
    engine = BuiltinEngine(policy)
    kept, again = play(environment, engine), play(environment, without_keeping(engine))
    assert sampled(kept) == sampled(again)
    assert read(again) > 2 * read(kept)
    batch = Batch.from_groups(kept)
    assert int(batch.turn.max()) == 3
    scored = token_scores(policy.forward, batch).logprobs
    assert (scored - batch.rollout_logprobs)[batch.loss_mask].abs().max() <= 1e-5


@pytest.mark.parametrize(("arch", "sharpness"), [("qwen3", 6.0), ("lfm2", 1.0)], ids=["qwen3", "lfm2"])
def test_a_later_turn_depends_on_no_other_episode_and_not_on_what_is_kept(arch: str, sharpness: float) -> None:
    """Beyond the 64 tokens of a block, in any order, with rows for some of the requests, alone, and read again."""
    engine, drawn = BuiltinEngine(shared(arch, sharpness=sharpness)), random.Random(0)
    batch = begun((1, 3, 30, 63, 64, 90))
    for turn in range(4):
        order = drawn.sample(range(len(batch)), len(batch))
        engine.rows = (256, 5, 3, 256)[turn]
        found = dict(zip(order, engine.generate([batch[place] for place in order], SAMPLING), strict=True))
        answers = [found[place] for place in range(len(batch))]
        assert without_keeping(engine).generate(batch, SAMPLING) == answers
        assert without_keeping(engine, rows=1).generate([batch[10]], SAMPLING) == [answers[10]]
        batch = [
            next_turn(request, answer, written=(1, 2, 3, 40)[place % 4])
            for place, (request, answer) in enumerate(zip(batch, answers, strict=True))
        ]
    assert max(len(request.token_ids) for request in batch) > 192


def test_cached_turns_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is not cached counts as read: 24 tokens here, of more than 300 in all."""
    engine, batch = BuiltinEngine(shared("qwen3")), begun((63, 90))
    batch = [next_turn(*each, written=5) for each in zip(batch, engine.generate(batch, SAMPLING), strict=True)]
    admitted: list[int] = []
    admit = ContinuousBatch._admit

    def noted(self: ContinuousBatch, sequences: list[SequenceState], *rest: Any) -> None:
        admitted.append(len(sequences))
        admit(self, sequences, *rest)

    monkeypatch.setattr(ContinuousBatch, "_admit", noted)
    monkeypatch.setattr("outdo.rollouts.fast.continuous_batching.PREFILL_TOKENS", 24)
    answers = engine.generate(batch, SAMPLING)
    assert without_keeping(engine).generate(batch, SAMPLING) == answers
    assert admitted == [4, 1, 1, 1, 1]


def test_keys_that_are_copied_in_parts_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = BuiltinEngine(shared("qwen3"))
    batch = [next_turn(each, Completion(**NOTHING), written=50) for each in begun((3, 90))]
    whole = without_keeping(engine).generate(batch, SAMPLING)
    monkeypatch.setattr("outdo.rollouts.fast.kv_cache.GATHERED_BYTES", 2**15)
    assert without_keeping(engine).generate(batch, SAMPLING) == whole


NOTHING: dict[str, Any] = {"token_ids": (), "logprobs": (), "finish_reason": "length", "policy_version": 0}


def test_a_history_that_is_rewritten_is_read_again() -> None:
    engine, batch = BuiltinEngine(shared("qwen3")), begun((30, 90))
    answers = engine.generate(batch, SAMPLING)
    asked = [next_turn(*each, written=5) for each in zip(batch, answers, strict=True)]
    rewritten = [dataclasses.replace(each, token_ids=(*each.token_ids[:3], 9, *each.token_ids[4:])) for each in asked]
    assert engine.generate(rewritten, SAMPLING) == without_keeping(engine).generate(rewritten, SAMPLING)
    engine.generate(batch, SAMPLING)
    all_prompt = [dataclasses.replace(each, prompt_length=len(each.token_ids)) for each in asked]
    assert engine.generate(all_prompt, SAMPLING) == without_keeping(engine).generate(all_prompt, SAMPLING)
    engine.generate(batch, SAMPLING)
    shorter = [dataclasses.replace(each, token_ids=each.token_ids[: each.prompt_length]) for each in asked]
    assert engine.generate(shorter, SAMPLING) == without_keeping(engine).generate(shorter, SAMPLING)


def test_new_weights_never_use_keys_of_the_old_ones() -> None:
    policy, batch = fresh(), begun((30, 90))
    engine = BuiltinEngine(policy)
    answers = engine.generate(batch, SAMPLING)
    batch = [next_turn(*each, written=5) for each in zip(batch, answers, strict=True)]
    with torch.no_grad():
        policy.model.model.layers[0].self_attn.v_proj.weight.mul_(1.5)
    policy.optimiser.steps += 1
    assert engine.generate(batch, SAMPLING) == without_keeping(engine).generate(batch, SAMPLING)
    assert len(engine.batching.episode_cache) == len(batch)
    engine.update_weights(policy)
    assert (len(engine.batching.episode_cache), engine.batching.episode_cache.size) == (0, 0)


# ------------------------------------------------------------------------------------------------------- what it saves


def test_eight_turns_read_at_most_1_6_tokens_for_each_that_is_sampled() -> None:
    policy, environment = talk(turns=8, turn_tokens=32)
    engine, questions = BuiltinEngine(policy), ["a" * 130]
    kept, again = play(environment, engine, questions), play(environment, without_keeping(engine), questions)
    own = sum(sum(rollout.loss_mask) for group in kept for rollout in group.rollouts)
    ratios = read(kept) / own, read(again) / own
    print(f"tokens read per sampled token: {ratios[0]:.2f} with what is kept, {ratios[1]:.2f} without")
    assert ratios[0] <= 1.6
    assert ratios[1] > 6


def test_what_does_not_fit_is_read_again_and_memory_stays_bounded() -> None:
    policy, environment = talk()
    engine = Counting(policy)
    expected = play(environment, engine, "abcd")
    assert engine.most_kept == 8
    limit, engine.most_bytes = engine.most_bytes // 2, 0
    engine.batching.episode_cache = EpisodeCache(most=limit)
    bounded = play(environment, engine, "abcd")
    assert 0.7 * limit < engine.most_bytes <= limit
    assert sampled(bounded) == sampled(expected)
    assert read(expected) < read(bounded) < read(play(environment, without_keeping(engine), "abcd"))


def test_an_episode_that_has_ended_is_dropped() -> None:
    class Short(Talk):
        def __init__(self) -> None:
            self.left = lengths.pop()

        def reply(self, message: dict[str, Any]) -> Reply:
            self.left -= 1
            kept.append(len(engine.batching.episode_cache))
            return Reply(done=True) if self.left == 0 else super().reply(message)

    lengths, kept = [1, 1, 1, 3], list[int]()
    policy, environment = talk()
    engine = BuiltinEngine(policy)
    environment.make = dialogue(Short, tokenizer=policy.tokenizer, timeout=600).make
    play(environment, engine)
    assert max(kept) == 4
    assert kept[-1] == 1
    assert (len(engine.batching.episode_cache), engine.batching.episode_cache.size) == (0, 0)


def test_memory_that_runs_out_takes_what_is_kept_before_it_takes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, batch = BuiltinEngine(shared("qwen3")), begun((30, 90))
    answers = engine.generate(batch, SAMPLING)
    batch = [next_turn(*each, written=5) for each in zip(batch, answers, strict=True)]
    failed = iter([True])
    take = EpisodeCache.take

    def scarce(kept: EpisodeCache, request: Request) -> Any:
        if next(failed, False):
            raise MemoryError
        return take(kept, request)

    monkeypatch.setattr(EpisodeCache, "take", scarce)
    assert engine.generate(batch, SAMPLING) == without_keeping(engine).generate(batch, SAMPLING)
    assert engine.rows == 256


# ------------------------------------------------------------------------------------------------------- a slow tool


class OnceSlow(Talk):
    """Answers its first turn when `released` is set."""

    def __init__(self, slow: bool, released: threading.Event) -> None:
        self.slow = slow
        self.released = released

    @property
    def is_late(self) -> bool:
        return self.slow and not self.released.is_set()

    def reply(self, message: dict[str, Any]) -> Reply:
        if self.slow:
            assert self.released.wait(600)
        return super().reply(message)


def wait_for_all_but_the_late(waiting: dict[Future[Any], Any], *args: Any, **options: Any) -> Any:
    """The rounds of a machine that is fast enough: every tool answers between two rounds, except the slow one."""
    quick = [reply for reply, conversation in waiting.items() if not conversation.player.episode.is_late]
    return wait(quick or waiting)


@pytest.mark.release
def test_a_tool_that_is_slower_by_ten_rounds_does_not_slow_63_other_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Releasing(Counting):
        def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> list[Completion]:
            completions = super().generate(requests, sampling)
            if len(self.rounds) == 11:
                released.set()
            return completions

    monkeypatch.setattr("outdo.extras.episodes.dialogue.wait", wait_for_all_but_the_late)
    policy, environment = talk(turns=12, turn_tokens=3)
    found, sizes = list[Any](), list[list[int]]()
    for slow in (False, True):
        released, is_slow, engine = threading.Event(), iter([slow, *[False] * 63]), Releasing(policy)
        make = dialogue(partial(next_episode, is_slow, released), tokenizer=policy.tokenizer, timeout=600).make
        environment.make = make
        found.append(sampled(play(environment, engine, "a", n=64)))
        sizes.append([len(each) for each in engine.rounds])
    assert sizes == [[64] * 12, [64, *[63] * 10, 64, *[1] * 10]]
    assert found[0] == found[1]


def next_episode(is_slow: Iterator[bool], released: threading.Event) -> OnceSlow:
    return OnceSlow(next(is_slow), released)
