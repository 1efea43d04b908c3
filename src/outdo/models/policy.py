"""A model that scores tokens, is updated, saves itself and is loaded: one process."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.algorithms.objectives.base import Objective
from outdo.distributed.worker_pool import WorkerPool
from outdo.models.attention.forward import AttentionSetting, Forward
from outdo.models.device import Precision, choose_device
from outdo.models.inspect_folder import ModelFacts
from outdo.models.loading import load_model, load_tokenizer, max_context, without_bars
from outdo.models.logprobs import Entropy
from outdo.models.optimiser import Optimiser, OptimiserSettings
from outdo.models.scorer import ScoringWorker
from outdo.types import Batch, Terms, TokenScores, Update
from outdo.utils.batching import schedule
from outdo.utils.errors import OutdoError
from outdo.utils.timing import span

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """How an update is cut up: none of it changes what is computed, but for `minibatches`."""

    minibatches: int = 1  # optimiser steps within one pass over a batch
    micro_batch_tokens: int = 16384  # tokens computed at once, padding included
    chunk: int | None = None  # tokens whose logits exist at once; unset: as many as some megabytes hold


class Scorer:
    """A model that is only asked for log-probabilities: the reference, or the frozen half of a policy.

    With a `pool` of several processes, each of them computes a share of every batch.
    """

    def __init__(self, forward: Forward, batch_sizes: BatchSizes, pool: WorkerPool | None = None) -> None:
        self.forward = forward
        self.batch_sizes = batch_sizes
        self.pool = pool or WorkerPool()
        self.requested_micro_batch_tokens: int | None = None  # where memory did not suffice for it
        trained = [weight for weight in forward.model.parameters() if weight.requires_grad]
        # Beside the trainer's own gradient, which is where autograd puts it: one for each further process.
        self.gradients = [[torch.zeros_like(weight) for weight in trained] for _ in self.pool.others]
        self.workers = self.pool.place(
            [ScoringWorker(forward), *(ScoringWorker(forward, gradients) for gradients in self.gradients)]
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.forward.device

    def scores(self, batch: Batch, *, entropy: Entropy = "none") -> TokenScores:
        """log πθ of the batch's trained tokens, at the temperature they were sampled at; 0 elsewhere. [B, T]

        Differentiable; the entropies are if `entropy` is "gradient".
        """
        return self.workers.local.scores(batch, entropy, self.batch_sizes.chunk)

    def measure(self, batch: Batch, *, entropy: Entropy = "none") -> TokenScores:
        """The scores [B, T] without gradients, on the CPU, in micro-batches."""

        def measured() -> list[tuple[list[int], TokenScores]]:
            parts: list[tuple[list[int], TokenScores]] = []
            for together in self._rounds(batch, range(len(batch)), whole_groups=False):
                calls = [(batch.rows(torch.tensor(rows)), entropy, self.batch_sizes.chunk) for rows in together]
                parts.extend(zip(together, self.workers.map("measure", calls), strict=True))
            return parts

        parts = self._halving_on_oom(measured)
        width = batch.token_ids.shape[1]
        entropies = [(rows, part.entropy) for rows, part in parts if part.entropy is not None]
        return TokenScores(
            logprobs=_stack([(rows, part.logprobs) for rows, part in parts], width),
            entropy=_stack(entropies, width) if entropies else None,
        )

    def logprobs(self, batch: Batch) -> Tensor:
        """log πθ [B, T] without gradients, on the CPU."""
        return self.measure(batch).logprobs

    def _rounds(self, batch: Batch, rows: Sequence[int], *, whole_groups: bool) -> list[list[list[int]]]:
        """The rows of micro-batches, in rounds of as many as there are hands."""
        lengths, prompts, groups = batch.attention_mask.sum(1).tolist(), batch.prompt_lengths.tolist(), batch.group
        first = torch.cat([groups.new_ones(1), groups.diff()]).bool().tolist()  # its prompt is computed with it
        costs = [length - (not new) * prompt for length, prompt, new in zip(lengths, prompts, first, strict=True)]
        how = {"budget": self.batch_sizes.micro_batch_tokens, "hands": len(self.workers), "whole_groups": whole_groups}
        return schedule(rows, lengths, costs, groups.tolist(), **how)

    def _halving_on_oom(self, compute: Callable[[], Result]) -> Result:
        """Compute; where memory does not suffice, again with half as many tokens at once, down to a row at a time."""
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError as error:
                self.workers.local.drop()
                self._clear()
                if self.batch_sizes.micro_batch_tokens <= 1:
                    raise OutdoError(
                        "not even one row fits into memory: shorter answers (`sampling.max_tokens`) or "
                        f"`train.gradient_checkpointing = true` need less ({error})"
                    ) from error
            self.requested_micro_batch_tokens = self.requested_micro_batch_tokens or self.batch_sizes.micro_batch_tokens
            self.batch_sizes = replace(self.batch_sizes, micro_batch_tokens=self.batch_sizes.micro_batch_tokens // 2)

    def _clear(self) -> None:
        """Away with what was gathered of a gradient."""
        self.forward.model.zero_grad()
        for gradient in chain(*self.gradients):
            gradient.zero_()


class Policy(Scorer):
    """The model being trained, its tokenizer, and its optimiser. `version` counts optimiser steps."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        optimiser: OptimiserSettings | None = None,
        batch_sizes: BatchSizes | None = None,
        attention: AttentionSetting = "auto",
        precision: Precision = "auto",
        compile: bool = False,
        gradient_checkpointing: bool = False,
        pool: WorkerPool | None = None,
    ) -> None:
        how = {"precision": precision, "compile": compile, "gradient_checkpointing": gradient_checkpointing}
        super().__init__(Forward.probe(model, attention, **how), batch_sizes or BatchSizes(), pool)
        self.model = model
        self.tokenizer = tokenizer
        self.optimiser = Optimiser(model, optimiser or OptimiserSettings())

    @classmethod
    def load(
        cls, path: str | Path | ModelFacts, *, device: str = "auto", stop_token_ids: Sequence[int] = (), **how: Any
    ) -> "Policy":
        """Load a Hugging Face model folder or hub name, or one inspected already: float32 weights, dropout off.

        The other keyword arguments are those of `Policy`.

        `stop_token_ids` are needed only where the tokenizer has no end-of-sequence token: see `load_tokenizer`.
        """
        chosen, _ = choose_device(device)
        tokenizer = load_tokenizer(path, stop_token_ids=stop_token_ids)
        return cls(load_model(path, device=chosen), tokenizer, **how)

    @property
    def version(self) -> int:
        """How many optimiser steps the weights have taken."""
        return self.optimiser.steps

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the tokenizer's end-of-sequence token, and those the model's folder names."""
        config = self.model.generation_config
        named: int | list[int] | None = getattr(config, "eos_token_id", None)
        ids = named if isinstance(named, list) else [named]
        own: Any = self.tokenizer.eos_token_id
        return frozenset(token for token in (own, *ids) if token is not None)

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None where the model sets no limit."""
        return max_context(self.model)

    def update(self, batch: Batch, objective: Objective) -> Update:
        """One pass over the batch: `minibatches` optimiser steps, each on its own totals.

        The tokens of the result, each [B, T], were measured as the pass went along, before the step that used them:
        `logprobs` (log πθ), `log_ratio`, `entropy`, `push` (minus the loss's derivative by the log-probability: the
        way, and how hard, the token was pushed), `policy_push` (the policy term's part of it; what is left is the
        pull of the reference), `clipped` (Â is not 0, yet the policy term pushes nothing).
        """
        metrics: list[dict[str, float]] = []
        tokens: list[dict[str, Tensor]] = []
        for minibatch in batch.minibatches(self.batch_sizes.minibatches):
            terms, measured = self._halving_on_oom(partial(self._gradient, minibatch, objective))
            with span("optimiser"):
                metrics.append(terms | self.optimiser.step(terms["loss"]))
            tokens.append(measured)
        width = batch.token_ids.shape[1]
        mean = {name: math.fsum(step[name] for step in metrics) / len(metrics) for name in metrics[0]}
        together = {name: _joined([part[name] for part in tokens], width) for name in tokens[0]}
        return Update(metrics=mean, tokens=together)

    def _gradient(self, batch: Batch, objective: Objective) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Gather the gradient of what one optimiser step sees; the sums of its terms, and its tokens [B, T].

        Rows that an advantage of 0 leaves alone are computed apart from the others, so that the backward pass can be
        left out where not one token was pushed.
        """
        entropy: Entropy = "gradient" if objective.requires.entropy else "value"
        asked: list[tuple[list[int], _MicroBatchResult]] = []
        for together in self._planned(batch, objective):
            micros = [batch.rows(torch.tensor(rows)).to(self.device) for rows in together]
            with span("forward"):
                scored = self.workers.map("forward_", [(micro, entropy, self.batch_sizes.chunk) for micro in micros])
            answers = [_loss_and_grads(objective, scores, micro) for scores, micro in zip(scored, micros, strict=True)]
            with span("backward"):
                self.workers.map("backward", [answer.grads for answer in answers])
            asked.extend(zip(together, answers, strict=True))
        self._gather()
        width, names = batch.token_ids.shape[1], asked[0][1].tokens
        tokens = {name: _stack([(rows, each.tokens[name]) for rows, each in asked], width) for name in names}
        return {name: sum(each.terms[name] for _, each in asked) for name in asked[0][1].terms}, tokens

    def _planned(self, batch: Batch, objective: Objective) -> list[list[list[int]]]:
        """The rounds of an optimiser step: first the groups that are going to be pushed, then those that are not."""
        whole = objective.requires.whole_groups
        pushed = torch.ones(len(batch), dtype=torch.bool)
        if batch.advantages is not None:
            moving = batch.group[(batch.advantages != 0).any(1)]
            pushed = torch.isin(batch.group, moving)
        kinds = [kind.nonzero().squeeze(1).tolist() for kind in (pushed, ~pushed)]
        return [together for rows in kinds if rows for together in self._rounds(batch, rows, whole_groups=whole)]

    def _gather(self) -> None:
        """Add the gradients of the other processes to this one's, in their order."""
        for gradients in self.gradients:
            for weight, gradient in zip(self.optimiser.weights.values(), gradients, strict=True):
                weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
                gradient.zero_()

    def save(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder: weights as safetensors, configuration, tokenizer."""
        with without_bars():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        """What a saved folder does not hold: the optimiser."""
        fitting = self.batch_sizes.micro_batch_tokens
        micro_batch_tokens = {"asked": self.requested_micro_batch_tokens or fitting, "fitting": fitting}
        return {"optimiser": self.optimiser.state(), "micro_batch_tokens": micro_batch_tokens}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.optimiser.load_state(state["optimiser"])
        # A split that memory forced is repeated, as the last bits of the gradient are its; unless another is asked for.
        saved = state["micro_batch_tokens"]
        if saved.get("asked") == self.batch_sizes.micro_batch_tokens != saved.get("fitting"):
            self.requested_micro_batch_tokens = saved["asked"]
            self.batch_sizes = replace(self.batch_sizes, micro_batch_tokens=saved["fitting"])


@dataclass(frozen=True, slots=True)
class _MicroBatchResult:
    """What an objective said of a micro-batch."""

    terms: dict[str, float]
    tokens: dict[str, Tensor]  # each [b, t]
    grads: tuple[Tensor, Tensor | None]  # derivatives of the loss by the scores


def _loss_and_grads(objective: Objective, scores: TokenScores, micro: Batch) -> _MicroBatchResult:
    """Ask the objective, and differentiate it by the scores; how these depend on the weights is another's affair."""
    logprobs, entropy = scores.logprobs.requires_grad_(), scores.entropy
    assert entropy is not None
    if objective.requires.entropy:
        entropy.requires_grad_()
    terms = objective(TokenScores(logprobs=logprobs, entropy=entropy), micro)
    (policy_push,) = torch.autograd.grad(terms.policy, logprobs, retain_graph=True)
    leaves = [logprobs, entropy] if objective.requires.entropy else [logprobs]
    by = torch.autograd.grad(terms.loss, leaves, allow_unused=True, materialize_grads=True)
    logprobs = logprobs.detach()
    old = logprobs if micro.old_logprobs is None else micro.old_logprobs
    advantages = 0.0 if micro.advantages is None else micro.advantages
    tokens = {
        "logprobs": logprobs,
        "log_ratio": (logprobs - old).where(micro.loss_mask, 0.0),
        "entropy": entropy.detach(),
        "push": -by[0],
        "policy_push": policy_push,
        "clipped": (policy_push == 0) & (advantages != 0.0) & micro.loss_mask,
    }
    return _MicroBatchResult(_values(terms), tokens, (by[0], by[1] if objective.requires.entropy else None))


def _values(terms: Terms) -> dict[str, float]:
    loss, policy, divergence, entropy = (
        float(term.detach()) for term in (terms.loss, terms.policy, terms.divergence, terms.entropy)
    )
    return {"loss": loss, "loss/policy": policy, "loss/divergence": divergence, "loss/entropy": entropy}


def _stack(parts: Sequence[tuple[list[int], Tensor]], width: int) -> Tensor:
    """Rows with their numbers, [b_i] and [b_i, t_i] each -> [B, width] in the order of the numbers, on the CPU."""
    order = torch.tensor([row for rows, _ in parts for row in rows]).argsort()
    return _joined([values for _, values in parts], width)[order]


def _joined(parts: Sequence[Tensor], width: int) -> Tensor:
    """[b_i, t_i] each -> [B, width], on the CPU."""
    return torch.cat([pad(part, (0, width - part.shape[1])) for part in parts]).cpu()
