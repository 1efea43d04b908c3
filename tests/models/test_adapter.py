"""An adapter: attached, left out or copied for the reference, saved and loaded; the base stays as it is."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from installed import pretend
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftConfig, PeftModel
from policy_cases import two_groups
from transformers import AutoModelForCausalLM

from outdo.algorithms.objectives.presets import grpo
from outdo.extras.quickstart.model import build
from outdo.models.adapter import adapter_config, trained_weights
from outdo.models.bundle import Models
from outdo.models.critic import own_model
from outdo.models.inspect_folder import inspect_folder
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.reference import AdapterReference, frozen
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError, UserError

LORA = {"r": 4, "lora_alpha": 8}
OTHERS = ("rslora", "dora", "lora with the head", "olora", "ia3")
METHODS = {
    "lora": adapter_config("lora", **LORA),
    "rslora": adapter_config("lora", **LORA, use_rslora=True),
    "dora": adapter_config("lora", **LORA, use_dora=True),
    "lora with the head": adapter_config("lora", **LORA, modules_to_save=["lm_head"]),
    "pissa": adapter_config("lora", **LORA, init_lora_weights="pissa"),
    "olora": adapter_config("lora", **LORA, init_lora_weights="olora"),
    "oft": adapter_config("oft", target_modules="all-linear", oft_block_size=8),
    "ia3": adapter_config("ia3", target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"]),
}
CHANGE_THE_BASE = ("pissa", "olora")
EVERY_METHOD = pytest.mark.parametrize(
    "method", ["lora", "pissa", "oft", *(pytest.param(each, marks=pytest.mark.release) for each in OTHERS)]
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "base"
    tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def saved(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a trained adapter."""
    folder = tmp_path_factory.mktemp("adapters") / "adapter"
    trained(base).save(folder)
    return folder


@pytest.fixture
def adapter(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "adapter"))


def trained(base: Path, method: str = "lora", **settings: object) -> Policy:
    """A policy after two steps of its adapter."""
    policy = Policy.load(base, adapter=METHODS[method], optimiser=OptimiserSettings(lr=0.05), seed=3, **settings)
    for _ in range(2):
        policy.update(two_groups(), grpo(beta=0.0))
    return policy


@EVERY_METHOD
def test_only_the_adapter_is_trained_and_the_reference_has_no_second_copy_of_the_rest(base: Path, method: str):
    policy = Policy.load(base, adapter=METHODS[method], optimiser=OptimiserSettings(lr=0.05), seed=3)
    reference, start = frozen(policy), policy.logprobs(two_groups())
    assert isinstance(reference, AdapterReference)
    assert reference.is_copy == (method in CHANGE_THE_BASE)
    own = {weight.data_ptr() for weight in policy.model.parameters()}
    further = sum(weight.numel() for weight in reference.forward.model.parameters() if weight.data_ptr() not in own)
    adapter = sum(weight.numel() for weight in trained_weights(policy.model).values())
    assert further == (adapter if method in CHANGE_THE_BASE else 0)
    weights = policy.model.named_parameters()
    frozen_weights = {name: weight.clone() for name, weight in weights if not weight.requires_grad}
    assert reference.logprobs(two_groups()).equal(start)
    for _ in range(2):
        policy.update(two_groups(), grpo(beta=0.0))
    assert (policy.logprobs(two_groups()) - start).abs().max() > 0.01
    assert reference.logprobs(two_groups()).equal(start)
    now = dict(policy.model.named_parameters())
    assert all(now[name].equal(weight) for name, weight in frozen_weights.items())
    assert all(weight.dtype == torch.float32 for weight in trained_weights(policy.model).values())


def test_the_reference_of_a_policy_that_started_from_an_adapter_is_that_adapter(base: Path, saved: Path):
    policy = Policy.load(saved, optimiser=OptimiserSettings(lr=0.05))
    reference, start = frozen(policy), policy.logprobs(two_groups())
    assert not start.equal(Policy.load(base).logprobs(two_groups()))
    policy.update(two_groups(), grpo(beta=0.0))
    assert reference.logprobs(two_groups()).equal(start)
    assert not policy.logprobs(two_groups()).equal(start)


def test_weights_of_the_base_that_are_trained_with_the_adapter_are_copied_for_the_reference(tmp_path: Path):
    tiny_model(tmp_path / "gpt2", arch="gpt2")
    settings = adapter_config("lora", r=4, target_modules=["c_attn"], fan_in_fan_out=True, bias="all")
    policy = Policy.load(tmp_path / "gpt2", adapter=settings, optimiser=OptimiserSettings(lr=0.05))
    reference, start = frozen(policy), policy.logprobs(two_groups())
    policy.update(two_groups(), grpo(beta=0.0))
    assert reference.logprobs(two_groups()).equal(start)


