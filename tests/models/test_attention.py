"""Prompts computed once and nothing padded: the same numbers as the model's own forward, one sequence at a time."""

import copy
import dataclasses

import pytest
import torch
from engine_cases import (
    SHARED,
    VOCABULARY,
    apart,
    gradient,
    other_model,
    ragged,
    ragged_groups,
    rollout,
    scorer,
    shared,
    tokens,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from outdo.models.choose_forward import choose_forward
from outdo.models.fast.forward import NAME
from outdo.models.fast.layout import UnknownAttentionError
from outdo.models.fast.packed import pack
from outdo.models.forward import Forward
from outdo.models.scorer import BatchSizes, Scorer
from outdo.testing import tiny_model
from outdo.types import Batch, Group, Prompt
from outdo.utils.errors import ModelError


def logprobs_of_the_model_alone(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Each row alone, without padding, through nothing of outdo's. [B, T]"""
    found = torch.zeros(batch.token_ids.shape, dtype=model.dtype)
    for row, length in enumerate(batch.attention_mask.sum(1).tolist()):
        ids = batch.token_ids[row, :length]
        with torch.no_grad():
            logits = model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).logits[0]
        of_all = (logits / batch.temperature[row]).log_softmax(-1)
        found[row, 1:length] = of_all[:-1].gather(-1, ids[1:, None])[:, 0]
    return found * batch.loss_mask


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("arch", SHARED)
def test_shared_and_padded_give_equal_log_probabilities_and_gradients(arch):
    policy, batch = shared(arch, dtype=torch.float64), ragged()
    weights = torch.randn(batch.token_ids.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = {}
    for way in ("padded", "shared"):
        scores = scorer(policy, way).scores(batch)
        (weights * scores.logprobs).sum().backward()
        found[way] = (scores.logprobs.detach(), gradient(policy))
    assert policy.forward.layout == "shared"
    torch.testing.assert_close(found["shared"][0], found["padded"][0], rtol=0, atol=1e-10)
    assert apart(found["shared"][1], found["padded"][1]) < 1e-10


@pytest.mark.parametrize("arch", SHARED)
def test_shared_and_padded_equal_the_model_on_each_sequence_alone(arch):
    policy, batch = shared(arch), ragged()
    expected = logprobs_of_the_model_alone(policy.model, batch)
    for way in ("shared", "padded"):
        torch.testing.assert_close(scorer(policy, way).logprobs(batch), expected, rtol=0, atol=2e-5)


def test_a_sliding_window_shorter_than_the_sequences_makes_a_difference():
    """Or the tests above would prove nothing about windows."""
    batch, slides = ragged(), shared("mistral")
    config = copy.deepcopy(slides.model.config)
    config.sliding_window = None
    sees_all = AutoModelForCausalLM.from_config(config).eval()
    sees_all.load_state_dict(slides.model.state_dict())
    assert (slides.logprobs(batch) - logprobs_of_the_model_alone(sees_all, batch)).abs().max() > 0.1


def test_a_prompt_is_computed_once_for_its_group():
    batch = ragged()
    prompts = sum(len(group.prompt.token_ids) for group in ragged_groups())
    completions = int((batch.attention_mask.sum(1) - batch.prompt_lengths).sum())
    assert len(pack(batch).token_ids) == prompts + completions


@pytest.mark.parametrize("arch", ["qwen3", "mistral"])
def test_rows_cut_out_of_their_group_keep_their_log_probabilities(arch):
    policy, batch = shared(arch), ragged()
    whole = policy.logprobs(batch)
    for rows in ([1], [2], [0, 3], [3, 4], [5, 6, 9], [2, 7, 8]):
        part = batch.rows(torch.tensor(rows))
        expected = whole[rows][:, : part.token_ids.shape[1]]
        torch.testing.assert_close(policy.logprobs(part), expected, rtol=0, atol=1e-5)


def test_a_group_of_empty_answers_has_scores_of_zero():
    batch = ragged()
    empty = batch.rows(torch.tensor([2]))
    unscored = batch.with_(loss_mask=torch.zeros_like(batch.loss_mask))
    for nothing in (empty, unscored):
        scores = shared("qwen3").scores(nothing)
        assert not scores.logprobs.any()
        scores.logprobs.sum().backward()
        assert not gradient(shared("qwen3")).any()


def test_scores_are_zero_exactly_where_a_token_is_not_trained():
    batch = ragged()
    found = shared("qwen3").logprobs(batch)
    assert not found[~batch.loss_mask].any()
    assert (found[batch.loss_mask] < 0).all()


# ---------------------------------------------------------------------------------------------------- what is found out


def test_a_model_without_attention_runs_padded_and_has_the_reason():
    policy = shared("mamba")
    assert policy.forward.layout == "padded"
    assert policy.forward.reason.startswith("none of its layers is attention")
    batch = ragged()
    torch.testing.assert_close(
        policy.logprobs(batch), logprobs_of_the_model_alone(policy.model, batch), rtol=0, atol=2e-5
    )


@pytest.mark.parametrize(
    ("arch", "changes"),
    [("qwen3_moe", {"num_experts": 8, "moe_intermediate_size": 32}), ("olmoe", {"num_experts": 8})],
)
def test_a_mixture_of_experts_shares_its_prompts(arch, changes):
    """Which tokens meet at an expert changes the last bits of its products, and nothing else."""
    model, batch = other_model(arch, num_experts_per_tok=2, head_dim=8, num_hidden_layers=4, **changes), ragged()
    forward = choose_forward(model)
    assert (forward.layout, forward.reason) == ("shared", "")
    found = Scorer(forward, BatchSizes()).logprobs(batch)
    torch.testing.assert_close(found, logprobs_of_the_model_alone(model, batch), rtol=0, atol=2e-5)


def test_shared_attention_is_an_error_if_the_model_does_not_allow_it():
    model, _ = tiny_model(arch="mamba")
    with pytest.raises(ModelError, match='attention = "shared": the attention of MambaForCausalLM cannot be replaced'):
        choose_forward(model, "shared")


SPARSE = {"q_lora_rank": 16, "kv_lora_rank": 16, "index_n_heads": 4, "n_routed_experts": 4, "moe_intermediate_size": 16}
SPARSE |= dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim", "head_dim"), 8)
SPARSE |= {"num_key_value_heads": 4} | dict.fromkeys(("n_group", "topk_group", "num_experts_per_tok"), 1)
BLOCKS = {"layer_types": ["full_attention", "minimax_m3_sparse"], "mlp_layer_types": ["dense", "dense"]}
BLOCKS |= {"dense_intermediate_size": 64, "shared_intermediate_size": 16, "head_dim": 8, "index_n_heads": 2}
BLOCKS |= {"index_head_dim": 8, "num_local_experts": 2}
NEIGHBOURS = "something that is neither attention nor a known layer with a state connects"
OF_UNKNOWN_LAYERS = "lfm2"  # if outdo did not know its convolutions, as it does not know recurrences


@pytest.mark.parametrize(
    ("arch", "changes", "reason"),
    [
        ("bloom", {"n_head": 4, "n_layer": 2}, "none of its layers is attention"),  # distances count: ALiBi
        (OF_UNKNOWN_LAYERS, {"initializer_range": 0.2}, NEIGHBOURS),  # looks at neighbours besides by attention
        (OF_UNKNOWN_LAYERS, {"initializer_range": 0.015}, NEIGHBOURS),  # as yet, hardly
        ("bart", {"decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 32}, "it counts positions itself"),
        ("deepseek_v32", SPARSE, "an indexer chooses the tokens"),
        ("minimax_m3_vl_text", BLOCKS, "an indexer chooses the tokens"),  # as yet, all tokens
    ],
)
def test_a_model_with_unsupported_attention_runs_padded(arch, changes, reason, monkeypatch):
    if arch == OF_UNKNOWN_LAYERS:
        monkeypatch.setattr("outdo.models.fast.forward.STATEFUL", ())
        changes = {"layer_types": ["conv", "full_attention"], **changes}
    model, batch = other_model(arch, **changes), ragged()
    forward = choose_forward(model)
    assert forward.layout == "padded"
    assert forward.reason.startswith(reason)
    found = Scorer(forward, BatchSizes()).logprobs(batch)
    torch.testing.assert_close(found, logprobs_of_the_model_alone(model, batch), rtol=0, atol=2e-5)


@pytest.mark.parametrize("arch", ["smollm3", "llama"])
def test_a_window_that_no_layer_has_is_no_reason_against_the_shared_layout(arch):
    model, group = other_model(arch, sliding_window=8), ragged_groups()[3]
    long = Batch.from_groups([dataclasses.replace(group, rollouts=(rollout(tokens(100, 5)),))])
    forward = choose_forward(model)
    assert (forward.layout, forward.reason) == ("shared", "")
    logprobs = Scorer(forward, BatchSizes()).logprobs(long)
    torch.testing.assert_close(logprobs, logprobs_of_the_model_alone(model, long), rtol=0, atol=2e-5)


EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2}


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("llama4_text", {"attention_chunk_size": 64, "intermediate_size_mlp": 64, "head_dim": 8, **EXPERTS}),
        (
            "llama4_text",  # scales the queries of a layer without rotation, by the place in the row
            {"attention_chunk_size": None, "floor_scale": 64, "no_rope_layers": [1, 0], "attn_scale": 2.0}
            | {"intermediate_size_mlp": 64, "head_dim": 8, **EXPERTS},
        ),
        ("phimoe", {"sliding_window": 64, **EXPERTS}),
    ],
)
def test_a_model_that_limits_attention_by_a_mask_alone_runs_padded(arch, changes):
    """The replaced attention sees no mask, and a probe of some 20 tokens would not notice a window of 64."""
    model, group = other_model(arch, **changes), ragged_groups()[3]
    long = Batch.from_groups([dataclasses.replace(group, rollouts=(rollout(tokens(100, 5)),))])
    found = Scorer(choose_forward(model), BatchSizes()).logprobs(long)
    torch.testing.assert_close(found, logprobs_of_the_model_alone(model, long), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("cohere", {"logit_scale": 3.0}),
        ("granite", {"logits_scaling": 0.25}),
        ("gemma2", {"final_logit_softcapping": 2.0, "sliding_window": 8, "head_dim": 8}),
    ],
)
def test_logits_that_are_more_than_the_output_embedding_are_computed_by_the_model(arch, changes):
    model, batch = other_model(arch, **changes), ragged()
    forward = choose_forward(model)
    assert (forward.layout, forward.plain_head) == ("shared", False)
    found = Scorer(forward, BatchSizes()).logprobs(batch)
    torch.testing.assert_close(found, logprobs_of_the_model_alone(model, batch), rtol=0, atol=2e-5)


