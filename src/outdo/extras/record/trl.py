"""Write the same record for a run of TRL's GRPOTrainer (made for TRL 1.16).

    trainer = GRPOTrainer(model, reward_funcs=..., args=GRPOConfig(...), train_dataset=...)
    trainer.add_callback(TrlRecord(trainer, "runs/mine"))
    trainer.train()

Then `outdo inspect runs/mine` shows what was trained. A step of the record is an optimiser step of TRL.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from outdo.algorithms.advantages import compute_advantages, gdpo, group_centred, per_token
from outdo.algorithms.advantages.signal import rewards_differ, signal_of
from outdo.algorithms.objectives import presets
from outdo.algorithms.objectives.base import ComposedObjective, Objective
from outdo.algorithms.objectives.compat import compat
from outdo.algorithms.objectives.ratios import sequence, token
from outdo.algorithms.objectives.surrogates import clip
from outdo.algorithms.objectives.weights import Weight, constant, sequence_mean, sequence_sum, token_mean
from outdo.extras.record.external import TokenValues, Top, record_step, rewind
from outdo.models.logprobs import top_tokens
from outdo.types import Batch
from outdo.types.rows import floats
from outdo.utils.errors import UserError

OUTCOMES_KEY = "outdo"
"""The key under which TRL's batches keep what they otherwise drop: rewards, and columns of the dataset."""

MODEL_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""Other entries of a batch that a model can read."""


class TrlRecord(TrainerCallback):
    """Records every `every`-th optimiser step of a GRPOTrainer in `folder`.

    A recorded step costs two forward passes over its completions, without gradients: one before the optimiser step and
    one after it. The pushes are those of `objective`, by default the one of the trainer's arguments, at the policy
    before the step: where TRL takes several steps on one generation, its ratio to the policy that generated is not in
    them. `answer` is the column of the dataset with the expected answers, if there is one. With `top`, that many most
    probable tokens are recorded at each token, before and after the step; this costs two further forward passes, one
    completion at a time.

    TRL shuffles a generation, so that a step can train on a part of a group: `num_groups`, `reward_std`,
    `reward_group_std`, `frac_reward_zero_std` and `frac_zero_advantage` are those of the whole groups that have an
    answer in the step.

    It also continues a run that TRL resumes: when training begins, what was recorded after the checkpoint is deleted.

    Raises: ValueError for several processes, or for a loss that needs an explicit `objective`.
    """

    def __init__(
        self,
        trainer: Any,
        folder: str | Path,
        *,
        objective: Objective | None = None,
        every: int = 1,
        answer: str = "answer",
        top: int = 0,
    ) -> None:
        if trainer.accelerator.num_processes > 1:
            raise ValueError(f"TrlRecord supports one process; this run has {trainer.accelerator.num_processes}")
        self.trainer = trainer
        self.folder = folder
        self.objective = objective or objective_of(trainer)
        self.every = every
        self.top = top
        self._micro_batches: list[_MicroBatch] = []  # the micro-batches of the current optimiser step
        _keep_outcomes(trainer, answer)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Delete records of later steps: the run will write them again."""
        rewind(self.folder, state.global_step)

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep a micro-batch after its backward pass, if others follow."""
        self._keep_micro_batch(state.global_step + 1)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Keep the last micro-batch after its backward pass."""
        self._keep_micro_batch(state.global_step + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the step after the optimiser step."""
        micro_batches, self._micro_batches = self._micro_batches, []
        if micro_batches:
            rows = [
                row
                for micro_batch in micro_batches
                for row in _rows(
                    micro_batch, self._measure(micro_batch.inputs)[0], self._top_tokens(micro_batch.inputs)
                )
            ]
            self._write(state.global_step, rows)

    def _keep_micro_batch(self, step: int) -> None:
        """Keep the micro-batch that was just trained on, and its scores under the policy before the optimiser step."""
        if step % self.every == 0:
            buffered = self.trainer._buffered_inputs
            inputs = buffered[(self.trainer._step - 1) % len(buffered)]
            # TRL's `old_per_token_logps` are of the policy that generated, which can be several steps older.
            old, entropy = self._measure(inputs)
            self._micro_batches.append(_MicroBatch(inputs, old, entropy, self._top_tokens(inputs)))

    @torch.no_grad()
    def _measure(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies of the completions with TRL's own method. [b, t] each"""
        model, training = self.trainer.model, self.trainer.model.training
        model.eval()
        logprobs, entropy, _ = self.trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
            compute_entropy=True,
            **{name: inputs[name] for name in MODEL_INPUTS if name in inputs},
        )
        model.train(training)
        return logprobs, entropy

    @torch.no_grad()
    def _top_tokens(self, inputs: Mapping[str, Any]) -> list[list[Top]] | None:
        """Return the most probable tokens at each token of the completions [b][t], padding included; None without.

        Raises `UserError` for a batch with pictures, which it would compute without them.
        """
        if not self.top:
            return None
        if inputs.get("pixel_values") is not None:
            raise UserError([f"top = {self.top}: the most probable tokens are those after text alone; leave `top` out"])
        model, training = self.trainer.model, self.trainer.model.training
        model.eval()
        length = inputs["completion_ids"].shape[1]
        token_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        rows: list[list[Top]] = []
        for ids, read in zip(token_ids, mask, strict=True):
            logits = model(input_ids=ids[None], attention_mask=read[None]).logits[0, -length - 1 : -1]  # [t, V]
            top = top_tokens(logits, self.trainer.temperature, self.top)
            pairs = zip(
                *(column.tolist() for column in top), strict=True
            )  # the ids and the log-probabilities of a token
            rows.append([list(zip(*pair, strict=True)) for pair in pairs])
        model.train(training)
        return rows

    def _write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        rewards, parts, groups = (columns.pop(name) for name in ("rewards", "reward_parts", "group_spread"))
        known: dict[str, Any] = {name: values for name, values in columns.items() if any(v is not None for v in values)}
        tokens = TokenValues(**{field.name: known.pop(field.name, None) for field in fields(TokenValues)})
        record_step(
            self.folder,
            step=step,
            tokenizer=self.trainer._tokenizer,
            rewards=rewards,
            reward_parts={name: [parts_of_row[name] for parts_of_row in parts] for name in parts[0]},
            temperature=self.trainer.temperature,
            objective=self.objective,
            tokens=tokens,
            metrics=_spread_metrics(groups),
            **known,
        )


