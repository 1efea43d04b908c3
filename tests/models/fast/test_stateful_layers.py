"""Layers with a state in the shared layout: an answer continues its prompt, and no sequence reads another one."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from engine_cases import LATENT, STATEFUL, apart, fresh, gradient, other_model, ragged, requests, scorer, shared, tokens
from policy_cases import ALL_TERMS, prepared
from torch import Tensor, nn
from transformers import PreTrainedModel

from outdo.models.fast.choice import _RecordedRules
from outdo.models.fast.forward import FastForward, stateful_layers
from outdo.models.fast.layout import StatefulLayer
from outdo.models.fast.packed import Packed, pack
from outdo.models.fast.recurrence import Tokens, by_chunks, by_tokens, sigmoid, softplus
from outdo.models.fast.short_convolution import ShortConvolution
from outdo.models.forward import Forward
from outdo.models.inspect_folder import inspect_folder
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.sampling import SamplingParams
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


@pytest.mark.parametrize("bias", [True, False])
def test_a_short_convolution_is_the_one_of_torch(bias):
    layer, read = convolution(bias=bias), numbers(3, 9, CHANNELS)
    found, _ = layer.scan(read, None, layer.begin(read))
    expected = layer.module.conv(read.transpose(1, 2))[..., :9].transpose(1, 2)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


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


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[1]))


# ------------------------------------------------------------------------------------------- reading as sampling does

ONE_OF_EACH_KIND = {"lfm2": 32, "qwen3_5_text": 104, "olmo_hybrid": 68, "kimi_linear": 132, "bamba": 100}
"""A family with each kind of layer, and the numbers that it reads of a token."""

each_kind = pytest.mark.parametrize("arch", ONE_OF_EACH_KIND)


def case(arch: str, rows: int, length: int) -> tuple[StatefulLayer, Tensor]:
    """A layer, and what it reads of some tokens."""
    (layer,) = stateful_layers(other_model(arch, **STATEFUL[arch]))
    return layer, numbers(rows, length, ONE_OF_EACH_KIND[arch])


@each_kind
@pytest.mark.parametrize("cuts", [(1,) * 9, (4, 5), (1, 2, 6), (8, 1)])
def test_tokens_have_the_same_bits_however_many_are_read_at_once(arch: str, cuts: Sequence[int]):
    layer, read = case(arch, 3, 9)
    expected, end = layer.scan_steps(read, None, layer.begin(read))
    state, outputs = layer.begin(read), []
    for part in read.split(list(cuts), 1):
        output, state = layer.scan_steps(part, None, state)
        outputs.append(output)
    assert torch.equal(torch.cat(outputs, 1), expected)
    assert all(map(torch.equal, state, end))


@each_kind
def test_padding_changes_neither_the_tokens_before_it_nor_the_state(arch: str):
    """Nor do the other rows: the numbers of a row alone have other places in their tensors."""
    (layer, read), lengths = case(arch, 5, 9), [0, 1, 2, 5, 9]
    start = layer.scan_steps(case(arch, 5, 7)[1], None, layer.begin(read))[1]
    output, end = layer.scan_steps(read, torch.tensor(lengths), start)
    for row, length in enumerate(lengths):
        of_row = tuple(tensor[row : row + 1] for tensor in start)
        alone, end_alone = layer.scan_steps(read[row : row + 1, :length], None, of_row) if length else ([], of_row)
        assert all(map(torch.equal, output[row, :length], alone[0] if length else []))
        assert all(torch.equal(tensor[row], of_alone[0]) for tensor, of_alone in zip(end, end_alone, strict=True))


@each_kind
@pytest.mark.parametrize("length", [1, 9, 150], ids=["a token", "less than a chunk", "chunks"])
def test_a_sequence_read_at_once_is_one_read_token_by_token(arch: str, length: int):
    """In float64, forward and backward, from a state; a row is padded."""
    layer, read = case(arch, 2, length)
    layer.module.double()
    lengths = torch.tensor([length, length // 2])
    before = layer.scan(case(arch, 2, 5)[1].double(), None, layer.begin(read.double()))[1]
    found = []
    for scan in (layer.scan, layer.scan_steps):
        leaves = [tensor.detach().double().requires_grad_() for tensor in (read, *before)]
        output, end = scan(leaves[0], lengths, tuple(leaves[1:]))
        real = [row[:count].flatten() for row, count in zip(output, lengths.tolist(), strict=True)]
        values = torch.cat([*real, *(tensor.flatten() for tensor in end)])
        read_by = [*leaves, *(weight for weight in layer.module.parameters() if weight.dim() != 2)]
        gradients = torch.autograd.grad(values @ numbers(1, len(values))[0].double(), read_by, allow_unused=True)
        found.append([values, *(gradient for gradient in gradients if gradient is not None)])
    for at_once, by_steps in zip(*found, strict=True):
        torch.testing.assert_close(at_once, by_steps, rtol=0, atol=1e-10)


@pytest.mark.parametrize("channels", [1, 8], ids=["of heads", "of channels"])
def test_what_fades_at_once_gives_finite_numbers(channels: int):
    """Within a chunk, 1 / γ is then larger than any number of float32."""
    query, key, value = numbers(3, 1, 2, 40, 8)  # [R, heads, L, d]
    leaf = (-30 * numbers(1, 2, 40, channels).abs()).requires_grad_()
    found = []
    for recur in (by_chunks, by_tokens):
        of_tokens = Tokens(query, key / key.norm(dim=-1, keepdim=True), value, leaf, torch.full((1, 2, 40), 0.5))
        output, end = recur(of_tokens, torch.ones(1, 2, 8, 8))
        found += [output, end, *torch.autograd.grad(output.sum() + end.sum(), leaf)]
    assert leaf.sum(2).max() < -600
    for by_chunk, by_token in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(by_chunk, by_token, rtol=0, atol=1e-4)


@pytest.mark.parametrize("x", [-1e4, -100.0, -20.0, -1.0, 0.5, 20.0, 1e4])
def test_the_functions_of_a_token_are_those_of_torch(x: float):
    for function, expected in ((sigmoid, torch.sigmoid), (softplus, torch.nn.functional.softplus)):
        leaf = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        values = function(leaf), expected(leaf)
        slopes = [torch.autograd.grad(value, leaf)[0].item() for value in values]
        assert values[0].item() == pytest.approx(values[1].item(), abs=1e-8)
        assert slopes[0] == pytest.approx(slopes[1], abs=1e-8)


@pytest.mark.parametrize("arch", STATEFUL)
def test_models_whose_layers_have_a_state_take_the_fast_ways(arch):
    policy = Policy(other_model(arch, **STATEFUL[arch]), byte_bpe_tokenizer([], 264))
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
    ("arch", "types"),
    [
        ("lfm2", ["conv", "full_attention", "conv"]),
        ("lfm2", ["conv", "conv"]),
        ("qwen3_5_text", ["linear_attention", "full_attention", "linear_attention"]),
        ("qwen3_5_text", ["linear_attention", "linear_attention"]),
        ("kimi_linear", ["linear_attention", "full_attention", "linear_attention"]),
        ("granitemoehybrid", ["mamba", "attention", "mamba"]),
    ],
)
def test_no_sequence_reads_another_one_and_every_answer_reads_its_prompt(arch: str, types: list[str]):
    """The derivative of a token's hidden state by the embedding of a token that it does not read is exactly 0."""
    changes: dict[str, object] = STATEFUL[arch] | ({"conv_L_cache": 4} if arch == "lfm2" else {})
    changes |= {"num_hidden_layers": len(types), "layer_types": types, "mlp_layer_types": ["dense"] * len(types)}
    model = other_model(arch, **changes)
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


