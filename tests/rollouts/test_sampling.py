"""Sampling a token, and the random numbers for it: plain functions, checked exactly."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from outdo.algorithms.vocabulary_sums import token_logprobs
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import apply_filters, sample_tokens
from outdo.utils.rng import Stream, stream_key, uniforms

# Distinct to three digits, so that no two tokens tie for a place.
LOGITS = st.lists(st.integers(-6000, 6000), min_size=2, max_size=24, unique=True).map(lambda x: torch.tensor(x) / 1000)


def evenly(count: int) -> Tensor:
    """The middles of `count` equal parts of [0, 1)."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def sample(logits: Tensor, numbers: Tensor, **settings: object) -> Tensor:
    return sample_tokens(logits.expand(len(numbers), -1), numbers, SamplingParams(**settings))[0]


# -------------------------------------------------------------------------------------------------------- a token


@given(LOGITS, st.sampled_from([0.25, 0.7, 1.0, 3.0]))
def test_token_frequencies_are_the_softmax_of_logits_over_temperature(logits: Tensor, temperature: float):
    counts = sample(logits, evenly(2000), temperature=temperature).bincount(minlength=len(logits))
    expected = 2000 * (logits.double() / temperature).softmax(-1)
    assert (counts - expected).abs().max() < 1.01  # each token has one interval: only its two ends can round


@given(LOGITS, st.integers(0, 26), st.floats(0.05, 1), st.one_of(st.just(0.0), st.floats(1e-3, 1)))
def test_the_filters_keep_the_same_tokens_as_transformers(logits: Tensor, top_k: int, top_p: float, min_p: float):
    scores = logits[None].double()
    if top_k:
        scores = TopKLogitsWarper(top_k)(None, scores)
    reached = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
    if (reached - top_p).abs().min() < 1e-5:  # on the edge rounding decides, there and here
        return
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    least = scores.softmax(-1) / scores.softmax(-1).max() - min_p
    if min_p and least[scores > -torch.inf].abs().min() < 1e-5:
        return
    if min_p:
        scores = MinPLogitsWarper(min_p)(None, scores)
    probabilities = logits[None].softmax(-1)
    kept = apply_filters(probabilities, SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p))
    assert torch.equal(kept, probabilities * (scores > -torch.inf))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.5}, {1}),  # the first token that reaches it is the last to stay
        ({"top_p": 0.51}, {1, 3}),
        ({"top_p": 1e-9}, {1}),
        ({"min_p": 0.3}, {1, 3}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.9}, {1, 3, 0}),  # 0.9 of what top-k left
        ({"top_k": 2, "top_p": 0.6, "min_p": 0.9}, {1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
    ],
)
def test_filters_on_examples_computed_by_hand(settings: dict[str, float], kept: set[int]):
    logits = torch.tensor([0.125, 0.5, 0.0625, 0.3125]).log()
    assert set(sample(logits, evenly(500), **settings).tolist()) == kept


@pytest.mark.parametrize("possible", [{0}, {7}, {2, 3, 5}])
@pytest.mark.parametrize("settings", [{}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_token_of_probability_zero_is_never_sampled(possible: set[int], settings: dict[str, float]):
    logits = torch.full((8,), -torch.inf)
    logits[list(possible)] = torch.randn(len(possible), generator=torch.Generator().manual_seed(0)) / 10
    numbers = torch.cat([torch.tensor([0.0, 2.0**-53, 1 - 2.0**-53], dtype=torch.float64), evenly(200)])
    assert set(sample(logits, numbers, **settings).tolist()) <= possible


def test_a_number_that_rounds_up_to_one_samples_a_possible_token():
    """As numbers next to 1 do in float32, which is all that some accelerators have."""
    logits = torch.randn(50, 99, generator=torch.Generator().manual_seed(0))
    logits[:, -1] = -torch.inf
    tokens, logprobs = sample_tokens(logits, torch.ones(50, dtype=torch.float64), SamplingParams())
    assert tokens.max() < 98
    assert logprobs.isfinite().all()


def test_a_token_with_a_probability_of_one_in_a_billion_can_be_sampled():
    """It lies between two tokens of almost one half each; in float32 its interval would be empty."""
    assert sample(
        torch.tensor([0.0, -20.7, 0.0]), torch.tensor([0.4999, 0.5, 0.5001], dtype=torch.float64)
    ).tolist() == [0, 1, 2]


LARGE = 10_001  # above `LARGE_VOCABULARY`, and no multiple of a block


def large_logits(rows: int) -> Tensor:
    return torch.randn(rows, LARGE, generator=torch.Generator().manual_seed(0)) * 2


def test_in_a_large_vocabulary_a_token_is_the_one_whose_share_of_the_line_has_the_number():
    logits, numbers = large_logits(200), evenly(200)
    tokens, _ = sample_tokens(logits, numbers, SamplingParams())
    cumulative = logits.softmax(-1).double().cumsum(-1)
    cumulative /= cumulative[:, -1:].clone()
    ends = cumulative.gather(1, tokens[:, None])[:, 0]
    begins = ends - logits.softmax(-1).double().gather(1, tokens[:, None])[:, 0]
    assert (begins - 1e-6 <= numbers).all()
    assert (numbers <= ends + 1e-6).all()


@pytest.mark.parametrize("possible", [{0}, {255}, {256}, {LARGE - 1}, {17, 9_000}])
def test_in_a_large_vocabulary_a_token_of_probability_zero_is_never_sampled(possible: set[int]):
    logits = torch.full((LARGE,), -torch.inf)
    logits[list(possible)] = torch.arange(float(len(possible)))
    numbers = torch.cat([torch.tensor([0.0, 2.0**-53, 1 - 2.0**-53, 1.0], dtype=torch.float64), evenly(200)])
    assert set(sample(logits, numbers).tolist()) == possible


@given(LOGITS)
def test_temperature_zero_takes_the_likeliest_token(logits: Tensor):
    tokens, logprobs = sample_tokens(logits[None], evenly(1), SamplingParams(temperature=0))
    assert int(tokens) == int(logits.argmax())
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).max()[None])


