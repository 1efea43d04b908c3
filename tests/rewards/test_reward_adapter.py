"""A reward model with an adapter: its folder holds the adapter, the head and the identity of the base."""

import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel
from policy_cases import frozen_numbers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from outdo.extras.reward_models.model import RewardModel, fit
from outdo.extras.reward_models.online_model import OnlineRewardModel, reward_model
from outdo.models.adapter import adapter_config, trained_weights
from outdo.models.base_weights import Weights
from outdo.models.inspect_folder import inspect_folder
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.rewards import InProcessReward
from outdo.rewards.comparisons import Comparison
from outdo.rewards.context import RewardContext
from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import tiny_model
from outdo.types import FinishReason, Group, Prompt, Rollout
from outdo.utils.errors import ModelError, UserError

LORA = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
LEARNING = OptimiserSettings(lr=1e-2)
PAIRS = [Comparison(prompt=f"{n}?", completions=("12", "13"), values=(1, 0)) for n in range(8)]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "policy"
    tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def saved(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of a reward model after four steps."""
    model = RewardModel.from_policy(policy, device="cpu", adapter=LORA, optimiser=LEARNING)
    assert list(fit(model, PAIRS, steps=4, batch=4))
    folder = tmp_path_factory.mktemp("models") / "reward"
    model.save(folder)
    return folder


def scores(model: RewardModel) -> torch.Tensor:
    return model.scores([model.encode("7?", text) for text in ("12", "13", "9")])


def test_its_folder_is_that_of_peft_and_gives_the_same_scores(policy: Path, tmp_path: Path):
    model = RewardModel.from_policy(policy, device="cpu", adapter=LORA, optimiser=LEARNING, seed=1)
    start, base = scores(model), weights_hash(policy)
    list(fit(model, PAIRS, steps=4, batch=4))
    model.save(tmp_path / "reward")
    assert not scores(model).equal(start)
    assert sorted(trained_weights(model.model))[-1] == "score.modules_to_save.default.weight"
    assert not (tmp_path / "reward/model.safetensors").exists()
    assert weights_hash(policy) == base
    assert scores(RewardModel.load(tmp_path / "reward", device="cpu")).equal(scores(model))
    whole = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    of_peft = PeftModel.from_pretrained(whole, tmp_path / "reward").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reward")
    of_peft.config.pad_token_id = tokenizer.pad_token_id
    with torch.no_grad():
        row = torch.tensor([model.encode("7?", "12")])
        assert of_peft(row).logits[0, 0] == pytest.approx(float(scores(model)[0]), abs=1e-6)


def test_its_folder_keeps_the_template_that_it_was_trained_with(policy: Path, tmp_path: Path):
    model = RewardModel.from_policy(policy, device="cpu", adapter=LORA, template="(({prompt}))=")
    model.save(tmp_path / "reward")
    assert not (tmp_path / "reward/config.json").exists()
    loaded = RewardModel.load(tmp_path / "reward", device="cpu")
    assert loaded.template == "(({prompt}))="
    assert scores(loaded).equal(scores(model))


@pytest.mark.parametrize(
    ("stored", "rounding"),
    [
        ("bfloat16", 0.02),
        pytest.param("int8", 0.05, marks=pytest.mark.release),
        pytest.param("nf4", 1.0, marks=pytest.mark.release),
    ],
)
def test_its_base_may_be_stored_in_fewer_bytes(policy: Path, tmp_path: Path, stored: Weights, rounding: float):
    model = RewardModel.from_policy(policy, device="cpu", adapter=LORA, base_weights=stored, optimiser=LEARNING)
    whole = RewardModel.from_policy(policy, device="cpu", adapter=LORA)
    assert 0 < (scores(model) - scores(whole)).abs().max() < rounding
    frozen = frozen_numbers(model.model)
    start = scores(model)
    first, *_, last = fit(model, PAIRS, steps=6, batch=8)
    assert last.metrics["loss"] < first.metrics["loss"]
    assert all(each.equal(frozen[name]) for name, each in frozen_numbers(model.model).items())
    model.save(tmp_path / "reward")
    again = RewardModel.load(tmp_path / "reward", device="cpu", base_weights=stored)
    assert scores(again).equal(scores(model))
    assert not scores(again).equal(start)


def test_a_whole_reward_model_in_fewer_bytes_is_frozen_up_to_its_head(policy: Path, tmp_path: Path):
    RewardModel.from_policy(policy, device="cpu").save(tmp_path / "whole")
    whole = RewardModel.load(tmp_path / "whole", device="cpu")
    model = RewardModel.load(tmp_path / "whole", device="cpu", base_weights="bfloat16")
    assert list(trained_weights(model.model)) == ["score.weight"]
    assert (scores(model) - scores(whole)).abs().max() < 0.05
    with pytest.raises(UserError, match=r'base_weights = "bfloat16": all weights of .* are trained'):
        reward_model(RewardContext(), path=str(tmp_path / "whole"), labels="exact", every=2, base_weights="bfloat16")
    with pytest.raises(UserError, match="base_weights must be one of auto, float32, bfloat16, int8, nf4"):
        reward_model(RewardContext(), path=str(tmp_path / "whole"), base_weights="int4")


def test_it_is_trained_further_from_its_folder_and_from_a_whole_reward_model(policy: Path, tmp_path: Path):
    RewardModel.from_policy(policy, device="cpu").save(tmp_path / "whole")
    first = RewardModel.load(tmp_path / "whole", device="cpu", adapter=LORA, optimiser=LEARNING)
    assert scores(first).equal(scores(RewardModel.load(tmp_path / "whole", device="cpu")))
    list(fit(first, PAIRS, steps=2, batch=4))
    first.save(tmp_path / "adapter")
    second = RewardModel.load(tmp_path / "adapter", device="cpu", optimiser=LEARNING)
    assert scores(second).equal(scores(first))
    assert trained_weights(second.model).keys() == trained_weights(first.model).keys()
    list(fit(second, PAIRS, steps=2, batch=4))
    assert not scores(second).equal(scores(first))


def test_a_refreshed_one_is_saved_without_its_base_and_continues_with_the_same_bits(saved: Path):
    def online() -> OnlineRewardModel:
        model = RewardModel.load(saved, device="cpu", optimiser=LEARNING)
        return OnlineRewardModel(model, InProcessReward(even), every=1, steps=2, batch=4)

    def even(completion: str) -> float:
        return float(completion[-1] in "02468")

    unbroken, resumed = online(), online()
    unbroken.after_step(1, [group(1), group(2)])
    tree, tensors = pack(unbroken.state())
    assert not [name for name in tree["model"]["weights"] if "base_layer" in name or "original_module" in name]
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed.load_state(unpack(json.loads(json.dumps(tree)), copies))
    assert unbroken.after_step(2, [group(3)]) == resumed.after_step(2, [group(3)])
    assert scores(unbroken.model).equal(scores(resumed.model))
    assert not scores(resumed.model).equal(scores(online().model))


def group(number: int) -> Group:
    prompt = Prompt(id=str(number), text=f"{number}?", token_ids=(5,), answer=None)
    settings = {"token_ids": (7,), "loss_mask": (True,), "logprobs": (0.0,), "finish_reason": FinishReason.stop}
    rollouts = [
        Rollout(**settings, text=text, reward=0.0, status="ok", policy_version=0) for text in ("10", "11", "12")
    ]
    return Group(prompt=prompt, rollouts=tuple(rollouts))


def test_what_cannot_be_one_is_a_sentence(policy: Path, saved: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="an adapter of a reward model, which gives scores and generates no text"):
        inspect_folder(saved)
    of_language_model = Policy.load(policy, adapter=LORA)
    of_language_model.save(tmp_path / "adapter")
    with pytest.raises(ModelError, match="an adapter gets no head; make a whole model of it: `outdo export --merge`"):
        RewardModel.from_policy(tmp_path / "adapter")
    with pytest.raises(ModelError, match="Qwen3ForCausalLM is no reward model"):
        RewardModel.load(tmp_path / "adapter")
    with pytest.raises(ModelError, match="adapters of the kind TRAINABLE_TOKENS cannot train the head score; use lora"):
        RewardModel.from_policy(policy, adapter=adapter_config("trainable_tokens", token_indices=[5]))
