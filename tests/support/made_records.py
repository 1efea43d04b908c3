"""Steps and records made up of random numbers: what is written down does not depend on a model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.extras.record.tokens import CLIP, TokenRecord
from outdo.models.token_text import TokenTexts
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Sampled, Step

TOKENIZER = byte_bpe_tokenizer(["What is 12 + 30? It is 42."] * 2, 300)
TOKEN_TEXTS = TokenTexts(TOKENIZER)


def rollout(text: str, reward: float = 0.0, **fields: Any) -> Rollout:
    """An answer, and the end-of-sequence token after it."""
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id)
    settings: dict[str, Any] = {
        "token_ids": ids,
        "loss_mask": (True,) * len(ids),
        "logprobs": (-0.5,) * len(ids),
        "text": text,
        "reward": reward,
        "finish_reason": FinishReason.stop,
        "policy_version": 7,
    }
    return Rollout(**settings | fields)


def group(question: str, rollouts: Sequence[Rollout], *, answer: Any = None, baseline: float | None = None) -> Group:
    """The rollouts of a question."""
    ids = tuple(TOKENIZER.encode(question, add_special_tokens=False))
    prompt = Prompt(id=f"id of {question}", text=question, token_ids=ids, answer=answer)
    return Group(prompt=prompt, rollouts=tuple(rollouts), baseline=baseline)


def step_of(groups: Sequence[Group], *, index: int = 40) -> Step:
    """A step of these groups in which nothing was updated."""
    return Step(index=index, sampled=Sampled(groups=groups), batch=Batch.from_groups(groups), updates=[])


def record_of(step: Step, *, measured: Sequence[bool] | None = None, seed: int = 0) -> TokenRecord:
    """Any numbers, NaN outside of the trained tokens; neither a critic nor targets. `measured` says which rows are."""
    random = torch.Generator().manual_seed(seed)
    mask = step.batch.loss_mask  # [B, T]
    taken = torch.ones(len(mask), dtype=torch.bool) if measured is None else torch.tensor(measured)

    def numbers() -> Tensor:
        return torch.randn(mask.shape, generator=random).where(mask, torch.nan)

    old = -numbers().abs()
    return TokenRecord(
        old_logprobs=old,
        new_logprobs=(old + 0.1 * numbers()).where(taken[:, None], torch.nan),
        ref_logprobs=old + numbers(),
        rollout_logprobs=old + 0.01 * numbers(),
        values=None,
        advantages=numbers(),
        ratio=(0.1 * numbers()).exp(),
        entropy=numbers().abs(),
        policy_push=numbers(),
        kl_pull=numbers(),
        net_push=numbers(),
        share=mask.float(),
        weight=numbers(),
        bound=(old + 0.2).where(numbers() > 0, torch.nan),
        targets=None,
        clip=torch.randint(len(CLIP), mask.shape, generator=random).to(torch.int8),
    )


def steps_of(count: int, *, groups: int = 3, size: int = 4) -> list[Step]:
    """Steps 1, 2, ... over the same questions, with rewards that repeat."""
    return [
        step_of(
            [
                group(f"{n} + {n} = ", [rollout(f"{n + m} é", float((n + m + index) % 3 == 0)) for m in range(size)])
                for n in range(groups)
            ],
            index=index,
        )
        for index in range(1, count + 1)
    ]
