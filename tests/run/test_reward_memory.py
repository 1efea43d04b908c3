"""The bytes of reward models, which `outdo check` adds to those of the policy: from the files alone."""

import json
import struct

import pytest

from outdo.config.file import load
from outdo.run.check import cost
from outdo.run.check.preflight import check
from outdo.run.check.reward_memory import reward_memory, reward_sizes

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
}
POLICY, CLASSIFIER = 1000, 3000
KEPT, LEARNT, COPY = "reward models", "gradients and moments of reward models", "copy of the last finished step"
IN_A_LAYER = "model.layers.0.mlp.up_proj.weight"
LEARNS = "labels = 'exact', every = 2"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A policy and a reward model, in a folder to be in: 1,000 and 3,000 float32 zeros, 2,000 of them in layers."""
    for name, weights, architecture in (
        ("model", {"w": [POLICY]}, "Qwen3ForCausalLM"),
        (
            "rm",
            {"score.weight": [1000], "model.layers.0.mlp.up_proj.weight": [50, 40]},
            "Qwen3ForSequenceClassification",
        ),
    ):
        folder = tmp_path / name
        folder.mkdir()
        kind = {"architectures": [architecture], "num_labels": 1}
        (folder / "config.json").write_text(json.dumps(CONFIG | kind))
        header, end = {}, 0
        for key, shape in weights.items():
            size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        written = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + bytes(end))
    rows = [{"question": f"What is {n}?", "answer": f"#### {n}"} for n in range(40)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(options="", *more):
    reward = f"rewards={{name = 'reward_model', path = 'rm'{', ' * bool(options)}{options}}}"
    return load(None, ["model=model", "data.path=data.jsonl", reward, *more])


def parts_of(options="", *more):
    asked = recipe(options, *more)
    return reward_memory(reward_sizes(asked), asked)


def test_a_frozen_reward_model_is_its_weights(home):
    assert parts_of() == {KEPT: 4 * CLASSIFIER}
    assert parts_of("base_weights = 'bfloat16'") == {KEPT: 2 * CLASSIFIER}
    assert parts_of("base_weights = 'int8'") == {KEPT: 2000 + 4 * 50 + 2 * 1000}  # a scale for each of 50 rows


def test_a_reward_model_that_learns_has_gradients_moments_and_activations(home):
    lengths = ("data.max_prompt_tokens=10", "sampling.max_tokens=5", "train.group_size=4")
    parts = parts_of(f"{LEARNS}, batch = 3", *lengths)
    tokens = 3 * 4 * (10 + 5 + 1)  # all answers of a batch, with their end tokens
    assert parts == {
        KEPT: 4 * CLASSIFIER,
        LEARNT: 12 * CLASSIFIER,
        COPY: 12 * CLASSIFIER,  # weights and moments
        "activations of a reward model while rewarding": 4 * 5 * 30 * tokens * 8,
    }
    assert COPY not in parts_of(LEARNS, "device=cuda")  # it is in main memory
    many = parts_of(LEARNS, "data.max_prompt_tokens=1000", "sampling.max_tokens=1047", "train.group_size=2")
    assert many["activations of a reward model while rewarding"] == 4 * 5 * 30 * 16384 * 8


def test_replicas_divide_a_reward_model_and_gather_layers_to_compute(home):
    """Three of five layers of 2,000 weights, and what is outside of layers; with gradients where it learns."""
    divided = ("cluster.replicas=4", "cluster.shard=true")
    gathered = "layers of a reward model gathered while rewarding"
    assert parts_of("", *divided) == {KEPT: CLASSIFIER, gathered: 4 * (1000 + 1200)}
    learned = parts_of(LEARNS, *divided)
    assert (learned[LEARNT], learned[COPY]) == (3 * CLASSIFIER, 3 * CLASSIFIER)
    assert learned[gathered] == 2 * 4 * (1000 + 1200)
    assert parts_of("base_weights = 'int8'", *divided)[KEPT] == 4200  # quantised ones stay whole
    ahead = ("train.max_staleness=1", "engine={name = 'builtin', processes = 1}")
    assert parts_of("", *divided, *ahead) == {KEPT: 4 * CLASSIFIER}
    offloaded = parts_of("", "cluster.replicas=4", "cluster.shard={offload = true}", "device=cuda")
    assert offloaded == {gathered: 4 * (1000 + 1200)}


def test_only_reward_models_on_the_device_of_the_policy_count(home):
    assert parts_of("device = 'cpu'", "device=cuda") == {}
    assert parts_of("device = 'cpu'", "device=cpu") == parts_of("device = 'cpu'") == {KEPT: 4 * CLASSIFIER}
    assert parts_of("device = 'auto'", "device=cuda") == {KEPT: 4 * CLASSIFIER}


def test_the_check_adds_reward_models_and_scores_after_it_samples(home):
    small = ("data.max_prompt_tokens=4", "sampling.max_tokens=4", "train.objective.beta=0")
    report = check(recipe(LEARNS, *small))
    plain = check(load(None, ["model=model", "data.path=data.jsonl", *small])).memory
    assert report.errors == []
    assert report.memory[KEPT] == 4 * CLASSIFIER
    assert report.memory[COPY] == plain[COPY] + 12 * CLASSIFIER
    phases = [sum(size for name, size in report.memory.items() if name.endswith(when)) for when in cost.PHASES]
    assert all(phases)
    assert cost.peak(report.memory) == sum(report.memory.values()) - sum(phases) + max(phases)


def test_a_reward_model_that_is_missing_is_an_error_and_adds_nothing(home):
    report = check(load(None, ["model=model", "data.path=data.jsonl", "rewards={name='reward_model', path='./no'}"]))
    assert any(line.startswith("rewards.reward_model.path: ") for line in report.errors)
    assert KEPT not in report.memory


def test_a_reward_model_that_is_not_downloaded_is_a_note(home):
    asked = ["model=model", "data.path=data.jsonl", "rewards={name='reward_model', path='nobody-at-all/no-such-model'}"]
    report = check(load(None, asked))
    assert KEPT not in report.memory
    said = "reward model nobody-at-all/no-such-model: not on this machine yet; the estimate of memory leaves it out"
    assert said in report.notes
