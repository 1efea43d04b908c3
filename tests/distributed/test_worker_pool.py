"""Several processes on the same weights: what one would compute, and no run that hangs because one of them is gone."""

import os
import signal
from collections.abc import Iterator

import pytest
import torch
from engine_cases import apart, begun, fresh, next_turn, ragged, ragged_groups, requests, threads
from policy_cases import ADVANTAGE, ALL_TERMS, double, prepared, updated, weights

from outdo.algorithms.objectives.presets import grpo
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes
from outdo.rollouts.engines.builtin.engine import BuiltinEngine
from outdo.rollouts.engines.builtin.multiprocess import MultiprocessEngine
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.types import Batch
from outdo.utils.errors import OutdoError, WorkerError


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with threads(1):  # as the others have: the last bits are a thread count's
        pool = WorkerPool(2)
        yield pool
        pool.close()


def together(policy: Policy, pool: WorkerPool) -> Policy:
    """The same model, trained by a pool."""
    return Policy(
        policy.model, policy.tokenizer, batch_sizes=policy.batch_sizes, optimiser=policy.optimiser.settings, pool=pool
    )


def test_a_pool_samples_the_same_as_one_process(pool):
    policy = fresh()
    alone = BuiltinEngine(policy, seed=3).generate(requests(), SamplingParams())
    engine = MultiprocessEngine(policy, pool, seed=3)
    assert engine.generate(requests(), SamplingParams()) == alone
    assert engine.generate(requests()[:1], SamplingParams()) == alone[:1]
    assert engine.generate([], SamplingParams()) == []


def test_a_pool_samples_from_the_current_weights(pool):
    policy = together(fresh(optimiser=OptimiserSettings(lr=1e-2)), pool)
    engine = MultiprocessEngine(policy, pool)
    before = engine.generate(requests(), SamplingParams())
    policy.update(prepared(), grpo(beta=0))
    after = engine.generate(requests(), SamplingParams())
    assert after == BuiltinEngine(policy).generate(requests(), SamplingParams())
    assert after != before
    assert {completion.policy_version for completion in after} == {1}


def test_each_process_keeps_its_episodes_until_the_weights_change(pool):
    policy = together(fresh(optimiser=OptimiserSettings(lr=1e-2)), pool)
    engine, sampling, batch = MultiprocessEngine(policy, pool), SamplingParams(), begun((3, 30, 64, 90))
    for turn in range(4):
        if turn == 3:
            policy.update(prepared(), grpo(beta=0))
        asked = batch[::-2] if turn == 1 else batch  # not all of them go on at the same time
        found, again = engine.generate(asked, sampling), BuiltinEngine(policy).generate(asked, sampling)
        assert found == again
        read = [sum(each.tokens_read for each in completions) for completions in (found, again)]
        assert (read[0] < read[1]) == (turn in (1, 2)), turn
        if turn != 1:
            batch = [next_turn(*each, written=5) for each in zip(batch, found, strict=True)]
    engine.end_episodes([each.episode for each in batch])
    assert engine.places.end([each.episode for each in batch]) == [[], [], []]


def test_a_policy_is_sent_to_the_pool_once(pool, monkeypatch):
    policy, other = fresh(), fresh("gpt_neox")
    place, placed = WorkerPool.place, []
    monkeypatch.setattr(WorkerPool, "place", lambda self, parts: placed.append(parts) or place(self, parts))
    engine = MultiprocessEngine(policy, pool)
    for asked in (policy, policy, other, other):
        engine.update_weights(asked)
        found = engine.generate(requests(), SamplingParams())
        assert found == BuiltinEngine(asked).generate(requests(), SamplingParams())
    assert len(placed) == 2


@pytest.mark.parametrize("budget", [1, 40, 10_000])
@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
def test_a_pool_computes_the_gradient_of_one_process(pool, budget, wide):
    work = BatchSizes(micro_batch_tokens=budget)
    make = (lambda: double(fresh("gpt_neox", batch_sizes=work))) if wide else (lambda: fresh(batch_sizes=work))
    alone, shared = make(), together(make(), pool)
    batch = prepared(policy=alone)
    expected, gradient = updated(alone, batch, ALL_TERMS)
    found, theirs = updated(shared, batch, ALL_TERMS)
    tolerance = 1e-10 if wide else 1e-5
    assert apart(theirs, gradient) < tolerance
    assert found.metrics == pytest.approx(expected.metrics, rel=10 * tolerance, abs=tolerance)
    for name, values in expected.tokens.items():
        torch.testing.assert_close(found.tokens[name], values, rtol=tolerance, atol=tolerance)


