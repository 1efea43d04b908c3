"""Log-probabilities, entropy and backward pass over a large vocabulary: in chunks, and all at once."""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.suite.setting import Setting, Turn, Turns
from benchmarks.suite.work import most_memory, synchronise
from outdo.algorithms.vocabulary_sums import token_entropy
from outdo.models.logprobs import chunked_scores

Scores = tuple[Tensor, Tensor]
COPIES = 6  # of the logits that `plain` may hold at once


def chunked(setting: Setting, turns: Turns) -> None:
    """Score in chunks, as outdo does."""

    def scores(hidden: Tensor, head: nn.Linear, tokens: Tensor) -> Scores:
        temperature = torch.ones(len(tokens), device=hidden.device)
        logprobs, entropies = chunked_scores(head, hidden, tokens, temperature, sums=[token_entropy])
        return logprobs, entropies

    _run(setting, turns, scores, tokens=setting.case.tokens)


def plain(setting: Setting, turns: Turns) -> None:
    """Score all tokens at once; if memory is short, fewer tokens, with the time scaled up."""

    def scores(hidden: Tensor, head: nn.Linear, tokens: Tensor) -> Scores:
        logprobs = head(hidden).log_softmax(-1)
        return logprobs.gather(-1, tokens[:, None]).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)

    case = setting.case
    needed = COPIES * 4 * case.shape.vocabulary * case.tokens
    tokens = case.tokens
    while needed * tokens // case.tokens > _free(setting.device) // 2 and tokens > 1:
        tokens //= 2
    _run(setting, turns, scores, tokens=tokens)


def _run(setting: Setting, turns: Turns, scores: Callable[..., Scores], *, tokens: int) -> None:
    shape, device = setting.case.shape, setting.device
    hidden = torch.randn(tokens, shape.hidden, device=device).requires_grad_()
    head = nn.Linear(shape.hidden, shape.vocabulary, bias=False, device=device)
    chosen = torch.randint(shape.vocabulary, (tokens,), device=device)
    times = setting.case.tokens / tokens

    def turn() -> Turn:
        hidden.grad = head.weight.grad = None
        began = time.perf_counter()
        logprobs, entropies = scores(hidden, head, chosen)
        (logprobs.sum() + 0.01 * entropies.sum()).backward()
        synchronise(device)
        taken = time.perf_counter() - began
        return Turn(seconds=taken * times, tokens=tokens, times=times, bytes=most_memory(device))

    turns.take(turn)


def _free(device: str) -> int:
    """Return the free bytes."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info()[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
