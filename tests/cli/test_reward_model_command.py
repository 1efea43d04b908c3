"""`outdo reward-model` makes a reward model of a language model, and says how well it ranks what it has not seen."""

import json
import random
import re
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from outdo.extras.reward_models.command import hold_out
from outdo.extras.reward_models.online_model import reward_model as load_reward_model
from outdo.rewards import RewardInput
from outdo.rewards.comparisons import Comparison
from outdo.rewards.context import RewardContext


def answers(count, *, digits, seed=0):
    source = random.Random(seed)
    return [f"{source.randrange(10, 100)}{source.choice(digits)}" for _ in range(count)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Even numbers are preferred, which nothing says."""
    both = zip(answers(200, digits="02468"), answers(200, digits="13579"), strict=True)
    rows = [{"prompt": f"{n}?", "chosen": good, "rejected": bad} for n, (good, bad) in enumerate(both)]
    return write(tmp_path_factory.mktemp("data") / "pairs.jsonl", rows)


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Four answers to each question, those that are even worth 1."""
    found = answers(400, digits="0123456789")
    rows = [
        {"id": n // 4, "prompt": f"{n // 4}?", "completion": text, "reward": 1 - int(text) % 2}
        for n, text in enumerate(found)
    ]
    return write(tmp_path_factory.mktemp("data") / "scored.jsonl", rows)


def options(settings: dict[str, Any]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


@pytest.fixture
def reward_model(outdo, model, tmp_path):
    """The command, with what the tests leave as it is."""

    def run(data, **how):
        settings = {"out": tmp_path / "reward", "lr": 3e-3, "steps": 60, "batch": 16, "device": "cpu", **how}
        start = settings.pop("model", model)
        return outdo("reward-model", start, "--data", data, *options(settings))

    return run


@pytest.fixture
def trained(reward_model):
    """What it printed, having done all it was asked to."""

    def run(data, **how):
        done = reward_model(data, **how)
        assert (done.status, done.error) == (0, "")
        return done.out

    return run


@pytest.fixture
def refused(reward_model):
    """The lines in which it said what was wrong."""

    def run(data, **how):
        done = reward_model(data, **how)
        assert (done.status, done.out) == (2, "")
        return done.error.removeprefix("outdo: ").splitlines()

    return run


def held_out_share(printed):
    return float(re.search(r"held-out: pairwise accuracy ([\d.]+)% of", printed)[1]) / 100


def test_preferences_make_a_folder_that_transformers_ranks_with_and_that_is_trained_on(trained, pairs, tmp_path):
    printed = trained(pairs)
    learnt = held_out_share(printed)
    assert learnt > 0.85
    told = [line for line in printed.splitlines() if line.startswith("step ")]
    assert len(told) == 20
    assert re.fullmatch(r"step 3/60  pairwise accuracy [\d.]+% of 48 pairs  loss [\d.]+  \d+ s left", told[0])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "reward").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reward")
    rows = [torch.tensor([[*tokenizer.encode(f"7?{text}"), tokenizer.eos_token_id]]) for text in ("312", "311")]
    with torch.no_grad():
        better, worse = (float(model(row).logits) for row in rows)
    assert better > worse
    again = trained(pairs, model=tmp_path / "reward", out=tmp_path / "more", steps=1, lr=0.0)
    assert held_out_share(again) == learnt
    assert f"(before training {learnt:.1%})" in again


def test_rated_answers_teach_the_same_by_regression(trained, scored):
    assert held_out_share(trained(scored, kind="regression")) > 0.85


def test_the_same_seed_writes_the_same_bits(trained, pairs, tmp_path):
    printed = [re.sub(r"\d+ s left", "", trained(pairs, out=tmp_path / name, steps=4)) for name in ("one", "two")]
    assert printed[0].replace("one", "two") == printed[1]
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second


def test_all_mistakes_are_reported_at_once_before_a_model_is_loaded(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("outdo.extras.reward_models.command.RewardModel", None)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("")
    rows = [
        {"prompt": "1?", "chosen": "2", "rejected": "3"},
        {"prompt": "", "chosen": "2", "rejected": "3"},
        {"prompt": "1?", "chosen": None, "rejected": 3},
        {"prompt": "1?", "chosen": "2"},
    ]
    data = write(tmp_path / "pairs.jsonl", rows)
    told = refused(data, out=tmp_path / "mine", model=tmp_path / "modle")
    assert [line.removeprefix(f"{data}, ") for line in told] == [
        f"{tmp_path / 'mine'}: exists and is not empty; choose a new folder",
        told[1],
        'row 2: column "prompt" is empty',
        'row 3: column "chosen" is null',
        'row 3: column "rejected" is neither text nor chat messages that end with one by the assistant',
        'row 4: no column "rejected"',
    ]
    assert "no folder 'modle'" in told[1]
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_ratings_that_are_no_numbers_or_never_differ_are_refused(refused, tmp_path):
    rows = [{"prompt": "1?", "completion": "2", "reward": value} for value in (1, "0.5", "good", True)]
    told = refused(write(tmp_path / "scored.jsonl", rows), kind="scored")
    assert [line.partition(", ")[2] for line in told] == [
        "row 3: column \"reward\" holds 'good', which is not a number"
    ]
    rows = [{"prompt": f"{n}?", "completion": "2", "reward": n} for n in range(6)]
    told = refused(write(tmp_path / "scored.jsonl", rows), kind="scored")
    assert "two answers with different rewards to one prompt" in told[0]


def test_columns_format_and_kind_are_found_and_the_first_comparison_is_shown(trained, scored, tmp_path, chat_model):
    assert "format: rated answers; --kind scored" in trained(scored, steps=1, out=tmp_path / "rated")
    asked = {"role": "user", "content": "1?"}
    rows = [
        {
            "chosen": [asked, {"role": "assistant", "content": "2"}],
            "rejected": [asked, {"role": "assistant", "content": "3"}],
        }
    ]
    data = write(tmp_path / "pairs.jsonl", rows)
    printed = trained(data, model=chat_model, steps=1, holdout=0.0).splitlines()
    assert printed[0] == f"{data}: 1 prompt; format: preference, implicit prompt; --kind pairs"
    assert printed[1:5] == [
        "the first comparison, as the model reads it; value 1:",
        "<|user|>1?<|end|><|assistant|>2<|end|>",
        "the first comparison, as the model reads it; value 0:",
        "<|user|>1?<|end|><|assistant|>3<|end|>",
    ]


def test_a_template_is_kept_with_the_reward_model_until_another_one_is_given(trained, pairs, tmp_path, chat_model):
    def read(**how):
        lines = trained(pairs, steps=1, **how).splitlines()
        return lines[lines.index("the first comparison, as the model reads it; value 1:") + 1]

    first = read(model=chat_model, template="(({prompt}))=")
    assert re.fullmatch(r"\(\(\d+\?\)\)=\d+<\|end\|>", first)
    assert read(model=tmp_path / "reward", out=tmp_path / "further") == first
    reward = load_reward_model(RewardContext(), path=str(tmp_path / "further"), device="cpu")
    assert reward.tokenizer.decode(reward.encode("7?", "312")) == "((7?))=312<|end|>"
    options = read(model=tmp_path / "reward", out=tmp_path / "options", template="{enable_thinking = false}")
    assert options.startswith("<|user|>")


def test_a_held_out_prompt_is_not_trained_on():
    asked = [Comparison(prompt=f"{n % 20}", completions=(str(n), "x"), values=(1, 0)) for n in range(100)]
    train, apart = hold_out(asked, 0.2, seed=0)
    assert {each.prompt for each in train}.isdisjoint(each.prompt for each in apart)
    assert len({each.prompt for each in apart}) == 4
    assert hold_out(asked, 0.2, seed=0) == (train, apart) != hold_out(asked, 0.2, seed=1)
    assert hold_out(asked, 0.0, seed=0) == (asked, [])


def test_comparisons_that_are_too_long_are_left_out_with_a_message(trained, tmp_path):
    rows = [{"prompt": f"{n}?", "chosen": "2", "rejected": "3" * (900 if n == 3 else 1)} for n in range(6)]
    printed = trained(write(tmp_path / "pairs.jsonl", rows), steps=1, holdout=0.0)
    assert "left out: 1 of 6 comparisons, longer than the model's context of 512 tokens" in printed


@pytest.mark.release
def test_an_adapter_is_trained_with_its_head_and_rewards_answers(outdo, reward_model, pairs, model, tmp_path):
    done = reward_model(pairs, adapter='{name = "lora", rank = 8, alpha = 16}', base_weights="int8", lr=1e-2)
    assert done.status == 0
    assert held_out_share(done.out) > 0.85
    assert sorted(path.name for path in (tmp_path / "reward").glob("*.safetensors")) == ["adapter_model.safetensors"]
    reward = load_reward_model(
        RewardContext(), path=str(tmp_path / "reward"), labels="exact", every=1, device="cpu", base_weights="int8"
    )
    even, odd = reward([RewardInput(prompt="7?", completion=text, answer=None) for text in ("312", "311")])
    assert even.value > odd.value
    further = reward_model(
        pairs, model=tmp_path / "reward", out=tmp_path / "further", base_weights="int8", steps=1, lr=0.0
    )
    assert f"(before training {held_out_share(done.out):.1%})" in further.out


def test_a_wrong_adapter_is_reported_with_the_other_mistakes(outdo, model, tmp_path):
    arguments = ("--data", tmp_path / "none.jsonl", "--out", tmp_path / "out", "--adapter")
    for command in ("reward-model", "sft"):
        for text, sentence in (
            ("lor", '--adapter: nothing is called "lor"'),
            ("{name = 'lora', rnk = 4}", "--adapter.rnk"),
            ("{name = 'lora', targets = ['foo']}", "--adapter: the adapter does not fit the model: "),
            ("[4]", "--adapter: expected a name, or a table such as {name = \"lora\", rank = 32}, found '[4]'"),
        ):
            done = outdo(command, model, *arguments, text)
            assert done.status == 2
            assert sentence in done.error
            assert "none.jsonl" in done.error
        done = outdo(command, model, *arguments[:-1], "--base-weights", "int8")
        assert done.status == 2
        assert "--base-weights int8: the weights are trained, in float32" in done.error
