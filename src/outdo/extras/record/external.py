"""Write the same record for a run of another training loop, from the data that this loop has about a step.

    for step, batch in enumerate(my_batches, 1):
        prompts, completions = my_sampling(batch)                      # texts, or lists of token ids
        rewards = my_rewards(prompts, completions)
        before, advantages = my_logprobs(prompts, completions), my_advantages(rewards)
        my_update(before, advantages)
        after = my_logprobs(prompts, completions)                      # a number for each token of each completion
        tokens = TokenValues(advantages=advantages, old_logprobs=before, new_logprobs=after)
        record_step("runs/mine", step=step, tokenizer=tokenizer, prompts=prompts, completions=completions,
                    rewards=rewards, tokens=tokens, objective=grpo())

Then `outdo inspect runs/mine` shows what was trained, as for a run of outdo.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from outdo.algorithms.objectives.base import Objective, clip_measurements
from outdo.algorithms.objectives.presets import reinforce
from outdo.algorithms.objectives.weights import token_mean
from outdo.extras.record import parquet
from outdo.extras.record.bounds import scores_of
from outdo.extras.record.movement import movement_metrics
from outdo.extras.record.table import TopTokens, record_table
from outdo.extras.record.tokens import token_record
from outdo.models.token_text import TokenTexts
from outdo.run.folder.run_folder import RunFolder
from outdo.run.metrics.metrics import step_metrics
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step, Update
from outdo.utils.errors import UserError
from outdo.utils.text import counted

Text = str | Sequence[int]
"""A text, or its token ids."""

Numbers = Tensor | NDArray[Any] | Sequence[Sequence[float]]
"""One number per token of each completion: one list per completion, or a tensor or array [B, T] padded on the right."""

Top = Sequence[tuple[int, float]]
"""Token ids and their log-probabilities, the most probable first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenValues:
    """What a training loop knows about the tokens of a step's completions. Log-probabilities and entropy in nats."""

    advantages: Numbers | Sequence[float] | None = None  # one number per completion, or per token
    old_logprobs: Numbers | None = None  # of the policy before the step
    new_logprobs: Numbers | None = None  # of the policy after the step
    ref_logprobs: Numbers | None = None  # of the reference
    rollout_logprobs: Numbers | None = None  # as the engine reported them
    entropy: Numbers | None = None  # of the policy before the step
    loss_mask: Numbers | None = None  # whether the policy chose the token and it is trained on; by default all are.
    # Where it is the policy that chose all tokens of a truncated completion, none of them is trained on.
    old_top: Sequence[Sequence[Top]] | None = None  # for each token, the most probable tokens before the step
    new_top: Sequence[Sequence[Top]] | None = None  # the same after the step


def record_step(
    folder: str | Path,
    *,
    step: int,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Text],
    completions: Sequence[Text],
    rewards: Sequence[float | None],
    reward_parts: Mapping[str, Sequence[float | None]] | None = None,
    answers: Sequence[Any] | None = None,
    truncated: Sequence[bool] | None = None,
    tokens: TokenValues | None = None,
    temperature: float = 1.0,
    objective: Objective | None = None,
    metrics: Mapping[str, float] | None = None,
) -> Path:
    """Write `tokens/step_000040.parquet` of step 40 and its line of `metrics.jsonl`; return the path of the former.

    Each list has one entry per completion. Completions with equal prompts form a group, in any order.

    - `rewards`: None or NaN if the reward failed; True and False also say whether the answer is right, a number does
      not. `reward_parts` are the parts of the reward, `answers` the expected answers.
      `truncated` marks truncated completions.
    - `tokens`: advantages, log-probabilities and what else the loop knows about the tokens; see `TokenValues`.
    - `metrics` are added to those that outdo computes, in place of those with the same name. A step on a part of a
      group needs this for `reward_group_std` and `frac_reward_zero_std`, which otherwise compare only these answers.

    With `old_logprobs` and `advantages`, the record says how each token was pushed. The pushes are those of `objective`
    at the policy before the step: clipping later in the step is not visible. Without an objective the pushes are those
    of the plain policy gradient, and there are no bounds.

    Raises: UserError naming everything that does not fit together; RunFolderError if the folder refuses, for example
    because the step is not later than the last one (call `rewind` first).
    """
    per_completion = {"rewards": rewards, "answers": answers, "truncated": truncated}
    per_completion |= {f"reward_parts[{name!r}]": values for name, values in (reward_parts or {}).items()}
    tokens = tokens or TokenValues()
    per_token = {field.name: getattr(tokens, field.name) for field in fields(TokenValues)}
    step_input = _StepInput(tokenizer, prompts, completions, per_completion, per_token)
    groups = step_input.groups(reward_parts or {}, temperature)
    batch = step_input.with_token_values(Batch.from_groups(groups))
    chosen = objective or replace(reinforce(), weight=token_mean)
    updates: list[Update] = []
    if batch.totals.tokens and batch.old_logprobs is not None and batch.advantages is not None:
        batch = chosen.prepare(batch)
        updates.append(_first_update(batch, chosen, step_input.padded("entropy", batch)))
    done = Step(index=step, sampled=Sampled(groups=groups), batch=batch, updates=updates)
    record = token_record(done, chosen, step_input.padded("new_logprobs", batch))
    known = {name: value for name, value in step_metrics(done).items() if not name.startswith(("updates/", "passes/"))}
    all_metrics = known | movement_metrics(record, batch) | dict(metrics or {})
    with RunFolder(Path(folder)) as run:
        run.append_metrics(step, _finite(all_metrics))
        old_top, new_top = step_input.top_tokens("old_top", batch), step_input.top_tokens("new_top", batch)
        table = record_table(done, record, TokenTexts(tokenizer), about={}, old_top=old_top, new_top=new_top)
        return parquet.write(run.path, step, table)


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def rewind(folder: str | Path, step: int) -> None:
    """Delete what was recorded after `step`, for a loop that continues from there."""
    with RunFolder(Path(folder)) as run:
        run.rewind(step)
        parquet.drop_after(run.path, step)
        parquet.remove_leftovers(run.path)


