"""The model being trained: it scores tokens, takes optimiser steps, and is saved and loaded."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion

from outdo.algorithms.objectives.base import Objective, clip_measurements
from outdo.algorithms.vocabulary_sums import detached_entropy
from outdo.models.adapter import attach, check_divisible, has_adapter, save_adapter, set_base
from outdo.models.base_model import BaseModel
from outdo.models.base_weights import Weights
from outdo.models.choose_forward import AttentionSetting, choose_forward
from outdo.models.device import Precision, choose_device
from outdo.models.finite import check_finite
from outdo.models.gradient_check import check_gradient, check_rows_apart, mean_logprob
from outdo.models.inspect_folder import IN_A_LAYER, ModelFacts, inspect_folder
from outdo.models.loading import base_of, load_model, load_tokenizer, max_context, other_parts_of, save_model
from outdo.models.onednn import ONEDNN, Gradients
from outdo.models.optimiser import Optimiser, OptimiserSettings, pass_metrics
from outdo.models.scorer import BatchSizes, LossAndGrads, Scorer, stack, stack_rows
from outdo.models.teacher_sums import NO_HEADS, TeacherHead, pull_of, sums_of_divergences
from outdo.models.text_part import OtherParts
from outdo.types import Batch, Terms, TokenScores, Update
from outdo.utils.sharded_tensors import share_of
from outdo.utils.text import counted
from outdo.utils.timing import span
from outdo.utils.world import ALONE, World

if TYPE_CHECKING:
    from peft import PeftConfig


class Policy(Scorer):
    """The model being trained, its tokenizer, and its optimiser. `version` counts optimiser steps.

    It is computed in the fastest way that gives the model's own log-probabilities: see `choose_forward`.
    """

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
        gradients: Gradients = ONEDNN,
        world: World = ALONE,
    ) -> None:
        forward = choose_forward(
            model,
            attention,
            precision=precision,
            compile=compile,
            gradient_checkpointing=gradient_checkpointing,
            gradients=gradients,
        )
        super().__init__(forward, batch_sizes or BatchSizes(), world)
        if has_adapter(model):
            check_gradient(model, partial(mean_logprob, forward.in_float32()))
            if not forward.sharding.is_divided:  # on a divided base there is LoRA alone
                check_rows_apart(model, forward.in_float32().padded())
        self.model = model
        self.tokenizer = tokenizer
        self.optimiser = Optimiser(model, optimiser or OptimiserSettings())
        self.context = max_context(model)
        """Tokens that prompt and answer may have together; None where the model sets no limit."""
        self.base: BaseModel | None = None  # with an adapter, the model that it belongs to
        self.other_parts: OtherParts | None = None  # those of a whole model, of which this is the text part

    @classmethod
    def load(
        cls,
        path: str | Path | ModelFacts,
        *,
        device: str = "auto",
        stop_token_ids: Sequence[int] = (),
        adapter: "PeftConfig | None" = None,
        weights: Weights = "float32",
        seed: int = 0,
        world: World = ALONE,
        **settings: Any,
    ) -> "Policy":
        """Load a Hugging Face model folder or hub name, or one inspected already: float32 weights, dropout off.

        The other keyword arguments are those of `Policy`. In a `world` that divides models, only this process's part
        of the weights is read.

        `adapter` is attached to the model, and only its weights are trained then; `seed` is that of its random numbers.
        Of an adapter folder, the adapter is trained further. `weights` are those of the frozen model; without an
        adapter they are float32.

        `stop_token_ids` are needed only if the tokenizer has no end-of-sequence token: see `load_tokenizer`.
        """
        facts = path if isinstance(path, ModelFacts) else inspect_folder(path)
        chosen, _ = choose_device(device)
        tokenizer = load_tokenizer(facts, stop_token_ids=stop_token_ids)
        if adapter is not None and world.divides_models:
            check_divisible(adapter)
        model = load_model(facts, device=chosen, weights=weights, world=world)
        if adapter is not None:
            attach(model, adapter, seed=seed)
        policy = cls(model, tokenizer, world=world, **settings)
        if has_adapter(model):
            policy.base = base_of(facts)
            set_base(model, policy.base.name, policy.base.revision)
        policy.other_parts = other_parts_of(facts, model)
        return policy

    @property
    def version(self) -> int:
        """The number of optimiser steps that the weights have taken."""
        return self.optimiser.steps

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the trained weights."""
        return next(iter(self.optimiser.weights.values())).dtype

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end an answer: the tokenizer's end-of-sequence token, and those of the generation config."""
        config = self.model.generation_config
        configured: int | list[int] | None = getattr(config, "eos_token_id", None)
        ids = configured if isinstance(configured, list) else [configured]
        eos: Any = self.tokenizer.eos_token_id
        return frozenset(token for token in (eos, *ids) if token is not None)

    def update(self, batch: Batch, objective: Objective, heads: Mapping[str, TeacherHead] = NO_HEADS) -> Update:
        """Make one pass over the batch: `minibatches` optimiser steps, each with its own totals.

        `heads` are those of the teachers that have read the batch, for an objective with a divergence from them.

        The tokens of the result, each [B, T], were measured during the pass, before the step that used them: `logprobs`
        (log πθ), `log_ratio`, `entropy`, `push` (minus the derivative of the loss with respect to the log-probability:
        direction and strength of the push on the token; of a divergence from teachers, see `TeacherPull`),
        `policy_push` (the policy term's part of it; the rest is the pull of reference and teachers), and each
        divergence from teachers by its name. For an objective with a ratio also `clipped` (the surrogate no longer
        pushes it; see `clipped_tokens`) and `clip_log_ratio` (the logarithm of the ratio that is clipped; see
        `compared_log_ratio`).

        Its metrics are means over the optimiser steps; those named `updates/` are numbers of optimiser steps: see
        `pass_metrics`.
        """
        metrics: list[dict[str, float]] = []
        trained: list[int] = []  # the number of tokens of each step
        tokens: list[dict[str, Tensor]] = []
        for minibatch in batch.minibatches(self.batch_sizes.minibatches):
            gradient = partial(self._gradient, minibatch, objective, heads)
            terms, measured = self._halving_on_oom(gradient, self.scoring.clear)
            with span("optimiser"):
                metrics.append(terms | self.optimiser.step(terms["loss"]))
            tokens.append(measured)
            trained.append(minibatch.totals.tokens)
        width = batch.token_ids.shape[1]
        stacked = {name: stack([part[name] for part in tokens], width) for name in tokens[0]}
        return Update(metrics=pass_metrics(metrics, trained), tokens=stacked)

    def _gradient(
        self, batch: Batch, objective: Objective, heads: Mapping[str, TeacherHead]
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """Add up the gradient of one optimiser step's loss; return the sums of its terms, and its tokens [B, T]."""
        requires = objective.requires
        sums = {"entropy": detached_entropy, **requires.sums}
        if requires.divergences:
            sums |= sums_of_divergences(requires.divergences, heads)
        results = self.scoring.accumulate(
            batch,
            _pushed_and_idle(batch),
            partial(_loss_and_grads, objective),
            self.batch_sizes,
            sums,
            whole_groups=requires.whole_groups,
        )
        width, first = batch.token_ids.shape[1], results[0][1]
        tokens = {
            name: stack_rows([(rows, result.tokens[name]) for rows, result in results], width) for name in first.tokens
        }
        return {name: sum(result.terms[name] for _, result in results) for name in first.terms}, tokens

    def check_finite(self) -> None:
        """Raise `NonFiniteWeightsError` if a weight, of a divided model one in this process's part, is not finite."""
        check_finite(self.model, f"not saved after {counted(self.version, 'optimiser step')}", "lower optim.lr")

    def weights_to_save(self, copies: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the weights and buffers of the model by name, with `copies` in place of the trained weights.

        Names of tied weights have the same tensor, as in the model.
        """
        weights: dict[str, Tensor] = self.model.state_dict()
        by_weight = {id(self.optimiser.weights[name]): copy for name, copy in (copies or {}).items()}
        for name, weight in self.model.named_parameters(remove_duplicate=False):
            if name in weights:
                weights[name] = by_weight.get(id(weight), weights[name])
        return weights

    def share_of_weights(self, weights: Mapping[str, Tensor], rank: int, count: int) -> dict[str, Tensor]:
        """Return the part of the `weights_to_save` of a divided model that replica `rank` of `count` saves, whole.

        It is the weights of some layers. All replicas have to call this at the same time. The weights of a layer stay
        together, as transformers may store several of them as one. Those of an adapter are not divided: the first
        replica saves them.
        """
        if has_adapter(self.model):
            return dict(weights) if rank == 0 else {}
        tied = getattr(self.model, "all_tied_weights_keys", {})  # they are saved once
        weights = {name: weight for name, weight in weights.items() if name not in tied}

        def layer(name: str) -> str:
            match = IN_A_LAYER.search(name)
            return name[: match.end()] if match else name

        return share_of(weights, rank, count, unit=layer)

    def write_part(
        self,
        folder: Path,
        weights: Mapping[str, Tensor],
        tokenizer: PreTrainedTokenizerBase,
        label: str,
        *,
        first: bool,
    ) -> None:
        """Write a replica's `share_of_weights` into a model folder, as `model<label>.safetensors`.

        The first replica also writes what has no parts. The folder is complete with `write_index`.
        """
        if has_adapter(self.model):
            if first:
                self.write(folder, weights, tokenizer)
            return
        stored = revert_weight_conversion(self.model, dict(weights))  # with the names and shapes that files have
        tensors = {name: weight.contiguous() for name, weight in stored.items()}
        save_file(tensors, folder / f"model{label}.safetensors", {"format": "pt"})
        if first:
            self.model.config.save_pretrained(folder)
            if self.model.generation_config is not None:
                self.model.generation_config.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if self.other_parts is not None:
                self.other_parts.write(folder)

    def write(self, folder: Path, weights: Mapping[str, Tensor], tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a folder as `save` does, with other weights: those of `weights_to_save`. They are not checked.

        A thread may call this while the model is trained, with a tokenizer of its own: one that is used cannot be
        written.
        """
        if has_adapter(self.model):
            save_adapter(self.model, folder, weights)
            if self.base is not None:
                self.base.write(folder)
        else:
            save_model(self.model, folder, self.other_parts, state_dict=dict(weights))
        tokenizer.save_pretrained(folder)

    def save(self, folder: str | Path) -> None:
        """Write an ordinary Hugging Face folder: weights as safetensors, configuration, tokenizer.

        Of the text part of a whole model it is the whole model: the other parts are copied, with equal bits.
        With an adapter it is an adapter folder of PEFT, which names the base and does not contain it.

        Raises `NonFiniteWeightsError` and writes nothing if a weight is not finite.
        """
        self.check_finite()
        self.write(Path(folder), self.weights_to_save(), self.tokenizer)

    def state(self) -> dict[str, Any]:
        """Return what a saved folder does not hold: the optimiser, and the size of micro-batches."""
        return {"optimiser": self.optimiser.state(), "micro_batch_tokens": self.micro_batch_state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state."""
        self.optimiser.load_state(state["optimiser"])
        self.load_micro_batch_state(state["micro_batch_tokens"])


def _pushed_and_idle(batch: Batch) -> list[list[int]]:
    """Split the rows into groups that an advantage pushes and groups whose advantages are all 0; neither part is empty.

    In micro-batches of their own, the latter need no backward pass if no other term of the objective pushes them.
    """
    pushed = torch.ones(len(batch), dtype=torch.bool)
    if batch.advantages is not None:
        pushed = torch.isin(batch.group, batch.group[(batch.advantages != 0).any(1)])
    parts = [part.nonzero().squeeze(1).tolist() for part in (pushed, ~pushed)]
    return [rows for rows in parts if rows]


def _loss_and_grads(objective: Objective, scores: TokenScores, micro: Batch) -> LossAndGrads:
    """Compute the loss of a micro-batch and its gradient with respect to the log-probabilities and sums."""
    logprobs = scores.logprobs.requires_grad_()
    divergences = objective.requires.divergences
    leaves = {name: scores.sums[name].requires_grad_() for name in (*objective.requires.sums, *divergences)}
    terms = objective(scores, micro)
    (policy_push,) = torch.autograd.grad(terms.policy, logprobs, retain_graph=True)
    grad_logprobs, *grad_sums = torch.autograd.grad(
        terms.loss, [logprobs, *leaves.values()], allow_unused=True, materialize_grads=True
    )
    by_sum = dict(zip(leaves, grad_sums, strict=True))
    pulls = [by_sum[name] * scores.sums[pull_of(name)] for name in divergences]
    logprobs = logprobs.detach()
    old = logprobs if micro.old_logprobs is None else micro.old_logprobs
    tokens = {
        "logprobs": logprobs,
        "log_ratio": (logprobs - old).where(micro.loss_mask, 0.0),
        "entropy": scores.sums["entropy"].detach(),
        "push": sum(pulls, -grad_logprobs),
        "policy_push": policy_push,
        **{name: scores.sums[name].detach() for name in divergences},
        **clip_measurements(objective, scores, micro, policy_push),
    }
    grads = TokenScores(logprobs=grad_logprobs, sums=by_sum)
    return LossAndGrads(_values(terms), tokens, grads)


def _values(terms: Terms) -> dict[str, float]:
    parts = {"loss/policy": terms.policy, "loss/divergence": terms.divergence, "loss/entropy": terms.entropy}
    further = {"loss/teacher": terms.teacher, "loss/environment": terms.environment}
    parts |= {name: term for name, term in further.items() if term is not None}
    return {name: float(term.detach()) for name, term in {"loss": terms.loss, **parts}.items()}
