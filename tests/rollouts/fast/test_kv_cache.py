"""The cache: attention step by step equals plain attention, blocks have only the rows in use, a state is kept too."""

import pytest
import torch
from engine_cases import requests, shared
from torch import Tensor

from outdo.models.fast.attention import attention, within
from outdo.models.fast.layout import Rule, State, StatefulLayer
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.sequences import SequenceState, StopRule
from outdo.rollouts.fast.continuous_batching import ContinuousBatch
from outdo.rollouts.fast.kv_cache import KVCache, Prefill
from outdo.rollouts.fast.layer_caches import KeysValues

HEADS, KV_HEADS, D, BLOCK = 4, 2, 8, 4
CPU = torch.device("cpu")
RULES = {
    "all tokens": Rule(0.3),
    "a window": Rule(0.3, window=3),
    "a soft cap": Rule(0.3, softcap=2.0),
    "sinks": Rule(0.3, window=3, sinks=torch.linspace(-2, 4, HEADS)),
}


def sequence(length: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [1, heads, length, d], keys and values [1, kv_heads, length, d]."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, heads, length, D, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def step(cache: KVCache, sequences: list[tuple[Tensor, Tensor, Tensor]], rule: Rule) -> Tensor:
    """The next token of each sequence, [n, heads, d]."""
    at = cache.lengths[: len(sequences)].tolist()
    query, key, value = (
        torch.cat([each[kind][:, :, i : i + 1] for each, i in zip(sequences, at, strict=True)], 2) for kind in range(3)
    )
    cache.begin([1] * len(sequences))
    return cache.attend(query, key, value, rule)[0]


def whole(sequence: tuple[Tensor, Tensor, Tensor], rule: Rule) -> Tensor:
    """Attention over the whole sequence, [length, heads, d]."""
    at = torch.arange(sequence[0].shape[2])[None]
    return attention(*sequence, within(at, at, at >= 0, rule), rule)[0].transpose(0, 1)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_attention_step_by_step_equals_attention_over_the_whole_sequence(rule):
    sequences, prompts = [sequence(30, seed) for seed in range(4)], (1, 4, 7, 13)
    cache = KVCache(4, block=BLOCK, device=CPU)
    for row, ((_, key, value), length) in enumerate(zip(sequences, prompts, strict=True)):
        cache.admit(row, 1, length, [KeysValues(key[0, :, :length], value[0, :, :length])])
    for offset in range(15):
        found = step(cache, sequences, rule)
        for row, length in enumerate(prompts):
            torch.testing.assert_close(found[row], whole(sequences[row], rule)[length + offset], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_tokens_that_are_read_together_have_the_same_bits_as_step_by_step(rule, monkeypatch):
    sequences, prompts, counts = [sequence(210, seed) for seed in range(4)], (1, 62, 64, 130), [70, 0, 3, 2]

    def admitted() -> KVCache:
        cache = KVCache(4, block=64, device=CPU)  # as in the engine: smaller blocks have other bits
        for row, ((_, key, value), length) in enumerate(zip(sequences, prompts, strict=True)):
            cache.admit(row, 1, length, [KeysValues(key[0, :, :length], value[0, :, :length])])
        return cache

    stepwise = admitted()
    steps = torch.stack([step(stepwise, sequences, rule) for _ in range(70)])  # [70, 4, heads, d]
    expected = torch.cat([steps[:count, row] for row, count in enumerate(counts)])
    for bytes_at_once in (2**25, 1):
        monkeypatch.setattr("outdo.rollouts.fast.kv_cache.GATHERED_BYTES", bytes_at_once)
        cache = admitted()
        at = cache.begin(counts, padding=1)
        assert at == [*range(1, 71), 64, 65, 66, 130, 131, 131]
        assert cache.lengths.tolist() == [71, 62, 67, 132]
        spans = [(row, start, start + count) for row, (start, count) in enumerate(zip(prompts, counts, strict=True))]
        query, key, value = (
            torch.cat([sequences[row][kind][:, :, start:end] for row, start, end in [*spans, (3, 131, 132)]], 2)
            for kind in range(3)
        )
        assert torch.equal(cache.attend(query, key, value, rule)[0, :-1], expected)
        for row, count in enumerate(counts):
            ((keys, values),) = cache.states_of(row)
            length = prompts[row] + count
            assert torch.equal(keys, sequences[row][1][0, :, :length])
            assert torch.equal(values, sequences[row][2][0, :, :length])


def test_a_row_that_is_alone_again_reads_the_blocks_that_have_grown():
    rule, (first, second) = Rule(0.3), (sequence(14, 0), sequence(14, 1))
    cache = KVCache(2, block=BLOCK, device=CPU)
    cache.admit(0, 1, 3, [KeysValues(first[1][0, :, :3], first[2][0, :, :3])])
    for _ in range(2):
        step(cache, [first], rule)
    cache.admit(1, 1, 4, [KeysValues(second[1][0, :, :4], second[2][0, :, :4])])
    step(cache, [first, second], rule)  # the second block has two rows now: it is another tensor
    cache.lengths[1] = 0
    for offset in range(6, 12):
        found = step(cache, [first], rule)
        torch.testing.assert_close(found[0], whole(first, rule)[offset], rtol=1e-5, atol=1e-6)


class Sum(StatefulLayer):
    """The sum of all inputs up to a token, and with it a state of one number for each channel."""

    def begin(self, inputs: Tensor) -> State:
        return (inputs.new_zeros(len(inputs), inputs.shape[2]),)

    def scan(self, inputs: Tensor, lengths: Tensor | None, state: State) -> tuple[Tensor, State]:
        sums = torch.cat([state[0][:, None], inputs], 1).cumsum(1)
        ends = torch.full((len(inputs),), inputs.shape[1]) if lengths is None else lengths
        return sums[:, 1:], (sums[torch.arange(len(sums)), ends],)


def test_a_state_is_admitted_moved_read_and_copied_like_keys_and_values():
    """In a model with attention before it and after it; whole numbers, so that every sum is exact."""
    layer, rule, kept = Sum(torch.nn.Identity()), Rule(0.3), sequence(30, 0)
    numbers = torch.arange(1.0, 31.0)[None, :, None] * torch.tensor([1.0, 100.0])  # [1, 30, 2]
    prefill = Prefill([3, 5])
    prefill.attend(*(each[:, :, :12] for each in kept), rule)
    found = prefill.scan(numbers[:, :12], layer)  # four tokens of padding
    prefill.attend(*(each[:, :, :12] for each in kept), rule)
    assert found[0, :, 0].tolist() == [1, 3, 6, 4, 9, 15, 22, 30, 0, 0, 0, 0]

    cache = KVCache(4, block=BLOCK, device=CPU)
    cache.admit(0, 2, 3, prefill.states[0])
    cache.admit(2, 1, 5, prefill.states[1])

    def read(counts: list[int], *, padding: int = 0) -> list[float]:
        cache.begin(counts, padding=padding)
        n = sum(counts) + padding
        new = numbers[:, [*range(sum(counts)), *[sum(counts) - 1] * padding]]
        cache.attend(*(each[:, :, :n] for each in kept), rule)
        output = cache.scan(new, layer)
        cache.attend(*(each[:, :, :n] for each in kept), rule)
        return output[0, :, 0].tolist()

    assert read([1, 1, 1]) == [7, 8, 33]
    assert read([0, 3, 1], padding=2) == [9, 11, 14, 37, 37, 37]  # padding repeats the last token, also for the others
    cache.move(2, 0)
    assert read([1, 1]) == [38, 16]
    states = cache.states_of(0)
    assert states[1][0].tolist() == [38, 3800]
    cache.admit(3, 1, 8, states)
    assert read([1, 0, 0, 1], padding=2) == [39, 40, 40, 40]


def test_new_blocks_have_only_the_rows_still_in_use():
    policy, sampling = shared("qwen3"), SamplingParams(max_tokens=200)
    batch = requests((3,), siblings=16, limit=lambda index: 200 if index == 5 else 4)
    rule = StopRule(policy, sampling)
    continuous = ContinuousBatch(policy, sampling, rule, 16)
    rows = [SequenceState(request, key, rule.max_new_tokens(request)) for key, request in enumerate(batch)]
    rule.stop_ids = frozenset()
    continuous.run(rows)
    assert [len(row.token_ids) for row in rows] == [200 if index == 5 else 4 for index in range(16)]
    for layer in continuous.cache.layers:
        assert [len(block) for block in layer.tensors] == [16, 4, 4, 4] * 2


@pytest.mark.parametrize("length", [64, 128, 576, 4096])
def test_softmax_has_the_same_bits_before_any_masked_blocks_on_this_machine(length):
    """Independence of longer rows needs this, and sums that are taken block by block."""
    scores = torch.randn(64, 2, length, generator=torch.Generator().manual_seed(0)) * 5
    alone = scores.softmax(-1)
    for blocks in (1, 2, 7, 100):
        longer = torch.cat([scores, torch.full((64, 2, 64 * blocks), -torch.inf)], -1).softmax(-1)
        assert torch.equal(longer[..., :length], alone)
        assert not longer[..., length:].any()
