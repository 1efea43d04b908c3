"""Test target probabilities: the essay's footnote, limits of every target, and that training converges to them."""

import math
from collections.abc import Sequence

import pytest
import torch
from contexts import answers, doubles, essay, logprobs_of, one_context, tabular, trees, vocabulary
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from toys import assert_close, batch_of, evaluate, rollout

from outdo.algorithms.objectives.target.objective import CAP, target, target_essay
from outdo.algorithms.objectives.target.rules import (
    clip_rule,
    power_rule,
    target_logprobs,
    tilt_rule,
)
from outdo.algorithms.prefix_tree import prefix_tree
from outdo.algorithms.progress import target_metrics
from outdo.types import Batch, TokenScores

FOOTNOTE = [0.25, 0.25, 0.25, 0.25], [1.0, 1.0, 1.0, -1.0]
UNSAMPLED = [0.20, 0.20, 0.20, 0.20], [1.0, 1.0, 1.0, -1.0]
TWO_GOOD = [0.979, 0.02], [1.0, 1.0]
DISPUTED = [0.9, 0.06], [0.25, 1.0]

EVERY = pytest.mark.parametrize(
    "objective",
    [
        essay(),
        essay(rule="tilt", loss="squared", merge="none"),
        essay(rule="clip", loss="hinge", merge="none"),
        target(),
        target(unsampled="fixed", limit=0.5),
    ],
    ids=["power", "tilt, squared, apart", "clip, hinge, apart", "default", "fixed"],
)
FEW = settings(max_examples=12)


def targets_of(
    probabilities: Sequence[float], signs: Sequence[float], *, keep: float = 0.5, power: float = 2.0
) -> Tensor:
    """Return the targets τ of the sampled tokens of one context."""
    logprobs, sign = doubles(probabilities).log(), doubles(signs)
    context = torch.zeros(len(sign), dtype=torch.int64)
    return target_logprobs(logprobs, sign, context, rule=power_rule(power), keep=keep).exp()


# --------------------------------------------------------------------------------------------------- target values


def test_targets_of_footnote_3_of_the_essay_sum_to_more_than_one_and_are_reduced():
    in_full = power_rule(2.0)(doubles(FOOTNOTE[0]).log(), doubles(FOOTNOTE[1]), torch.ones(4)).exp()
    assert_close(in_full[:3].sum(), doubles([1.5])[0])  # the essay's 3/2
    assert_close(in_full.sum(), doubles([1.5625])[0])  # and with the dispreferred token's 1/16
    assert_close(targets_of(*FOOTNOTE), doubles([0.3125, 0.3125, 0.3125, 0.0625]))


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (UNSAMPLED, [0.287, 0.287, 0.287, 0.040]),
        (TWO_GOOD, [0.979, 0.020]),
        (DISPUTED, [0.902, 0.078]),
    ],
    ids=["a fifth unsampled", "two good", "disputed"],
)
def test_targets_of_good_tokens_fit_the_free_probability_mass(context, expected):
    found = targets_of(*context)
    assert [round(value, 3) for value in found.tolist()] == expected
    room = 1 - 0.5 * (1 - sum(context[0]))
    assert float(found.sum()) == pytest.approx(room, abs=1e-9)


def test_a_single_good_token_gets_its_square_root_and_a_single_bad_one_its_square():
    for p in (1e-9, 1e-3, 0.25, 0.9, 1 - 1e-5):
        assert_close(targets_of([p], [1.0]), doubles([math.sqrt(p)]), tolerance=1e-9)
        assert_close(targets_of([p], [-1.0]), doubles([p * p]))


def test_targets_of_neutral_and_evenly_disputed_tokens_stay_unchanged():
    assert_close(targets_of([0.3, 0.2], [0.0, 1.0]), doubles([0.3, math.sqrt(0.2)]))
    batch = one_context([1.0, -1.0, 1.0], tokens=[3, 3, 4]).with_(old_logprobs=doubles([[0, -1.0], [0, -1], [0, -2]]))
    assert_close(targets_in(batch)[:, 1], doubles([-1.0, -1.0, -1.0]))


