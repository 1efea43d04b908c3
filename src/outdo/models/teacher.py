"""Teachers: models that read the policy's answers, to say how probable they find each token.

A teacher is another model, the reference, or the policy itself. One with a hint reads another prompt before the same
answer: the policy that knows more than its student.
"""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear
from transformers import PreTrainedTokenizerBase

from outdo.algorithms.vocabulary_sums import scaled
from outdo.models.base_weights import Weights, choose_weights
from outdo.models.choose_forward import choose_forward
from outdo.models.device import choose_device
from outdo.models.forward import Forward
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.onednn import LINEAR
from outdo.models.policy import Policy
from outdo.models.reference import Reference
from outdo.models.scorer import BatchSizes, Scorer
from outdo.models.teacher_sums import TeacherHead
from outdo.types import Batch
from outdo.types.lessons import Lesson
from outdo.utils.errors import ModelError, UserError
from outdo.utils.sharded_tensors import whole
from outdo.utils.world import ALONE, World

TOKENS_AT_ONCE = 64
"""Tokens of which all logits of a teacher exist while its most probable tokens are looked for."""


class ReadingForward(Forward):
    """A forward pass that returns the hidden states besides the log-probabilities."""

    def scores(self, hidden: Tensor, *tokens: Any, **asked: Any) -> tuple[Tensor, ...]:
        """Compute log-probabilities [N]; for each sum that is asked for, return the hidden states [N, H] themselves."""
        (logprobs,) = super().scores(hidden, *tokens, **{**asked, "sums": ()})
        return logprobs, *(hidden for _ in asked["sums"])


def hidden_state(logits: Tensor, temperature: Tensor) -> Tensor:
    """Stand for the hidden states of a `ReadingForward` among the sums that are asked for."""
    raise AssertionError("a `ReadingForward` returns hidden states without computing a sum")


class Teacher(Scorer):
    """A model that reads the policy's answers. `outdo.Models` takes several.

    `weight` is its share where several teach a row: that of a row which names no teacher in its column `teacher`. A
    teacher that `reads_hint` teaches only answers that have a hint (`Rollout.teacher_prompt`).
    """

    def __init__(
        self,
        forward: Forward,
        batch_sizes: BatchSizes,
        world: World = ALONE,
        *,
        name: str = "teacher",
        weight: float = 1.0,
        reads_hint: bool = False,
    ) -> None:
        if not weight > 0:
            raise ValueError(f"the weight of the teacher {name} must be above 0, not {weight}")
        super().__init__(forward.overridden(ReadingForward), batch_sizes, world)
        self.name = name
        self.weight = weight
        self.reads_hint = reads_hint

    @classmethod
    def load(
        cls,
        policy: Policy,
        path: str | Path,
        *,
        weights: Weights | Literal["auto"] = "auto",
        device: str = "",
        **options: Any,
    ) -> "Teacher":
        """Load a model folder as a teacher of the policy; of any size, with the policy's vocabulary.

        `weights` says how its weights are stored; "auto": in bfloat16 if they are in its files, which changes no bit.
        On a `device` of its own, such as "cpu" beside a policy on a GPU, it takes no memory of the policy's; empty: on
        that.

        Raises `ModelError` if there is no such model, or if it has another vocabulary.
        """
        facts = inspect_folder(path)
        check_vocabulary(facts, policy.tokenizer)
        chosen = choose_device(device)[0] if device else policy.device
        stored = choose_weights(weights, facts, frozen=policy.dtype == torch.float32)
        model = load_model(facts, chosen, policy.dtype, weights=stored, world=policy.world).requires_grad_(False)
        precision = policy.forward.precision_name if chosen.type == policy.device.type else "auto"
        forward = choose_forward(model, precision=precision)
        return cls(forward, policy.batch_sizes, policy.world, **options)

    @classmethod
    def of(cls, model: Policy | Reference, **options: Any) -> "Teacher":
        """Make a teacher of the policy as it is whenever it reads, or of the reference."""
        return cls(model.forward, model.batch_sizes, model.world, **options)

    def reads(self, model: Scorer) -> bool:
        """Whether this teacher is that model."""
        return self.forward.model is model.forward.model

    def head(self) -> TeacherHead:
        """Return what computes this teacher's logits from hidden states, as it is now.

        An output layer that is trained is copied, and one whose weights are divided is made whole: all replicas have to
        call it.
        """
        forward: Forward = self.forward
        output: Any = forward.model.get_output_embeddings()
        if not forward.plain_head:
            return _head_of(forward.head, forward)
        if forward.sharding.is_divided:
            return _head_of(_whole(output), forward)
        if any(weight.requires_grad for weight in output.parameters()):
            return _head_of(deepcopy(output).requires_grad_(False), forward)
        return _head_of(forward.head, forward)

    def read(self, batch: Batch, *, states: bool) -> tuple[Tensor, Tensor | None]:
        """Return log π_T [B, T] and, with `states`, the hidden states that predict the tokens [B, T, H]; on the CPU.

        Elsewhere than at trained tokens they are 0. The rows must have a hint if this teacher reads hints.
        """
        read = with_hints(batch) if self.reads_hint else batch
        # The policy's choice of experts is nothing that another model could follow.
        scores = self.measure(read.with_(routes=None), {"states": hidden_state} if states else {})
        values = [scores.logprobs, *scores.sums.values()]
        if self.reads_hint:
            values = [_aligned(value, batch, read) for value in values]
        return values[0], values[1] if states else None


