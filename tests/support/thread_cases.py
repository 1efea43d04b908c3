"""One computation again and again in a process with several threads, beside a busy one: are its bits equal?"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from engine_cases import VOCABULARY, rollout, tokens
from run_cases import PATIENCE, WARM
from torch import Tensor, nn

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.config.names import OBJECTIVES
from outdo.models.device import make_deterministic
from outdo.models.policy import Policy
from outdo.testing import tiny_model
from outdo.types import Batch, Group, Prompt
from outdo.utils.imports import resolve

TIMES = 20
ANSWERS = 256
HIDDEN = 96  # x 512 tokens: more than the 32,768 elements from which torch divides the work among threads
Compute = Callable[[], Iterable[Tensor]]
Cases = Callable[[Path], Mapping[str, Compute]]


def different_bits(folder: Path, cases: Cases, threads: int, *, deterministic: bool = False) -> dict[str, int]:
    """How many different results `TIMES` equal computations have, for each of the cases, in a process of their own."""
    found = folder / f"found-{threads}.json"
    process = WARM.Process(target=_count, args=(folder, cases, threads, deterministic, found))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    return json.loads(found.read_text())


def _count(folder: Path, cases: Cases, threads: int, deterministic: bool, found: Path) -> None:
    torch.set_num_threads(threads)
    if deterministic:
        make_deterministic("cpu")
    with _busy_thread():
        counted = {name: len({_hash(compute()) for _ in range(TIMES)}) for name, compute in cases(folder).items()}
    found.write_text(json.dumps(counted))


def _hash(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def _busy_thread():
    ended = Event()

    def work() -> None:
        x = torch.ones(20_000)  # too few for more than this thread
        while not ended.is_set():
            x.sin()

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ------------------------------------------------------------------------------------------------------------ updates


def crowd(policy: Policy, answers: int = ANSWERS) -> Batch:
    """A batch of many short answers to one prompt, whose last hidden state each of them takes, ready for an update."""
    rollouts = [rollout(tokens(2, index), reward=float(index % 2)) for index in range(answers)]
    prompt = Prompt(id="0", text="", token_ids=tokens(5, answers))
    batch = per_token(group_standardised)(Batch.from_groups([Group(prompt=prompt, rollouts=tuple(rollouts))]))
    now = policy.logprobs(batch)
    noise = torch.randn(now.shape, generator=torch.Generator().manual_seed(3))
    past, reference = ((now + 0.1 * each) * batch.loss_mask for each in (noise, noise.roll(1, 0)))
    return batch.with_(
        old_logprobs=past, ref_logprobs=reference, rollout_logprobs=past, values=past, returns=batch.advantages
    )


def wide_policy(**how: Any) -> Policy:
    """A policy of one layer."""
    model, tokenizer = tiny_model(hidden=HIDDEN, layers=1, vocab=VOCABULARY)
    return Policy(model, tokenizer, **how)


def gradients(model: nn.Module, optimiser: Any, update: Callable[[], object]) -> list[Tensor]:
    """The gradients that an update hands to its optimiser, which makes no step."""
    found: list[Tensor] = []

    def step(loss: float) -> dict[str, float]:
        found.extend(weight.grad.clone() for weight in model.parameters() if weight.grad is not None)
        model.zero_grad()
        return {"updates/grad_norm": 0.0}

    own, optimiser.step = optimiser.step, step
    try:
        update()
    finally:
        optimiser.step = own
    assert any(bool(each.any()) for each in found)
    return found


def update_of(policy: Policy, batch: Batch, objective: Any) -> Compute:
    batch = objective.prepare(batch) if hasattr(objective, "prepare") else batch
    return partial(gradients, policy.model, policy.optimiser, partial(policy.update, batch, objective))


def every_objective(folder: Path) -> Mapping[str, Compute]:
    """One update of each method that has a name."""
    policy = wide_policy()
    batch = crowd(policy)
    options = {"dr_grpo": {"length": 2}}
    return {name: update_of(policy, batch, resolve(path)(**options.get(name, {}))) for name, path in OBJECTIVES.items()}


def indexed(folder: Path) -> Mapping[str, Compute]:
    """The gradient of `x[indices]`, where the same few rows are taken again and again."""
    x = torch.arange(500.0 * HIDDEN).view(500, HIDDEN).sin().requires_grad_()
    indices = torch.arange(4000) % 7

    def compute() -> Iterable[Tensor]:
        return torch.autograd.grad(x[indices].square().cumsum(0).sum(), x)

    return {"x[indices]": compute}
