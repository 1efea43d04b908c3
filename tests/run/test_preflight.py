"""`check` finds everything that can be known before the model is loaded, and works out what a run costs."""

import io
import json
import shutil
import struct

import pytest
from installed import pretend
from rich.console import Console
from safetensors.torch import load_file, save_file

from outdo.cli.recipe import probe_machine
from outdo.config.file import load
from outdo.models.device import choose_device
from outdo.models.inspect_folder import inspect_folder
from outdo.rollouts.engines.limits import SEQUENCES_AT_A_TIME
from outdo.run.check import cost, step_memory
from outdo.run.check.estimate import Sample, estimate
from outdo.run.check.preflight import Machine, Rendered, check
from outdo.run.check.report import show
from outdo.run.check.sequence_lengths import bound
from outdo.testing import tiny_model
from outdo.utils.errors import ModelError
from outdo.utils.http import HttpReply

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 2,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
PARAMETERS = 1000


@pytest.fixture
def model(tmp_path):
    """A model folder whose weights are one tensor of `PARAMETERS` float32 zeros."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    end = 4 * PARAMETERS
    header = json.dumps({"w": {"dtype": "F32", "shape": [PARAMETERS], "data_offsets": [0, end]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(end))
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data.jsonl"
    rows = [{"question": f"What is {n} [b]?", "answer": f"Count.\n#### {n}"} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def recipe(model, data, *overrides):
    return load(None, [f"model={model}", f"data.path={data}", *overrides])


def printed(report):
    console = Console(file=io.StringIO(), width=200)
    show(report, console)
    return console.file.getvalue()


def test_a_sound_run_has_no_mistakes_and_everything_is_shown(model, data):
    report = check(recipe(model, data), render=lambda question: Rendered(f"<user>{question.text}"))
    assert report.errors == []
    assert report.prompts == ["<user>What is 0 [b]?", "<user>What is 1 [b]?"]
    assert {trial.kind: trial.scored.value for trial in report.trials} == {"reference": 1, "empty": 0, "wrong": 0}
    text = printed(report)
    for part in (
        "<user>What is 0 [b]?",
        "one step: 32 questions × 8 answers = 256 sequences, at most 81,664 tokens",
        "optimiser steps in it: 1 (passes 1 × minibatches 1)",
        "the run: 100 steps, 100 optimiser steps, 80 epochs",
        "columns: question -> prompt, answer -> answer",
        "clip_low and clip_high cannot take effect",
        "= 768 is more than the model's context of 64",
        "Adam's two moments",
        "No errors, 1 warning, ",
    ):
        assert part in text


def test_mistakes_in_data_model_and_reward_are_reported_together(model, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": null, "answer": "1"}\n{')
    report = check(recipe(tmp_path / "modle", broken))
    assert [line.split(": ")[0] for line in report.errors] == ["data.path", "data.path", f"model {tmp_path}/modle"]
    text = printed(report)
    assert "did you mean model?" in " ".join(text.split())
    assert "row 2: broken JSON" in text
    assert text.rstrip().splitlines()[-1].startswith("3 errors, no warnings, ")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return completion.no_such_method()", "scoring the reference answer to question 1 failed"),
        ("return float('nan')", "scoring the reference answer to question 1 gave no finite number"),
        ("while True: pass", "scoring the reference answer to question 1 took too long"),
    ],
)
def test_a_reward_that_fails_is_a_mistake(model, data, tmp_path, body, said):
    (tmp_path / "mine.py").write_text(f"def score(completion, answer):\n    {body}\n")
    report = check(recipe(model, data, f"rewards={tmp_path}/mine.py:score", "reward_limits.timeout=0.5"))
    assert any(said in line for line in report.errors), report.errors


def test_a_reward_that_does_not_prefer_the_reference_is_a_warning(model, data, tmp_path):
    (tmp_path / "mine.py").write_text("def score(completion, answer):\n    return len(completion) == 0\n")
    report = check(recipe(model, data, f"rewards={tmp_path}/mine.py:score"))
    assert report.errors == []
    assert "rewards: the empty answer scores at least as much as the reference answer (1 and 0)" in report.warnings
    assert "rewards: the wrong answer scores at least as much as the reference answer (0 and 0)" in report.warnings


@pytest.mark.parametrize(
    ("options", "longest_prompt", "told"),
    [
        ("cache = 8", 16, None),
        ("cache = 8, max_tokens = 40", 16, "cut at sampling.max_tokens = 32, gets 0 and not -1"),
        ("cache = 20, max_tokens = 40", 16, "cut at sampling.max_tokens = 32, gets -0.6 and not -1"),
        ("cache = 16", 44, "context of 64, after a prompt of 44 tokens, gets -0.25 and not -1"),
        ("cache = 16, max_tokens = 20", 44, None),
    ],
)
def test_a_penalty_for_long_answers_that_no_answer_gets_in_full_is_a_warning(
    model, data, options, longest_prompt, told
):
    rewards = f'rewards=["exact", {{name = "overlong", {options}}}]'
    limits = ("sampling.max_tokens=32", f"data.max_prompt_tokens={longest_prompt}")
    report = check(recipe(model, data, rewards, *limits))
    assert report.errors == []
    found = [line for line in report.warnings if line.startswith("rewards.overlong.max_tokens")]
    assert [told in line for line in found] == ([] if told is None else [True])


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (32, None),
        (33, "after the longest prompt that was looked at, of 33 tokens, is more than the model's context of 64"),
        (None, "data.max_prompt_tokens + sampling.max_tokens = 544 is more than the model's context of 64"),
    ],
)
def test_the_context_is_compared_with_the_prompts_where_their_lengths_are_known(model, data, tokens, told):
    asked = recipe(model, data, "sampling.max_tokens=32", 'rewards=["exact", {name = "overlong", cache = 8}]')
    report = check(asked, render=None if tokens is None else lambda question: Rendered("x", tokens=tokens))
    assert report.errors == []
    assert [told in line for line in report.warnings if "context of 64" in line][:1] == ([] if told is None else [True])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"chat_template": "{{ messages }}"}, None),
        ({}, "has no chat template, and reads an episode"),
        (
            {"chat_template": "{{ messages }}", "outdo_prompt": {"template": "({prompt})="}},
            "was trained with a text template, and reads an episode",
        ),
    ],
)
def test_a_reward_model_that_cannot_read_episodes_is_a_mistake_with_an_environment(model, data, tmp_path, config, told):
    scorer = tmp_path / "scorer"
    shutil.copytree(model, scorer)
    classifier = CONFIG | {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (scorer / "config.json").write_text(json.dumps(classifier))
    (scorer / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "tools.py").write_text("def add(a: int) -> int:\n    return a\n")
    rewards = f'rewards={{name = "reward_model", path = "{scorer}"}}'
    environment = f'environment={{name = "tools", functions = "{tmp_path}/tools.py:add"}}'
    alone, with_environment = (check(recipe(model, data, rewards, *more)).errors for more in ([], [environment]))
    assert not any("reads an episode" in line for line in alone)
    found = [line for line in with_environment if line.startswith(f"rewards.reward_model.path: {scorer}")]
    assert [told in line for line in found] == ([] if told is None else [True])


def test_a_chat_template_that_refuses_is_reported_once(model, data):
    def render(question):
        raise ModelError("the chat template refuses the prompt")

    assert check(recipe(model, data), render=render).errors == ["the chat template refuses the prompt"]


def test_text_from_the_data_cannot_control_the_terminal(model, tmp_path):
    path = tmp_path / "evil.jsonl"
    path.write_text(json.dumps({"question": "[/b]\x1b[2J\u202e", "answer": "\x1b]0;title\x07"}))
    text = printed(check(recipe(model, path)))
    assert "[/b]\\x1b[2J\\u202e" in text
    assert "\x1b" not in text


def test_more_questions_per_step_than_there_are_is_a_warning(model, data):
    report = check(recipe(model, data, "data.eval_rows=5", "train.prompts=36"))
    assert any("the data have only 35 questions" in warning for warning in report.warnings)


def test_more_memory_than_the_machine_has_is_a_warning(model, data):
    asked = recipe(model, data, "sampling.max_tokens=8", "data.max_prompt_tokens=8")
    needed = cost.peak(check(asked).memory)
    for memory, count in ((needed, 0), (needed - 1, 1)):
        report = check(asked, probe=lambda _, memory=memory: Machine([], memory))
        assert sum(warning.startswith("memory: the run takes about") for warning in report.warnings) == count


def test_memory_is_estimated_on_the_device_that_a_run_takes_where_the_recipe_names_none(model, data, tmp_path):
    asked, on_gpu = recipe(model, data), recipe(model, data, "device=cuda")
    found = check(asked, probe=lambda _: Machine([], device="cuda")).memory
    assert found == check(on_gpu).memory
    assert cost.COPY in check(asked).memory
    assert cost.COPY not in found  # it is in main memory
    tiny_model(tmp_path / "tiny")
    assert probe_machine(recipe(tmp_path / "tiny", data)).device == choose_device()[0].type


def test_unknown_tokens_in_a_prompt_are_a_warning(model, data):
    def render(question):
        return Rendered(question.text, tokens=10, unknown=2 if question.id == "3" else 1)

    warnings = check(recipe(model, data), render=render).warnings
    counted = "1 of 40 prompts have characters that the tokenizer does not know"
    assert any(counted in warning and "2 of the 10 tokens of question 3" in warning for warning in warnings)
    (warning,) = (
        each
        for each in check(
            recipe(model, data, "data.limit=1"), render=lambda _: Rendered("☃", tokens=1, unknown=1)
        ).warnings
        if "tokenizer does not know" in each
    )
    assert ("1 of 1 prompt have" in warning, "1 of the 1 token of question 1" in warning) == (True, True)


def test_weights_that_are_not_float32_are_noted(model, data):
    tensors = {name: each.bfloat16() for name, each in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors")
    said = "its weights are bfloat16; they are trained, and saved, in float32"
    assert any(said in note for note in check(recipe(model, data)).notes)


def test_a_hub_model_that_is_not_downloaded_has_no_memory_estimate_and_a_note(data):
    report = check(recipe("nobody-at-all/no-such-model", data))
    assert report.errors == []
    assert report.memory == {}
    assert any("not on this machine yet" in note for note in report.notes)


# ------------------------------------------------------------------------------------------------------------ estimates


def test_the_arithmetic_of_a_run():
    train = ["train.prompts=4", "train.group_size=3", "train.passes=2", "train.minibatches=2"]
    lengths = ["data.max_prompt_tokens=5", "sampling.max_tokens=7"]
    numbers = cost.arithmetic(load(None, ["model=m", "data.path=x", "steps=10", *train, *lengths]), questions=20)
    assert (numbers.sequences, numbers.tokens) == (12, 12 * 12)
    assert (numbers.optimiser_steps, numbers.optimiser_steps_in_all) == (4, 40)
    assert numbers.epochs == 2


def test_memory_is_estimated_from_the_files_alone(model, data):
    facts, small = inspect_folder(model), ["data.max_prompt_tokens=10", "sampling.max_tokens=6", "train.prompts=2"]
    parts = cost.memory(facts, recipe(model, data, *small), reference=True)
    assert parts["weights"] == parts["gradients while training"] == parts["reference weights"] == 4 * PARAMETERS
    assert parts["Adam's two moments"] == 8 * PARAMETERS
    # keys and values × bytes × sequences × tokens × layers × heads × numbers a head
    assert parts["KV cache while sampling"] == 2 * 4 * 16 * 64 * 2 * 2 * 2  # in blocks of 64 tokens
    assert parts["logits while sampling"] == 16 * (4 + 4 + 8) * 100
    assert parts["a chunk of logits while training"] == 2 * 4 * (2 * 10 + 16 * 6) * 100
    keys_values = 2 * 2 * 2  # which answers do not share
    assert parts["activations while training"] == 4 * 2 * ((2 * 10 + 16 * 6) * 30 * 8 + 16 * 10 * keys_values)
    assert parts["weights in another order while sampling"] == 4 * PARAMETERS
    assert parts["copy of the last finished step"] == 4 * 4 * PARAMETERS  # weights, two moments, reference weights
    sampling = parts["KV cache while sampling"] + parts["logits while sampling"] + 4 * PARAMETERS
    training = parts["activations while training"] + parts["a chunk of logits while training"]
    assert cost.peak(parts) == sum(parts.values()) - min(sampling, training)
    assert parts[cost.LIBRARIES] == cost.LIBRARY_BYTES
    assert cost.LIBRARIES not in cost.memory(facts, recipe(model, data, "device=cuda"), reference=True)
    assert "reference weights" not in cost.memory(facts, recipe(model, data), reference=False)


@pytest.mark.parametrize(
    ("settings", "questions", "rows"),
    [
        ("eval.samples=0", 20, 20),
        ("eval.samples=3", 20, 60),
        ("eval.samples=2 eval.greedy=false eval.best=sampled", 20, 40),
        ("eval.samples=3", 4, 16),  # as many as a step has
        ("eval.samples=3", 200, SEQUENCES_AT_A_TIME),
        ("eval.samples=3 cluster.replicas=4", 20, 15),
    ],
)
def test_an_evaluation_with_more_answers_than_a_step_has_a_larger_cache(model, data, settings, questions, rows):
    run = recipe(model, data, "train.prompts=2", "sampling.max_tokens=6", *settings.split())
    sample = Sample(tokens={}, of=40, longest=9)
    parts = estimate(run, inspect_folder(model), sample, Machine(()), questions).memory
    assert parts["KV cache while sampling"] == 2 * 4 * rows * 64 * 2 * 2 * 2
    assert parts["logits while sampling"] == rows * (4 + 4 + 8) * 100


def test_the_check_counts_the_answers_of_an_evaluation(model, data, tmp_path):
    (tmp_path / "held-out.jsonl").write_text("".join(f'{{"prompt": "{n}", "answer": "x"}}\n' for n in range(40)))
    settings = (f"data.eval_path={tmp_path}/held-out.jsonl", "train.prompts=2", "eval.samples=0")
    logits = [
        check(recipe(model, data, *settings, f"eval.rows={rows}")).memory["logits while sampling"] for rows in (30, 40)
    ]
    assert logits == [30 * 16 * 100, 40 * 16 * 100]


@pytest.mark.parametrize(
    ("settings", "trained", "expected"),
    [
        ("device=cuda", None, 2 * PARAMETERS),
        ("device=cuda", 100, 200),
        ("device=cuda precision=float32", None, 0),
        ("precision=bfloat16", None, 2 * PARAMETERS),
        ("device=cuda cluster.replicas=4", None, 2 * PARAMETERS),
        ("device=cuda cluster.replicas=4 cluster.shard=true", None, 0),
    ],
)
def test_sampling_in_bfloat16_keeps_a_copy_of_each_trained_weight(model, data, settings, trained, expected):
    adapter = trained and cost.AdapterSize(trained=trained, base=4 * PARAMETERS)
    parts = cost.memory(inspect_folder(model), recipe(model, data, *settings.split()), reference=False, adapter=adapter)
    assert parts.get("weights in bfloat16 while sampling", 0) == expected
    assert "weights in another order while sampling" not in parts


def test_episodes_of_several_turns_keep_keys_and_values_up_to_a_limit(model, data, tmp_path, monkeypatch):
    facts = inspect_folder(model)
    (tmp_path / "calc.py").write_text("def calc(): ...\n")
    played = recipe(model, data, f'environment={{name = "tools", functions = "{tmp_path}/calc.py:calc"}}')
    once = step_memory.kv_cache(facts, played, bound(played))
    assert cost.memory(facts, played, reference=False)["KV cache between turns while sampling"] == once
    monkeypatch.setattr(step_memory, "EPISODE_CACHE_BYTES", 1000)
    assert cost.memory(facts, played, reference=False)["KV cache between turns while sampling"] == 1000
    assert "KV cache between turns while sampling" not in cost.memory(facts, recipe(model, data), reference=False)


@pytest.mark.parametrize("engine", ['{name = "vllm", python = "python"}', '{name = "builtin", processes = 1}'])
def test_an_engine_in_another_process_samples_in_memory_of_its_own(model, data, engine):
    facts = inspect_folder(model)
    parts = cost.memory(facts, recipe(model, data, f"engine={engine}"), reference=False)
    assert not [name for name in parts if name.endswith("while sampling")]
    assert cost.peak(parts) == sum(parts.values())


BESIDE = '{name = "vllm", python = "python", sleep = true, gpu_memory_utilization = 0.25}'


@pytest.mark.parametrize("rewards", [False, True])
def test_an_engine_that_sleeps_has_memory_of_the_device_while_it_is_awake(model, data, rewards):
    classifier = CONFIG | {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "good"}}
    shutil.copytree(model, scorer := model.with_name("scorer"))
    (scorer / "config.json").write_text(json.dumps(classifier))
    scored = [f'rewards=[{{name = "reward_model", path = "{scorer}"}}]'] if rewards else []

    def memory(engine):
        run = recipe(model, data, "device=cuda", f"engine={engine}", *scored)
        sample, machine = Sample(tokens={}, of=40, longest=9), Machine((), memory=2**40)
        return estimate(run, inspect_folder(model), sample, machine).memory

    alone, beside = memory(BESIDE.replace("true", "false")), memory(BESIDE)
    phases = ["while sampling", "while rewarding"][: 1 + rewards]
    lent = {f"memory lent to the engine {when}": 2**38 - cost.ASLEEP for when in phases}
    assert beside == alone | {cost.ENGINE: cost.ASLEEP} | lent
    kept = sum(size for name, size in alone.items() if not name.endswith("while training"))
    assert cost.peak(beside) == kept + 2**38
    assert (
        cost.peak({name: size for name, size in beside.items() if name not in lent}) == cost.peak(alone) + cost.ASLEEP
    )
    assert ("reward models" in alone) == rewards


def test_an_engine_that_does_not_fit_beside_the_trainer_is_a_warning_that_names_its_share(model, data):
    run = recipe(model, data, "device=cuda", f"engine={BESIDE}")
    found = estimate(run, inspect_folder(model), Sample(tokens={}, of=40, longest=9), Machine((), memory=2**20))
    assert "as does a smaller engine.gpu_memory_utilization" in " ".join(found.warnings)
    assert not any("memory of its own" in note for note in check(run).notes)


def test_a_server_that_cannot_get_the_weights_and_a_missing_interpreter_are_mistakes(
    model, data, tmp_path, monkeypatch
):
    monkeypatch.setattr("outdo.extras.vllm.check.send", lambda *how, **more: HttpReply(404, {}, b""))
    url = 'engine={name = "vllm", url = "http://127.0.0.1:9"}'
    assert check(recipe(model, data, url)).errors[0].startswith("engine.url: this server gets no weights but adapters")
    assert not any("engine.url" in error for error in check(recipe(model, data, url, "train.adapter=lora")).errors)
    process = check(recipe(model, data, f'engine={{name = "vllm", python = "{tmp_path}/python"}}'))
    assert process.errors == [
        f"engine.python: {tmp_path}/python: no such file; `make vllm` creates an environment that has vLLM"
    ]


@pytest.mark.parametrize(
    ("algorithm", "kept", "size"),
    [
        ("adamw", "Adam's two moments", 8 * PARAMETERS),
        ("adamw8bit", "Adam's two moments in 8 bits", 2 * PARAMETERS),
        ("adafactor", "Adafactor's means of rows and columns", PARAMETERS),  # 2 / hidden size of 4 bytes
    ],
)
def test_what_an_algorithm_keeps_is_counted(model, data, algorithm, kept, size):
    asked = recipe(model, data, f"optim.algorithm={algorithm}")
    assert cost.memory(inspect_folder(model), asked, reference=False)[kept] == size


DIVIDED = ("cluster.replicas=4", "cluster.shard=true")


def test_replicas_divide_what_a_run_keeps_and_gather_some_of_it(model, data):
    facts = inspect_folder(model)
    whole, parts = (cost.memory(facts, recipe(model, data, *how), reference=True) for how in ((), DIVIDED))
    for name in (
        "weights",
        "gradients while training",
        "reference weights",
        "Adam's two moments",
        "copy of the last finished step",
    ):
        assert parts[name] == whole[name] / 4
    assert parts["all weights, gathered while sampling"] == 4 * PARAMETERS
    assert parts["layers gathered while training"] == 2 * 4 * PARAMETERS  # weights and gradients of both layers


def test_an_adapter_of_a_divided_base_is_whole(model, data):
    facts, adapter = inspect_folder(model), cost.AdapterSize(trained=100, base=4 * PARAMETERS)
    asked = recipe(model, data, *DIVIDED, "train.adapter=lora")
    parts = cost.memory(facts, asked, reference=True, adapter=adapter)
    assert parts["frozen weights"] == PARAMETERS
    assert (parts["weights of the adapter"], parts["gradients while training"], parts["Adam's two moments"]) == (
        400,
        400,
        800,
    )
    assert parts["layers gathered while training"] == 4 * PARAMETERS  # no gradients
    assert "QLoRA" not in cost.alternatives(facts, asked, reference=True)


def test_parts_in_main_memory_take_none_of_a_gpu(model, data):
    facts, offload = inspect_folder(model), "cluster.shard={offload = true}"
    for device, share in (("cuda", 0), ("cpu", 1)):
        asked = recipe(model, data, "cluster.replicas=4", offload, f"device={device}")
        parts = cost.memory(facts, asked, reference=True)
        kept = ("weights", "gradients while training", "reference weights", "Adam's two moments")
        assert [parts.get(name, 0) for name in kept] == [share * size * PARAMETERS for size in (1, 1, 1, 2)]
        assert parts["all weights, gathered while sampling"] == 4 * PARAMETERS


def test_replicas_that_share_sequences_divide_activations(model, data):
    facts, name = inspect_folder(model), "activations while training"
    tokens = "train.micro_batch_tokens=4096"
    alone, four, pairs = (
        cost.memory(facts, recipe(model, data, tokens, "cluster.replicas=4", *how), reference=True)[name]
        for how in ((), ("attention=ulysses",), ('attention={name = "ulysses", replicas = 2}',))
    )
    assert alone == 4 * four == 2 * pairs


def test_gradient_checkpointing_keeps_a_hidden_state_per_layer_and_one_whole_layer(model, data):
    facts, name = inspect_folder(model), "activations while training"
    plain, again = (
        cost.memory(facts, recipe(model, data, f"train.gradient_checkpointing={value}"), reference=False)[name]
        for value in ("false", "true")
    )
    assert again / plain == pytest.approx((2 + 30) / (2 * 30), rel=0.01)


def test_activations_are_not_estimated_where_the_run_finds_the_micro_batch(model, data):
    parts = cost.memory(inspect_folder(model), recipe(model, data, "train.micro_batch_tokens=auto"), reference=False)
    assert "activations while training" not in parts
    assert parts["a chunk of logits while training"] > 0


def test_the_other_models_of_a_run_are_checked_too(model, data):
    asked = recipe(
        model,
        data,
        "train.objective=ppo",
        "train.critic={name='model', path='nowhere/critic'}",
        "reference.model=nowhere/reference/at/all",
        f"rewards=['exact', {{name='reward_model', path='{model}'}}]",
    )
    mistakes = "\n".join(check(asked).errors)
    assert "reference.model: " in mistakes
    assert "rewards.reward_model.path: " in mistakes
    assert "Qwen3ForCausalLM is no reward model" in mistakes
    nowhere = recipe(model, data, "train.objective=ppo", "train.critic={name='model', path='./nowhere'}")
    assert any(mistake.startswith("train.critic.path: ") for mistake in check(nowhere).errors)


def test_reference_and_critic_are_counted_where_the_method_has_them(model, data):
    critic = "critic with moments"  # its gradients and those of the policy do not exist at the same time
    usual, without, ppo = (
        check(recipe(model, data, *how)).memory for how in ((), ("train.objective.beta=0",), ("train.objective=ppo",))
    )
    assert "reference weights" in usual
    assert "reference weights" not in without
    assert critic not in usual
    assert ppo[critic] == 3 * 4 * PARAMETERS


def test_the_method_is_shown_with_every_option(model, data):
    notes = check(recipe(model, data, "train.objective=ppo", "train.advantage.lam=0.9", "train.compat=verl")).notes
    peer = "in the conventions of verl (docs/methods: means, clamps, clips)"
    assert f"objective: ppo (clip_low = 0.2, clip_high = 0.2), {peer}" in notes
    standardised = check(recipe(model, data, "train.compat=trl")).notes
    assert "advantage: group_standardised (eps = 0.0001)" in standardised
    assert "advantage: gae (gamma = 1.0, lam = 0.9, turns = False, whiten = True, bootstrap = False, ddof = 1)" in notes
    assert "critic: model (lr = 1e-05, clip = 0.2, warmup = 0)" in notes


def test_the_memory_of_an_adapter_is_that_of_the_frozen_weights_and_little_more(data, tmp_path):
    model = tmp_path / "with-layers"
    tiny_model(model)
    facts = inspect_folder(model)
    parameters, linear = facts.parameters or 0, sum(rows * columns for rows, columns in facts.layer_matrices)
    assert 0 < linear < parameters
    sides = sum(rows + columns for rows, columns in facts.layer_matrices)
    options = ["train.adapter={name = 'lora', rank = 2}", "optim.algorithm=adamw"]
    report = check(recipe(model, data, *options))
    full, lora, qlora = (report.alternatives[name] for name in ("full", "LoRA", "QLoRA"))
    assert report.memory == lora
    assert full["weights"] == full["reference weights"] == 4 * parameters
    assert lora["frozen weights"] == 4 * parameters
    assert lora["weights of the adapter"] == lora["gradients while training"] == 4 * 2 * sides
    assert lora["Adam's two moments"] == 8 * 2 * sides
    assert "reference weights" not in lora
    assert qlora["frozen weights"] == 9 * linear // 16 + 2 * (parameters - linear)
    order = "weights in another order while sampling"
    assert (lora[order], qlora[order]) == (4 * parameters, 4 * (parameters - linear))
    assert lora["copy of the last finished step"] == 3 * lora["gradients while training"]
    assert check(recipe(model, data, *options, "weights=nf4")).memory == qlora
    assert check(recipe(model, data)).memory == full
    in_bfloat16 = check(recipe(model, data, *options, "weights=bfloat16")).memory
    assert in_bfloat16["frozen weights"] == 2 * parameters


def test_frozen_weights_in_few_bytes_need_an_adapter(model, data):
    report = check(recipe(model, data, "weights=bfloat16"))
    assert any('weights = "bfloat16": the weights are trained, in float32' in error for error in report.errors)
    assert not check(recipe(model, data, "weights=bfloat16", "train.adapter=lora")).errors


def test_heads_that_cannot_be_divided_among_replicas_are_a_mistake_of_each_model(model, data):
    three = "cluster.replicas=3", "attention=ulysses"
    report = check(recipe(model, data, *three, f"reference.model={model}", "train.objective.beta=0.1"))
    said = f'attention = "ulysses": the 4 attention heads of {model} cannot be divided by the 3 replicas that share a'
    assert [said in error for error in report.errors] == [True, True]
    assert report.errors[1].startswith("reference.model: ")
    assert not check(recipe(model, data, "cluster.replicas=2", "attention=ulysses")).errors


def test_packages_that_do_not_fit_stop_a_run_that_uses_them_before_its_model_loads(model, data, tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    pretend(folder, monkeypatch, peft="0.21.0", torchao="0.15.0")

    def probe(recipe):
        raise AssertionError("it is not reached")

    report = check(recipe(model, data, "train.adapter=lora"), probe=probe)
    pair = 'packages: peft 0.21.0 with torchao 0.15.0: peft attaches no LoRA beside it: pip install "torchao>=0.18"'
    assert report.errors == [pair]
    assert check(recipe(model, data)).errors == []
    assert not [line for line in report.warnings if line.startswith("packages:")]


def test_a_version_outside_a_range_is_a_warning_of_runs_that_use_the_package(model, data, tmp_path, monkeypatch):
    folder = tmp_path / "packages"
    folder.mkdir()
    pretend(folder, monkeypatch, peft="0.21.0,accelerate<0.2")
    lines = check(recipe(model, data, "train.adapter=lora")).warnings
    assert any(line.startswith("packages: peft 0.21.0 needs accelerate<0.2, and ") for line in lines)
    assert not any(line.startswith("packages: peft") for line in check(recipe(model, data)).warnings)
