"""The critic: what it reads, what it learns, what it leaves alone; and the models it is kept with."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_cases import apart, fresh, ragged, rollout, tokens
from torch import Tensor, nn

from outdo.algorithms.advantages import gae, optimal_token
from outdo.algorithms.objectives.base import ComposedObjective
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import Weight, constant, sequence_mean, sequence_sum, token_mean, total
from outdo.loop import Sampler, in_turn, train
from outdo.models.bundle import Models
from outdo.models.critic import Critic, own_head, own_model
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.models.scorer import BatchSizes
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Step
from outdo.utils.errors import ModelError, NonFiniteWeightsError

PPO = ComposedObjective(surrogate=clip(low=0.2, high=0.2))
BOTH = pytest.mark.parametrize("make", [own_model, own_head])
ARCHITECTURES = pytest.mark.parametrize("arch", ["qwen3", "mamba"])  # the last is padded


def loop(
    models: Models, prompts: Iterable[Sequence[Prompt]], sample: Sampler, *method: Any, start: int = 1, **how: Any
) -> Iterator[Step]:
    """The loop with sampling in turn."""
    return train(models, in_turn(models.policy, prompts, sample, start=start), *method, **how)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])


def shaken(critic: Critic) -> Critic:
    """With a head that does not give 0."""
    for weight in critic.head.parameters():
        nn.init.normal_(weight, std=0.3, generator=torch.Generator().manual_seed(1))
    return critic


def saying(value: float, critic: Critic) -> Critic:
    """One that gives the same value to every prefix."""
    assert isinstance(critic.head, nn.Linear)
    nn.init.constant_(critic.head.bias, value)
    return critic


def taught(batch: Batch, old: float | Tensor, returns: float | Tensor) -> Batch:
    """The batch with so much as values and returns; what is not trained is NaN."""
    nothing = torch.full(batch.token_ids.shape, torch.nan)
    values, goal = (torch.where(batch.loss_mask, torch.as_tensor(each), nothing) for each in (old, returns))
    return batch.with_(values=values, returns=goal, advantages=batch.loss_mask.float())


def noise(batch: Batch, seed: int = 0) -> Tensor:
    return torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(seed))


# -------------------------------------------------------------------------------------------------------------- values


@BOTH
@ARCHITECTURES
def test_a_value_depends_on_the_tokens_before_its_own_alone(make: Callable[..., Critic], arch: str) -> None:
    critic = shaken(make(fresh(arch)))
    prompt, answer = Prompt(id="0", text="", token_ids=tokens(5, 0)), tokens(6, 1)
    other = (*answer[:3], answer[3] + 1, *answer[4:])
    first, second = (
        critic.values(Batch.from_groups([Group(prompt=prompt, rollouts=(rollout(ids),))])) for ids in (answer, other)
    )
    assert first[0, :5].eq(0).all()
    assert first[0, 5:].ne(0).all()
    torch.testing.assert_close(first[0, :9], second[0, :9])  # token 8 differs, and its value does not
    assert (first[0, 9:] - second[0, 9:]).abs().min() > 1e-5


@BOTH
def test_values_and_updates_do_not_depend_on_micro_batches(make: Callable[..., Critic]) -> None:
    batch = ragged()
    found = []
    for budget in (1, 40, 10_000):
        critic = shaken(make(fresh(batch_sizes=BatchSizes(micro_batch_tokens=budget))))
        values = critic.values(batch)
        metrics = critic.update(taught(batch, values + 0.3 * noise(batch), noise(batch, 1)))
        found.append((values, metrics, weights(critic.trained)))
    for values, metrics, moved in found[:2]:
        torch.testing.assert_close(values, found[2][0])
        assert metrics == pytest.approx(found[2][1], rel=1e-4)
        assert apart(moved, found[2][2]) < 1e-4


@BOTH
@ARCHITECTURES
def test_the_value_after_a_truncated_answer_is_that_of_one_more_token(make: Callable[..., Critic], arch: str) -> None:
    """The value before a token that follows the answer depends on the answer alone, whatever the token is."""
    critic, prompt = shaken(make(fresh(arch))), Prompt(id="0", text="", token_ids=tokens(5, 0))
    lengths, cut = (6, 3, 1), FinishReason.length
    answers = [tokens(length, seed) for seed, length in enumerate(lengths)]
    ends = critic.end_values(
        Batch.from_groups(
            [Group(prompt=prompt, rollouts=tuple(rollout(ids, finish_reason=cut) for ids in answers)),
             Group(prompt=prompt, rollouts=(rollout(tokens(9, 7)),))]
        )
    )  # fmt: skip
    longer = Batch.from_groups([Group(prompt=prompt, rollouts=tuple(rollout((*ids, 9)) for ids in answers))])
    expected = [float(critic.values(longer)[row, 5 + length]) for row, length in enumerate(lengths)]
    assert ends.tolist() == pytest.approx([*expected, 0.0], abs=1e-5)
    assert all(expected)


def test_an_answer_may_fill_the_whole_context_of_the_model() -> None:
    policy = fresh("gpt2")  # it has no position after the last one
    prompt, ids = Prompt(id="0", text="", token_ids=tokens(5, 0)), tokens(policy.context - 5, 1)
    batch = Batch.from_groups([Group(prompt=prompt, rollouts=(rollout(ids, finish_reason=FinishReason.length),))])
    assert shaken(own_model(policy)).end_values(batch).ne(0).all()


# ----------------------------------------------------------------------------------------------------------- its lesson


def test_the_squared_errors_are_averaged_in_every_way_that_verl_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 2, 1 and 0 trained tokens: the loss, and its gradient with respect to the bias of the head."""
    prompt = Prompt(id="0", text="", token_ids=(7,))
    batch = Batch.from_groups([Group(prompt=prompt, rollouts=(rollout((8, 9)), rollout((8,)), rollout(())))])
    batch = taught(batch, 0.0, torch.tensor([[0.0, 0.5, 0.8], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    errors = [[0.5, 0.2], [1.0]]  # V = 1 minus the returns
    ways: dict[str, tuple[Weight | None, Callable[[list[list[float]]], float]]] = {
        "default": (None, lambda rows: sum(map(sum, rows)) / 3),
        "token-mean": (token_mean, lambda rows: sum(map(sum, rows)) / 3),
        "token-sum": (total, lambda rows: sum(map(sum, rows))),
        "seq-mean-token-sum": (sequence_sum, lambda rows: sum(map(sum, rows)) / 2),
        "seq-mean-token-sum-norm": (constant(length=5), lambda rows: sum(map(sum, rows)) / 2 / 5),
        "seq-mean-token-mean": (sequence_mean, lambda rows: sum(sum(row) / len(row) for row in rows) / 2),
    }
    for name, (weight, average) in ways.items():
        for budget in (2, 10_000) if weight is None else (2,):
            policy = fresh(batch_sizes=BatchSizes(micro_batch_tokens=budget))
            critic = saying(1.0, own_model(policy, clip=None, weight=weight))
            monkeypatch.setattr(critic.optimiser, "step", lambda loss: {})  # which would clear the gradient
            loss = critic.update(batch)["value/loss"]
            assert loss == pytest.approx(average([[error**2 / 2 for error in row] for row in errors]), rel=1e-5), name
            slope = critic.head.get_parameter("bias").grad
            assert float(slope) == pytest.approx(average(errors), rel=1e-5), name


@pytest.mark.parametrize(
    ("clip", "loss", "clipped"),
    [
        (None, (0.25 + 0.01) / 2 / 2, 0.0),  # (1 - .5)² and (1 - 1.1)²
        (0.2, (0.25 + 0.81) / 2 / 2, 0.5),  # near its old value 0 the second would still have said .2
    ],
)
def test_the_loss_by_hand(clip: float | None, loss: float, clipped: float) -> None:
    batch = Batch.from_groups([Group(prompt=Prompt(id="0", text="", token_ids=(7,)), rollouts=(rollout((8, 9)),))])
    batch = taught(batch, torch.tensor([[0.0, 0.9, 0.0]]), torch.tensor([[0.0, 0.5, 1.1]]))
    critic = saying(1.0, own_model(fresh(), clip=clip))
    metrics = critic.update(batch)
    assert metrics["value/loss"] == pytest.approx(loss)
    assert metrics["value/clipped"] == clipped
    assert metrics["value/explained_variance"] == pytest.approx(0.0)  # a constant explains nothing
    assert metrics["value/grad_norm"] > 0


def test_the_share_of_clipped_values_is_that_of_all_tokens_of_a_pass() -> None:
    """Of two minibatches with 3 and 1 tokens, V is clipped at one token of the first."""
    lengths = (3, 1)
    groups = [
        Group(prompt=Prompt(id=str(n), text="", token_ids=(7,)), rollouts=(rollout(tuple(range(8, 8 + length))),))
        for n, length in enumerate(lengths)
    ]
    batch = Batch.from_groups(groups)
    batch = taught(batch, torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]]), torch.full((2, 4), 1.1))
    batch_sizes = BatchSizes(minibatches=2)
    critic = saying(1.0, own_model(fresh(batch_sizes=batch_sizes), clip=0.2, lr=0.0))
    assert critic.update(batch)["value/clipped"] == 1 / 4