def test_the_targets_of_the_tilt_and_clip_rules():
    logprobs, sign, full = doubles([0.1, 0.1]).log(), doubles([1.0, -1.0]), torch.ones(2)
    assert_close(tilt_rule(0.5)(logprobs, sign, full).exp(), doubles([0.1 * math.exp(0.5), 0.1 * math.exp(-0.5)]))
    assert_close(clip_rule(0.2, 0.3)(logprobs, sign, full).exp(), doubles([0.13, 0.08]))
    assert_close(clip_rule(0.2, 0.3)(logprobs, 6 * sign, full).exp(), doubles([0.28, 1e-4]))  # not 0.1 - 0.12


# -------------------------------------------------------------------------------------------------- the prefix tree


def targets_in(batch: Batch, **options: str) -> Tensor:
    targets = essay(**options).prepare(batch).targets
    return targets


def test_a_context_is_an_exact_prefix_within_a_group():
    last = answers((5, 6, 7))
    batch = batch_of(answers((5, 6, 7), (5, 6, 8), (5, 9, 7), (0, 6)), answers((1,)), answers((1,)), last)
    contexts, tokens = prefix_tree(batch)
    rows = [(0, 3), (1, 3), (2, 3), (3, 2), (6, 3)]  # these start after a prompt of one token
    named = [contexts[row, 1 : 1 + length].tolist() for row, length in rows]
    a, b, c, d, e = named
    assert a == b  # they differ only in their last token
    assert a[:2] == c[:2]
    assert a[2] != c[2]  # after another second token
    assert a[0] == d[0]
    assert a[1] != d[1]
    assert not set(e) & {*a, *b, *c, *d}  # another group
    assert tokens[0, 2] == tokens[1, 2] != tokens[2, 2]
    assert tokens[0, 3] != tokens[1, 3]


def test_tokens_an_environment_inserted_are_part_of_the_context_but_have_no_target():
    rows = [rollout(3, token_ids=(5, middle, 7), mask=(True, False, True)) for middle in (1, 1, 2)]
    batch = batch_of(rows)
    batch = batch.with_(
        old_logprobs=torch.full(batch.token_ids.shape, -1.0),
        advantages=doubles([[1.0], [-1.0], [1.0]]) * batch.loss_mask,
    )
    found = targets_in(batch)
    assert_close(found[:, 2], torch.zeros(3))  # inserted
    assert_close(found[:2, 3], torch.tensor([-1.0, -1.0]))  # the same context, good and bad: evenly disputed
    assert_close(found[2, 3], torch.tensor(-0.5))  # the third has another context


def test_answers_with_the_same_token_count_as_one():
    """A token that occurs in three answers has the gradient of a single one, a third of it in each answer."""
    once, thrice = one_context([1.0, -1.0], [0, 1]), one_context([1.0, -1.0, 1.0, 1.0], [0, 1, 0, 0])
    logits, now = vocabulary([0.3, 0.4]), vocabulary([0.5, 0.1])
    losses, gradients = [], []
    for batch in (once, thrice):
        objective = essay()
        batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, logits)))
        loss, gradient = evaluate(objective, logprobs_of(batch, now), batch)
        losses.append(loss)
        gradients.append(gradient[:, 1])
    assert_close(losses[0], losses[1])
    assert_close(gradients[1], gradients[0][[0, 1, 0, 0]] / doubles([3, 1, 3, 3]))


def test_without_merging_every_token_has_its_own_context():
    batch = one_context([1.0, 1.0, 1.0, -1.0])
    batch = batch.with_(old_logprobs=logprobs_of(batch, vocabulary(FOOTNOTE[0])))
    assert_close(targets_in(batch, merge="none")[:, 1].exp(), doubles([0.5, 0.5, 0.5, 0.0625]))
    assert not essay(merge="none").requires.whole_groups
    assert essay().requires.whole_groups


# ----------------------------------------------------------------------------------------------------------- the losses


def after_descent(batch: Batch, logits: Tensor, objective, *, rate: float, steps: int) -> Tensor:
    """Return the probabilities [V] after gradient descent on the logits of one context."""
    logits = logits.clone().requires_grad_()
    for _ in range(steps):
        loss = objective(TokenScores(logprobs=logprobs_of(batch, logits)), batch).loss
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - rate * gradient).detach().requires_grad_()
    return logits.softmax(0).detach()


@pytest.mark.parametrize("context", [UNSAMPLED, DISPUTED], ids=["a fifth unsampled", "disputed"])
def test_cross_entropy_converges_to_the_targets(context):
    probabilities, signs = context
    objective, batch = essay(), one_context(signs)
    batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary(probabilities))))
    found = after_descent(batch, vocabulary(probabilities), objective, rate=3.0, steps=600)
    assert_close(found[: len(signs)], targets_of(*context), tolerance=1e-4)