def test_an_updated_reference_is_the_policy_as_it_was_then(base: Path):
    policy = Policy.load(base, adapter=METHODS["lora"], optimiser=OptimiserSettings(lr=0.05))
    models = Models(policy, frozen(policy), refresh_every=1)
    for step in (1, 2):  # the first update makes the copy, the second one overwrites it
        policy.update(two_groups(), grpo(beta=0.0))
        models.refresh(step)
        updated = policy.logprobs(two_groups())
        assert models.reference.logprobs(two_groups()).equal(updated)
    policy.update(two_groups(), grpo(beta=0.0))
    assert models.reference.logprobs(two_groups()).equal(updated)
    assert not policy.logprobs(two_groups()).equal(updated)


def test_a_reference_cannot_be_mixed_of_two_adapters(base: Path):
    policy = Policy.load(base, adapter=METHODS["lora"])
    with pytest.raises(ValueError, match=r"mix = 0.5: the weights of adapters cannot be mixed"):
        Models(policy, frozen(policy), refresh_every=1, mix=0.5)


@pytest.mark.parametrize("updated", [pytest.param(False, marks=pytest.mark.release), True])
def test_a_restored_reference_is_what_it_was(base: Path, tmp_path: Path, updated: bool):
    policy = trained(base)
    models = Models(policy, frozen(Policy.load(base, adapter=METHODS["lora"], seed=3)), refresh_every=1)
    if updated:
        models.reference = frozen(policy)
        policy.update(two_groups(), grpo(beta=0.0))
    policy.save(tmp_path / "adapter")
    state = unpack(*pack(models.state()))
    again = Policy.load(tmp_path / "adapter", optimiser=OptimiserSettings(lr=0.05))
    restored = Models(again, frozen(again), refresh_every=1)
    restored.load_state(state)
    assert restored.reference.logprobs(two_groups()).equal(models.reference.logprobs(two_groups()))
    assert not restored.reference.logprobs(two_groups()).equal(again.logprobs(two_groups()))


@EVERY_METHOD
def test_a_saved_adapter_is_loaded_with_the_same_bits_here_and_close_to_them_by_peft(
    base: Path, tmp_path: Path, method: str
):
    policy = trained(base, method)
    policy.save(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("model*"))
    again = Policy.load(tmp_path / "adapter")
    assert again.logprobs(two_groups()).equal(policy.logprobs(two_groups()))
    by_peft: PeftModel = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter")
    ids = two_groups().token_ids[:4]
    with torch.no_grad():
        assert (by_peft(input_ids=ids).logits - policy.model(input_ids=ids).logits).abs().max() < 1e-4


def test_an_adapter_folder_names_its_base_so_that_peft_finds_it(base: Path, saved: Path):
    assert AutoPeftModelForCausalLM.from_pretrained(saved).peft_config["default"].r == 4
    facts = inspect_folder(saved)
    assert (facts.adapter, facts.folder, facts.name) == (saved, base, str(base))


@pytest.mark.release
def test_no_rule_of_transformers_about_versions_of_peft_stops_an_adapter(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(min_version: str) -> None:
        raise ValueError("The version of PEFT you are using is not compatible")

    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", refuse)
    policy = trained(base)
    policy.save(tmp_path / "adapter")
    assert frozen(Policy.load(tmp_path / "adapter")).logprobs(two_groups()).equal(policy.logprobs(two_groups()))


@pytest.mark.release
def test_transformers_knows_of_the_adapter_and_saves_no_model_with_layers_that_none_has(base: Path, tmp_path: Path):
    with contextlib.suppress(ValueError):  # what it says of a peft older than the one that it asks for
        trained(base).model.save_pretrained(tmp_path / "by transformers")
    assert not list((tmp_path / "by transformers").glob("model*"))


def test_a_critic_has_an_adapter_of_its_own_on_the_same_base(base: Path):
    policy = Policy.load(base, adapter=METHODS["lora"], optimiser=OptimiserSettings(lr=0.05))
    critic = own_model(policy, lr=0.05)
    own = {weight.data_ptr() for weight in policy.model.parameters()}
    copied = {name for name, weight in critic.forward.model.named_parameters() if weight.data_ptr() not in own}
    assert copied == trained_weights(critic.forward.model).keys()
    before = policy.logprobs(two_groups())
    returns = torch.arange(8.0)[:, None] * two_groups().loss_mask
    batch = two_groups().with_(returns=returns)
    losses = [critic.update(batch.with_(values=critic.values(batch)))["value/loss"] for _ in range(20)]
    assert losses[-1] < losses[0] / 2
    assert policy.logprobs(two_groups()).equal(before)
    state = unpack(*pack(critic.state()))
    assert not any("base_layer" in name for name in state["weights"])
    again = own_model(policy, lr=0.05)
    again.load_state(state)
    assert again.values(two_groups()).equal(critic.values(two_groups()))
    with pytest.raises(ValueError, match="belongs to another model"):
        again.load_state({**state, "weights": dict(list(state["weights"].items())[1:])})


# -------------------------------------------------------------------------------------------------------- what is wrong


def test_an_adapter_that_fits_no_layer_is_refused(base: Path):
    with pytest.raises(ModelError, match=r"the adapter does not fit the model: Target modules \{'nothing'\} not found"):
        Policy.load(base, adapter=LoraConfig(target_modules=["nothing"]))


def test_a_second_adapter_is_refused(saved: Path):
    with pytest.raises(ModelError, match="has an adapter already"):
        Policy.load(saved, adapter=METHODS["lora"])


def test_options_that_peft_refuses_are_a_sentence():
    with pytest.raises(UserError, match='peft has no method "lroa"; it has'):
        adapter_config("lroa")
    with pytest.raises(UserError, match="lora: DoRA does not support megatron_core"):
        adapter_config("lora", use_dora=True, megatron_config={"x": 1})


def test_an_adapter_on_another_base_is_refused(tmp_path: Path):
    tiny_model(tmp_path / "base")
    trained(tmp_path / "base").save(tmp_path / "adapter")
    tiny_model(tmp_path / "base", seed=1)
    with pytest.raises(ModelError, match=r"an adapter of another base: model.safetensors of .*base is not the file"):
        Policy.load(tmp_path / "adapter")


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("adapter_model.safetensors", None, "adapter_model.safetensors is missing"),
        ("adapter_model.safetensors", "x", "adapter_model.safetensors .* is damaged"),
        ("adapter_config.json", "{}", "base_model_name_or_path should name"),
        ("adapter_config.json", '{"base_model_name_or_path": "/nowhere"}', "its base, .*: model /nowhere: no folder"),
        ("base.json", "{}", "base.json cannot be read"),
    ],
)
def test_a_damaged_adapter_folder_is_a_sentence(adapter: Path, file: str, content: str | None, sentence: str):
    (adapter / file).unlink()
    if content is not None:
        (adapter / file).write_text(content)
    with pytest.raises(ModelError, match=sentence):
        Policy.load(adapter)