def test_a_clipped_value_has_no_gradient() -> None:
    batch = taught(ragged(), 0.0, 2.0)
    critic = saying(1.0, own_model(fresh(), clip=0.2))  # beyond .2 already, and on its way to 2
    before = weights(critic.trained)
    metrics = critic.update(batch)
    assert (metrics["value/clipped"], metrics["value/grad_norm"], metrics["value/empty"]) == (1.0, 0.0, 1.0)
    assert weights(critic.trained).equal(before)


@pytest.mark.parametrize(("make", "lr"), [(own_model, 3e-3), (own_head, 1e-2)])
def test_it_learns_a_constant(make: Callable[..., Critic], lr: float) -> None:
    batch, critic = ragged(), make(fresh(), lr=lr)
    losses = [critic.update(taught(batch, critic.values(batch), 0.7))["value/loss"] for _ in range(40)]
    assert losses[0] == pytest.approx(0.7**2 / 2)
    assert losses[-1] < 1e-3
    assert (critic.values(batch)[batch.loss_mask] - 0.7).abs().max() < 0.2


@BOTH
def test_the_policy_does_not_change_by_a_bit(make: Callable[..., Critic]) -> None:
    policy = fresh()
    critic, before, version = shaken(make(policy, lr=0.1)), weights(policy.model), policy.version
    for _ in range(2):
        critic.update(taught(ragged(), 0.0, noise(ragged())))
    assert weights(policy.model).equal(before)
    assert policy.version == version
    assert all(weight.grad is None for weight in policy.model.parameters())