def test_a_pool_measures_policy_and_reference_as_one_process_does(pool):
    policy = together(fresh(), pool)
    models = Models.of(policy, grpo(beta=0.1))
    expected = fresh().logprobs(ragged())
    torch.testing.assert_close(policy.logprobs(ragged()), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(models.reference.logprobs(ragged()), expected, rtol=0, atol=1e-5)


def test_a_pool_repeats_the_same_bits(pool):
    def trained() -> torch.Tensor:
        policy = together(
            fresh(optimiser=OptimiserSettings(lr=1e-2), batch_sizes=BatchSizes(micro_batch_tokens=40)), pool
        )
        for _ in range(3):
            policy.update(prepared(), grpo(beta=0.1))
        return weights(policy)

    assert torch.equal(trained(), trained())


def test_a_pool_may_have_more_processes_than_rows(pool):
    """Fewer rows than processes: some have nothing to do."""
    group = ragged_groups()[3]
    batch = ADVANTAGE(Batch.from_groups([group]))
    policy = together(fresh(), pool)
    policy.update(batch.with_(advantages=batch.loss_mask.float()), grpo(beta=0))
    assert policy.version == 1


def test_an_error_in_another_process_is_raised_in_this_one(pool):
    policy = together(fresh(), pool)
    batch = ragged()
    broken = batch.with_(token_ids=batch.token_ids.where(batch.group[:, None] < 3, 10**6))  # the last process's rows
    with pytest.raises(IndexError) as caught:
        policy.logprobs(broken)
    assert any("raised in a worker process" in note for note in caught.value.__notes__)
    torch.testing.assert_close(policy.logprobs(batch), fresh().logprobs(batch), rtol=0, atol=1e-5)  # it goes on


def test_a_model_that_cannot_be_sent_is_refused_with_a_way_out(pool):
    policy = fresh()
    policy.model.local = lambda: None
    with pytest.raises(WorkerError, match=r"cannot be sent to a worker process: .*`workers = 1` needs none"):
        together(policy, pool)
    together(fresh(), pool).logprobs(ragged())  # the pool goes on


def test_a_killed_process_is_an_error_and_does_not_hang():
    pool = WorkerPool(1)
    policy = together(fresh(), pool)
    policy.logprobs(ragged())
    os.kill(pool.others[0]._process.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(WorkerError, match="a worker process ended in the middle of its work"):
            policy.logprobs(ragged())
    pool.close()


def test_processes_ignore_signals_for_the_run(pool):
    test_a_pool_samples_the_same_as_one_process(pool)  # they have started
    for other in pool.others:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(other._process.pid, number)
    test_a_pool_samples_the_same_as_one_process(pool)


# ------------------------------------------------------------------------------------------------------ what is spared


def test_a_group_without_a_push_needs_no_backward_pass(monkeypatch):
    """And the gradient is that of the group that does."""
    policy, batch = fresh(), ADVANTAGE(ragged())
    idle = batch.group != 0
    batch = batch.with_(advantages=batch.advantages.masked_fill(idle[:, None], 0.0))
    seen = []
    whole = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *given: seen.append(given) or whole(*given))
    update, gradient = updated(policy, batch, grpo(beta=0))
    ((values, _),) = seen
    assert values[0].shape[0] == int((~idle).sum())
    assert update.tokens["entropy"][idle][batch.loss_mask[idle]].all()  # measured all the same
    alone = batch.rows((~idle).nonzero().squeeze(1))
    _, expected = updated(fresh(), alone, grpo(beta=0))
    assert apart(gradient / gradient.norm(), expected / expected.norm()) < 1e-5  # it is a mean over more answers


def test_a_group_without_advantage_is_trained_on_where_a_divergence_pulls():
    policy, batch = fresh(), prepared()
    batch = batch.with_(advantages=torch.zeros_like(batch.advantages))
    update, gradient = updated(policy, batch, grpo(beta=0.1))
    assert gradient.norm() > 0
    assert update.tokens["push"].abs().sum() > 0


# ------------------------------------------------------------------------------------------------------ out of memory


def scarce(policy: Policy, most: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the policy's device run out of memory at more than `most` tokens; the sizes that were tried."""
    tried, whole = [], policy.forward.hidden

    def hidden(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        tried.append(batch.token_ids.numel())
        if tried[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(batch)

    monkeypatch.setattr(policy.forward, "hidden", hidden)
    return tried


def test_micro_batches_are_halved_until_they_fit_into_memory(monkeypatch):
    policy, batch = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400)), prepared()
    tried = scarce(policy, 60, monkeypatch)
    found, gradient = updated(policy, batch, ALL_TERMS)
    _, expected = updated(fresh(), batch, ALL_TERMS)
    assert apart(gradient, expected) < 1e-5  # nothing of the attempts that failed is in it
    assert policy.batch_sizes.micro_batch_tokens == 50
    assert max(tried) > 60
    tried.clear()
    policy.update(batch, ALL_TERMS)
    assert max(tried) <= 60  # and it stays so
    assert found.metrics["updates/refused"] == 0


def test_the_halved_micro_batch_size_is_saved_with_the_run(monkeypatch):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    scarce(policy, 60, monkeypatch)
    policy.logprobs(ragged())
    again = fresh(batch_sizes=BatchSizes(micro_batch_tokens=400))
    again.load_state(policy.state())
    assert again.batch_sizes.micro_batch_tokens == policy.batch_sizes.micro_batch_tokens == 50
    assert again.state()["micro_batch_tokens"] == policy.state()["micro_batch_tokens"]
    other = fresh(batch_sizes=BatchSizes(micro_batch_tokens=200))  # as `outdo resume RUN train.micro_batch_tokens=200`
    other.load_state(policy.state())
    assert other.batch_sizes.micro_batch_tokens == 200


def test_a_row_that_does_not_fit_alone_is_an_error(monkeypatch):
    policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=64))
    scarce(policy, 0, monkeypatch)
    with pytest.raises(OutdoError, match="not even one row fits into memory"):
        policy.logprobs(ragged())
