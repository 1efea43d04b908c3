"""A real run of TRL writes the record, and its numbers are those of the model before and after each step."""

import shutil
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback, TrainerControl, TrainerState
from trl import GRPOConfig, GRPOTrainer

from outdo.extras.record import parquet
from outdo.extras.record.trl import TrlRecord
from outdo.run.folder.run_folder import read_metrics
from outdo.testing import tiny_model
from outdo.utils.errors import UserError

# TRL says "gradient checkpointing" where transformers has come to say "activation checkpointing".
pytestmark = pytest.mark.filterwarnings(
    r"ignore:`(is_)?gradient_checkpointing\w*` is deprecated:FutureWarning", "ignore:.*pin_memory.*:UserWarning"
)
STEPS, SIZE = 3, 4
QUESTIONS = {"1+1=": "2", "2+2=": "4", "3+4=": "7", "5+4=": "9"}


def test_the_most_probable_tokens_after_pictures_are_refused() -> None:
    with pytest.raises(UserError, match="those after text alone; leave `top` out"):
        TrlRecord._top_tokens(SimpleNamespace(top=3), {"pixel_values": torch.zeros(1)})  # type: ignore[arg-type]


def shares(completions: list[str], answer: list[str], **_: object) -> list[float]:
    """Something that differs between random answers."""
    return [sum(map(str.isalnum, text)) / 8 for text in completions]


def short(completions: list[str], **_: object) -> list[float | None]:
    """A reward that has nothing to say of some."""
    return [None if "<" in text else 1.0 / (1 + len(text)) for text in completions]


class Weights(TrainerCallback):
    """Keeps the model's weights as they are before and after each step."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Tensor]] = []

    def on_train_begin(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        self.kept.append({name: value.clone() for name, value in model.state_dict().items()})

    def on_step_end(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        self.on_train_begin(model=model)


def trainer_of(folder: Path, **options: Any) -> GRPOTrainer:
    """TRL's trainer on a tiny model, two micro-batches to a step."""
    tiny_model(folder / "model", hidden=16, layers=1)
    settings: dict[str, Any] = {
        "output_dir": str(folder / "trl"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_steps": STEPS,
        "per_device_train_batch_size": SIZE,
        "gradient_accumulation_steps": 2,
        "num_generations": SIZE,
        "max_completion_length": 6,
        "temperature": 0.8,
        "seed": 1,
    }
    return GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=[shares, short],
        args=GRPOConfig(**settings | options),
        train_dataset=Dataset.from_dict({"prompt": list(QUESTIONS), "answer": list(QUESTIONS.values())}),
    )


def logprobs(trainer: GRPOTrainer, weights: dict[str, Tensor], prompt: list[int], ids: list[int]) -> list[float]:
    """Those of a completion, by plain transformers, at the temperature of sampling."""
    model: Any = type(trainer.model)(trainer.model.config).eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.8  # [t, V]
    return logits.log_softmax(-1)[range(len(ids)), ids].tolist()


Run = tuple[Path, GRPOTrainer, Weights]


def recorded(folder: Path, **options: Any) -> Run:
    """A run of TRL, recorded, and its weights before and after each step."""
    weights = Weights()
    trainer = trainer_of(folder, **options)
    trainer.add_callback(TrlRecord(trainer, folder / "run", top=3))
    trainer.add_callback(weights)
    trainer.train()
    return folder / "run", trainer, weights


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Three steps, each on its own generation."""
    return recorded(tmp_path_factory.mktemp("trl"))


@pytest.fixture(scope="module")
def reused(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps on one generation: TRL shuffles it, trains a half in each step, and goes twice over it."""
    options = {"max_steps": 4, "steps_per_generation": 4, "num_iterations": 2, "logging_steps": 1}
    return recorded(tmp_path_factory.mktemp("reused"), **options)


def test_every_step_is_recorded_with_its_groups(run: Run) -> None:
    folder, _, _ = run
    assert parquet.recorded_steps(folder) == [1, 2, 3]
    for step in (1, 2, 3):
        rows = parquet.read(folder, step).to_pylist()
        assert len(rows) == 2 * SIZE
        assert sorted((row["group"], row["rollout"]) for row in rows) == [(g, n) for g in (0, 1) for n in range(SIZE)]
        assert all(row["measured"] for row in rows)
        assert {row["answer"] for row in rows} == {QUESTIONS[row["prompt"]] for row in rows}


def match_the_weights(run: Run, steps: range) -> None:
    """Compare the log-probabilities of the record with those of the weights before and after each step."""
    folder, trainer, weights = run
    for step in steps:
        for row in parquet.read(folder, step).to_pylist():
            for name, kept in (("old_logprobs", weights.kept[step - 1]), ("new_logprobs", weights.kept[step])):
                expected = logprobs(trainer, kept, row["prompt_token_ids"], row["token_ids"])
                assert row[name] == pytest.approx(expected, abs=1e-4)