def test_a_critic_may_have_another_size_but_no_other_vocabulary(tmp_path: Path) -> None:
    tiny_model(tmp_path / "small", hidden=16, layers=1)
    critic, batch = shaken(own_model(fresh(), path=str(tmp_path / "small"))), ragged()
    assert critic.values(batch).ne(0).equal(batch.loss_mask)
    tiny_model(tmp_path / "other", vocab=300)
    tokenizer = tmp_path / "other" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace("<|user|>", "<|human|>"), encoding="utf-8")
    with pytest.raises(ModelError, match="another vocabulary than the policy"):
        own_model(fresh(), path=str(tmp_path / "other"))


# ----------------------------------------------------------------------------------------------------------- the models


def answers(policy: Policy, questions: object, *, step: int) -> list[Group]:
    """Two groups of two, different in every step."""
    prompts = [Prompt(id=str(n), text="", token_ids=tokens(4 + n, n)) for n in range(2)]

    def answer(n: int, sample: int) -> Rollout:
        return rollout(tokens(3 + 2 * sample + n, 100 * step + 10 * n + sample), reward=float(sample))

    return [Group(prompt=prompt, rollouts=(answer(n, 0), answer(n, 1))) for n, prompt in enumerate(prompts)]


def quick(**work: int) -> Policy:
    return fresh(optimiser=OptimiserSettings(lr=1e-3), batch_sizes=BatchSizes(**work))