@dataclass(frozen=True, slots=True)
class _MicroBatch:
    """A micro-batch, and its scores under the policy before the optimiser step."""

    inputs: Mapping[str, Any]
    old: Tensor  # [b, t]
    entropy: Tensor  # [b, t]
    top: list[list[Top]] | None  # [b][t]


def _rows(micro_batch: _MicroBatch, new: Tensor, new_top: list[list[Top]] | None) -> list[dict[str, Any]]:
    """Return the completions of a micro-batch in the form of `record_step`, without padding."""
    inputs = micro_batch.inputs
    advantages = inputs["advantages"]
    trained = inputs["completion_mask"] * inputs.get("tool_mask", 1)
    per_token = {
        "completions": inputs["completion_ids"],
        "loss_mask": trained,
        "advantages": advantages[:, None].expand_as(trained) if advantages.ndim == 1 else advantages,
        "old_logprobs": micro_batch.old,
        "new_logprobs": new,
        "entropy": micro_batch.entropy,
        "ref_logprobs": inputs.get("ref_per_token_logps"),
        "rollout_logprobs": inputs.get("sampling_per_token_logps"),
    }
    return [
        {
            "prompts": inputs["prompt_ids"][b][inputs["prompt_mask"][b].bool()].tolist(),
            **{name: None if v is None else v[b, : outcome["length"]].tolist() for name, v in per_token.items()},
            **{
                name: None if top is None else top[b][: outcome["length"]]
                for name, top in (("old_top", micro_batch.top), ("new_top", new_top))
            },
            **{name: outcome[name] for name in ("rewards", "reward_parts", "group_spread", "answers", "truncated")},
        }
        for b, outcome in enumerate(inputs[OUTCOMES_KEY])
    ]