@pytest.mark.parametrize(("p", "sign"), [(0.01, 1.0), (0.9, -1.0)])
def test_squared_converges_to_the_target_and_hinge_to_or_beyond_it(p, sign):
    for loss in ("squared", "hinge"):
        objective, batch = essay(loss=loss), one_context([sign])
        batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary([p]))))
        found = float(after_descent(batch, vocabulary([p]), objective, rate=1.0, steps=400)[0])
        aim = math.exp(float(targets_in(batch)[0, 1]))
        if loss == "squared":
            assert found == pytest.approx(aim, rel=1e-3)
        else:
            assert (found - aim) * sign >= 0


def test_the_targets_of_squared_and_hinge_are_capped():
    batch = one_context([-1.0]).with_(old_logprobs=doubles([[0.0, -10.0]]))
    assert_close(targets_in(batch)[0, 1], doubles([-20.0])[0])
    assert_close(targets_in(batch, loss="squared")[0, 1], doubles([-10.0 - CAP])[0])
    assert_close(targets_in(batch, loss="hinge")[0, 1], doubles([-10.0 - CAP])[0])


@pytest.mark.parametrize("unsampled", ["share", "fixed", "absorb"])
@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_no_target_of_squared_and_hinge_is_farther_than_the_cap_after_division(loss, unsampled):
    old = doubles([[0.0, math.log(0.98)], [0.0, math.log(0.01)]])
    batch = one_context([CAP, -CAP], tokens=[3, 4]).with_(old_logprobs=old)
    targets = target(loss=loss, unsampled=unsampled).prepare(batch).targets
    assert_close((targets - old)[1, 1], doubles([-CAP])[0])


@pytest.mark.parametrize(("p", "sign"), [(0.3, 1.0), (0.3, -1.0), (1e-6, 1.0), (0.99, -1.0)])
def test_the_first_step_is_a_policy_gradient_with_a_bounded_weight(p, sign):
    """(τ - p) / (1 - p): √p / (1 + √p) ≤ 1/2 for a good token, -p for a bad one."""
    objective, batch = essay(), one_context([sign]).with_(old_logprobs=doubles([[0.0, math.log(p)]]))
    batch = objective.prepare(batch)
    _, gradient = evaluate(objective, doubles([[0.0, math.log(p)]]), batch)
    expected = math.sqrt(p) / (1 + math.sqrt(p)) if sign > 0 else -p
    assert -float(gradient[0, 1]) == pytest.approx(expected, rel=1e-8)


def test_float32_stays_finite_and_bounded_without_unsampled_probability():
    tokens, signs = [0, 1, 0, 0], [1.0, -1.0, 1.0, 1.0]
    batch = one_context(signs, tokens)
    for old, now in (([-1e-7, -17.0], [0.0, -30.0]), ([-0.7, -0.7], [-1e-9, -20.0]), ([-40.0, -1e-6], [-1e-3, -7.0])):
        objective = essay()
        row = torch.tensor([[0.0, old[token]] for token in tokens])
        after = torch.tensor([[0.0, now[token]] for token in tokens])
        loss, gradient = evaluate(objective, after, objective.prepare(batch.with_(old_logprobs=row)))
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        assert gradient.isfinite().all()
        assert gradient.abs().max() <= 1e6


def test_a_token_of_probability_one_has_no_gradient():
    for sign in (1.0, -1.0):
        batch = one_context([sign]).with_(old_logprobs=torch.tensor([[0.0, -5e-7]]))
        objective = essay()
        _, gradient = evaluate(objective, torch.tensor([[0.0, -4e-7]]), objective.prepare(batch))
        assert_close(gradient, torch.zeros(1, 2))


@pytest.mark.parametrize("loss", ["cross_entropy", "squared", "hinge"])
def test_a_neutral_context_is_trained_only_with_hold(loss):
    two = batch_of(answers((5,), (6,)), answers((5,), (6,)))
    signs = doubles([1.0, -1.0, 0.0, 0.0])  # the answers to the second question have equal rewards
    old = torch.zeros(two.token_ids.shape, dtype=torch.float64)
    old[two.loss_mask] = doubles([0.4, 0.3, 0.4, 0.3]).log()
    two = two.with_(advantages=signs[:, None] * two.loss_mask, old_logprobs=old)
    moved = old + 0.1 * two.loss_mask  # by the previous step
    left, held = (essay(loss=loss, hold=hold) for hold in (False, True))
    free = evaluate(left, moved, left.prepare(two))[1][two.loss_mask]  # [4]
    assert free[2:].eq(0).all()
    assert free[:2].ne(0).any()
    pulled = evaluate(held, moved, held.prepare(two))[1][two.loss_mask]
    assert (pulled[2:] > 0).all() or loss == "hinge"  # hinge never pulls back


