"""Log-probabilities and entropies: the shift, the chunks, the temperature, and logits of minus infinity."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from toys import assert_close

from outdo.algorithms.vocabulary_sums import (
    VocabularySum,
    detached_entropy,
    token_collision,
    token_entropy,
    token_logprobs,
)
from outdo.models.logprobs import chunked_scores, predecessors, sequence_logprobs, top_tokens

VOCABULARY, HIDDEN, TOKENS = 11, 6, 13
MISSING = (1e-2, 4.5e-5, 6e-6, 8e-7, 1e-9, 1e-12)
"""How far the probability of a confident token is from 1."""


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(*shape: int) -> Tensor:
    return torch.randint(VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def test_the_logits_before_a_token_predict_it() -> None:
    assert predecessors(4).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sequence_logprobs_are_the_log_softmax_of_the_position_before(temperature: float) -> None:
    logits, token_ids = noise(3, 5, VOCABULARY), ids(3, 5)
    expected = torch.zeros(3, 5, dtype=torch.float64)
    for b in range(3):
        for t in range(1, 5):
            expected[b, t] = (logits[b, t - 1] / temperature).log_softmax(-1)[token_ids[b, t]]
    assert_close(sequence_logprobs(logits, token_ids, temperature), expected)


def test_index_0_is_0_even_where_the_model_forbids_its_token() -> None:
    logits = torch.zeros(1, 3, 4)
    logits[..., 2] = -math.inf  # a padding token that the model must never say
    logprobs = sequence_logprobs(logits.requires_grad_(), torch.tensor([[2, 1, 0]]))
    assert_close(logprobs, torch.tensor([[0.0, -math.log(3), -math.log(3)]]), tolerance=1e-6)
    (gradient,) = torch.autograd.grad(logprobs.sum(), logits)
    assert gradient.isfinite().all()


def test_a_forbidden_token_has_probability_0_and_changes_no_other() -> None:
    logits = noise(4, VOCABULARY)
    logits[:, 3] = -math.inf
    kept = torch.cat([logits[:, :3], logits[:, 4:]], 1)
    assert_close(token_logprobs(logits, torch.tensor([0, 1, 2, 4])), token_logprobs(kept, torch.tensor([0, 1, 2, 3])))
    assert token_logprobs(logits[0], torch.tensor(3)) == -math.inf
    leaf = logits.clone().requires_grad_()
    entropy = token_entropy(leaf)
    assert_close(entropy.detach(), token_entropy(kept))
    (gradient,) = torch.autograd.grad(entropy.sum(), leaf)
    assert gradient.isfinite().all()
    assert gradient[:, 3].eq(0).all()


def test_bfloat16_logits_are_computed_in_float32() -> None:
    logits, token_ids = noise(3, VOCABULARY).bfloat16(), ids(3)
    for value, expected in (
        (token_logprobs(logits, token_ids), token_logprobs(logits.float(), token_ids)),
        (token_entropy(logits), token_entropy(logits.float())),
    ):
        assert value.dtype == torch.float32
        assert value.equal(expected)


def test_the_most_probable_tokens_by_hand() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [0.0, -1.0, 5.0]], dtype=torch.float64) * 0.5
    token_ids, logprobs = top_tokens(logits, torch.tensor([0.5, 0.5]), 2)
    assert token_ids.tolist() == [[1, 2], [2, 0]]
    first = math.log(math.e**1 + math.e**3 + math.e**2)
    assert logprobs[0].tolist() == pytest.approx([3 - first, 2 - first])
    assert top_tokens(logits, 1.0, 5)[0].shape == (2, 3)  # no more than there are tokens


def test_the_entropy_is_that_of_the_whole_distribution() -> None:
    logits = noise(7, VOCABULARY)
    assert_close(token_entropy(logits, 0.7), torch.distributions.Categorical(logits=logits / 0.7).entropy())
    assert_close(token_entropy(torch.zeros(1, 8)), torch.full((1,), math.log(8)), tolerance=1e-6)


Sums = tuple[VocabularySum, ...]


def cubes(logits: Tensor, temperature: Tensor) -> Tensor:
    """Σ_v p_v³, a sum of this test."""
    return (logits / temperature[:, None]).softmax(1).pow(3).sum(1)


SUMS: list[Sums] = [(), (detached_entropy,), (token_entropy,), (cubes, token_entropy, token_collision)]


def mixture(logprobs: Tensor, *sums: Tensor) -> Tensor:
    """A loss of log-probabilities and sums."""
    tokens = len(logprobs)
    return (
        sum((value * noise(tokens, seed=5 + n)).sum() for n, value in enumerate(sums))
        + (logprobs * noise(tokens, seed=4)).sum()
    )


def scored(chunk: int, sums: Sums) -> list[Tensor]:
    """Log-probabilities, sums, and the gradients of a mixture of them by hidden states and head."""
    hidden = noise(TOKENS, HIDDEN, seed=2).requires_grad_()
    matrix = noise(HIDDEN, VOCABULARY, seed=3).requires_grad_()
    temperature = torch.linspace(0.5, 1.5, TOKENS, dtype=torch.float64)
    scores = chunked_scores(lambda rows: rows @ matrix, hidden, ids(TOKENS), temperature, sums=sums, chunk=chunk)
    return [*(value.detach() for value in scores), *torch.autograd.grad(mixture(*scores), [hidden, matrix])]


@given(st.integers(1, TOKENS + 2), st.sampled_from(SUMS))
def test_chunks_change_neither_value_nor_gradient(chunk: int, sums: Sums) -> None:
    assert_close(scored(chunk, sums), scored(10**6, sums))


# ---------------------------------------------------------------------------------------------------- confident tokens


def confident(missing: float) -> tuple[Tensor, Tensor]:
    """Logits [1, V] in which a token has the probability 1 - missing, as float32 can hold them, and the token [1]."""
    token, logits = torch.tensor([4]), noise(1, VOCABULARY)
    others = logits.scatter(1, token[:, None], -math.inf).logsumexp(1)
    logits[:, 4] = others + math.log1p(-missing) - math.log(missing)
    return logits.float(), token


def of_linear_head(logits: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy by a head whose logits are its input, in two parts of the vocabulary."""
    head = nn.Linear(VOCABULARY, WORDS, bias=False, dtype=logits.dtype)
    with torch.no_grad():
        head.weight.zero_()[:VOCABULARY] = torch.eye(VOCABULARY)
        head.weight[VOCABULARY:, 4] = -1.0  # words that are never said beside a confident token
    return chunked_scores(head, logits, token, torch.ones(1), sums=[token_entropy], chunk=1)


