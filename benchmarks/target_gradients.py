"""How well does the first update of a batch point in the direction of the true policy gradient?

    python benchmarks/target_gradients.py MODEL_FOLDER QUESTIONS [--batches 32]

For every method, the gradient of the first update over each of many batches of 8 questions with 8 answers, all of one
policy. `cosine` is that of one batch's gradient with the expected policy gradient, `noise` the variance of the gradient
divided by its squared mean. Both are estimated without bias from products of different batches; the expected gradient
is that of REINFORCE with the leave-one-out baseline.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import small
import torch
from torch import Tensor

from outdo.algorithms.advantages import Advantage, compute_advantages
from outdo.algorithms.objectives.base import Objective
from outdo.algorithms.objectives.presets import grpo, reinforce
from outdo.algorithms.objectives.target.objective import target
from outdo.types import Batch, TokenScores

ESSAY: Mapping[str, Any] = {
    "rule": "power",
    "count": "once",
    "unsampled": "absorb",
    "limit": 1.0,
    "reduction": "sum",
}
STANDARD, SIGN, TREE, OTHERS = (
    small.advantage_of({"name": name}) for name in ("group_standardised", "sign", "tree", "leave_one_out")
)
TRUE = "reinforce, leave_one_out"
METHODS: Mapping[str, tuple[Objective, Advantage]] = {
    TRUE: (reinforce(), OTHERS),
    "reinforce, tree": (reinforce(), TREE),
    "grpo": (grpo(beta=0.0), STANDARD),
    "grpo, tree": (grpo(beta=0.0), TREE),
    "grpo, sign": (grpo(beta=0.0), SIGN),
    "target_essay": (target(**ESSAY), SIGN),
    "target_essay, every answer apart": (target(**ESSAY, merge="none"), SIGN),
    "target_essay, by visits": (target(**{**ESSAY, "count": "visits"}), SIGN),
    "target_essay, shared": (target(**{**ESSAY, "unsampled": "share"}), SIGN),
    "target_essay, tilt": (target(**{**ESSAY, "rule": "tilt", "eta": 0.5}), SIGN),
    "target_essay, strengths": (target(**{**ESSAY, "limit": 10.0}), STANDARD),
    "target_essay, by visits, shared": (target(**{**ESSAY, "count": "visits", "unsampled": "share"}), SIGN),
    "target": (target(eta=0.5), STANDARD),
    "target, once": (target(eta=0.5, count="once"), STANDARD),
    "target, absorb": (target(eta=0.5, unsampled="absorb"), STANDARD),
    "target, fixed": (target(eta=0.5, unsampled="fixed"), STANDARD),
    "target, power": (target(rule="power"), STANDARD),
    "target, sign": (target(eta=0.5), SIGN),
    "target, tree": (target(eta=0.5), TREE),
    "target, every answer apart": (target(eta=0.5, merge="none"), STANDARD),
    "target, squared": (target(eta=0.5, loss="squared"), STANDARD),
}


def main() -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--batches", type=int, default=32)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = gradients(small.SmallModel(arguments.model), arguments.questions, arguments.batches)
    true = found[TRUE].float()
    print("| method | cosine | noise |\n|---|---|---|")
    for name, each in found.items():
        values = each.float()
        own, with_true = values @ values.T, values @ true.T
        size = float(own.diagonal().mean())
        cosine = between(with_true) / (size * between(true @ true.T)) ** 0.5
        print(f"| {name} | {cosine:.2f} | {size / between(own) - 1:.1f} |", flush=True)


def gradients(model: small.SmallModel, questions: Path, batches: int) -> Mapping[str, Tensor]:
    """Return the gradients of every method, [batches, weights] in bfloat16."""
    found: defaultdict[str, list[Tensor]] = defaultdict(list)
    random = torch.Generator().manual_seed(5)
    rows = small.rows(questions)
    order = torch.randperm(len(rows), generator=random).tolist()
    for number in range(batches):
        chosen = [rows[order[number * small.PROMPTS + place]] for place in range(small.PROMPTS)]
        batch = small.sampled_batch(model, chosen, small.exact, random)
        distinct, place = batch.token_ids.unique(dim=0, return_inverse=True)
        logprobs = model.scores(distinct)[0][place]
        batch = batch.with_(old_logprobs=logprobs.detach().where(batch.attention_mask, 0.0))
        gradient = partial(gradient_of, model, batch, logprobs)
        for name, method in METHODS.items():
            found[name].append(gradient(*method))
    return {name: torch.stack(each) for name, each in found.items()}


def gradient_of(
    model: small.SmallModel, batch: Batch, logprobs: Tensor, objective: Objective, advantage: Advantage
) -> Tensor:
    """Return the gradient of the loss by all weights, as one vector."""
    prepared = objective.prepare(compute_advantages(advantage, batch))
    loss = objective(TokenScores(logprobs=logprobs), prepared).loss
    parts = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    return torch.cat([part.flatten() for part in parts]).bfloat16()


def between(products: Tensor) -> float:
    """Return the mean product of different batches: [N, N] -> a number."""
    count = len(products)
    return float(products.sum() - products.diagonal().sum()) / (count * (count - 1))


if __name__ == "__main__":
    main()
