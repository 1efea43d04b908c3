"""Measure the memory of a divergence from a teacher against the size of the vocabulary.

    python benchmarks/teacher_memory.py [--tokens 4096] [--divergence forward_kl]

For each vocabulary a process of its own computes the divergence of a tiny policy from a tiny teacher at all tokens, and
its gradient, on one core: first as outdo does, then with all logits at once, where these fit. "Measured" is the peak of
resident memory after the same of a few tokens, less the gradients of the weights that were not there before. Prints a
line of JSON for each.
"""

import argparse
import json
import multiprocessing
import resource
import sys

import torch

from outdo.algorithms import vocabulary_divergences
from outdo.models.policy import Policy
from outdo.models.teacher import Teacher, read_by
from outdo.models.teacher_sums import TeacherDivergence
from outdo.testing import tiny_model
from outdo.types import Batch

VOCABULARIES = (8_192, 32_768, 131_072, 262_144)
LARGEST_DENSE = 32_768
HIDDEN = 64
ANSWER = 256
MIB = 2**20


def batch_of(tokens: int) -> Batch:
    """Return answers of `ANSWER` tokens, `tokens` in all."""
    rows = max(1, tokens // ANSWER)
    completions = [[3 + (row + t) % 200 for t in range(min(tokens, ANSWER))] for row in range(rows)]
    return Batch.of_tokens([[1, 2]] * rows, completions)


def compute(policy: Policy, teacher: Teacher, batch: Batch, name: str, *, dense: bool) -> None:
    """Compute the mean divergence of the trained tokens, and its gradient."""
    divergence = getattr(vocabulary_divergences, name)()
    batch = read_by([teacher], batch, states=True)
    if dense:
        at = batch.loss_mask[:, 1:]
        with torch.no_grad():
            taught = teacher.forward.model(input_ids=batch.token_ids).logits[:, :-1][at]
        logits = policy.model(input_ids=batch.token_ids).logits[:, :-1][at]
        divergence(logits, taught, torch.ones(len(taught))).mean().backward()
        return
    sums = {"teacher": TeacherDivergence(divergence, {teacher.name: teacher.head()})}
    policy.scores(batch, sums).sums["teacher"].sum().div(batch.totals.tokens).backward()


def measured(vocabulary: int, tokens: int, name: str, *, dense: bool) -> int:
    """Return the bytes beyond weights and gradients."""
    torch.set_num_threads(1)
    policy = Policy(*tiny_model(vocab=vocabulary, hidden=HIDDEN))
    model, _ = tiny_model(vocab=vocabulary, hidden=HIDDEN, seed=5)
    teacher = Teacher.of(Policy(model, policy.tokenizer))
    compute(policy, teacher, batch_of(8), name, dense=dense)  # the gradients of all weights exist from here on
    before = peak()
    compute(policy, teacher, batch_of(tokens), name, dense=dense)
    return peak() - before


def peak() -> int:
    """Return the most bytes of memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print a line for each vocabulary and each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--divergence", default="reverse_kl")
    options = parser.parse_args()
    for vocabulary in VOCABULARIES:
        for dense in (False, True)[: 1 + (vocabulary <= LARGEST_DENSE)]:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                size = pool.apply(measured, (vocabulary, options.tokens, options.divergence), {"dense": dense})
            row = {
                "vocabulary": vocabulary,
                "tokens": options.tokens,
                "divergence": options.divergence,
                "way": "all logits" if dense else "outdo",
                "mib": round(size / MIB),
            }
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
