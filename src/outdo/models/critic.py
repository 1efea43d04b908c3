"""The critic: it predicts the value of each prefix, the reward that the rest of an answer is expected to bring.

A critic reads hidden states: those of a model of its own (`own_model`), which it trains, or the policy's (`own_head`),
which it does not train. V of a token is computed from the hidden state that predicts it, before the token is read.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from transformers import PreTrainedModel

from outdo.algorithms.objectives.weights import Weight
from outdo.algorithms.requirements import requirements_of
from outdo.models.adapter import has_adapter, load_state_without_base, on_same_base, state_without_base
from outdo.models.choose_forward import choose_forward
from outdo.models.finite import check_finite
from outdo.models.forward import Forward
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.optimiser import Optimiser, OptimiserSettings, pass_metrics
from outdo.models.policy import Policy
from outdo.models.scorer import BatchSizes, ByRows, LossAndGrads, MicroBatched, Scoring, stack_rows
from outdo.types import Batch, TokenScores
from outdo.utils.errors import ModelError
from outdo.utils.sharded_tensors import is_sharded
from outdo.utils.world import ALONE, World

WIDEST = 2**20
"""The largest hidden layer of a critic that reads the policy's hidden states."""


class ValueForward(Forward):
    """The forward pass of a critic, made by `Forward.overridden`: the score of a token is V of the prefix before it.

    `after`: V of the prefix that ends with it.
    """

    value_head: nn.Module
    trains_model: bool
    after: bool

    @property
    def trained(self) -> list[nn.Parameter]:
        """The weights that have a gradient."""
        return [*self.value_head.parameters(), *(super().trained if self.trains_model else [])]

    def hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """See `Forward.hidden`; differentiable if the critic trains the model."""
        with torch.set_grad_enabled(self.trains_model and torch.is_grad_enabled()):
            hidden, source = super().hidden(batch)
        return hidden, source[:, 1:] if self.after else source

    def scores(self, hidden: Tensor, *tokens: Any, **asked: Any) -> tuple[Tensor, ...]:
        """Compute V [N] of hidden states [N, H]."""
        weight = next(self.value_head.parameters())
        return (self.value_head(hidden.to(weight.dtype)).squeeze(-1),)


