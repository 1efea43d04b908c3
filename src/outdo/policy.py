"""A model that scores tokens, is updated, saves itself and is loaded: one process."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from outdo.attention.forward import AttentionSetting, Forward
from outdo.loading import choose_device, load_model, load_tokenizer, max_context, without_bars
from outdo.logprobs import Entropy, chunked_scores
from outdo.objectives.objective import Objective
from outdo.optimiser import Optimiser, OptimiserSettings
from outdo.types import Batch, Terms, TokenScores, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How an update is cut up: none of it changes what is computed, but for `minibatches`."""

    minibatches: int = 1  # optimiser steps within one pass over a batch
    micro_tokens: int = 16384  # tokens computed at once, padding included
    chunk: int = 1024  # tokens whose logits exist at once


class Scorer:
    """A model that is only asked for log-probabilities: the reference, or the frozen half of a policy."""

    def __init__(self, forward: Forward, work: Work) -> None:
        self.forward = forward
        self.work = work

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.forward.device

    def scores(self, batch: Batch, *, entropy: Entropy = "none") -> TokenScores:
        """log πθ of the batch's trained tokens, at the temperature they were sampled at; 0 elsewhere. [B, T]

        Differentiable; the entropies are if `entropy` is "gradient".
        """
        batch = batch.to(self.device)
        hidden, source = self.forward.hidden(batch)
        rows, columns = batch.loss_mask.nonzero(as_tuple=True)
        logprobs, entropies = chunked_scores(
            self.forward.head,
            hidden[source[rows, columns]],
            batch.token_ids[rows, columns],
            batch.temperature[rows],
            entropy=entropy,
            chunk=self.work.chunk,
        )

        def place(values: Tensor) -> Tensor:
            return values.new_zeros(batch.token_ids.shape).index_put((rows, columns), values)  # [B, T]

        return TokenScores(logprobs=place(logprobs), entropy=None if entropy == "none" else place(entropies))

    @torch.no_grad()
    def measure(self, batch: Batch, *, entropy: Entropy = "none") -> TokenScores:
        """The scores [B, T] without gradients, on the CPU, in micro-batches."""
        micros = batch.microbatches(self.work.micro_tokens, whole_groups=False)
        parts = [self.scores(micro, entropy=entropy) for micro in micros]
        width = batch.token_ids.shape[1]
        entropies = [part.entropy for part in parts if part.entropy is not None]
        return TokenScores(
            logprobs=_stack([part.logprobs for part in parts], width),
            entropy=_stack(entropies, width) if entropies else None,
        )

    def logprobs(self, batch: Batch) -> Tensor:
        """log πθ [B, T] without gradients, on the CPU."""
        return self.measure(batch).logprobs


class Policy(Scorer):
    """The model being trained, its tokenizer, and its optimiser. `version` counts optimiser steps."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        optimiser: OptimiserSettings | None = None,
        work: Work | None = None,
        attention: AttentionSetting = "auto",
    ) -> None:
        super().__init__(Forward.probe(model, attention), work or Work())
        self.model = model
        self.tokenizer = tokenizer
        self.optimiser = Optimiser(model, optimiser or OptimiserSettings())

    @classmethod
    def load(
        cls, path: str | Path, *, device: str = "auto", stop_token_ids: Sequence[int] = (), **how: Any
    ) -> "Policy":
        """From a Hugging Face model folder or a hub name: float32 weights, dropout off. `how`: see `Policy`.

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
        for minibatch in batch.minibatches(self.work.minibatches):
            losses, parts = [], []
            for micro in minibatch.microbatches(self.work.micro_tokens, whole_groups=objective.needs.whole_groups):
                terms, part = self._backward(micro.to(self.device), objective)
                losses.append(terms)
                parts.append(part)
            summed = {name: sum(terms[name] for terms in losses) for name in losses[0]}
            metrics.append(summed | self.optimiser.step(summed["loss"]))
            width = minibatch.token_ids.shape[1]
            tokens.append({name: _stack([part[name] for part in parts], width) for name in parts[0]})
        width = batch.token_ids.shape[1]
        mean = {name: math.fsum(step[name] for step in metrics) / len(metrics) for name in metrics[0]}
        return Update(metrics=mean, tokens={name: _stack([part[name] for part in tokens], width) for name in tokens[0]})

    def _backward(self, micro: Batch, objective: Objective) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Add a micro-batch's gradient; its terms, and its tokens [b, t]."""
        scores = self.scores(micro, entropy="gradient" if objective.needs.entropy else "value")
        terms = objective(scores, micro)
        (policy_push,) = torch.autograd.grad(terms.policy, scores.logprobs, retain_graph=True)
        scores.logprobs.retain_grad()
        terms.loss.backward()
        assert scores.logprobs.grad is not None
        assert scores.entropy is not None
        logprobs = scores.logprobs.detach()
        old = logprobs if micro.old_logprobs is None else micro.old_logprobs
        advantages = 0.0 if micro.advantages is None else micro.advantages
        part = {
            "logprobs": logprobs,
            "log_ratio": (logprobs - old).where(micro.loss_mask, 0.0),
            "entropy": scores.entropy.detach(),
            "push": -scores.logprobs.grad,
            "policy_push": policy_push,
            "clipped": (policy_push == 0) & (advantages != 0.0) & micro.loss_mask,
        }
        return _values(terms), part

    def save(self, folder: Path) -> None:
        """Write an ordinary Hugging Face folder: weights as safetensors, configuration, tokenizer."""
        with without_bars():
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def state(self) -> dict[str, Any]:
        """What a saved folder does not hold: the optimiser."""
        return {"optimiser": self.optimiser.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was written."""
        self.optimiser.load_state(state["optimiser"])


def _values(terms: Terms) -> dict[str, float]:
    loss, policy, divergence, entropy = (
        float(term.detach()) for term in (terms.loss, terms.policy, terms.divergence, terms.entropy)
    )
    return {"loss": loss, "loss/policy": policy, "loss/divergence": divergence, "loss/entropy": entropy}


def _stack(parts: list[Tensor], width: int) -> Tensor:
    """[b_i, t_i] each -> [B, width], on the CPU."""
    return torch.cat([pad(part, (0, width - part.shape[1])) for part in parts]).cpu()