@pytest.mark.parametrize("arch", ["lfm2", "qwen3_5_text"])
def test_recomputed_layers_have_the_same_gradient(arch: str):
    """The backward pass computes them again outside of the forward pass."""
    batch, found = ragged(), []
    for checkpointing in (False, True):
        policy = Policy(
            other_model(arch, **STATEFUL[arch]),
            byte_bpe_tokenizer([], 264),
            gradient_checkpointing=checkpointing,
        )
        policy.scores(batch).logprobs.sum().backward()
        found.append(gradient(policy))
    assert torch.equal(*found)


@pytest.mark.parametrize("arch", ["qwen3_5_text", "bailing_hybrid"])
def test_with_products_in_bfloat16_it_is_trained_and_sampled(arch: str):
    """The state is in float32 then. Sampler and trainer differ by the rounding of products, as with attention alone."""
    policy = fresh(arch, precision="bfloat16")
    assert policy.forward.layout == "shared"
    before = policy.model.state_dict()[WRITTEN[arch]].clone()
    for _ in range(2):
        update = policy.update(prepared(policy=policy), ALL_TERMS)
        assert math.isfinite(update.metrics["loss"])
    assert not torch.equal(policy.model.state_dict()[WRITTEN[arch]], before)
    asked = requests((3, 40), siblings=2, limit=lambda index: 20)
    answers = BuiltinEngine(policy).generate(asked, SamplingParams())
    of_sampler = torch.cat([torch.tensor(answer.logprobs) for answer in answers])
    batch = Batch.of_tokens([request.token_ids for request in asked], [answer.token_ids for answer in answers])
    of_trainer = policy.logprobs(batch)[batch.loss_mask]
    assert (of_trainer - of_sampler).abs().mean() < 0.02
    assert (of_trainer - of_sampler).abs().max() < 0.2


