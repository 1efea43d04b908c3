"""Decoding steps that the host does not look at: the tokens of a processor, few reads, and steps that can be captured.

The device is pretended. Graphs are too: what is captured has to have the same addresses whenever it is run again, and
must not wait for the host.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from string import ascii_letters
from typing import Any

import pytest
import torch
from engine_cases import begun, fresh, next_turn, requests
from pretended_cuda import Graphs, move, pretended_cuda

from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.limits import HOST_READS_EVERY
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.fast import continuous_batching
from outdo.testing import tiny_model
from outdo.types import Completion, Request
from outdo.utils.errors import NonFiniteWeightsError

BLOCK = 16
CAPTURED = SamplingChoice(MODES[0])


@contextmanager
def on_cuda(monkeypatch: pytest.MonkeyPatch, arch: str = "qwen3") -> Iterator[tuple[Policy, Graphs]]:
    """A policy on the device that is not there, whose cache grows every few tokens."""
    monkeypatch.setattr(continuous_batching, "ACCELERATOR_BLOCK", BLOCK)
    model, tokenizer = tiny_model(arch=arch)
    with pretended_cuda() as waits:
        move(model)
        graphs = Graphs(waits)
        monkeypatch.setattr(continuous_batching, "CAPTURES", {"cuda": graphs})
        yield Policy(model, tokenizer, precision="float32"), graphs


def assert_alike(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert (one.finish_reason, one.tokens_read) == (other.finish_reason, other.tokens_read)


@pytest.mark.parametrize(
    ("arch", "how"),
    [
        ("qwen3", {"top_p": 0.9}),
        ("gemma2", {"stop": ("e",)}),
        ("lfm2", {"top_p": 0.9}),
        pytest.param("gpt_neox", {"top_p": 0.9}, marks=pytest.mark.release),
    ],
    ids=["qwen3, top_p", "gemma2, stop", "lfm2, top_p", "gpt_neox, top_p"],
)
def test_answers_are_those_of_a_processor(arch: str, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    sampling = SamplingParams(max_tokens=40, **how)
    asked = requests((1, 5, 20), siblings=3, limit=lambda index: (33, 3, 17, 1, 9, 25)[index % 6])
    expected = BuiltinEngine(fresh(arch), rows=5).generate(asked, sampling)
    with on_cuda(monkeypatch, arch) as (policy, graphs):
        found = BuiltinEngine(policy, rows=5, choice=CAPTURED).generate(asked, sampling)
    assert_alike(found, expected)
    assert graphs.replays > len(graphs.captured) > 0
    assert set(graphs.captured) <= {1, 2, 4, 8}


def test_the_next_turn_of_an_episode_continues_what_is_kept(monkeypatch: pytest.MonkeyPatch):
    first, sampling = begun((3, 20)), SamplingParams(max_tokens=20, stop=tuple(ascii_letters))

    def turns(engine: BuiltinEngine) -> tuple[list[Completion], list[Completion]]:
        answers = engine.generate(first, sampling)
        second = [next_turn(each, answer, written=5) for each, answer in zip(first, answers, strict=True)]
        return answers, engine.generate(second, sampling)

    expected = turns(BuiltinEngine(fresh()))
    with on_cuda(monkeypatch) as (policy, _):
        found = turns(BuiltinEngine(policy, choice=CAPTURED))
    for one, other in zip(found, expected, strict=True):
        assert_alike(one, other)


def test_an_episode_is_read_again_if_a_state_may_have_gone_beyond_its_end(monkeypatch: pytest.MonkeyPatch):
    """The host looks after eight tokens: a convolution has then read what comes after the end of an answer."""
    first, sampling = begun((3, 20)), SamplingParams(max_tokens=20, stop=tuple(ascii_letters))

    def second(engine: BuiltinEngine) -> list[Completion]:
        answers = engine.generate(first, sampling)
        return engine.generate([next_turn(*each, written=5) for each in zip(first, answers, strict=True)], sampling)

    expected = second(BuiltinEngine(fresh("lfm2")))
    with on_cuda(monkeypatch, "lfm2") as (policy, _):
        found = second(BuiltinEngine(policy, choice=CAPTURED))
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def endless(monkeypatch: pytest.MonkeyPatch, tokens: int) -> tuple[Counter[str], Graphs, list[Completion]]:
    """What waits for the device while answers of so many tokens are sampled."""
    asked: list[Request] = requests((4, 9), siblings=2, limit=lambda index: tokens)
    with on_cuda(monkeypatch) as (policy, graphs):
        monkeypatch.setattr(Policy, "end_ids", frozenset())
        engine = BuiltinEngine(policy, choice=CAPTURED)
        graphs.waits.clear()
        answers = engine.generate(asked, SamplingParams(max_tokens=tokens))
        return Counter(graphs.waits), graphs, answers


def test_the_host_reads_tokens_and_log_probabilities_once_for_several_steps(monkeypatch: pytest.MonkeyPatch):
    (short, _, _), (long, graphs, answers) = (endless(monkeypatch, 1 + count * HOST_READS_EVERY) for count in (1, 4))
    assert {len(each.token_ids) for each in answers} == {1 + 4 * HOST_READS_EVERY}
    assert long["tolist"] == 2 * (1 + 4)
    assert long - short == Counter(tolist=2 * 3)
    # The cache has 32 tokens after the first look, and 48 at last: each of them is another step to capture.
    assert graphs.captured == [4, 4]


@pytest.mark.release
def test_a_device_that_captures_nothing_samples_operator_by_operator_and_says_so(monkeypatch: pytest.MonkeyPatch):
    captures = dict(continuous_batching.CAPTURES)
    with on_cuda(monkeypatch) as (policy, graphs):
        monkeypatch.setattr(continuous_batching, "CAPTURES", captures)  # torch for processors has no graphs
        engine = BuiltinEngine(policy)
        assert engine.choice.mode == MODES[1]
        assert engine.choice.faults[0].startswith(f"{MODES[0].name}: ")
        graphs.waits.clear()
        engine.generate(requests((4,)), SamplingParams(max_tokens=9))
        assert graphs.waits["tolist"] <= 4


@pytest.mark.release
def test_a_model_whose_step_waits_for_the_host_is_not_captured(monkeypatch: pytest.MonkeyPatch):
    with on_cuda(monkeypatch, "gpt2") as (policy, _):  # looks for padding tokens, to warn of them
        assert BuiltinEngine(policy).choice.mode == MODES[1]
    with on_cuda(monkeypatch) as (policy, _):
        assert BuiltinEngine(policy).choice == CAPTURED


def test_logits_that_are_not_finite_end_sampling(monkeypatch: pytest.MonkeyPatch):
    with on_cuda(monkeypatch) as (policy, _):
        engine = BuiltinEngine(policy, choice=CAPTURED)
        norm = policy.model.model.norm
        norm.register_forward_hook(lambda module, inputs, output: output * float("nan"))
        with torch.no_grad(), pytest.raises(NonFiniteWeightsError):
            engine.generate(requests((4,)), SamplingParams(max_tokens=9))