def check_vocabulary(teacher: ModelFacts, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ModelError` if a teacher has another vocabulary than the policy, whose tokenizer this is."""
    if load_tokenizer(teacher, stop_token_ids=(0,)).get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"the teacher {teacher.name} has another vocabulary than the policy: the same token ids are other words to "
            "it. GOLD and ULD compare the texts of tokens, or their sorted probabilities, instead; outdo does not"
        )


def _whole(output: Any) -> TeacherHead:
    """Return a linear layer with all of its weights. Raises `ModelError` for a layer of another kind."""
    if type(output) not in LINEAR:
        raise ModelError(f"cluster.shard: the output layer of a teacher has to be linear, not {type(output).__name__}")
    weight, bias = whole(output.weight.detach()), whole(output.bias)
    return lambda states: linear(states, weight.to(states.dtype), bias)


def _head_of(head: TeacherHead, forward: Forward) -> TeacherHead:
    @torch.no_grad()
    def logits(states: Tensor) -> Tensor:
        with forward.precision():
            return head(states.to(forward.device)).to(states.device)

    return logits


def with_hints(batch: Batch) -> Batch:
    """Return the batch with the prompt of each row's lesson in place of its own, before the same answers.

    Raises `ModelError` for an episode with several conversations, which has no one prompt.
    """
    if batch.previous is not None:
        raise ModelError(
            "a teacher with a hint reads an answer after another prompt: an episode with several conversations has "
            "more than one"
        )
    starts, lengths = batch.prompt_lengths.tolist(), batch.attention_mask.sum(1).tolist()
    prompts = [lesson.prompt or () for lesson in batch.lessons]
    token_ids, mask = batch.token_ids.tolist(), batch.loss_mask.tolist()
    spans = list(zip(starts, lengths, strict=True))
    return Batch.of_tokens(
        prompts,
        [row[start:end] for row, (start, end) in zip(token_ids, spans, strict=True)],
        masks=[row[start:end] for row, (start, end) in zip(mask, spans, strict=True)],
        group=None if batch.inputs else _runs(prompts),
        temperature=batch.temperature.tolist(),
        inputs=batch.inputs,
    )


def _runs(prompts: Sequence[tuple[int, ...]]) -> list[int]:
    """Return a number for each prompt, the same for neighbours that are equal: a shared prompt is read once."""
    numbers: list[int] = []
    for row, prompt in enumerate(prompts):
        numbers.append(numbers[-1] + (prompt != prompts[row - 1]) if numbers else 0)
    return numbers


def _aligned(values: Tensor, batch: Batch, read: Batch) -> Tensor:
    """Return values of `read` [B, U, ...] at the columns that the same tokens have in `batch`. [B, T, ...]"""
    column = torch.arange(batch.token_ids.shape[1])
    at = column + (read.prompt_lengths - batch.prompt_lengths)[:, None]  # [B, T]
    row = torch.arange(len(batch))[:, None]
    aligned = values[row, at.clamp(0, values.shape[1] - 1)]
    mask = batch.loss_mask.view(*batch.loss_mask.shape, *(1,) * (values.dim() - 2))
    return aligned.masked_fill(~mask, 0)


def read_by(teachers: Sequence[Teacher], batch: Batch, *, states: bool) -> Batch:
    """Return the batch with what its teachers say: `teacher_logprobs`, `teacher_weights` and, with `states`, those.

    A row without a teacher, such as one without a hint, has the policy's own log-probabilities: it learns nothing.
    Raises `UserError` for a row that names a teacher which is not there.
    """
    weights = weights_of_rows(teachers, batch)
    of_policy = batch.rollout_logprobs if batch.old_logprobs is None else batch.old_logprobs
    total = torch.zeros_like(of_policy)  # [B, T]
    hidden: dict[str, Tensor] = {}
    for teacher in teachers:
        of_rows = weights[teacher.name]
        rows = of_rows.nonzero().squeeze(1)
        hidden[teacher.name] = total.new_zeros(*total.shape, 1)
        if len(rows) == 0:
            continue
        logprobs, of_tokens = teacher.read(batch.rows(rows), states=states)
        width = logprobs.shape[1]
        total[rows, :width] += of_rows[rows, None] * logprobs.to(total)
        if of_tokens is not None:
            whole = of_tokens.new_zeros(*total.shape, of_tokens.shape[2])  # [B, T, H]
            whole[rows, :width] = of_tokens
            hidden[teacher.name] = whole
    taught = torch.stack([*weights.values()]).any(0)  # [B]
    return batch.with_(
        teacher_logprobs=total.where(taught[:, None], of_policy.where(batch.loss_mask, 0.0)),
        teacher_weights=weights,
        teacher_states=hidden if states else {},
    )


def weights_of_rows(teachers: Sequence[Teacher], batch: Batch) -> dict[str, Tensor]:
    """Return for each teacher its weight in each row [B]. Those of a row add up to 1, or are all 0.

    Raises `UserError` for a row that names a teacher which is not there.
    """
    lessons = batch.lessons or (Lesson(),) * len(batch)
    names = [teacher.name for teacher in teachers]
    if unknown := sorted({lesson.teacher for lesson in lessons} - {"", *names}):
        raise UserError([f"a row names the teacher {unknown[0]!r}; expected one of: {', '.join(names)}"])

    def weight(teacher: Teacher, lesson: Lesson) -> float:
        can_teach = lesson.teacher in ("", teacher.name) and not (teacher.reads_hint and lesson.prompt is None)
        return teacher.weight * can_teach

    table = torch.tensor([[weight(teacher, lesson) for lesson in lessons] for teacher in teachers])  # [teachers, B]
    table = table / table.sum(0).where(table.any(0), 1.0)
    return dict(zip(names, table, strict=True))


@torch.no_grad()
def top_of(teachers: Sequence[Teacher], batch: Batch, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` tokens that the teachers find most probable at each trained token, at the row's temperature.

    These are the numbers of the rows with a teacher [R], token ids [R, T, K] int64 and log-probabilities [R, T, K], the
    most probable first; 0 elsewhere than at trained tokens. With several teachers of a row the log-probability is the
    weighted mean of theirs, as in `Batch.teacher_logprobs`. The logits of `TOKENS_AT_ONCE` tokens exist at a time. All
    processes of a world have to call it.
    """
    weights = weights_of_rows(teachers, batch)
    rows = torch.stack([*weights.values()]).any(0).nonzero().squeeze(1)
    if len(rows) == 0:
        return rows, torch.zeros(0, 0, count, dtype=torch.int64), torch.zeros(0, 0, count)
    batch = batch.rows(rows)
    row, column = batch.loss_mask.nonzero(as_tuple=True)  # [N]
    parts = [(teacher, weights[teacher.name][rows]) for teacher in teachers]
    read = [(teacher.head(), *_states_of(teacher, of_rows, batch)) for teacher, of_rows in parts if of_rows.any()]
    device = teachers[0].device
    tops: list[tuple[Tensor, Tensor]] = []
    for at, of in zip(row.split(TOKENS_AT_ONCE), column.split(TOKENS_AT_ONCE), strict=True):
        total, temperature = torch.zeros((), device=device), batch.temperature[at].to(device)
        for head, of_rows, states in read:
            logits = scaled(head(states[at, of].to(device)), temperature)  # [n, V]
            total = total + of_rows[at, None].to(device) * logits.log_softmax(-1)
        values, token_ids = total.topk(min(count, total.shape[-1]))
        tops.append((token_ids.cpu(), values.cpu()))
    token_ids, logprobs = (torch.cat(values) for values in zip(*tops, strict=True))  # [N, K]

    def place(values: Tensor) -> Tensor:
        return values.new_zeros(*batch.token_ids.shape, values.shape[1]).index_put((row, column), values)

    return rows, place(token_ids), place(logprobs)


def _states_of(teacher: Teacher, of_rows: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the weights [B] of a teacher, and its hidden states [B, T, H], 0 in the rows that it does not teach."""
    taught = of_rows.nonzero().squeeze(1)
    _, states = teacher.read(batch.rows(taught), states=True)
    assert states is not None
    whole = states.new_zeros(*batch.token_ids.shape, states.shape[2])
    whole[taught, : states.shape[1]] = states
    return of_rows, whole
