"""Layers with a state in the shared layout: an answer continues its prompt, and no sequence reads another one."""

from collections.abc import Sequence

import pytest
import torch
from engine_cases import apart, gradient, other_model, ragged, scorer, shared, tokens
from torch import Tensor, nn

from outdo.models.fast.forward import FastForward, stateful_layers
from outdo.models.fast.packed import Packed, pack
from outdo.models.fast.short_convolution import ShortConvolution
from outdo.models.forward import Forward
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch

KERNEL, CHANNELS = 4, 6


class Module(nn.Module):
    """A module of the parts of a short convolution."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.in_proj = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, KERNEL, groups=CHANNELS, bias=bias, padding=KERNEL - 1)
        self.out_proj = nn.Linear(CHANNELS, CHANNELS)


def convolution(*, bias: bool = True) -> ShortConvolution:
    torch.manual_seed(0)
    return ShortConvolution(Module(bias=bias))


def inputs(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, CHANNELS, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("bias", [True, False])
def test_a_short_convolution_is_the_one_of_torch(bias):
    layer, read = convolution(bias=bias), inputs(3, 9)
    found, _ = layer.scan(read, None, layer.begin(read))
    expected = layer.module.conv(read.transpose(1, 2))[..., :9].transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("cuts", [(1,) * 9, (4, 5), (1, 2, 6), (8, 1)])
def test_tokens_have_the_same_bits_however_many_are_read_at_once(cuts: Sequence[int]):
    layer, read = convolution(), inputs(3, 9)
    expected, end = layer.scan(read, None, layer.begin(read))
    state, outputs = layer.begin(read), []
    for part in read.split(list(cuts), 1):
        output, state = layer.scan(part, None, state)
        outputs.append(output)
    assert torch.equal(torch.cat(outputs, 1), expected)
    assert torch.equal(state[0], end[0])


def test_padding_changes_neither_the_tokens_before_it_nor_the_state():
    layer, read, lengths = convolution(), inputs(5, 9), [0, 1, 2, 5, 9]
    before = layer.begin(read)
    (start,) = layer.scan(inputs(5, 7), None, before)[1]
    output, (end,) = layer.scan(read, torch.tensor(lengths), (start,))
    for row, length in enumerate(lengths):
        alone, (end_alone,) = layer.scan(read[row : row + 1, :length], None, (start[row : row + 1],))
        assert torch.equal(output[row, :length], alone[0])
        assert torch.equal(end[row], end_alone[0])


@pytest.mark.parametrize(
    "changes",
    [{"groups": 1}, {"groups": CHANNELS, "stride": 2}, {"groups": CHANNELS, "dilation": 2}],
    ids=["all channels", "stride", "dilation"],
)
def test_other_convolutions_are_left_to_the_model(changes: dict[str, int]):
    module = Module(bias=True)
    assert ShortConvolution.computes(module)
    module.conv = nn.Conv1d(CHANNELS, CHANNELS, KERNEL, **changes)
    assert not ShortConvolution.computes(module)


FAMILIES = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_experts": 8, "num_experts_per_tok": 2}
    | {"moe_intermediate_size": 32, "num_dense_layers": 0},
    "lfm3": {"layer_types": ["conv", "sliding_attention", "full_attention"], "num_hidden_layers": 3}
    | {"sliding_window": 8, "bos_token_id": None},
}


@pytest.mark.parametrize("arch", FAMILIES)
def test_models_with_short_convolutions_take_the_fast_ways(arch):
    policy = Policy(other_model(arch, **FAMILIES[arch]), byte_bpe_tokenizer([], 264))
    assert (policy.forward.layout, policy.forward.reason) == ("shared", "")
    assert BuiltinEngine(policy).choice.mode.name == "continuous batching"


# ------------------------------------------------------------------------------------------------- what reads what

PROMPTS, ANSWERS = (7, 5), ((1, 2, 6, 3), (4, 1))
"""Tokens of two prompts, and of the answers to each; some are shorter than what a convolution reads."""


def two_groups() -> Batch:
    prompts = [
        tokens(length, seed)
        for seed, (length, lengths) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
        for _ in lengths
    ]
    answers = [
        tokens(length, 10 + number) for number, length in enumerate(length for group in ANSWERS for length in group)
    ]
    return Batch.of_tokens(prompts, answers, group=[0] * len(ANSWERS[0]) + [1] * len(ANSWERS[1]))


@pytest.mark.parametrize(
    "types", [["conv", "full_attention", "conv"], ["conv", "conv"]], ids=["with attention", "alone"]
)
def test_no_sequence_reads_another_one_and_every_answer_reads_its_prompt(types: list[str]):
    """The derivative of a token's hidden state by the embedding of a token that it does not read is exactly 0."""
    model = other_model("lfm2", num_hidden_layers=len(types), layer_types=types, conv_L_cache=4)
    forward = FastForward(Forward(model, plain_head=True), "shared")
    packed = pack(two_groups())
    sequence = _sequences(packed.rows, packed.positions, two_groups())
    of_prompt = {row: ("prompt", int(row >= len(ANSWERS[0]))) for row in range(sum(map(len, ANSWERS)))}
    for name in set(sequence):
        derivative = _derivative(forward, packed, torch.tensor([each == name for each in sequence]))
        reads = {other for other, size in zip(sequence, derivative.tolist(), strict=True) if size}
        assert reads == ({name} if name[0] == "prompt" else {name, of_prompt[name[1]]})


