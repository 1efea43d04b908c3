"""The built-in engine: the same request gives the same answer in any batch, and the model is the trainer's own."""

import dataclasses
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from engine_cases import SHARED, fresh, requests, rollout, shared, threads, tokens
from transformers import PreTrainedTokenizerFast

from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule
from outdo.types import Batch, Completion, FinishReason, Group, Prompt, Request
from outdo.utils.errors import EngineError, NonFiniteWeightsError
from outdo.utils.rng import Stream

LONG = SamplingParams(max_tokens=100)
CORE = [("qwen3", {"sharpness": 6.0}), ("gemma2", {}), ("gpt2", {})]
OTHERS = [*((arch, {}) for arch in SHARED if arch not in ("gemma2", "gpt2")), ("qwen3", {"hidden": 128})]


def models(*others: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("arch", "settings"), [*CORE, *others], ids=lambda x: x if isinstance(x, str) else str(x or "")
    )


EVERY_MODEL = models(*OTHERS)
CORE_MODELS = models(*(pytest.param(*each, marks=pytest.mark.release) for each in OTHERS))


def many() -> list[Request]:
    """18 requests: prompts and answers beyond the 64 tokens of a cache block, ends that come at different times."""
    return requests((1, 3, 17, 63, 64, 90), siblings=3, limit=lambda index: (70, 3, 30, 1, 40, 12, 8)[index % 7])


def batch_of(requests: Sequence[Request], answers: Sequence[Completion], temperature: float = 1.0) -> Batch:
    """The engine's answers as the trainer sees them, each a group of its own."""
    return Batch.from_groups(
        [
            Group(
                prompt=Prompt(id=str(number), text="", token_ids=request.token_ids),
                rollouts=(rollout(answer.token_ids, logprobs=answer.logprobs, temperature=temperature),),
            )
            for number, (request, answer) in enumerate(zip(requests, answers, strict=True))
        ]
    )


def mismatch(
    policy: Policy, batch: Sequence[Request], answers: Sequence[Completion], temperature: float = 1.0
) -> float:
    """The largest difference between the log-probabilities of engine and trainer, in nats."""
    trained = batch_of(batch, answers, temperature)
    return float((policy.logprobs(trained) - trained.rollout_logprobs)[trained.loss_mask].abs().max())


# -------------------------------------------------------------------------------------- the same answer in any batch


