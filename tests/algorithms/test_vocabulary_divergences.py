"""Divergences over the vocabulary: their values, gradients and limits, and those of TRL 1.16."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toys import assert_close

from benchmarks.teacher_variance import moments
from outdo.algorithms.vocabulary_divergences import VocabularyDivergence, forward_kl, jensen_shannon, reverse_kl

ALL = {
    "reverse": reverse_kl(),
    "forward": forward_kl(),
    "jensen_shannon": jensen_shannon(beta=0.3),
    "reverse, top 4": reverse_kl(top=4),
    "forward, top 4": forward_kl(top=4),
    "jensen_shannon, top 4": jensen_shannon(top=4),
    "forward, sharper teacher": forward_kl(teacher_temperature=0.5),
}
SEEDS = st.integers(0, 10_000)


def logits(seed: int, tokens: int = 5, words: int = 9) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    policy, teacher = (2 * torch.randn(tokens, words, generator=random, dtype=torch.float64) for _ in range(2))
    return policy, teacher


def test_values_of_three_words_computed_by_hand():
    policy, teacher = torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.25, 0.5, 0.25]]).log()

    def value(divergence: VocabularyDivergence) -> float:
        return float(divergence(policy, teacher, 1.0))

    assert value(reverse_kl()) == pytest.approx(0.25 * math.log(2))
    assert value(forward_kl()) == pytest.approx(0.25 * math.log(2))
    # The mixture is (3/8, 3/8, 1/4).
    assert value(jensen_shannon()) == pytest.approx(0.25 * math.log(2 / 3) + 0.5 * math.log(4 / 3))
    # The teacher's most probable word against all others: 1/4 and 3/4 against 1/2 and 1/2.
    assert value(reverse_kl(top=1)) == pytest.approx(0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2))


@given(SEEDS, st.sampled_from(list(ALL)))
def test_a_divergence_is_0_for_equal_distributions_and_above_0_for_others(seed: int, name: str):
    policy, teacher = logits(seed)
    if name != "forward, sharper teacher":
        assert_close(ALL[name](policy, policy + 3.0, 0.7), torch.zeros(5, dtype=torch.float64))
    assert (ALL[name](policy, teacher, 0.7) > 0).all()


@given(SEEDS)
def test_the_gradient_of_the_reverse_kl_is_that_of_its_docstring(seed: int):
    policy, teacher = logits(seed)
    leaf = policy.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(reverse_kl()(leaf, teacher, 0.7).sum(), leaf)
    p, gap = (policy / 0.7).softmax(-1), (policy - teacher) / 0.7
    assert_close(gradient, p * (gap - (p * gap).sum(-1, keepdim=True)) / 0.7)


@given(SEEDS, st.sampled_from(list(ALL)))
def test_a_shift_of_all_logits_changes_nothing_and_gets_no_gradient(seed: int, name: str):
    policy, teacher = logits(seed)
    leaf = policy.clone().requires_grad_()
    values = ALL[name](leaf, teacher)
    assert_close(ALL[name](policy + 5.0, teacher - 2.0), values.detach())
    (gradient,) = torch.autograd.grad(values.sum(), leaf)
    assert_close(gradient.sum(-1), torch.zeros(5, dtype=torch.float64))


@given(SEEDS)
def test_a_tail_loses_information_and_all_words_lose_none(seed: int):
    policy, teacher = logits(seed)
    for make in (reverse_kl, forward_kl, jensen_shannon):
        whole = make()(policy, teacher)
        parts = [make(top=top)(policy, teacher) for top in (1, 3, 8)]
        assert_close(make(top=9)(policy, teacher), whole)
        assert_close(parts[-1], whole)  # the tail is one word
        for fewer, more in zip([torch.zeros(5), *parts], [*parts, whole], strict=True):
            assert (more - fewer > -1e-12).all()


@given(SEEDS)
def test_jensen_shannon_tends_to_both_kls(seed: int):
    policy, teacher = logits(seed)
    near = 1e-7
    assert_close(jensen_shannon(beta=near)(policy, teacher) / near, forward_kl()(policy, teacher), tolerance=1e-3)
    assert_close(jensen_shannon(beta=1 - near)(policy, teacher) / near, reverse_kl()(policy, teacher), tolerance=1e-3)


def test_words_that_one_of_both_forbids():
    never = torch.tensor([[0.0, 0.0, -math.inf]]).requires_grad_()
    teacher = torch.tensor([[0.0, 1.0, 0.5]])
    value = reverse_kl()(never, teacher)
    assert value.isfinite().all()
    (gradient,) = torch.autograd.grad(value.sum(), never)
    assert gradient.isfinite().all()
    assert forward_kl()(teacher, never.detach()).isfinite().all()
    assert reverse_kl()(teacher, never.detach()).isposinf().all()


@given(SEEDS)
def test_the_mean_over_sampled_words_is_the_divergence_and_its_gradient(seed: int):
    """By enumeration of the vocabulary: the sampled form (`distillation`) has the same expected gradient."""
    policy, teacher = logits(seed)
    leaf = policy.clone().requires_grad_()
    logprobs = leaf.log_softmax(-1)
    delta = (teacher.log_softmax(-1) - logprobs).detach()
    sampled = -(logprobs.exp().detach() * delta * logprobs).sum(-1)  # Σ_v p_v times the loss of the sampled word v
    (expected,) = torch.autograd.grad(sampled.sum(), leaf)
    (gradient,) = torch.autograd.grad(reverse_kl()(leaf, teacher).sum(), leaf)
    assert_close(expected, gradient)
    assert_close(-(logprobs.exp() * delta).sum(-1).detach(), reverse_kl()(policy, teacher))


def test_only_the_policy_gets_a_gradient():
    policy, teacher = (values.requires_grad_() for values in logits(0))
    forward_kl()(policy, teacher).sum().backward()
    assert policy.grad is not None
    assert teacher.grad is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: jensen_shannon(beta=1.0), "beta must be between 0 and 1, not 1.0: use forward_kl for 0"),
        (lambda: reverse_kl(top=-1), "top is a number of tokens, 0 for all of them, not -1"),
        (lambda: forward_kl(teacher_temperature=0.0), "teacher_temperature must be a number above 0, not 0.0"),
    ],
)
def test_an_option_out_of_range_is_refused(make: object, said: str):
    with pytest.raises(ValueError, match=said):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trl_computes_the_same(temperature: float):
    gkd = pytest.importorskip("trl.experimental.gkd.gkd_trainer").GKDTrainer
    iw_opd = pytest.importorskip("trl.experimental.iw_opd.iw_opd_trainer").IWOPDTrainer
    policy, teacher = (values[None] for values in logits(3))

    def of_trl(trainer: type, beta: float, **options: Any) -> Tensor:
        loss = trainer.generalized_jsd_loss(
            policy, teacher, beta=beta, temperature=temperature, reduction="none", **options
        )
        return loss.sum(-1).flatten()

    def ours(divergence: VocabularyDivergence) -> Tensor:
        return divergence(policy[0], teacher[0], temperature)

    assert_close(ours(reverse_kl()), of_trl(gkd, 1.0))
    assert_close(ours(forward_kl()), of_trl(gkd, 0.0))
    assert_close(ours(jensen_shannon(beta=0.3)), of_trl(gkd, 0.3), tolerance=1e-7)  # TRL's β is a float32 tensor
    assert_close(ours(forward_kl(top=4)), of_trl(iw_opd, 0.0, top_k=4))


@settings(max_examples=15)
@given(SEEDS)
def test_of_whole_answers_the_whole_vocabulary_has_the_same_mean_gradient_and_less_variance(seed: int):
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in ((4,), (4, 4)))
    sampled, whole = (moments(first[0], second[0], first[1], second[1], whole=whole) for whole in (False, True))
    assert_close(sampled[:-1], whole[:-1])
    assert whole[-1] < sampled[-1]
