"""Compare weights in float32 with weights in bfloat16 that are rounded after each optimiser step in one of three ways.

    python benchmarks/weight_rounding.py MODEL [--steps 30]

MODEL is the fine-tuned model of the quickstart (`quickstart/seed-0/warm`). It is fine-tuned on additions that forget no
carry, and the mean log-likelihood of a token of 32 held-out additions is printed. Weights that are rounded to bfloat16
are stored as float32 here, which has the same numbers. "master" keeps the float32 weights beside the rounded ones,
"stochastic" rounds up or down at random, so that the mean is right, and "nearest" rounds to the nearest number.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outdo.data.prompts import Prompts
from outdo.extras.quickstart.sums import Addition, demonstrations, held_out, problems
from outdo.extras.sft.sft import sft
from outdo.extras.sft.sft_examples import SftTokens, encode_examples, read_examples
from outdo.models.optimiser import OptimiserSettings, adamw
from outdo.models.policy import Policy
from outdo.types import Batch

LEARNING_RATES = (1e-5, 1e-6)
EXAMPLES, HELD_OUT, PER_STEP = 1600, 32, 4


class Rounded(torch.optim.AdamW):
    """AdamW whose weights are numbers of bfloat16 after each step."""

    def __init__(self, weights: Sequence[nn.Parameter], way: str) -> None:
        super().__init__(list(weights), weight_decay=0.0)
        self.way = way
        self.random = torch.Generator().manual_seed(0)
        self.trained = list(weights)
        self.masters = [weight.detach().clone() for weight in weights] if way == "master" else []
        for weight in self.trained:
            weight.data = nearest(weight.data)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step, and round the weights."""
        for weight, master in zip(self.trained, self.masters, strict=False):
            weight.copy_(master)
        super().step()
        for weight, master in zip(self.trained, self.masters, strict=False):
            master.copy_(weight)
        for weight in self.trained:
            weight.copy_(stochastic(weight, self.random) if self.way == "stochastic" else nearest(weight))


def nearest(weight: Tensor) -> Tensor:
    """Round to the nearest number of bfloat16."""
    return weight.bfloat16().float()


def stochastic(weight: Tensor, random: torch.Generator) -> Tensor:
    """Round to a neighbour in bfloat16, to the nearer one more often: the mean is the number itself."""
    noise = torch.randint(0, 1 << 16, weight.shape, generator=random, dtype=torch.int32)
    return ((weight.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32)


def rounded(way: str) -> Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]:
    """Return the algorithm of a way."""
    return adamw if way == "float32" else lambda weights: Rounded(weights, way)


def examples(policy: Policy, chosen: Sequence[Addition]) -> list[SftTokens]:
    """Return additions that forget no carry."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(row) + "\n" for row in demonstrations(chosen, 0)))
        file.flush()
        return encode_examples(read_examples(file.name)[0], policy.tokenizer)


def likelihood(policy: Policy) -> float:
    """Return the mean log-likelihood of a token of the held-out answers."""
    found = examples(policy, held_out()[:HELD_OUT])
    starts = [list(each.learned).index(True) for each in found]
    prompts = [each.token_ids[:start] for each, start in zip(found, starts, strict=True)]
    answers = [each.token_ids[start:] for each, start in zip(found, starts, strict=True)]
    batch = Batch.of_tokens(prompts, answers, group=list(range(len(found))))
    return float(policy.logprobs(batch).sum() / batch.loss_mask.sum())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    print("| learning rate | weights | before | after |\n|---|---|---|---|")
    for lr in LEARNING_RATES:
        for way in ("float32", "master", "stochastic", "nearest"):
            optimiser = OptimiserSettings(lr=lr, algorithm=rounded(way))
            policy = Policy.load(asked.model, device="cpu", optimiser=optimiser)
            before = likelihood(policy)
            prompts = Prompts(examples(policy, problems(EXAMPLES, 7, exclude=held_out())), per_step=PER_STEP, seed=0)
            for _ in sft(policy, prompts, steps=asked.steps):
                pass
            print(f"| {lr:g} | {way} | {before:.4f} | {likelihood(policy):.4f} |", flush=True)


if __name__ == "__main__":
    main()