def test_the_rounding_of_opposite_advantages_does_not_train_a_context():
    batch = one_context([0.3, -0.3 + 1e-8], tokens=[3, 3]).with_(old_logprobs=doubles([[0, -1.0], [0, -1.0]]))
    objective = essay()
    assert evaluate(objective, doubles([[0, -0.9], [0, -0.9]]), objective.prepare(batch))[1].eq(0).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "pover"}, "did you mean power?"),
        ({"loss": "mse", "merge": "trie"}, 'loss "mse".*; merge "trie"'),
        ({"power": 1.0}, "power must be above 1"),
        ({"keep": 1.5}, "keep must be from 0 to 1"),
        ({"rule": "clip", "clip_low": 1.0}, "clip_low must be between"),
    ],
)
def test_all_invalid_options_are_reported_together(options, words):
    with pytest.raises(ValueError, match=words):
        essay(**options)


def test_an_unprepared_batch_is_refused():
    batch = one_context([1.0])
    with pytest.raises(ValueError, match="old_logprobs"):
        essay().prepare(batch)
    with pytest.raises(ValueError, match="prepare"):
        essay()(TokenScores(logprobs=torch.zeros(1, 2)), batch.with_(old_logprobs=torch.zeros(1, 2)))


# --------------------------------------------------------------------------------------- what must not change anything


@EVERY
@FEW
@given(trees())
def test_values_outside_the_mask_do_not_matter(objective, batch):
    now = tabular(batch, 1)
    loss, gradient = evaluate(objective, now, objective.prepare(batch))

    def spoilt(values: Tensor) -> Tensor:
        return values.where(batch.loss_mask, torch.nan)

    dirty = objective.prepare(batch.with_(old_logprobs=spoilt(batch.old_logprobs), advantages=spoilt(batch.advantages)))
    again, other = evaluate(objective, spoilt(now), dirty.with_(targets=spoilt(dirty.targets)))
    assert_close(again, loss)
    assert_close(other, gradient)
    metrics = target_metrics(dirty, spoilt(now))
    assert metrics == pytest.approx(target_metrics(objective.prepare(batch), now))
    assert all(math.isfinite(value) for value in metrics.values())


@EVERY
@FEW
@given(trees(), st.randoms(use_true_random=False))
def test_the_order_of_answers_within_a_group_does_not_matter(objective, batch, random):
    now = tabular(batch, 1)
    order = torch.tensor(sorted(range(len(batch)), key=lambda row: (int(batch.group[row]), random.random())))
    loss, gradient = evaluate(objective, now, objective.prepare(batch))
    other = batch.rows(order)
    width = other.token_ids.shape[1]
    again, permuted = evaluate(objective, now[order, :width], objective.prepare(other))
    assert_close(again, loss)
    assert_close(permuted, gradient[order, :width])


@EVERY
@FEW
@given(trees(), st.integers(1, 40))
def test_microbatch_losses_and_gradients_add_up_to_those_of_the_batch(objective, batch, budget):
    batch = objective.prepare(batch.with_(rollout_logprobs=tabular(batch, 1)))  # split together with the batch
    loss, gradient = evaluate(objective, batch.rollout_logprobs, batch)
    parts = batch.microbatches(budget, whole_groups=objective.requires.whole_groups)
    found = [(part, *evaluate(objective, part.rollout_logprobs, part)) for part in parts]
    assert_close(sum(part_loss for _, part_loss, _ in found), loss)
    pieces = torch.cat([part_gradient[part.loss_mask] for part, _, part_gradient in found])
    assert_close(pieces, gradient[batch.loss_mask])