def test_a_soft_cap_too_wide_to_show_in_a_few_tokens_is_respected():
    """With logits of some hundredths, a cap of 30 changes nothing that can be measured; after training it does."""
    model, batch = other_model("gemma2", head_dim=8, initializer_range=1e-3), ragged()
    forward = choose_forward(model)
    model.get_input_embeddings().weight.data.mul_(30_000)  # tied: also the output embedding
    found = Scorer(forward, BatchSizes()).logprobs(batch)
    expected = logprobs_of_the_model_alone(model, batch)
    assert expected.min() < -30
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_a_mask_that_a_layer_makes_itself_is_never_left_out():
    """A model is called without a mask in the shared layout, so that one is its own."""
    heads, mask = torch.randn(1, 2, 3, 8), torch.zeros(1, 1, 3, 3)
    with pytest.raises(UnknownAttentionError, match="its layers make masks of attention themselves"):
        ALL_ATTENTION_FUNCTIONS[NAME](torch.nn.Module(), heads, heads, heads, mask, scaling=1.0, layout=pack(ragged()))


def test_an_embedding_of_zeros_keeps_neither_the_shared_layout_nor_a_gradient_away():
    """Gemma 3n divides by the norm of embeddings; that of its padding token, 0, which fills the flat row, is 0."""
    sizes = {"pad_token_id": 0, "eos_token_id": 1, "vocab_size_per_layer_input": VOCABULARY, "num_kv_shared_layers": 0}
    sizes |= dict.fromkeys(("head_dim", "hidden_size_per_layer_input", "laurel_rank"), 8)
    model, batch = other_model("gemma3n_text", **sizes), ragged()
    forward = choose_forward(model)
    assert (forward.layout, forward.reason) == ("shared", "")
    gradients = []
    for way in (forward, Forward(model, plain_head=forward.plain_head)):
        model.zero_grad()
        way.scores_at(batch, *batch.loss_mask.nonzero(as_tuple=True))[0].sum().backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_a_model_that_counts_positions_in_its_own_way_is_computed_as_it_does():
    """RoBERTa's first position is the one after its padding token's id."""
    model, batch = other_model("roberta", is_decoder=True), ragged()
    found = Scorer(choose_forward(model), BatchSizes()).logprobs(batch)
    torch.testing.assert_close(found, logprobs_of_the_model_alone(model, batch), rtol=0, atol=2e-5)


