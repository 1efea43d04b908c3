"""Choose how the built-in engine samples from a model: by a comparison on a few tokens, not by the model's name.

The training forward pass is compared with the model's own when it is chosen (`choose_forward`). Sampling computes the
same numbers by other means, with a cache of keys and values. It can go wrong where the forward pass is right: a model
may keep a state of its own, read the padding, or count it as positions.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import replace

import torch

from outdo.models.forward import Forward
from outdo.models.rounding import probe_tokens
from outdo.models.scorer import token_scores
from outdo.models.windows import floors_set_to, windows_set_to
from outdo.rollouts.engines.base import PolicySnapshot, PolicyView
from outdo.rollouts.engines.modes import MODES, SamplingChoice, SamplingMode
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule
from outdo.rollouts.engines.static_batching import StaticBatching
from outdo.types import Batch, Request
from outdo.utils.errors import ModelError, OutdoError
from outdo.utils.extras import FAST_SAMPLING, fast, without
from outdo.utils.rng import Stream, stream_key

TOLERANCE = 1e-3
"""Nats, in float32, of a model that rounds little; others have more (`Forward.tolerance`). The least wrong of the
wrong modes that are known differed by 1.3e-3, in a model with random weights of 0.02, whose rounding is below 1e-5."""

TOKENS = 6
"""Tokens of an answer in the comparison."""

TOKENS_WITHOUT_CACHE = 2
"""The same where nothing is kept from one token to the next, and each takes a forward pass of its whole sequence."""

WINDOW = 4
"""Tokens of the windows in a second comparison: an answer of `TOKENS` is longer."""

CONTINUOUS = "outdo.rollouts.fast.continuous_batching:ContinuousBatching"


def batching_of(mode: SamplingMode) -> StaticBatching:
    """Return what samples in a mode."""
    batching = fast(CONTINUOUS) if mode.continuous else StaticBatching
    return batching(mode)


def choose_mode(policy: PolicyView) -> SamplingChoice:
    """Return the fastest mode whose log-probabilities are those of the policy's forward pass on a few tokens.

    Raises `ModelError` if there is none.
    """
    forward = copy(policy.forward)
    forward.autocast = False  # in bfloat16, right modes differ too
    view = replace(PolicySnapshot.of(policy), forward=forward, end_ids=frozenset())
    faults = [] if forward.layout == "padded" or fast(CONTINUOUS) else [without(FAST_SAMPLING)]
    for mode in _possible(forward):
        with forward.gathered():
            fault = _fault(view, mode) or _fault_beyond_windows(view, mode)
        if not fault:
            return SamplingChoice(mode, tuple(faults))
        faults.append(f"{mode.name}: {fault}")
    raise ModelError(
        f"{type(policy.model).__name__}: no way to sample gives the log-probabilities of its forward pass "
        f"({'; '.join(faults)}); outdo cannot train such a model"
    )


def _possible(forward: Forward) -> Iterator[SamplingMode]:
    """Yield the modes that suit a forward pass, the fastest first."""
    continuous = fast(CONTINUOUS) if forward.layout == "shared" else None
    for mode in MODES:
        if not mode.continuous or (continuous is not None and continuous.is_possible(mode, forward)):
            yield mode


@torch.no_grad()
def _fault(view: PolicySnapshot, mode: SamplingMode) -> str:
    """Return what is wrong with a mode; empty if nothing is."""
    sampling = SamplingParams(max_tokens=TOKENS if mode.use_cache else TOKENS_WITHOUT_CACHE)
    rule = StopRule(view, sampling)
    sequences = [
        SequenceState(request, stream_key(0, request.stream), rule.max_new_tokens(request))
        for request in _requests(view)
    ]
    try:
        batching_of(mode).sample(view, sequences, sampling, rule)
    except OutdoError:
        raise  # it has a cause of its own
    except Exception as error:  # any error is a reason not to sample in this mode
        return f"{type(error).__name__}: {error}"
    batch = Batch.of_tokens(
        [sequence.request.token_ids for sequence in sequences],
        [tuple(sequence.token_ids) for sequence in sequences],
        group=[int(sequence.request.stream.prompt_id) for sequence in sequences],
    )
    expected = token_scores(view.forward, batch).logprobs.cpu()[batch.loss_mask]
    actual = torch.tensor([logprob for sequence in sequences for logprob in sequence.logprobs])
    gap = float((actual - expected).abs().max())
    return "" if gap < view.forward.tolerance(TOLERANCE) else f"its log-probabilities differ by {gap:.2g} nats"


def _fault_beyond_windows(view: PolicySnapshot, mode: SamplingMode) -> str:
    """Return what is wrong with a mode of `model.generate` beyond the windows that a model's configuration names.

    The cache of transformers drops what is outside of them, also for a model that reads it (Llama). outdo's own keeps
    all. What Llama 4 scales after many tokens is compared as well.
    """
    if mode.continuous:
        return ""
    view = replace(view, forward=view.forward.padded())  # whose masks are those of the configuration
    with windows_set_to(WINDOW, view.model) as windows, floors_set_to(WINDOW, view.model) as floors:
        named = [*windows, *floors]
        fault = _fault(view, mode) if named else ""
    return fault and f"beyond its {named[0]}, {fault}"


def _requests(view: PolicySnapshot) -> list[Request]:
    """Make requests for two answers to each of three prompts of different lengths."""
    tokens = probe_tokens(view.model.config.get_text_config().vocab_size)
    longest = len(tokens) if view.context is None else max(1, view.context - TOKENS)
    return [
        Request(
            token_ids=tuple(tokens[: min(length, longest)]),
            stream=Stream("probe", 0, str(number), sample),
            max_tokens=TOKENS,
            prompt_length=(None, 2)[sample],  # the rest is read as the next turn of an episode is
        )
        for number, length in enumerate((3, 5, 11))
        for sample in range(2)
    ]