def test_log_probabilities_match_the_weights_before_and_after(run: Run) -> None:
    match_the_weights(run, range(1, 4))


def test_old_is_the_policy_before_the_step_also_where_an_older_one_generated(reused: Run) -> None:
    match_the_weights(reused, range(1, 5))


def test_the_most_probable_tokens_match_the_log_probabilities(run: Run) -> None:
    folder, _, _ = run
    sampled = 0
    for row in [row for step in (1, 2, 3) for row in parquet.read(folder, step).to_pylist()]:
        for when in ("old", "new"):
            places = zip(row["token_ids"], row["loss_mask"], row[f"{when}_logprobs"], row[f"{when}_top"], strict=True)
            for token, trained_on, logprob, top in places:
                assert (top is not None) == trained_on
                found = {each["token_id"]: each["logprob"] for each in top or ()}
                assert len(found) == 3 * trained_on
                sampled += token in found
                assert not trained_on or logprob == pytest.approx(found.get(token, logprob), abs=1e-4)
                assert not trained_on or token in found or logprob <= min(found.values()) + 1e-4
    assert sampled > 10


def test_rewards_stay_with_their_completions(run: Run) -> None:
    folder, _, _ = run
    for step in (1, 2, 3):
        rows = parquet.read(folder, step).to_pylist()
        for row in rows:
            parts = {"shares": shares([row["text"]], [])[0], "short": short([row["text"]])[0]}
            assert row["reward_parts"] == {name: value and pytest.approx(value) for name, value in parts.items()}
            assert row["reward"] == pytest.approx(sum(value or 0.0 for value in parts.values()))
        for group in (0, 1):
            members = [row for row in rows if row["group"] == group]
            by_reward = sorted(members, key=lambda row: row["reward"])
            assert [row["advantage"] for row in by_reward] == sorted(row["advantage"] for row in members)


def test_the_spread_of_rewards_is_that_of_whole_groups_where_a_step_trains_on_parts(reused: Run) -> None:
    folder, trainer, _ = reused
    of_steps = [parquet.read(folder, step).to_pylist() for step in (1, 2)]  # all of the generation
    rewards: dict[str, list[float]] = {}
    for row in of_steps[0] + of_steps[1]:
        rewards.setdefault(row["prompt"], []).append(row["reward"])
    assert {len(each) for each in rewards.values()} == {SIZE}
    for rows, line in zip(of_steps, read_metrics(folder / "metrics.jsonl"), strict=False):
        answers = Counter(row["prompt"] for row in rows)
        assert min(answers.values()) < SIZE
        assert line["num_groups"] == len(answers)
        assert line["reward_std"] == pytest.approx(stdev(reward for prompt in answers for reward in rewards[prompt]))
        assert line["reward_group_std"] == pytest.approx(mean(stdev(rewards[prompt]) for prompt in answers))
        assert line["frac_reward_zero_std"] == trainer.state.log_history[0]["frac_reward_zero_std"] == 0.0


@pytest.mark.parametrize(
    "options",
    [
        {"num_iterations": 2, "beta": 0.1, "loss_type": "grpo", "steps_per_generation": 4},
        {"mask_truncated_completions": True, "loss_type": "dr_grpo"},
    ],
    ids=["several steps on one generation, and a reference", "truncated completions left out"],
)
def test_other_training_options_are_recorded(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = trainer_of(tmp_path, **options, max_steps=2)
    trainer.add_callback(TrlRecord(trainer, tmp_path / "run", every=2))
    trainer.train()
    assert parquet.recorded_steps(tmp_path / "run") == [2]
    rows = parquet.read(tmp_path / "run", 2).to_pylist()
    assert len(rows) == 2 * SIZE
    assert all((row["ref_logprobs"] is not None) == ("beta" in options) for row in rows)
    if "mask_truncated_completions" in options:
        cut = [row for row in rows if row["finish_reason"] == "length"]
        assert cut
        assert all(set(row["clip"]) <= {"truncated", "environment"} and len(row["token_ids"]) == 6 for row in cut)


def test_a_resumed_run_deletes_later_records(run: Run, tmp_path: Path) -> None:
    folder, trainer, _ = run
    shutil.copytree(folder, tmp_path / "run")
    resumed = TrlRecord(trainer, tmp_path / "run")
    resumed.on_train_begin(trainer.args, TrainerState(global_step=1), TrainerControl())
    assert parquet.recorded_steps(tmp_path / "run") == [1]
    assert [line["step"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [1]


def test_an_unknown_loss_needs_an_objective(run: Run, tmp_path: Path) -> None:
    _, trainer, _ = run
    trainer.args.loss_type = "another"
    with pytest.raises(ValueError, match="loss_type 'another'"):
        TrlRecord(trainer, tmp_path)