def test_a_model_that_reads_its_padding_is_refused():
    """CPM-Ant has no attention mask: it expects every padding on the left."""
    model = other_model("cpmant", dim_head=8, dim_ff=64)
    with pytest.raises(ModelError, match=r"CpmAntForCausalLM: padding changes its log-probabilities by [\d.]+ nats"):
        choose_forward(model)


@pytest.mark.parametrize("arch", ["qwen3", "gpt2"])
def test_the_model_is_unchanged_for_other_users(arch):
    """The replaced attention is there for the length of a call, also of one that fails."""
    policy = shared(arch)
    before = policy.model.config._attn_implementation
    ids = torch.tensor([tokens(9, 3)])
    expected = policy.model(input_ids=ids).logits
    policy.logprobs(ragged())
    with pytest.raises(AttributeError):
        policy.forward.flat(ids[0], torch.arange(9), layout=object())
    assert policy.model.config._attn_implementation == before != "outdo"
    assert torch.equal(policy.model(input_ids=ids).logits, expected)


# ------------------------------------------------------------------------------------------------------- how it is laid


def answers(*lengths: int) -> Batch:
    """One group, a prompt of 9 tokens, answers of these lengths."""
    rollouts = tuple(rollout(tokens(length, 50 + index)) for index, length in enumerate(lengths))
    return Batch.from_groups([Group(prompt=Prompt(id="0", text="", token_ids=tokens(9, 4)), rollouts=rollouts)])