@pytest.mark.parametrize(("temperature", "settings"), [(0.5, {"top_k": 2}), (1.0, {"top_p": 0.3}), (2.0, {})])
def test_log_probabilities_are_over_the_whole_vocabulary_at_the_sampling_temperature(
    temperature: float, settings: dict
):
    logits = torch.randn(50, 20, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample_tokens(logits, evenly(50), SamplingParams(temperature=temperature, **settings))
    expected = (logits / temperature).log_softmax(-1)[range(50), tokens]
    torch.testing.assert_close(logprobs, expected)


@pytest.mark.parametrize("vocabulary", [50, 49_000])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_log_probability_of_a_confident_token_is_the_trainers(vocabulary: int, temperature: float):
    """The trainer leaves the token out of its sum over the vocabulary; a probability near 1 alone has lost the rest."""
    logits = torch.randn(16, vocabulary, generator=torch.Generator().manual_seed(0))
    logits[:, 7] = torch.linspace(0, 40, 16) + math.log(vocabulary)
    numbers, sampling = torch.full((16,), 0.5, dtype=torch.float64), SamplingParams(temperature=temperature)
    tokens, logprobs = sample_tokens(logits, numbers, sampling)
    assert tokens[4:].tolist() == [7] * 12
    torch.testing.assert_close(logprobs, token_logprobs(logits, tokens), rtol=1e-5, atol=0)
    for row in range(16):  # and no bit of it depends on the company
        alone = sample_tokens(logits[row : row + 1], numbers[:1], sampling)[1]
        assert torch.equal(alone, logprobs[row : row + 1])


@pytest.mark.parametrize("settings", [{}, {"top_p": 0.8, "top_k": 40, "min_p": 0.01}])
def test_the_token_of_a_row_does_not_depend_on_other_rows(settings: dict[str, float]):
    logits = torch.randn(70, 501, generator=torch.Generator().manual_seed(0)) * 3
    numbers = evenly(70)
    together = sample_tokens(logits, numbers, SamplingParams(**settings))
    for rows in ([0], [69], [3, 1, 2], list(range(40, 70))):
        tokens, logprobs = sample_tokens(logits[rows], numbers[rows], SamplingParams(**settings))
        assert torch.equal(tokens, together[0][rows])
        assert torch.equal(logprobs, together[1][rows])


def test_all_sampling_parameters_out_of_range_are_reported():
    with pytest.raises(
        ValueError, match=r"temperature must .* top_p must .* top_k must .* min_p must .* max_tokens must"
    ):
        SamplingParams(temperature=-1, top_p=0, top_k=-1, min_p=1.5, max_tokens=0)
    with pytest.raises(ValueError, match="temperature"):
        SamplingParams(temperature=float("nan"))


# ------------------------------------------------------------------------------------------------- the random numbers


def numbers(key: int, positions: range) -> np.ndarray:
    return uniforms(np.full(len(positions), key, np.uint64), np.array(positions, np.uint64))


def test_numbers_equal_the_published_ones_of_splitmix64():
    """The first outputs for seed 0, as in the reference implementation's own tests (Vigna, splitmix64.c)."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC, 0x1B39896A51A8749B]
    assert numbers(0, range(5)).tolist() == [(x >> 11) / 2**53 for x in published]


def keys(count: int) -> np.ndarray:
    return np.array([stream_key(0, Stream("train", 1, str(i), 0)) for i in range(count)], np.uint64)


def uniformity(values: np.ndarray) -> float:
    """Kolmogorov and Smirnov's distance from the uniform distribution, in units of 1/√n: beyond 2 once in 3,000."""
    n = len(values)
    return float(np.abs(np.sort(values) - (np.arange(n) + 0.5) / n).max() * n**0.5)


def test_numbers_are_uniform_along_a_stream_and_across_streams():
    along = numbers(int(keys(1)[0]), range(20_000))
    across = uniforms(keys(20_000), np.zeros(20_000, np.uint64))
    for values in (along, across):
        assert (values.min() >= 0, values.max() < 1) == (True, True)
        assert uniformity(values) < 2
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 0.03


def test_every_field_of_a_stream_changes_its_numbers():
    names = [Stream(*name) for name in product(("train", "eval"), range(4), ("0", "1", "0'", "é\ud800"), range(4))]
    first = [tuple(numbers(stream_key(seed, name), range(3))) for name in names for seed in (0, 1)]
    assert len(set(first)) == len(first)


def test_the_key_of_a_stream_never_changes():
    """A change here changes every run that anybody has made."""
    assert stream_key(0, Stream("train", 1, "q1", 0)) == 350316858389027572