@settings(max_examples=40)
@given(trees())
def test_prepared_targets_sum_to_at_most_one_and_never_oppose_the_sign(batch):
    prepared = essay().prepare(batch)
    contexts, tokens = prefix_tree(batch)
    for context in contexts[batch.loss_mask].unique():
        here = batch.loss_mask & (contexts == context)
        taken = {int(tokens[b, t]): (b, t) for b, t in here.nonzero().tolist()}
        assert sum(float(prepared.targets[place].exp()) for place in taken.values()) <= 1 + 1e-9
        for token, (b, t) in taken.items():
            sign = batch.advantages[here & (tokens == token)].clamp(-1, 1).mean()
            assert float(sign * (prepared.targets[b, t] - batch.old_logprobs[b, t])) >= -1e-9


# --------------------------------------------------------- where probability comes from, and what a context counts


def one_target(probabilities: Sequence[float], signs: Sequence[float], **options: object) -> tuple[Tensor, Tensor]:
    """Return the targets of one-token answers of one context, and the gradient of the loss by the logits at π_old."""
    batch, logits = one_context(signs), vocabulary(probabilities).requires_grad_()
    objective = essay(**options)
    batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, logits).detach()))
    loss = objective(TokenScores(logprobs=logprobs_of(batch, logits)), batch).loss
    return batch.targets[:, 1].exp(), torch.autograd.grad(loss, logits)[0]


def test_shared_targets_are_divided_by_their_sum_and_that_of_the_rest():
    found, _ = one_target(*FOOTNOTE, unsampled="share")
    assert_close(found, doubles([0.5, 0.5, 0.5, 0.0625]) / 1.5625)
    found, gradient = one_target([0.25, 0.25], [1.0, -1.0], unsampled="share")
    assert_close(found, doubles([0.5, 0.0625]) / 1.0625)
    # the rest had 1/2, keeps 0.5 / 1.0625, and its four tokens change in proportion
    assert_close(gradient[2:], torch.full((4,), (0.5 - 0.5 / 1.0625) / 4, dtype=torch.float64))


def test_fixed_the_rest_keeps_its_probability_and_only_siblings_exchange_theirs():
    found, gradient = one_target([0.25, 0.25], [1.0, -1.0], unsampled="fixed")
    assert_close(found, doubles([0.5, 0.0625]) / 0.5625 * 0.5)
    assert_close(gradient[2:], doubles([0.0] * 4))
    for signs in ([1.0], [1.0, 1.0]):  # one sampled token, or two that are equally good and probable
        _, gradient = one_target([0.25] * len(signs), signs, unsampled="fixed")
        assert_close(gradient, torch.zeros_like(gradient))


def test_fixed_a_token_without_a_sibling_is_not_pulled_back_in_later_passes():
    batch = one_context([1.0])
    objective = essay(unsampled="fixed")
    batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary([0.25]))))
    _, gradient = evaluate(objective, logprobs_of(batch, vocabulary([0.9])), batch)
    assert gradient.eq(0).all()


def test_by_visits_a_context_counts_once_for_each_answer_in_it():
    options = {"rule": "tilt", "eta": 0.5}
    _, once = one_target([0.3, 0.4], [1.0, -1.0], **options)
    _, visits = one_target([0.3, 0.4], [1.0, -1.0], **options, count="visits")
    assert_close(visits, 2 * once)


def test_small_tilts_by_visits_are_the_policy_gradient_of_all_sampled_actions():
    """n (π - τ) = -n η p_v (s_v - Σ_S p s) + O(η²), the rest having s = 0."""
    p, s, eta = [0.3, 0.4], [2.0, -0.5], 1e-4  # a target within `NOISE` of the old probability is none
    _, gradient = one_target(p, s, rule="tilt", eta=eta, unsampled="share", count="visits", limit=9.0)
    mean = sum(a * b for a, b in zip(p, s, strict=True))
    expected = doubles([-2 * a * (b - mean) for a, b in zip(p, s, strict=True)])
    assert_close(gradient[:2] / eta, expected, tolerance=1e-3)


def test_an_advantage_counts_up_to_the_limit():
    found, _ = one_target([0.1, 0.1], [2.0, -5.0], rule="tilt", limit=3.0, unsampled="share")
    raw = 0.1 * doubles([2.0, -3.0]).exp()
    assert_close(found, raw / (raw.sum() + 0.8))


@pytest.mark.parametrize("unsampled", ["share", "fixed"])
def test_the_largest_tilt_does_not_overflow(unsampled):
    found, _ = one_target([0.1, 0.2], [10.0, -10.0], rule="tilt", eta=100.0, limit=10.0, unsampled=unsampled)
    assert_close(found, doubles([1.0 if unsampled == "share" else 0.3, 0.0]))


