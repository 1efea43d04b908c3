"""The built-in engine samples the log-probabilities of the training forward pass, from whatever architecture."""

import pytest
import torch
from engine_cases import apart, fresh, gradient, other_model, requests
from transformers import PreTrainedModel

from outdo.models.inspect_folder import inspect_folder
from outdo.models.policy import Policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.rollouts.engines.modes import MODES
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.fast.kv_cache import KVCache
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch
from outdo.utils.errors import ModelError

CAPTURED, CONTINUOUS, GENERATE, WHOLE_CACHE, ONE_LENGTH, NO_CACHE = (mode.name for mode in MODES)
BART = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "d_model": 32, "init_std": 0.2}
HRM = {"head_dim": 8, "num_layers_per_stack": 1}
RWKV = {"attention_hidden_size": 32, "context_length": 512}
GEMMA3N = {
    "activation_sparsity_pattern": [0.95, 0.0],
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 264,
    "altup_num_inputs": 2,
    "laurel_rank": 4,
    "head_dim": 8,
}
LLAMA4 = {
    "attention_chunk_size": None,
    "attn_scale": 2.0,
    "intermediate_size_mlp": 64,
    "head_dim": 8,
    "no_rope_layers": [1, 0],
    "num_experts_per_tok": 1,
    "num_local_experts": 2,
}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 2,
}


def policy_of(model: PreTrainedModel) -> Policy:
    return Policy(model, byte_bpe_tokenizer([], 264))


@pytest.mark.parametrize(
    ("arch", "changes", "mode"),
    [
        ("diffllama", {}, CONTINUOUS),  # calls attention twice in a layer, with the same keys
        ("hrm_text", HRM, CONTINUOUS),  # runs through its layers several times
        ("deepseek_v3", MLA, CONTINUOUS),  # its values have another size than its keys
        ("roc_bert", {"is_decoder": True}, CONTINUOUS),  # changes what a linear layer returns in place
        ("gemma3n_text", GEMMA3N, CONTINUOUS),  # so does this one
        ("smollm3", {"sliding_window": 8}, CONTINUOUS),  # has no layer with the window that it names
        ("llama", {"sliding_window": 8}, CONTINUOUS),  # neither has this one; the cache of transformers has
        ("bloom", {"n_head": 4, "n_layer": 2, "sliding_window": 8}, WHOLE_CACHE),  # nor this, which runs padded
        ("llama4_text", LLAMA4, ONE_LENGTH),  # counts the tokens of the row, with the padding
        ("bart", BART, ONE_LENGTH),  # counts positions from the padding
        ("rwkv", RWKV, NO_CACHE),  # reads the padding, and its state is not kept
    ],
)
def test_sampler_and_trainer_agree_and_the_gradient_is_the_models_own(arch, changes, mode):
    model = other_model(arch, **changes)
    policy, asked = policy_of(model), requests((1, 5, 20), siblings=2, limit=lambda index: 12)
    engine = BuiltinEngine(policy)
    assert engine.choice.mode.name == mode
    answers = engine.generate(asked, SamplingParams(max_tokens=12))
    batch = Batch.of_tokens(
        [request.token_ids for request in asked],
        [answer.token_ids for answer in answers],
        group=[index // 2 for index in range(len(asked))],
    )
    sampled = torch.tensor([logprob for answer in answers for logprob in answer.logprobs])
    scores = policy.scores(batch).logprobs
    torch.testing.assert_close(sampled, scores[batch.loss_mask].detach(), rtol=0, atol=1e-4)
    scores.sum().backward()
    found = gradient(policy)
    for request, answer in zip(asked, answers, strict=True):
        ids = torch.tensor([request.token_ids + answer.token_ids])
        logprobs = model(input_ids=ids, use_cache=False).logits[0, len(request.token_ids) - 1 : -1].log_softmax(-1)
        logprobs.gather(-1, torch.tensor(answer.token_ids)[:, None]).sum().backward()
    assert apart(found, gradient(policy)) < 1e-4


def test_sampler_and_trainer_agree_on_a_model_that_has_other_frequencies_for_long_sequences(tmp_path):
    """Beyond its original context longrope changes the frequencies of all rows as soon as one is longer."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    model = other_model("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    policy, asked = policy_of(model), requests((1, 20, 31), siblings=2, limit=lambda index: 40)
    answers = BuiltinEngine(policy).generate(asked, SamplingParams(max_tokens=40))
    assert max(len(each.token_ids) + len(answer.token_ids) for each, answer in zip(asked, answers, strict=True)) == 32
    batch = Batch.of_tokens([each.token_ids for each in asked], [answer.token_ids for answer in answers])
    for row, answer in zip(policy.logprobs(batch), answers, strict=True):
        sampled = torch.tensor(answer.logprobs)
        torch.testing.assert_close(row[row != 0][-len(sampled) :], sampled, rtol=0, atol=1e-4)
    model.save_pretrained(tmp_path)
    assert inspect_folder(tmp_path).max_positions == 32


def test_a_model_that_no_way_samples_right_is_refused_with_what_was_tried():
    """`generate` counts RoBERTa's positions from 0, and the model itself from the number after its padding token."""
    with pytest.raises(ModelError, match="RobertaForCausalLM: no way to sample gives the log-probabilities") as caught:
        BuiltinEngine(policy_of(other_model("roberta", is_decoder=True)))
    assert all(f"{name}: its log-probabilities differ by" in str(caught.value) for name in (GENERATE, NO_CACHE))


def test_a_cache_that_forgets_is_noticed_and_not_used(monkeypatch):
    attend = KVCache.attend
    monkeypatch.setattr(
        KVCache, "attend", lambda cache, query, key, value, rule: attend(cache, query, key, value * 0, rule)
    )
    choice = BuiltinEngine(fresh()).choice
    assert choice.mode.name == GENERATE
    assert choice.faults[0].startswith(f"{CONTINUOUS}: its log-probabilities differ by")


def test_settings_in_the_models_generation_config_do_not_change_its_logits():
    policy = fresh(attention="padded")
    policy.model.generation_config.repetition_penalty = 3.0
    policy.model.generation_config.min_new_tokens = 9
    engine, asked = BuiltinEngine(policy), requests((5, 20))
    answers = engine.generate(asked, SamplingParams())
    policy.model.generation_config.repetition_penalty = 1.0
    policy.model.generation_config.min_new_tokens = None
    assert engine.choice.mode.name == GENERATE
    assert answers == engine.generate(asked, SamplingParams())