def _sequences(rows: Tensor, positions: Tensor, batch: Batch) -> list[tuple[str, int]]:
    """The sequence of each token of the flat row: a prompt by its group, an answer by its row."""
    return [
        ("prompt", int(batch.group[row])) if position < batch.prompt_lengths[row] else ("answer", row)
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True)
    ]


def _derivative(forward: FastForward, packed: Packed, of: Tensor) -> Tensor:
    """How much each token's embedding changes the hidden states of some tokens, [N]."""
    embeddings: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[0].clone()

    with forward.model.get_input_embeddings().register_forward_hook(keep):
        hidden = forward.flat(packed.token_ids, packed.positions, packed)[of]
    uneven = torch.linspace(1, 2, hidden.shape[1])
    (derivative,) = torch.autograd.grad((hidden * uneven).sum(), embeddings)
    return derivative[0].abs().sum(-1)


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("kernel", [1, 2, 5])
def test_kernels_of_any_width_have_equal_log_probabilities_and_gradients(kernel):
    """In float64, with a bias; prompts of one token and empty answers are shorter than all but the first of them."""
    model = other_model("lfm2", layer_types=["conv", "full_attention"], conv_L_cache=kernel, conv_bias=True)
    policy = Policy(model.double(), byte_bpe_tokenizer([], 264))
    assert policy.forward.layout == "shared"
    batch = ragged()
    weights = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for way in ("padded", "shared"):
        scores = scorer(policy, way).scores(batch)
        (weights * scores.logprobs).sum().backward()
        found.append((scores.logprobs.detach(), gradient(policy)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-10)
    assert apart(found[1][1], found[0][1]) < 1e-10


def test_recomputed_layers_have_the_same_gradient():
    """The backward pass computes them again outside of the forward pass."""
    batch, found = ragged(), []
    for checkpointing in (False, True):
        policy = Policy(
            other_model("lfm2", layer_types=["conv", "full_attention"]),
            byte_bpe_tokenizer([], 264),
            gradient_checkpointing=checkpointing,
        )
        policy.scores(batch).logprobs.sum().backward()
        found.append(gradient(policy))
    assert torch.equal(*found)


def test_the_model_has_its_own_layers_outside_of_a_call():
    model = shared("lfm2").model
    shared("lfm2").logprobs(ragged())
    assert [type(layer.module).__name__ for layer in stateful_layers(model)] == ["Lfm2ShortConv"]
    assert all("forward" not in vars(layer.module) for layer in stateful_layers(model))