def assert_the_batch_does_not_matter(policy: Policy, batch: list[Request]) -> list[Completion]:
    together = BuiltinEngine(policy, rows=256).generate(batch, LONG)
    for rows in (4, 64):
        assert BuiltinEngine(policy, rows=rows).generate(batch, LONG) == together
    order = random.Random(0).sample(range(len(batch)), len(batch))
    mixed = BuiltinEngine(policy, rows=7).generate([batch[i] for i in order], LONG)
    assert mixed == [together[i] for i in order]
    without_siblings = BuiltinEngine(policy).generate(batch[1::3], LONG)
    assert without_siblings == together[1::3]
    for i in (0, len(batch) // 2, len(batch) - 2):
        assert BuiltinEngine(policy, rows=1).generate([batch[i]], LONG) == [together[i]]
    return together


@CORE_MODELS
def test_an_answer_has_the_same_bits_in_any_batch(arch, settings):
    """On a CPU in float32: alone, in batches of any size, in any order, with siblings and without."""
    together = assert_the_batch_does_not_matter(shared(arch, **settings), many())
    assert max(len(answer.token_ids) for answer in together) > 64


def few() -> list[Request]:
    return requests((3, 62, 90), siblings=3, limit=lambda index: (9, 1, 6, 3)[index % 4])


def test_an_answer_has_the_same_bits_in_any_batch_with_two_threads():
    with threads(2):
        assert_the_batch_does_not_matter(shared("qwen3", sharpness=6.0), few())


def test_one_thread_and_two_sample_the_same_tokens():
    """The bits of log-probabilities may differ, because threads may split a sum differently.

    So a run is reproducible only with the same number of threads.
    """
    found = []
    for count in (1, 2):
        with threads(count):
            found.append(BuiltinEngine(shared("qwen3", sharpness=6.0)).generate(few(), LONG))
    assert [answer.token_ids for answer in found[0]] == [answer.token_ids for answer in found[1]]
    one, two = (torch.tensor([x for answer in answers for x in answer.logprobs]) for answers in found)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_prompts_are_read_a_few_at_a_time(monkeypatch):
    """Many prompts in one forward pass would take as much more memory; the tokens are the same."""
    policy, passes = shared("qwen3"), list[int]()
    batch = [*many(), dataclasses.replace(many()[0], token_ids=tokens(150, 0))]
    together = BuiltinEngine(policy).generate(batch, LONG)
    flat = policy.forward.flat

    def counted(token_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        passes.append(len(token_ids))
        return flat(token_ids, *rest)

    monkeypatch.setattr(policy.forward, "flat", counted)
    monkeypatch.setattr("outdo.rollouts.fast.continuous_batching.PREFILL_TOKENS", 100)
    assert BuiltinEngine(policy).generate(batch, LONG) == together
    assert sorted(passes)[-4:] == [64, 1 + 3 + 17 + 63, 92, 152]  # in multiples of four


def test_streams_and_seeds_give_different_answers():
    policy, (first, *_) = shared("qwen3"), requests()
    others = [first.stream._replace(**change) for change in ({"purpose": "eval"}, {"step": 2}, {"sample": 9})]
    batch = [first, *(dataclasses.replace(first, stream=stream) for stream in others)]
    answers = [BuiltinEngine(policy, seed=seed).generate(batch, LONG) for seed in (0, 1)]
    assert len({answer.token_ids for both in answers for answer in both}) == 2 * len(batch)


def test_an_interrupted_episode_continues_with_the_same_tokens():
    """`position` counts the random numbers that earlier turns have used."""
    policy, batch = shared("qwen3"), requests(siblings=1)
    engine = BuiltinEngine(policy)
    whole = engine.generate(batch, LONG)
    rest = [
        dataclasses.replace(request, token_ids=request.token_ids + answer.token_ids[:11], position=11, max_tokens=19)
        for request, answer in zip(batch, whole, strict=True)
    ]
    assert [x.token_ids for x in engine.generate(rest, LONG)] == [x.token_ids[11:] for x in whole]


# ------------------------------------------------------------------------------------------- the trainer's own model


@CORE_MODELS
def test_scores_of_sampled_tokens_are_the_log_probabilities_they_were_sampled_with(arch, settings):
    policy, batch = shared(arch, **settings), requests(siblings=1)
    engine = BuiltinEngine(policy)
    answers = engine.generate(batch, LONG)
    whole = [[*each.token_ids, *answer.token_ids] for each, answer in zip(batch, answers, strict=True)]
    for sequence, scores, answer in zip(whole, engine.score(whole), answers, strict=True):
        assert len(scores) == len(sequence) - 1
        assert scores[-len(answer.logprobs) :] == pytest.approx(answer.logprobs, abs=1e-4)


@EVERY_MODEL
def test_log_probabilities_equal_those_of_the_training_forward_pass(arch, settings):
    policy, batch = shared(arch, **settings), many()
    sampling = SamplingParams(max_tokens=100, temperature=0.6, top_p=0.9, top_k=100)
    answers = BuiltinEngine(policy).generate(batch, sampling)
    assert mismatch(policy, batch, answers, temperature=0.6) < 1e-4


@CORE_MODELS
def test_greedy_tokens_equal_those_of_transformers(arch, settings):
    policy, batch = shared(arch, **settings), requests((1, 17, 50), siblings=1, limit=lambda index: 30)
    answers = BuiltinEngine(policy).generate(batch, SamplingParams(max_tokens=30, temperature=0))
    for request, answer in zip(batch, answers, strict=True):
        ids = torch.tensor([request.token_ids])
        full = policy.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30)
        assert list(answer.token_ids) == full[0, ids.shape[1] :].tolist()


def test_the_engine_samples_from_the_current_weights():
    policy, batch = fresh(), requests()
    engine = BuiltinEngine()
    with pytest.raises(ValueError, match=r"no policy yet: call `update_weights\(policy\)` first"):
        engine.generate(batch, LONG)
    engine.update_weights(policy)
    before = engine.generate(batch, LONG)
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(1.5)
    policy.optimiser.steps = 7
    after = engine.generate(batch, LONG)
    assert [answer.token_ids for answer in after] != [answer.token_ids for answer in before]
    assert mismatch(policy, batch, after) < 1e-4
    assert {answer.policy_version for answer in before} == {0}
    assert {answer.policy_version for answer in after} == {7}


# ------------------------------------------------------------------------------------------------------ the padded way


def test_a_model_without_attention_is_sampled_with_matching_log_probabilities():
    policy, batch = shared("mamba"), requests((1, 5, 30), siblings=2, limit=lambda index: 3 + 4 * index)
    answers = BuiltinEngine(policy, rows=3).generate(batch, LONG)
    assert [len(answer.token_ids) for answer in answers] == [3, 7, 11, 15, 19, 23]
    assert mismatch(policy, batch, answers) < 1e-4


@pytest.mark.parametrize("arch", ["gemma2", pytest.param("gpt2", marks=pytest.mark.release)])
def test_both_attention_modes_sample_the_same_tokens(arch):
    policy, padded = shared(arch), fresh(arch, attention="padded")
    batch = requests((1, 9, 40), siblings=2, limit=lambda index: 5 + 3 * index)
    answers = [BuiltinEngine(each, rows=4).generate(batch, LONG) for each in (policy, padded)]
    assert [x.token_ids for x in answers[0]] == [x.token_ids for x in answers[1]]
    assert [x.finish_reason for x in answers[0]] == [x.finish_reason for x in answers[1]]
    assert mismatch(padded, batch, answers[1]) < 1e-4


# ------------------------------------------------------------------------------------------------------------ the ends


ATTENTION_MODES = pytest.mark.parametrize("attention", ["shared", "padded"])


@cache
def policy_with(attention: str, arch: str = "qwen3") -> Policy:
    return shared(arch) if attention == "shared" else fresh(arch, attention="padded")


@cache
def completions(attention: str, **stop: Any) -> list[Completion]:
    """The completions of eight requests of up to 40 tokens, which end at `stop` too."""
    batch = requests((1, 20), siblings=4, limit=lambda index: 40)
    return BuiltinEngine(policy_with(attention)).generate(batch, SamplingParams(max_tokens=100, **stop))


@ATTENTION_MODES
def test_the_end_token_is_part_of_the_answer_and_is_trained(attention):
    policy = fresh(attention=attention)
    with torch.no_grad():
        policy.model.lm_head.weight[0].mul_(4)  # more ends
    batch = requests((1, 20), siblings=5, limit=lambda index: 40)
    answers = BuiltinEngine(policy).generate(batch, LONG)
    stopped = [answer for answer in answers if answer.finish_reason is FinishReason.stop]
    assert len(stopped) > 2
    assert all(answer.token_ids.index(0) == len(answer.token_ids) - 1 for answer in stopped)
    assert all(0 not in x.token_ids and len(x.token_ids) == 40 for x in answers if x not in stopped)
    assert mismatch(policy, batch, answers) < 1e-4
    trained = batch_of(batch, answers)
    assert int((trained.loss_mask & (trained.token_ids == 0)).sum()) == len(stopped)


@ATTENTION_MODES
def test_stop_tokens_end_an_answer_in_addition_to_the_models_own(attention):
    free, stopped = completions(attention), completions(attention, stop_token_ids=tuple(range(5, 15)))
    for whole, cut in zip(free, stopped, strict=True):
        ends = [index for index, token in enumerate(whole.token_ids) if token == 0 or 5 <= token < 15]
        expected = whole.token_ids[: ends[0] + 1] if ends else whole.token_ids
        assert cut.token_ids == expected
        assert cut.finish_reason == (FinishReason.stop if ends else FinishReason.length)
    assert any(answer.finish_reason is FinishReason.stop for answer in stopped)


@ATTENTION_MODES
def test_a_stop_text_ends_an_answer_once_complete_and_is_part_of_it(attention):
    """The stop text has two letters, and no token of the tiny tokenizer has two: it spans tokens."""
    tokenizer = shared("qwen3").tokenizer
    free = completions(attention)
    stop = next(text for text in (tokenizer.decode(free[0].token_ids[i : i + 2]) for i in range(40)) if text.isascii())
    stopped = completions(attention, stop=(stop, "never to be seen"))
    first = stopped[0]
    assert first.finish_reason is FinishReason.stop
    assert tokenizer.decode(first.token_ids).endswith(stop)
    for whole, cut in zip(free, stopped, strict=True):
        assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
        assert cut.logprobs == pytest.approx(whole.logprobs[: len(cut.token_ids)], abs=1e-5)
        assert stop not in tokenizer.decode(cut.token_ids[:-1])
        assert len(cut.token_ids) == len(whole.token_ids) or stop in tokenizer.decode(cut.token_ids)


def finish_reasons(tokenizer: PreTrainedTokenizerFast, text: str, stop: str) -> list[FinishReason | None]:
    """The finish reason after each token of `text`."""
    policy = shared("qwen3")
    row = SequenceState(
        Request(token_ids=(5,), stream=Stream("test", 1, "", 0), max_tokens=999), stream_key=0, max_tokens=999
    )
    rule = StopRule(policy, SamplingParams(stop=(stop,)))
    reasons = []
    for token in tokenizer.encode(text):
        row.token_ids.append(token)
        reasons.append(rule.finish_reason(row))
    return reasons


@pytest.mark.parametrize(
    "stop",
    [
        "é",
        "</answer>",
        "日本",
    ],
)
def test_a_stop_text_is_found_at_its_last_byte(stop):
    tokenizer = shared("qwen3").tokenizer
    reasons = finish_reasons(tokenizer, "so" + stop, stop)
    assert len(reasons) == 2 + len(stop.encode())  # every byte is a token
    assert reasons == [None] * (len(reasons) - 1) + [FinishReason.stop]


def test_a_stop_text_in_the_prompt_has_no_effect():
    policy = shared("qwen3")
    prompt = tuple(policy.tokenizer.encode("Stop here. Stop."))
    request = Request(token_ids=prompt, stream=Stream("test", 1, "", 0), max_tokens=10)
    (answer,) = BuiltinEngine(policy).generate([request], SamplingParams(stop=("Stop.",)))
    assert len(answer.token_ids) == 10


@ATTENTION_MODES
def test_the_smaller_of_the_two_token_limits_applies(attention):
    policy = policy_with(attention)
    batch = requests((1, 20), limit=lambda index: 1 + 2 * index)
    answers = BuiltinEngine(policy).generate(batch, SamplingParams(max_tokens=8))
    lengths = [len(answer.token_ids) for answer in answers]
    assert lengths == [min(8, 1 + 2 * index) for index in range(8)]
    assert {answer.finish_reason for answer in answers} == {FinishReason.length}


@pytest.mark.parametrize(("arch", "attention"), [("gpt2", "shared"), ("qwen3", "padded")])
def test_an_answer_ends_at_the_end_of_the_models_context(arch, attention):
    """The tiny models have 512 positions; gpt2 has learned ones, and would fail at a 513th."""
    policy = policy_with(attention, arch)
    batch = requests((505, 511, 8), siblings=1)
    answers = BuiltinEngine(policy).generate(batch, LONG)
    assert [len(answer.token_ids) for answer in answers] == [7, 1, 30]
    assert [answer.finish_reason for answer in answers] == [FinishReason.length] * 3
    assert mismatch(policy, batch, answers) < 1e-4


@ATTENTION_MODES
def test_a_prompt_that_fills_the_context_is_an_error_that_names_it(attention):
    policy = policy_with(attention)
    request = Request(token_ids=tokens(512, 0), stream=Stream("test", 1, "q7", 0), max_tokens=10)
    with pytest.raises(ValueError, match="prompt q7 has 512 tokens; the model's context of 512 leaves no room"):
        BuiltinEngine(policy).generate([request], LONG)


@pytest.mark.parametrize(("prompt", "limit"), [((), 5), ((7, 8), 0)])
def test_a_request_without_prompt_tokens_or_without_room_is_refused(prompt, limit):
    """An empty prompt would continue its neighbour's prompt; an answer of no tokens would get one."""
    batch = [*requests((4,), siblings=1), Request(token_ids=prompt, stream=Stream("t", 1, "q7", 0), max_tokens=limit)]
    with pytest.raises(ValueError, match="q7"):
        BuiltinEngine(shared("qwen3")).generate(batch, LONG)


@pytest.mark.parametrize(
    ("attention", "value", "temperature"),
    [("shared", torch.nan, 0.0), ("shared", torch.inf, 1.0), ("padded", torch.nan, 1.0)],
)
def test_logits_that_are_not_finite_are_an_error_with_the_step_and_the_question(attention, value, temperature):
    policy = fresh(attention=attention)
    engine, (request, *_) = BuiltinEngine(policy), requests()
    with torch.no_grad():
        policy.model.lm_head.weight[9] = value
    with pytest.raises(NonFiniteWeightsError, match=r"step 1 \(test\): the logits .* after 0 tokens .* question 0"):
        engine.generate([request], SamplingParams(temperature=temperature))


def scarce(policy: Policy, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy's forward pass run out of the machine's memory at more than `most` rows."""
    whole = policy.forward.flat

    def flat(tokens: torch.Tensor, *rest: object) -> torch.Tensor:
        if len(tokens) > most:
            torch.empty(2**60, dtype=torch.uint8)  # a real error of the allocator
        return whole(tokens, *rest)

    monkeypatch.setattr(policy.forward, "flat", flat)


def test_sampling_is_halved_until_it_fits_into_memory(monkeypatch: pytest.MonkeyPatch):
    policy, asked = fresh(), [request for request in many() if len(request.token_ids) <= 3]
    engine = BuiltinEngine(policy)
    expected = BuiltinEngine(policy).generate(asked, LONG)
    scarce(policy, 4, monkeypatch)
    assert engine.generate(asked, LONG) == expected
    assert engine.rows < len(asked)


def test_an_answer_that_does_not_fit_alone_is_an_error_with_the_setting(monkeypatch: pytest.MonkeyPatch):
    policy = fresh()
    engine = BuiltinEngine(policy)
    scarce(policy, 0, monkeypatch)
    with pytest.raises(EngineError, match=r"not suffice to sample a single answer: .*`sampling.max_tokens`"):
        engine.generate(many(), LONG)