def _first_update(batch: Batch, objective: Objective, entropy: Tensor | None) -> Update:
    """Compute what a pass over the batch would find; as log πθ is known, this needs no model."""
    old = batch.old_logprobs
    assert old is not None
    leaf = old.clone().requires_grad_()
    scores = scores_of(objective, leaf)
    terms = objective(scores, batch)
    (policy_push,) = torch.autograd.grad(terms.policy, leaf, retain_graph=True)
    (pull,) = torch.autograd.grad(terms.loss, leaf)
    tokens = {
        "logprobs": old,
        "log_ratio": torch.zeros_like(old),
        "entropy": torch.full_like(old, torch.nan) if entropy is None else entropy,
        "push": -pull,
        "policy_push": policy_push,
        **clip_measurements(objective, scores, batch, policy_push),
    }
    return Update(metrics={}, tokens=tokens)


class _StepInput:
    """The caller's data as tokens and groups. Raises UserError if it does not fit together."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        per_completion: Mapping[str, Sequence[Any] | None],
        per_token: Mapping[str, Any],
    ) -> None:
        self.tokenizer = tokenizer
        self.prompts = [_token_ids(tokenizer, prompt, begins=True) for prompt in prompts]
        self.completions = [_token_ids(tokenizer, completion, begins=False) for completion in completions]
        self.per_completion = {
            name: [_plain(value) for value in values] for name, values in per_completion.items() if values is not None
        }
        lengths = [len(completion) for completion in self.completions]
        self.per_token: dict[str, list[list[Any]]] = {
            name: _lists(values, lengths) for name, values in per_token.items() if values is not None
        }
        if mistakes := self._problems():
            raise UserError(mistakes)
        places: dict[tuple[int, ...], list[int]] = {}
        for index, prompt in enumerate(self.prompts):
            places.setdefault(prompt, []).append(index)
        self.members = list(places.values())  # of each group, as indices into the given lists
        self.order = [index for members in self.members for index in members]

    def _problems(self) -> list[str]:
        """Return one sentence for each thing that does not fit."""
        count = len(self.completions)
        lists = {"prompts": self.prompts, **self.per_completion, **self.per_token}
        problems = [
            f"{name}: {counted(len(values), 'entry', plural='entries')} for {counted(count, 'completion')}"
            for name, values in lists.items()
            if len(values) != count
        ]
        problems += [f"prompts[{index}]: no tokens" for index, prompt in enumerate(self.prompts) if not prompt]
        for name, rows in self.per_token.items():
            for index, (row, tokens) in enumerate(zip(rows, self.completions, strict=False)):
                if len(row) != len(tokens):
                    numbers, length = counted(len(row), "number"), counted(len(tokens), "token")
                    problems.append(f"{name}[{index}]: {numbers} for a completion of {length}")
        return problems

    def groups(self, parts: Mapping[str, Sequence[float | None]], temperature: float) -> list[Group]:
        """Return the completions of each prompt as a group."""
        return [
            Group(
                prompt=self._prompt(members[0]),
                rollouts=tuple(self._rollout(index, parts, temperature) for index in members),
            )
            for members in self.members
        ]

    def _prompt(self, index: int) -> Prompt:
        ids = self.prompts[index]
        name = hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12]  # the same whenever the prompt appears
        text = str(self.tokenizer.decode(list(ids)))
        return Prompt(id=name, text=text, token_ids=ids, answer=self._value(index, "answers", None))

    def _rollout(self, index: int, parts: Mapping[str, Sequence[float | None]], temperature: float) -> Rollout:
        ids = self.completions[index]
        earned = self._value(index, "rewards", None)
        reward = math.nan if earned is None else float(earned)
        unknown, everywhere = [math.nan] * len(ids), [True] * len(ids)
        trained = tuple(map(bool, self.per_token.get("loss_mask", {index: everywhere})[index]))
        is_left_out = bool(self._value(index, "truncated", False)) and not any(trained)
        return Rollout(
            token_ids=ids,
            loss_mask=tuple(everywhere) if is_left_out else trained,  # such an answer was sampled all the same
            logprobs=tuple(self.per_token.get("rollout_logprobs", {index: unknown})[index]),
            text=str(self.tokenizer.decode(list(ids), skip_special_tokens=True)),
            reward=reward if math.isfinite(reward) else 0.0,
            right=earned if isinstance(earned, bool) else None,
            status="ok" if math.isfinite(reward) else "failed",
            reward_parts={name: _plain(values[index]) for name, values in parts.items()},
            finish_reason=FinishReason.length if self._value(index, "truncated", False) else FinishReason.stop,
            policy_version=0,
            temperature=temperature,
        )

    def _value(self, index: int, name: str, otherwise: Any) -> Any:
        values = self.per_completion.get(name)
        return otherwise if values is None else values[index]

    def with_token_values(self, batch: Batch) -> Batch:
        """Return the batch with the given numbers of its tokens; it trains on no others than those of `loss_mask`."""
        names = ("advantages", "old_logprobs", "ref_logprobs")
        batch = batch.with_(**{name: self.padded(name, batch) for name in names})
        trained = self.padded("loss_mask", batch)
        return batch if trained is None else batch.with_(loss_mask=batch.loss_mask & trained.bool()).recounted()

    def padded(self, name: str, batch: Batch) -> Tensor | None:
        """Return the given numbers at the places of their tokens in the batch, zeros elsewhere. [B, T]"""
        rows = self.per_token.get(name)
        if rows is None:
            return None
        values = torch.zeros(batch.token_ids.shape)
        for row, index, start in zip(values, self.order, batch.prompt_lengths.tolist(), strict=True):
            row[start : start + len(rows[index])] = torch.tensor(rows[index], dtype=torch.float32)
        return values

    def top_tokens(self, name: str, batch: Batch) -> TopTokens | None:
        """Return the given most probable tokens at the places of their tokens in the batch."""
        rows = self.per_token.get(name)
        if rows is None:
            return None
        count = max((len(top) for row in rows for top in row), default=0)
        token_ids = torch.zeros(*batch.token_ids.shape, count, dtype=torch.int64)
        logprobs = torch.full(token_ids.shape, torch.nan)
        for row, (index, start) in enumerate(zip(self.order, batch.prompt_lengths.tolist(), strict=True)):
            for at, top in enumerate(rows[index], start):
                for k, (token, logprob) in enumerate(top):
                    token_ids[row, at, k], logprobs[row, at, k] = token, logprob
        return TopTokens(rows=range(len(batch)), token_ids=token_ids, logprobs=logprobs)


def _token_ids(tokenizer: PreTrainedTokenizerBase, text: Text, *, begins: bool) -> tuple[int, ...]:
    """Return token ids unchanged; encode a text, with special tokens if it is the beginning."""
    return tuple(tokenizer.encode(text, add_special_tokens=begins) if isinstance(text, str) else map(int, text))


def _lists(values: Any, lengths: Sequence[int]) -> list[list[float]]:
    """Return one list per completion, from rows padded on the right, from lists, or from one number each."""
    padded = isinstance(values, Tensor | numpy.ndarray) and values.ndim == 2
    rows = [_plain(row) for row in values]
    if len(rows) != len(lengths):
        return rows  # `_StepInput._problems` reports this
    return [
        [row] * length if isinstance(row, int | float) else list(row[:length] if padded else row)
        for row, length in zip(rows, lengths, strict=True)
    ]


def _plain(value: Any) -> Any:
    """Return what torch or numpy holds as Python's own numbers and lists; anything else unchanged."""
    return value.tolist() if isinstance(value, Tensor | numpy.ndarray | numpy.generic) else value