class Critic(MicroBatched):
    """V of the prefix before each token, learned by regression on the returns.

    In the first `warmup` training steps only the critic learns (see `Models.update`). `clip` keeps a value within that
    distance of its value before the step, as PPO's clip keeps a ratio; None does not. `weight` is that of a token's
    squared error, one of `outdo.algorithms.objectives.weights`; None is the mean over the tokens. With `replicas`, each
    of them computes a share of every batch.
    """

    def __init__(
        self,
        forward: Forward,
        head: nn.Module,
        *,
        trains_model: bool,
        optimiser: OptimiserSettings | None = None,
        batch_sizes: BatchSizes | None = None,
        clip: float | None = 0.2,
        warmup: int = 0,
        weight: Weight | None = None,
        world: World = ALONE,
    ) -> None:
        check_critic(clip=clip, warmup=warmup)
        super().__init__(batch_sizes or BatchSizes())
        # The parts of a divided head stay where FSDP has put them.
        self.head = head if any(map(is_sharded, head.parameters())) else head.to(forward.device)
        made = partial(forward.overridden, ValueForward, value_head=self.head, trains_model=trains_model)
        self.forward = made(after=False)
        self.scoring = world.scoring(Scoring(self.forward))
        self.scoring_after = world.scoring(Scoring(made(after=True)))
        self.trains_model = trains_model
        self.trained = nn.ModuleDict({"head": head, **({"model": forward.model} if trains_model else {})})
        self.optimiser = Optimiser(self.trained, optimiser or OptimiserSettings(lr=1e-5))
        self.clip = clip
        self.warmup = warmup
        self.weight = weight

    def values(self, batch: Batch) -> Tensor:
        """Compute V of the prefix before each trained token, 0 elsewhere: [B, T] on the CPU, in micro-batches."""
        return self._measured(self.scoring, batch)

    def end_values(self, batch: Batch) -> Tensor:
        """Compute V after the last token of each truncated answer, 0 for the others: [B] on the CPU.

        It makes a forward pass over the truncated answers. Of an episode with several conversations it is the first one
        that was truncated.
        """
        ends = torch.zeros(len(batch))
        rows = (batch.truncated & batch.loss_mask.any(1)).nonzero().squeeze(1)
        if len(rows):
            cut = _first_conversations(batch.rows(rows))
            last = torch.arange(cut.token_ids.shape[1]) == cut.attention_mask.sum(1)[:, None] - 1  # [b, t]
            ends[rows] = self._measured(self.scoring_after, cut.with_(loss_mask=last)).sum(1).to(ends)
        return ends

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one pass over the batch, one optimiser step per minibatch; return its metrics.

        The loss is 1/2 Σ w · max((V - R)², (clip(V, V_old - c, V_old + c) - R)²) over the trained tokens, where R is
        `batch.returns`, V_old is `batch.values`, and w is `weight`: by default 1/N, the mean over the tokens (verl,
        OpenRLHF; AReaL has a Huber loss too).
        `value/explained_variance` is 1 - var(R - V) / var(R), with each V as it was before its optimiser step; it is
        left out if all returns are equal.

        Raises ValueError if the batch has no `values` or `returns`.
        """
        for name in ("values", "returns"):
            if getattr(batch, name) is None:
                raise ValueError(
                    f"the critic needs `{name}`, which the batch does not have; see `outdo.algorithms.advantages.gae`"
                )
        steps: list[dict[str, float]] = []
        trained: list[int] = []  # the number of tokens of each step
        limited = 0.0  # tokens whose value the clip limits
        measured: list[Tensor] = []  # each [2, n]: values and returns
        for minibatch in batch.minibatches(self.batch_sizes.minibatches):
            results = self._halving_on_oom(partial(self._gradient, minibatch), self.trained.zero_grad)
            mask, width = minibatch.loss_mask, minibatch.token_ids.shape[1]
            values = stack_rows([(rows, result.tokens["values"]) for rows, result in results], width)
            assert minibatch.returns is not None
            measured.append(torch.stack([values[mask], minibatch.returns[mask]]))
            loss, clipped = (sum(result.terms[name] for _, result in results) for name in ("loss", "clipped"))
            limited += clipped
            trained.append(minibatch.totals.tokens)
            steps.append({"loss": loss} | self.optimiser.step(loss))
        metrics = pass_metrics(steps, trained) | {"clipped": limited / max(1, sum(trained))}
        shares = {name.removeprefix("updates/"): n / len(steps) for name, n in metrics.items() if "updates/" in name}
        means = {name: value for name, value in metrics.items() if "updates/" not in name} | shares
        return {f"value/{name}": value for name, value in means.items()} | _explained_variance(torch.cat(measured, 1))

    def _measured(self, scoring: Scoring, batch: Batch) -> Tensor:
        """Compute the scores [B, T] of a batch without gradients, on the CPU."""
        parts = self._halving_on_oom(lambda: scoring.measure(batch, self.batch_sizes, {}), self.trained.zero_grad)
        return stack_rows([(rows, scores.logprobs) for rows, scores in parts], batch.token_ids.shape[1])

    def _gradient(self, batch: Batch) -> ByRows[LossAndGrads]:
        """Add up the gradient of one optimiser step's loss; return what its micro-batches measured."""
        return self.scoring.accumulate(
            batch,
            [list(range(len(batch)))],
            self._loss,
            self.batch_sizes,
            {},
            whole_groups=requirements_of(self.weight).whole_groups,
        )

    def _loss(self, scores: TokenScores, micro: Batch) -> LossAndGrads:
        """Compute a micro-batch's loss, the number of clipped tokens, and the derivatives by the values."""
        mask, predicted = micro.loss_mask, scores.logprobs.requires_grad_()
        assert micro.values is not None
        assert micro.returns is not None
        values, old, returns = predicted[mask], micro.values[mask], micro.returns[mask]  # [n]
        error, clipped = (values - returns).square(), torch.zeros_like(values, dtype=torch.bool)
        if self.clip is not None:
            near = (old + (values - old).clamp(-self.clip, self.clip) - returns).square()
            error, clipped = torch.maximum(error, near), near > error
        if self.weight is None:
            loss = error.sum() / 2 / max(1, micro.totals.tokens)
        else:
            weights = torch.as_tensor(self.weight(micro), device=error.device).expand(mask.shape)  # [b, t]
            loss = (error * weights[mask]).sum() / 2
        (by_values,) = torch.autograd.grad(loss, predicted)
        terms = {"loss": float(loss.detach()), "clipped": float(clipped.sum())}
        return LossAndGrads(terms, {"values": predicted.detach()}, TokenScores(logprobs=by_values))

    def state(self) -> dict[str, Any]:
        """Return weights, without the frozen ones, optimiser state, and the size of micro-batches.

        Raises `NonFiniteWeightsError` if a weight is not finite.
        """
        check_finite(self.trained, "the critic", "lower the lr of train.critic")
        return {
            "weights": state_without_base(self.trained),
            "optimiser": self.optimiser.state(),
            "micro_batch_tokens": self.micro_batch_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        load_state_without_base(self.trained, state["weights"])
        self.optimiser.load_state(state["optimiser"])
        self.load_micro_batch_state(state.get("micro_batch_tokens", {}))
        check_finite(self.trained, "the critic")


def _first_conversations(batch: Batch) -> Batch:
    """Return the rows without what stands behind their first conversation."""
    if batch.previous is None:
        return batch
    column = torch.arange(batch.token_ids.shape[1])
    before = (batch.previous != column - 1).cumsum(1) == 0
    return batch.with_(attention_mask=batch.attention_mask & before, previous=None)


def check_critic(
    *, lr: float = 1e-5, clip: float | None = 0.2, warmup: int = 0, hidden: int = 256, seed: int = 0
) -> None:
    """Raise `ValueError` for an option that no critic can have. It needs no model, so that a recipe can be checked."""
    OptimiserSettings(lr=lr)
    if clip is not None and not clip > 0:
        raise ValueError(f"clip: expected a number above 0, or None, found {clip}")
    if warmup < 0:
        raise ValueError(f"warmup: expected a number of steps, found {warmup}")
    if not 1 <= hidden <= WIDEST:
        raise ValueError(f"hidden: expected a whole number from 1 to {WIDEST:,}, found {hidden:,}")
    torch.Generator().manual_seed(seed)


def own_model(
    policy: Policy,
    *,
    lr: float = 1e-5,
    clip: float | None = 0.2,
    warmup: int = 0,
    path: str | None = None,
    weight: Weight | None = None,
) -> Critic:
    """Make a critic with a model of its own: a copy of the policy's, or that of the folder `path`, all of it trained.

    If the policy has an adapter, the critic has one of its own on the same base; the frozen weights are not copied.
    Its head is one linear map that starts at 0, so every first value is 0. A model from a folder may be of any size and
    must have the policy's vocabulary; otherwise `ModelError`.
    """
    like_policy = policy.forward
    if path is not None:
        _check_vocabulary(path, policy)
        loaded = load_model(path, policy.device, policy.dtype, world=policy.world)
        like_policy = choose_forward(loaded, precision=like_policy.precision_name, gradients=like_policy.gradients)
    body = _backbone(like_policy.model.base_model)
    head = _linear(_width(like_policy), 1, like=policy)
    nn.init.zeros_(head.weight)
    if path is None and has_adapter(policy.model):
        body = on_same_base(body)
    elif path is None or like_policy.sharding.is_divided:
        body = like_policy.sharding.copied(body, head)
    return Critic(
        like_policy.with_model(body, plain_head=True),
        head,
        trains_model=True,
        optimiser=OptimiserSettings(lr=lr),
        batch_sizes=policy.batch_sizes,
        clip=clip,
        warmup=warmup,
        weight=weight,
        world=policy.world,
    )


def own_head(
    policy: Policy,
    *,
    lr: float = 1e-3,
    clip: float | None = 0.2,
    warmup: int = 0,
    hidden: int = 256,
    seed: int = 0,
    weight: Weight | None = None,
) -> Critic:
    """Make a critic that reads the policy's hidden states and trains a small network on them: H → `hidden` → 1.

    It needs almost no memory, and its gradient never reaches the policy. The network starts from `seed` with a last
    layer of 0, so every first value is 0.
    """
    check_critic(lr=lr, hidden=hidden, seed=seed)
    forward = policy.forward.with_model(policy.model, plain_head=True)
    first, last = _linear(_width(forward), hidden, like=policy), _linear(hidden, 1, like=policy)
    start = torch.empty(first.weight.shape).normal_(generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        first.weight.copy_(start / math.sqrt(first.in_features))
    nn.init.zeros_(last.weight)
    head = nn.Sequential(first, nn.GELU(), last)
    return Critic(
        forward,
        head,
        trains_model=False,
        optimiser=OptimiserSettings(lr=lr),
        batch_sizes=policy.batch_sizes,
        clip=clip,
        warmup=warmup,
        weight=weight,
        world=policy.world,
    )


def _linear(inputs: int, outputs: int, *, like: Policy) -> nn.Linear:
    """Make a linear map with a bias of 0 on the policy's device and in its precision; it draws no random number."""
    linear = skip_init(nn.Linear, inputs, outputs, device=like.device, dtype=like.dtype)
    assert isinstance(linear, nn.Linear)
    nn.init.zeros_(linear.bias)
    return linear


def _backbone(model: nn.Module) -> PreTrainedModel:
    # The annotation of `base_model` is only nn.Module.
    assert isinstance(model, PreTrainedModel)
    return model


def _width(forward: Forward) -> int:
    """Return H, the size of the hidden states."""
    width: int = forward.model.config.get_text_config().hidden_size
    return width


def _check_vocabulary(path: str | Path, policy: Policy) -> None:
    tokenizer = load_tokenizer(path, stop_token_ids=(0,))  # any: it will end no answer
    if tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise ModelError(
            f"the critic {path} has another vocabulary than the policy: the same token ids are other words to it"
        )


def _explained_variance(measured: Tensor) -> dict[str, float]:
    """Compute 1 - var(R - V) / var(R) of values and returns [2, N], in float64."""
    values, returns = measured.double()
    variance = float(returns.var(correction=0)) if len(returns) else 0.0
    if variance == 0:
        return {}
    return {"value/explained_variance": 1 - float((returns - values).var(correction=0)) / variance}