@FEW
@given(trees(), st.sampled_from(["share", "fixed"]))
def test_normalised_targets_are_probabilities(batch, unsampled):
    prepared = essay(unsampled=unsampled, limit=3.0).prepare(batch)
    contexts, tokens = prefix_tree(batch)
    for context in contexts[batch.loss_mask].unique():
        here = batch.loss_mask & (contexts == context)
        places = list({int(tokens[b, t]): (b, t) for b, t in here.nonzero().tolist()}.values())
        total = sum(float(prepared.targets[place].exp()) for place in places)
        before = sum(float(batch.old_logprobs[place].exp()) for place in places)
        assert total <= 1 + 1e-9
        if unsampled == "fixed":
            assert abs(total - before) < 1e-9


# ------------------------------------------------------------------------------------------ the default, and the essay


def default_of(probabilities: Sequence[float], advantages: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return the default's targets of one-token answers of one context, and the gradient by the logits at π_old."""
    return one_target(probabilities, advantages, **DEFAULT)


DEFAULT = {
    "rule": "tilt",
    "eta": 1.0,
    "count": "visits",
    "unsampled": "share",
    "limit": 10.0,
    "reduction": "mean",
}


def test_the_default_is_a_step_of_mirror_descent_in_each_context():
    """π_old e^Â / Z with Â = 1, -½ and 0 for the rest: 0.3 e, 0.4 e^-½ and 0.3, divided by their sum."""
    found, gradient = default_of([0.3, 0.4], [1.0, -0.5])
    raw = doubles([0.3 * math.e, 0.4 * math.exp(-0.5), 0.3])
    assert_close(found, (raw / raw.sum())[:2])
    # one context with two answers, divided by two trained tokens
    assert_close(gradient[:2], doubles([0.3, 0.4]) - found)


@settings(max_examples=5)
@given(trees())
def test_target_and_target_essay_are_these_options(batch):
    for short, long in (
        (target(), target(**DEFAULT)),
        (target_essay(), essay()),
        (target_essay(power=3.0, keep=0.25), essay(power=3.0, keep=0.25)),
    ):
        losses = [evaluate(each, tabular(batch, 2), each.prepare(batch)) for each in (short, long)]
        assert_close(losses[0], losses[1], tolerance=0.0)


@FEW
@given(trees(), st.sampled_from(["cross_entropy", "squared", "hinge"]))
def test_a_mean_is_the_sum_divided_by_the_trained_tokens(batch, loss):
    logprobs, (mean, total) = tabular(batch, 3), (target(loss=loss, reduction=name) for name in ("mean", "sum"))
    value, gradient = evaluate(mean, logprobs, mean.prepare(batch))
    whole, sum_gradient = evaluate(total, logprobs, total.prepare(batch))
    assert_close(value * max(1, batch.totals.tokens), whole)
    assert_close(gradient * max(1, batch.totals.tokens), sum_gradient)


@settings(max_examples=20)
@given(trees(), st.sampled_from(["share", "absorb", "fixed"]), st.sampled_from(["cross_entropy", "squared", "hinge"]))
def test_the_loss_is_0_at_the_targets_and_nowhere_below(batch, unsampled, loss):
    objective = target(unsampled=unsampled, loss=loss, reduction="sum")
    batch = objective.prepare(batch)
    at_targets, _ = evaluate(objective, batch.targets.where(batch.loss_mask, 0.0), batch)
    elsewhere, _ = evaluate(objective, tabular(batch, 4), batch)
    assert abs(float(at_targets)) < 1e-6
    assert float(elsewhere) > -1e-6


def test_the_cross_entropy_is_the_divergence_from_the_targets():
    batch = one_context([1.0, -1.0])
    objective = target(rule="tilt", eta=1.0, reduction="sum", count="once")
    batch = objective.prepare(batch.with_(old_logprobs=logprobs_of(batch, vocabulary([0.3, 0.4]))))
    raw = doubles([0.3 * math.e, 0.4 / math.e, 0.3])
    tau, now = raw / raw.sum(), doubles([0.5, 0.2, 0.3])
    loss, _ = evaluate(objective, logprobs_of(batch, vocabulary([0.5, 0.2])), batch)
    assert_close(loss, (tau * (tau / now).log()).sum())