@BOTH
def test_ppo_trains_policy_and_critic_and_reports_both(make: Callable[..., Critic]) -> None:
    policy = quick()
    models = Models.of(policy, PPO, advantage=gae, critic=make(policy))
    start = weights(models.critic.trained)
    (step,) = islice(loop(models, [[]], answers, gae, PPO, passes=2), 1)
    assert step.batch.returns is not None
    assert step.batch.values is not None
    assert [update.tokens["logprobs"].shape for update in step.updates] == [step.batch.token_ids.shape] * 2
    assert step.updates[0].metrics["value/loss"] > step.updates[1].metrics["value/loss"] > 0
    assert not weights(models.critic.trained).equal(start)
    alone = quick()
    names = {"loss", "grad_norm", "learning_rate", "updates/refused", "updates/empty"}
    expected = alone.update(step.batch, PPO).metrics
    assert {name: step.updates[0].metrics[name] for name in names} == {name: expected[name] for name in names}


def test_a_resumed_run_ends_in_the_same_bits() -> None:
    def begin() -> Models:
        policy = quick(minibatches=2)
        return Models.of(policy, PPO, advantage=gae, critic=own_model(policy, warmup=2))

    def ending(models: Models) -> Tensor:
        return torch.cat([weights(models.policy.model), weights(models.critic.trained)])

    def run(models: Models, first: int, last: int) -> Models:
        list(loop(models, [[]] * (last - first + 1), answers, gae, PPO, passes=2, start=first))
        return models

    whole = ending(run(begin(), 1, 4))
    killed = 3
    half, resumed = run(begin(), 1, killed), begin()
    resumed.load_state(unpack(*pack(half.state())))
    resumed.policy.model.load_state_dict(half.policy.model.state_dict())  # from the checkpoint's model folder
    assert ending(run(resumed, killed + 1, 4)).equal(whole)


@BOTH
def test_a_critic_that_is_not_finite_is_neither_saved_nor_loaded(make: Callable[..., Critic]) -> None:
    critic = make(quick())
    name, weight = next(iter(critic.optimiser.weights.items()))
    whole = unpack(*pack(critic.state()))
    whole["weights"][name] = torch.full_like(weight, torch.nan)
    with pytest.raises(NonFiniteWeightsError, match=f"the critic: {name} holds"):
        make(quick()).load_state(whole)
    with torch.no_grad():
        weight.fill_(torch.inf)
    with pytest.raises(NonFiniteWeightsError, match=rf"the critic: {name} holds .* not finite; lower the lr of train"):
        critic.state()


@pytest.mark.parametrize("arch", ["qwen3", "mamba"])
def test_the_loop_measures_how_often_two_draws_are_equal_where_it_is_required(arch: str) -> None:
    policy = fresh(arch, batch_sizes=BatchSizes(micro_batch_tokens=20))
    uniform = ComposedObjective(surrogate=clip(low=0.2, high=0.2))
    models = Models.of(policy, uniform, advantage=optimal_token)
    (step,) = islice(loop(models, [[]], answers, optimal_token, uniform), 1)
    batch = step.batch
    found = batch.old_sums["collision"]
    assert found[~batch.loss_mask].eq(0).all()
    with torch.no_grad():
        logits = fresh(arch).model(batch.token_ids, attention_mask=batch.attention_mask.long()).logits  # [B, T, V]
    expected = logits.log_softmax(-1).exp().square().sum(-1)[:, :-1]
    mask = batch.loss_mask[:, 1:]
    torch.testing.assert_close(found[:, 1:][mask], expected[mask], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("arch", ["qwen3", "gpt2"])  # the second ties its head to its embedding
@pytest.mark.parametrize("mix", [0.25, 1.0])
def test_a_refreshed_reference_is_mixed_from_policy_and_reference(arch: str, mix: float) -> None:
    policy = fresh(arch)
    models = Models(policy, frozen(policy), refresh_every=2, mix=mix)
    before = weights(policy.model)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(1.0)
    models.refresh(1)
    assert weights(models.reference.forward.model).equal(before)
    models.refresh(2)
    torch.testing.assert_close(weights(models.reference.forward.model), before + mix)
    if mix == 1:
        assert weights(models.reference.forward.model).equal(weights(policy.model))
    with pytest.raises(ValueError, match="above 0, at most 1"):
        Models(policy, mix=0.0)
