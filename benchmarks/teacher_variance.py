"""Compare the variance of the gradient of the reverse KL over the whole vocabulary with that of the sampled tokens.

    python benchmarks/teacher_variance.py

All answers of two words of a small vocabulary are enumerated, for random policies and teachers. Prints the ratio of the
two variances: the smallest, the median and the largest.
"""

import sys
from statistics import median

import torch
from torch import Tensor

from outdo.algorithms.vocabulary_divergences import reverse_kl

WORDS, PAIRS = 8, 40


def moments(policy: Tensor, following: Tensor, teacher: Tensor, teacher_following: Tensor, *, whole: bool) -> Tensor:
    """Return the mean gradient by all logits, V + V² numbers, and after it the sum of their variances.

    `policy` [V] has the logits of the first word, `following` [V, V] those of the second behind each first one; so have
    those of the teacher. Without `whole` a gradient is that of the sampled words, as of the advantage `distillation`.
    """
    leaves = [policy.clone().requires_grad_(), following.clone().requires_grad_()]
    mean, square = torch.zeros(policy.numel() + following.numel(), dtype=torch.float64), torch.zeros(())
    for first in range(len(policy)):
        for second in range(len(policy)):
            places = [(leaves[0], teacher, first), (leaves[1][first], teacher_following[first], second)]
            loss, chance = torch.zeros(()), torch.ones(())
            for logits, of_teacher, word in places:
                logprobs = logits.log_softmax(-1)
                chance = chance * logprobs[word].detach().exp()
                if whole:
                    loss = loss + reverse_kl()(logits, of_teacher, 1.0)
                else:
                    loss = loss - (of_teacher.log_softmax(-1) - logprobs.detach())[word] * logprobs[word]
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, leaves)])
            mean, square = mean + chance * gradient, square + chance * gradient.square().sum()
    return torch.cat([mean, (square - mean.square().sum())[None]])


def ratio(seed: int) -> float:
    """Return the variance with the whole vocabulary, divided by that of the sampled words, of a random pair."""
    generator = torch.Generator().manual_seed(seed)

    def noise() -> list[Tensor]:
        return [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((WORDS,), (WORDS, WORDS))]

    policy = [2 * logits for logits in noise()]
    teacher = [logits + change for logits, change in zip(policy, noise(), strict=True)]
    sampled, whole = (moments(*policy, *teacher, whole=whole) for whole in (False, True))
    return float(whole[-1] / sampled[-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    ratios = sorted(map(ratio, range(PAIRS)))
    sys.stdout.write(f"{ratios[0]:.1%}, median {median(ratios):.1%}, {ratios[-1]:.1%}\n")
