"""A model that also reads images is trained by its text part, and what is saved is the whole model again."""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from command_cases import outdo_process
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel

from benchmarks.family_models import small
from outdo.extras.reward_models.model import RewardModel
from outdo.extras.vllm.weights import write_weights
from outdo.models.adapter import adapter_config
from outdo.models.inspect_folder import conversion_notes, inspect_folder
from outdo.models.loading import fit_adapter, load_model, save_model
from outdo.models.policy import Policy
from outdo.models.text_part import left_out
from outdo.testing import byte_bpe_tokenizer
from outdo.utils.errors import ModelError

SHAPE = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
TEXT = SHAPE | {"vocab_size": 264, "num_key_value_heads": 2, "head_dim": 8}
VISION = SHAPE | {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
RECURRENT = {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2} | {
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
OF_GEMMA4 = {"vocab_size_per_layer_input": 264, "hidden_size_per_layer_input": 8, "global_head_dim": 8}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3_5": (RECURRENT, {"num_heads": 4, "depth": 1, "out_hidden_size": 32}),
    "qwen3_vl": ({}, {"num_heads": 4, "depth": 1, "out_hidden_size": 32}),
    "gemma3": (WINDOWS, {}),
    "gemma4": (
        WINDOWS | {"vocab_size_per_layer_input": 264, "hidden_size_per_layer_input": 8, "global_head_dim": 8},
        {},
    ),
    "mistral3": ({}, {}),
    "llava": ({}, {}),
}
IDS = torch.arange(5, 25)[None]


def save_whole(name: str, folder: Path) -> Path:
    """Save a small model that reads images, with random weights."""
    default = AutoConfig.for_model(name)
    text, vision = MODELS[name]
    parts = {
        "text_config": TEXT | text | {"model_type": default.text_config.model_type},
        "vision_config": VISION
        | vision
        | {"model_type": getattr(default.vision_config, "model_type", f"{name}_vision")},
    }
    torch.manual_seed(0)
    AutoModelForImageTextToText.from_config(AutoConfig.for_model(name, **parts)).save_pretrained(folder)
    byte_bpe_tokenizer([], 264).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}')
    return folder