def _keep_outcomes(trainer: Any, answer: str) -> None:
    """Make TRL's batches carry the outcome of each completion: TRL shuffles them, and keeps only the advantages."""
    generate = trainer._generate_and_score_completions

    def generate_and_keep(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        inputs = generate(examples)
        scores = {name: list(values)[-len(examples) :] for name, values in trainer._logs["rewards"].items()}
        weights, size = trainer.reward_weights.tolist(), trainer.num_generations
        by_part = trainer.multi_objective_aggregation == "normalize_then_sum"
        outcomes = [
            _outcome({name: values[b] for name, values in scores.items()}, weights) for b in range(len(examples))
        ]
        groups = [outcomes[start : start + size] for start in range(0, len(outcomes), size)]
        spreads = [_spread(group, weights, by_part=by_part) for group in groups]
        inputs[OUTCOMES_KEY] = [
            {
                **outcomes[b],
                "group_spread": spreads[b // size],
                **_ending(trainer, inputs["completion_ids"][b], inputs["completion_mask"][b]),
                "answers": example.get(answer),
            }
            for b, example in enumerate(examples)
        ]
        return inputs

    trainer._generate_and_score_completions = generate_and_keep


def _outcome(scores: Mapping[str, float], weights: Sequence[float]) -> dict[str, Any]:
    """Return the reward, None if no function returned one, and its parts."""
    parts = {name: None if score != score else score for name, score in scores.items()}
    known = [weight * part for weight, part in zip(weights, parts.values(), strict=True) if part is not None]
    return {"rewards": sum(known) if known else None, "reward_parts": parts}


@dataclass(frozen=True, slots=True)
class _Spread:
    """How the answers of a group differ."""

    rewards: Sequence[float]  # of those with a reward
    has_signal: bool  # whether TRL gives one of them an advantage that is not 0, but for rounding


def _spread(outcomes: Sequence[Mapping[str, Any]], weights: Sequence[float], *, by_part: bool) -> _Spread:
    """Compare the answers of a group as TRL does: by the sum of their rewards, or by each part of it."""
    scored = torch.tensor([outcome["rewards"] is not None for outcome in outcomes])
    rewards = torch.tensor([outcome["rewards"] or 0.0 for outcome in outcomes])
    one_token = torch.ones(len(outcomes), 1, dtype=torch.bool)
    group = torch.zeros(len(outcomes), dtype=torch.int64)
    batch = Batch.of(mask=one_token, advantages=torch.zeros(len(outcomes)), group=group, rewards=rewards)
    names = list(outcomes[0]["reward_parts"])
    parts = {name: floats([outcome["reward_parts"][name] for outcome in outcomes]) for name in names}
    of_parts = partial(gdpo, weights=dict(zip(names, weights, strict=True)))
    advantage = of_parts if by_part else per_token(group_centred)
    batch = compute_advantages(advantage, batch.with_(scored=scored, reward_parts=parts))
    return _Spread(rewards=rewards[scored].tolist(), has_signal=bool(signal_of(batch)))


def _spread_metrics(groups: Sequence[_Spread]) -> dict[str, float]:
    """Return the metrics of the spread of the rewards in the groups of some answers: one entry per group, by identity.

    They are those of `step_metrics`, which knows only the answers of a step.
    """
    distinct = {id(spread): spread for spread in groups}.values()
    scored = [spread for spread in distinct if spread.rewards]
    if not scored:
        return {}
    return {
        "num_groups": float(len(scored)),
        "reward_std": _deviation([reward for group in scored for reward in group.rewards]),
        "reward_group_std": mean(_deviation(group.rewards) for group in scored),
        "frac_reward_zero_std": mean(float(not rewards_differ(torch.tensor(group.rewards))) for group in scored),
        "frac_zero_advantage": mean(float(not group.has_signal) for group in scored),
    }


def _deviation(rewards: Sequence[float]) -> float:
    return stdev(rewards) if len(rewards) > 1 else 0.0


def _ending(trainer: Any, ids: Tensor, mask: Tensor) -> dict[str, Any]:
    """Return where a completion ends, and whether it is truncated; TRL can mask all of a truncated one. [t] each"""
    padding = trainer._tokenizer.pad_token_id
    length = int(mask.sum()) or int((ids != padding).nonzero().max()) + 1
    return {"length": length, "truncated": int(ids[length - 1]) not in {*trainer.eos_token_ids, padding}}


# ------------------------------------------------------------------------------------------------- TRL's own objective


def objective_of(trainer: Any) -> ComposedObjective:
    """Return the loss of a GRPOTrainer's arguments as an objective.

    It does not include masks and weights for the mismatch with the engine or for tokens of low entropy.
    """
    args = trainer.args
    low, high = trainer.epsilon_low, trainer.epsilon_high
    weights: dict[str, Weight] = {
        "grpo": sequence_mean,
        "bnpo": token_mean,
        "dapo": token_mean,
        "dr_grpo": constant(length=trainer.max_completion_length),
        "luspo": sequence_sum,
    }
    others = {"cispo": lambda: presets.cispo(ratio_max=high), "sapo": presets.sapo, "vespo": presets.vespo}
    if args.loss_type in weights:
        chosen = ComposedObjective(surrogate=clip(low=low, high=high, dual=args.delta), weight=weights[args.loss_type])
    elif args.loss_type in others:
        chosen = others[args.loss_type]()
    else:
        raise ValueError(f"loss_type {args.loss_type!r} has no counterpart in outdo: pass `objective` to TrlRecord")
    level = {"token": token, "sequence": sequence}[trainer.importance_sampling_level]
    return compat("trl", replace(chosen, level=level, beta=trainer.beta, kl_ratio=args.use_bias_correction_kl))