WAYS = {
    "logits": lambda logits, token: (token_logprobs(logits, token), token_entropy(logits)),
    "other head": lambda logits, token: chunked_scores(lambda x: x, logits, token, torch.ones(1), sums=[token_entropy]),
    "linear head": of_linear_head,
}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("way", WAYS)
def test_a_probability_near_1_has_all_digits_of_what_is_missing(way: str, missing: float) -> None:
    """Values and gradients in float32 are those of float64 to 1e-4 of themselves, which are as small as 1 - p."""
    logits, token = confident(missing)
    found, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    scores, expected = WAYS[way](found, token), WAYS[way](exact, token)
    for score, value in zip(scores, expected, strict=True):
        assert score.item() == pytest.approx(value.item(), rel=1e-4)
        (gradient,) = torch.autograd.grad(score.sum(), found, retain_graph=True)
        (derivative,) = torch.autograd.grad(value.sum(), exact, retain_graph=True)
        assert (gradient - derivative).abs().max() < 1e-4 * derivative.abs().max()


@pytest.mark.parametrize("missing", MISSING)
def test_the_most_probable_token_has_the_log_probability_of_a_chosen_one(missing: float) -> None:
    logits, token = confident(missing)
    token_ids, logprobs = top_tokens(logits, 1.0, 3)
    assert token_ids[0, 0] == token
    for column, top in enumerate(token_ids[0]):
        assert float(logprobs[0, column]) == pytest.approx(float(token_logprobs(logits, top[None])), rel=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_an_infinite_logit_is_no_certainty(way: str) -> None:
    logits, token = confident(0.5)
    logits[0, 4] = math.inf
    logprobs, _ = WAYS[way](logits, token)
    assert logprobs.isnan().all()


# ------------------------------------------------------------------------------------------ a head that is a linear map

WORDS = 700  # more than the least part of a vocabulary that is computed at once


def linear(dtype: torch.dtype = torch.float64, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(6)
    return nn.Linear(HIDDEN, WORDS, bias=bias, dtype=dtype)


def by_head(
    head: nn.Linear, *, tokens: int, sums: Sums, chunk: int | None, coldest: float = 0.5, plain: bool = False
) -> list[Tensor]:
    """Log-probabilities, sums, and the gradients of a mixture of them by hidden states and trained weights."""
    dtype = head.weight.dtype
    hidden = noise(tokens, HIDDEN, seed=2).to(dtype).requires_grad_()
    token_ids = torch.randint(WORDS, (tokens,), generator=torch.Generator().manual_seed(1))
    temperature = torch.linspace(coldest, 1.5, tokens, dtype=dtype)
    if plain:
        logits = head(hidden)
        scores = token_logprobs(logits, token_ids, temperature), *(each(logits, temperature) for each in sums)
    else:
        scores = chunked_scores(head, hidden, token_ids, temperature, sums=sums, chunk=chunk)
    trained = [hidden, *(weight for weight in head.parameters() if weight.requires_grad)]
    return [*(value.detach() for value in scores), *torch.autograd.grad(mixture(*scores), trained)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@given(
    tokens=st.integers(1, 40),
    chunk=st.none() | st.integers(1, 50),
    sums=st.sampled_from(SUMS),
    bias=st.booleans(),
    coldest=st.floats(0.05, 2),
)
def test_a_linear_head_in_parts_equals_the_head_as_a_whole(
    dtype: torch.dtype, tolerance: float, tokens: int, chunk: int | None, sums: Sums, bias: bool, coldest: float
) -> None:
    head = linear(dtype, bias=bias)
    how = {"tokens": tokens, "sums": sums, "chunk": chunk, "coldest": coldest}
    for found, expected in zip(by_head(head, **how), by_head(head, plain=True, **how), strict=True):
        assert (found - expected).norm() <= tolerance * expected.norm().clamp(min=1)


@pytest.mark.parametrize("sums", SUMS)
def test_the_gradient_of_a_linear_head_is_the_derivative(sums: Sums) -> None:
    token_ids, temperature = torch.tensor([0, 699, 300]), torch.tensor([0.7, 1.0, 1.3], dtype=torch.float64)

    def score(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        head = linear()
        del head.weight
        head.weight = weight  # a tensor, not a parameter: gradcheck moves it
        scores = chunked_scores(head, hidden, token_ids, temperature, sums=sums, chunk=1)
        return tuple(value for value in scores if value.requires_grad)

    weight = linear().weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(score, (noise(3, HIDDEN).requires_grad_(), weight), fast_mode=True)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor made meanwhile holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                self.numbers = max(self.numbers, each.untyped_storage().nbytes() // each.element_size())
        return made


def test_a_linear_head_computes_at_most_the_logits_of_a_chunk_at_a_time() -> None:
    tokens, chunk = 400, 150
    head, hidden = linear(torch.float32), noise(tokens, HIDDEN).float().requires_grad_()
    with Largest() as largest:
        (logprobs,) = chunked_scores(head, hidden, ids(tokens), torch.ones(tokens), chunk=chunk)
        logprobs.sum().backward()
    assert chunk * WORDS * 0.9 < largest.numbers <= chunk * WORDS


def test_a_frozen_head_gets_no_gradient_and_passes_it_on() -> None:
    how = {"tokens": TOKENS, "sums": (token_entropy, cubes), "chunk": None}
    expected = by_head(linear(), **how)[3]
    found = by_head(linear().requires_grad_(False), **how)
    assert len(found) == 4
    assert_close(found[3], expected)


def test_sums_do_not_change_a_bit_of_the_log_probabilities() -> None:
    """Those measured beforehand are those of the update."""
    head, hidden, token_ids = linear(torch.float32), noise(TOKENS, HIDDEN).float(), ids(TOKENS)
    rows = (head, hidden, token_ids, torch.ones(TOKENS))
    with torch.no_grad():
        expected = chunked_scores(*rows)[0]
    for sums in SUMS:
        assert chunked_scores(*rows, sums=sums)[0].equal(expected)


def test_autocast_applies_to_products_alone() -> None:
    head, hidden, token_ids = linear(torch.float32), noise(TOKENS, HIDDEN).float(), ids(TOKENS)
    with torch.autocast("cpu", torch.bfloat16):
        logprobs, entropies = chunked_scores(head, hidden, token_ids, torch.ones(TOKENS), sums=[detached_entropy])
        logits = head(hidden)
    (gradient,) = torch.autograd.grad(logprobs.sum(), head.weight)
    assert logits.dtype == torch.bfloat16
    assert logprobs.dtype == entropies.dtype == gradient.dtype == torch.float32
    assert_close(logprobs, token_logprobs(logits, token_ids), tolerance=1e-5)
    assert_close(entropies, token_entropy(logits), tolerance=1e-5)
    (expected,) = torch.autograd.grad(token_logprobs(logits, token_ids).sum(), head.weight)
    assert (gradient - expected).norm() < 0.01 * expected.norm()