def load_whole(folder: Path) -> PreTrainedModel:
    """Load a folder as the class that its configuration names, without weights that are missing or left over."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, report = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


@torch.no_grad()
def logits(model: PreTrainedModel) -> torch.Tensor:
    return model(input_ids=IDS).logits


def outdo(*arguments: object) -> None:
    done = outdo_process(*arguments)
    assert done.status == 0, done.error


@pytest.fixture(params=MODELS)
def whole(request, tmp_path) -> Path:
    return save_whole(request.param, tmp_path / "whole")


@pytest.fixture
def gemma3(tmp_path) -> Path:
    return save_whole("gemma3", tmp_path / "whole")


def changed(policy: Policy) -> Policy:
    """Change every trained weight, as training does."""
    with torch.no_grad():
        for weight in policy.optimiser.weights.values():
            weight.add_(0.02 * torch.randn(weight.shape))
    return policy


def test_what_is_saved_is_the_whole_model_with_the_trained_weights(whole, tmp_path):
    original, policy = load_whole(whole), Policy.load(whole)
    assert policy.forward.layout == "shared", policy.forward.reason
    assert torch.equal(logits(policy.model), logits(original))
    saved = tmp_path / "saved"
    changed(policy).save(saved)
    model, trained = load_whole(saved), dict(policy.model.named_parameters())
    assert type(model) is type(original) is type(policy.model)
    before, after = dict(original.named_parameters()), dict(model.named_parameters())
    assert set(trained) < set(before) == set(after)
    assert all(torch.equal(after[name], trained.get(name, before[name])) for name in after)
    assert (saved / "preprocessor_config.json").read_text() == '{"size": 28}'
    assert torch.equal(logits(load_model(saved)), logits(policy.model))


def test_the_facts_of_a_folder_are_those_of_its_text_part(whole):
    facts, model = inspect_folder(whole), load_model(whole)
    assert (facts.layers, facts.heads, facts.kv_heads, facts.hidden_size, facts.vocab_size) == (2, 4, 2, 32, 264)
    state = {weight.data_ptr(): weight.numel() for weight in model.state_dict().values()}  # a tied weight once
    assert facts.parameters == sum(state.values())
    total = sum(weight.numel() for weight in load_file(whole / "model.safetensors").values())
    assert facts.parameters + facts.other_parts == total
    (note,) = conversion_notes(facts)
    assert f"its text part is trained; the {facts.other_parts:,} weights of the parts that read images" in note


@pytest.mark.parametrize("family", ["git", "phi4_multimodal"])
def test_a_decoder_that_reads_images_itself_is_loaded_whole(family: str, tmp_path: Path):
    model, tokens = small(family), torch.arange(5, 15)[None]
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert not left_out(loaded)
    assert torch.equal(loaded(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_a_text_part_in_several_files_is_whole_too(gemma3, tmp_path):
    policy = Policy.load(gemma3)
    save_model(policy.model, tmp_path / "saved", policy.other_parts, max_shard_size="20KB")
    assert len(list((tmp_path / "saved").glob("model-*-of-*.safetensors"))) > 1
    after = load_whole(tmp_path / "saved").state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in load_whole(gemma3).state_dict().items())


def test_a_text_part_can_be_sent_to_another_process(gemma3):
    model = load_model(gemma3)
    again = pickle.loads(pickle.dumps(model))
    assert type(again) is type(model) is transformers.Gemma3ForConditionalGeneration
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize("whole", ["qwen3_5", "gemma3"], indirect=True)
def test_an_adapter_fits_the_whole_model_merged_or_not(whole, tmp_path):
    policy = changed(Policy.load(whole, adapter=adapter_config("lora", r=4)))
    policy.save(tmp_path / "adapter")
    expected = logits(policy.model)
    assert torch.equal(logits(Policy.load(tmp_path / "adapter").model), expected)
    outdo("export", tmp_path / "adapter", tmp_path / "merged", "--merge")
    torch.testing.assert_close(logits(load_whole(tmp_path / "merged")), expected, rtol=0, atol=1e-5)
    on_whole = peft.PeftModel.from_pretrained(load_whole(whole), str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(on_whole), expected, rtol=0, atol=1e-6)
    trained = {name.replace(".default.", ".") for name in dict(policy.model.named_parameters()) if "lora" in name}
    attached = {name for name, _ in on_whole.named_parameters() if "lora" in name}
    assert {name.removeprefix("base_model.model.").replace(".default.", ".") for name in attached} == trained


@pytest.mark.parametrize("adapter", [None, "lora"])
@pytest.mark.parametrize("whole", ["qwen3_5", "gemma3", "mistral3"], indirect=True)
def test_what_vllm_gets_is_whole(whole, adapter, tmp_path):
    policy = changed(Policy.load(whole, adapter=adapter_config(adapter, r=4) if adapter else None))
    (tmp_path / "delivered").mkdir()
    write_weights(policy, tmp_path / "delivered", as_adapter=False)
    delivered = load_whole(tmp_path / "delivered")
    torch.testing.assert_close(logits(delivered), logits(policy.model), rtol=0, atol=1e-5)


def test_a_package_that_another_part_needs_is_named(gemma3, monkeypatch):
    def make(*arguments: Any, **options: Any) -> None:
        raise ImportError("TimmWrapperModel requires the timm library: pip install timm")

    monkeypatch.setattr("transformers.models.gemma3.modeling_gemma3.Gemma3Model.__init__", make)
    facts = inspect_folder(gemma3)
    for load in (load_model, lambda facts: fit_adapter(facts, adapter_config("lora", r=4))):
        with pytest.raises(ModelError, match="pip install timm"):
            load(facts)


def test_targets_that_a_user_excludes_stay_excluded(gemma3):
    policy = Policy.load(gemma3, adapter=adapter_config("lora", r=4, exclude_modules=["q_proj"]))
    assert policy.optimiser.weights
    assert not [name for name in policy.optimiser.weights if "q_proj" in name]


QUESTIONS = '{"prompt": "one", "answer": "1"}\n{"prompt": "two", "answer": "2"}\n'
REWARD = "def reward(completion):\n    return len(set(completion)) / 10\n"
RECIPE = ["data.path=questions.jsonl", "rewards=reward.py:reward", "steps=2", "device=cpu", "train.prompts=2"]
RECIPE += ["train.group_size=2", "sampling.max_tokens=4", "checkpoint={every=1, keep=1}"]


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """A folder with questions and a reward, in which commands run."""
    monkeypatch.chdir(tmp_path)
    Path("questions.jsonl").write_text(QUESTIONS)
    Path("reward.py").write_text(REWARD)


@pytest.mark.usefixtures("in_folder")
def test_a_run_goes_on_without_the_folder_that_it_started_from(gemma3, tmp_path):
    stored = load_file(gemma3 / "model.safetensors")
    outdo("train", "run=./run", f"model={gemma3}", *RECIPE)
    shutil.rmtree(gemma3)
    outdo("resume", "./run", "steps=4")
    for dtype in ("float32", "bfloat16"):
        outdo("export", "./run", f"out-{dtype}", "--dtype", dtype)
        load_whole(tmp_path / f"out-{dtype}")
        others = load_file(tmp_path / f"out-{dtype}" / "model-other-parts.safetensors")
        assert all(torch.equal(stored[name], weight) for name, weight in others.items())
    outdo("eval", "out-float32", "--data", "questions.jsonl", "--rewards", "reward.py:reward", "--max-tokens", 4)


@pytest.mark.release
@pytest.mark.usefixtures("in_folder")
def test_replicas_that_divide_it_save_it_whole(gemma3, tmp_path):
    outdo("train", "run=./run", f"model={gemma3}", *RECIPE, "cluster={replicas=2, shard=true}")
    outdo("resume", "./run", "steps=3")
    saved = tmp_path / "run" / "checkpoints" / "step_000003"
    before, after = load_whole(gemma3).model, load_whole(saved).model
    for name, weight in before.vision_tower.state_dict().items():
        assert torch.equal(after.vision_tower.state_dict()[name], weight)
    assert any(not torch.equal(one, other) for one, other in zip(before.parameters(), after.parameters(), strict=True))


def test_a_reward_model_of_it_is_whole_too(gemma3, tmp_path):
    model = RewardModel.from_policy(gemma3, device="cpu")
    model.save(tmp_path / "reward")
    again = RewardModel.load(tmp_path / "reward", device="cpu")
    rows = [again.encode("question", "answer")]
    torch.testing.assert_close(again.scores(rows), model.scores(rows), rtol=0, atol=1e-6)
    saved, before = load_whole(tmp_path / "reward"), load_whole(gemma3)
    for name, weight in before.model.vision_tower.state_dict().items():
        assert torch.equal(saved.model.vision_tower.state_dict()[name], weight)


def test_a_class_that_transformers_does_not_have_is_named(gemma3):
    config = json.loads((gemma3 / "config.json").read_text())
    (gemma3 / "config.json").write_text(json.dumps(config | {"architectures": ["NewestForConditionalGeneration"]}))
    with pytest.raises(ModelError, match="has no NewestForConditionalGeneration; a newer one may have it"):
        load_model(gemma3)