def test_an_adapter_with_missing_weights_is_refused(base: Path, tmp_path: Path, adapter: Path):
    Policy.load(base, adapter=METHODS["oft"]).save(tmp_path / "oft")
    (tmp_path / "oft/adapter_model.safetensors").rename(adapter / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"adapter_model.safetensors lacks 28, such as model.layers.0"):
        Policy.load(adapter)


def test_an_adapter_that_changes_the_base_at_random_is_refused_new_and_saved(base: Path, adapter: Path):
    with pytest.raises(ModelError, match='init_lora_weights = "pissa_niter_4" changes the base at random'):
        Policy.load(base, adapter=LoraConfig(r=4, init_lora_weights="pissa_niter_4", target_modules="all-linear"))
    file = adapter / "adapter_config.json"
    file.write_text(file.read_text().replace('"init_lora_weights": true', '"init_lora_weights": "pissa_niter_4"'))
    with pytest.raises(ModelError, match='adapter cannot be loaded: init_lora_weights = "pissa_niter_4" changes'):
        Policy.load(adapter)


def test_an_adapter_that_mixes_the_rows_of_a_batch_is_refused_before_it_is_trained(base: Path):
    """The experts of Lily are mixed by their mean weights over all tokens of a batch, those of later ones too."""
    with pytest.raises(ModelError, match="a token reads other rows of its batch, or tokens after it"):
        Policy.load(base, adapter=adapter_config("lily", target_modules=["q_proj"]))


@pytest.mark.release
def test_a_checkpoint_with_an_adapter_takes_at_most_a_quarter_of_the_disk(tmp_path: Path):
    build(tmp_path / "quickstart", seed=0)

    def size(adapter: PeftConfig | None) -> int:
        policy = Policy.load(tmp_path / "quickstart", adapter=adapter)
        policy.update(two_groups(vocabulary=18), grpo(beta=0.0))
        saved = checkpoint.save(tmp_path / f"checkpoints-{adapter is None}", 1, policy.save, Models(policy).state())
        return sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())

    assert size(adapter_config("lora", r=16)) <= 0.25 * size(None)


@pytest.mark.release
def test_a_package_that_peft_refuses_is_named_and_not_the_model(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a process of its own: PEFT remembers which packages it has found."""
    pretend(tmp_path, monkeypatch, torchao="0.14.0")
    (tmp_path / "torchao.py").write_text('__version__ = "0.14.0"')
    program = f"import outdo; outdo.Policy.load({str(base)!r}, adapter=__import__('peft').LoraConfig(r=4))"
    path = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    ended = subprocess.run([sys.executable, "-c", program], env=path, capture_output=True, text=True, timeout=600)
    assert "ModelError: peft" in ended.stderr
    assert 'with torchao 0.14.0: peft attaches no LoRA beside it: pip install "torchao>=0.18"' in ended.stderr
    assert "does not fit the model" not in ended.stderr.splitlines()[-1]