WRITTEN = {
    "qwen3_5_text": "model.layers.0.linear_attn.A_log",
    "bailing_hybrid": "model.layers.0.self_attn.forget_gate.A_log",
}
"""A weight of a recurrence."""


@pytest.mark.parametrize(("arch", "kind"), [("lfm2", "Lfm2ShortConv"), ("qwen3_5_text", "Qwen3_5GatedDeltaNet")])
def test_the_model_has_its_own_layers_outside_of_a_call(arch: str, kind: str):
    model = shared(arch).model
    shared(arch).logprobs(ragged())
    assert [type(layer.module).__name__ for layer in stateful_layers(model)] == [kind]
    assert all("forward" not in vars(layer.module) for layer in stateful_layers(model))


@pytest.mark.parametrize("arch", STATEFUL)
def test_the_facts_of_a_folder_count_what_its_layers_keep_of_a_sequence(arch: str, tmp_path: Path):
    model = other_model(arch, **STATEFUL[arch])
    model.save_pretrained(tmp_path)
    check_facts(tmp_path, model)


DELTA = {"num_heads": 2, "head_dim": 16, "short_conv_kernel_size": 3, "full_attn_layers": [3], "kda_layers": [1, 2]}


@pytest.mark.parametrize(
    ("arch", "published"),
    [
        ("kimi_linear", {"num_hidden_layers": 3, "linear_attn_config": DELTA, "head_dim": 8}),
        (
            "bailing_hybrid",
            {"num_hidden_layers": 6, "layer_group_size": 3, "short_conv_kernel_size": 3, "head_dim": 8},
        ),
    ],
)
def test_the_names_that_published_configurations_have_for_this_are_known(arch: str, published: dict, tmp_path: Path):
    """transformers saves others. A published model has layers without experts as its first ones."""
    layers = published["num_hidden_layers"]
    changes = LATENT | published | {"layer_types": None, "mlp_layer_types": ["dense"] * layers}
    model = other_model(arch, **changes)
    model.save_pretrained(tmp_path)
    sizes = {name: size for name, size in model.config.to_dict().items() if "linear" not in name}
    (tmp_path / "config.json").write_text(json.dumps(sizes | published | {"layer_types": None}))
    check_facts(tmp_path, model)


def check_facts(folder: Path, model: PreTrainedModel) -> None:
    facts, layers = inspect_folder(folder), stateful_layers(model)
    widths = [(getattr(layer.module, "conv", None) or layer.module.conv1d).in_channels for layer in layers]
    states = [layer.begin(torch.zeros(1, 1, width)) for layer, width in zip(layers, widths, strict=True)]
    assert facts.state_numbers == sum(tensor.numel() for state in states for tensor in state)
    assert facts.max_positions == getattr(model.config, "max_position_embeddings", None)
    recorded = _RecordedRules(pack(ragged()))
    if model.config.model_type != "mamba2":  # which has no attention, and hands no layout to its layers
        recorded.run(FastForward(Forward(model), "shared"))
    assert facts.attention_layers == len(recorded.rules)