def test_one_long_answer_does_not_pad_the_short_ones():
    packed = pack(answers(3, 90, *[5] * 14))
    assert [part.shape for part in packed.completions] == [(1, 90), (15, 5)]


@pytest.mark.usefixtures("keep_float64")
@pytest.mark.parametrize("lengths", [(7, 7, 7), (40, 3, 41, 4, 1)])
def test_shared_equals_padded_for_any_lengths(lengths):
    policy, batch = shared("mistral", dtype=torch.float64), answers(*lengths)  # mistral: with a window
    found = []
    for way in ("padded", "shared"):
        scores = scorer(policy, way).scores(batch)
        scores.logprobs.square().sum().backward()
        found.append((scores.logprobs.detach(), gradient(policy)))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-10)
    assert apart(found[1][1], found[0][1]) < 1e-10


# ------------------------------------------------------------------------------------------------- recomputed, narrower


def kept_bytes(forward: Forward, batch: Batch) -> tuple[int, Tensor, Tensor]:
    """What the graph keeps of intermediate results; the log-probabilities and their gradient."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        scores = Scorer(forward, BatchSizes()).scores(batch)
    scores.logprobs.square().sum().backward()
    return sum(kept.values()), scores.logprobs.detach(), gradient(Scorer(forward, BatchSizes()))


@pytest.mark.parametrize(("arch", "way"), [("qwen3", "shared"), ("gemma2", "padded"), ("gpt2", "shared")])
def test_gradient_checkpointing_gives_the_same_bits_and_keeps_less(arch, way):
    model = shared(arch).model
    plain, again = (choose_forward(model, way, gradient_checkpointing=recompute) for recompute in (False, True))
    batch = ragged()
    most, logprobs, slope = kept_bytes(plain, batch)
    least, found, found_slope = kept_bytes(again, batch)
    assert torch.equal(found, logprobs)
    assert torch.equal(found_slope, slope)
    assert least < 0.7 * most
    assert not any("forward" in vars(module) for module in model.modules())


def test_gradient_checkpointing_needs_marked_layers(monkeypatch):
    model = shared().model
    monkeypatch.setattr("outdo.models.layers.GradientCheckpointingLayer", torch.nn.Bilinear)
    with pytest.raises(ModelError, match="gradient_checkpointing = true: Qwen3ForCausalLM does not mark"):
        choose_forward(model, gradient_checkpointing=True)


def test_bfloat16_applies_to_products_and_leaves_weights_and_log_probabilities_float32():
    model, batch = shared().model, ragged()
    wide, narrow = (choose_forward(model, precision=precision) for precision in ("float32", "bfloat16"))
    expected, slope = kept_bytes(wide, batch)[1:]
    found, found_slope = kept_bytes(narrow, batch)[1:]
    assert found.dtype == found_slope.dtype == model.dtype == torch.float32
    assert 0 < (found - expected).abs().max() < 0.05
    assert 0 < apart(found_slope, slope) < 0.05


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")  # the compiler warns of itself
def test_compiled_layers_give_the_same_numbers():
    model, batch = shared().model, ragged()
    expected, slope = kept_bytes(choose_forward(model), batch)[1:]
    for recompute in (False, True):
        found, found_slope = kept_bytes(choose_forward(model, compile=True, gradient_checkpointing=recompute), batch)[
            1:
        ]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert apart(found_slope, slope) < 1e-5


def test_compiling_without_a_compiler_is_refused_at_once(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ModelError, match=r"compile = true: needs a C\+\+ compiler, and there is neither g\+\+ nor"):
        choose_forward(shared().model, compile=True)
