"""An adapter on the experts of a mixture model, which are tensors of three dimensions."""

from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from outdo.algorithms.objectives.presets import grpo
from outdo.models.adapter import adapter_config, trained_weights
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import frozen
from outdo.testing import byte_bpe_tokenizer
from outdo.types import Batch

EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, tokenizer = tmp_path_factory.mktemp("models") / "mixture", byte_bpe_tokenizer([], 264)
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=264,
        hidden_size=32,
        moe_intermediate_size=16,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_it_trains_every_expert_that_answers_and_nothing_else_and_is_saved_for_peft(mixture: Path, tmp_path: Path):
    config = adapter_config("lora", r=2, lora_alpha=4, target_parameters=EXPERTS)
    policy = Policy.load(mixture, adapter=config, optimiser=OptimiserSettings(lr=0.05), seed=3)
    trained = trained_weights(policy.model)
    assert all(".experts." in name for name in trained)
    batch = Batch.of_tokens([(5, 6, 7)] * 4, [(20 + n, 21, 22 + n, 23) for n in range(4)], group=[0] * 4)
    batch = batch.with_(advantages=torch.tensor([1.0, -1.0] * 2)[:, None] * batch.loss_mask)
    base = {name: weight.clone() for name, weight in policy.model.named_parameters() if name not in trained}
    start, reference = policy.logprobs(batch), frozen(policy)
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    for _ in range(3):
        policy.update(batch, grpo(beta=0.0))
    assert not any(weight.equal(before[name]) for name, weight in trained_weights(policy.model).items())
    now = dict(policy.model.named_parameters())
    assert all(now[name].equal(weight) for name, weight in base.items())
    assert (policy.logprobs(batch) - start).abs().max() > 0.01
    assert reference.logprobs(batch).equal(start)
    policy.save(tmp_path / "adapter")
    assert Policy.load(tmp_path / "adapter").logprobs(batch).equal(policy.logprobs(batch))
    of_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(mixture), tmp_path / "adapter").eval()
    ids = torch.arange(20, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(of_peft(input_ids=ids).logits, policy.model(input_ids=ids).logits)
