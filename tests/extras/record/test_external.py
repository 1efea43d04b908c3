"""A loop that is not outdo's writes the record that outdo would have written."""

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from outdo.algorithms.advantages import group_standardised, per_token
from outdo.algorithms.objectives.presets import dapo
from outdo.extras.record import parquet
from outdo.extras.record.external import TokenValues, record_step, rewind
from outdo.extras.record.movement import movement_metrics
from outdo.extras.record.table import COLUMNS, record_table
from outdo.extras.record.tokens import token_record
from outdo.loop import in_turn, train
from outdo.models.bundle import Models
from outdo.models.optimiser import OptimiserSettings
from outdo.models.policy import Policy
from outdo.models.token_text import TokenTexts
from outdo.run.folder.run_folder import read_metrics
from outdo.run.metrics.metrics import step_metrics
from outdo.testing import tiny_model
from outdo.types import Batch, FinishReason, Group, Prompt, Rollout, Step
from outdo.utils.errors import RunFolderError, UserError

TOKENIZER = tiny_model()[1]


def answered(policy: Policy, questions: Sequence[Prompt], *, step: int) -> list[Group]:
    """Three answers to every question, the first of them right."""
    return [
        Group(
            prompt=question,
            rollouts=tuple(
                Rollout(
                    token_ids=tuple(TOKENIZER.encode(text)),
                    loss_mask=(True,) * len(text),
                    logprobs=(-1.0,) * len(text),
                    text=text,
                    reward=float(n == 0),
                    reward_parts={"exact": float(n == 0)},
                    finish_reason=FinishReason.length if n == 2 else FinishReason.stop,
                    policy_version=0,
                )
                for n, text in enumerate(("42", "7", "nothing"))
            ),
        )
        for question in questions
    ]


def one_step() -> tuple[Step, Tensor]:
    """A step of outdo's own loop, and log πθ after it."""
    policy = Policy(*tiny_model(), optimiser=OptimiserSettings(lr=1e-2))
    texts = ("What is 6 * 7?", "And 21 + 21?")
    questions = [Prompt(id=text, text=text, token_ids=tuple(TOKENIZER.encode(text)), answer="42") for text in texts]
    rollouts = in_turn(policy, [questions], answered)
    step = next(train(Models(policy=policy), rollouts, per_token(group_standardised), dapo()))
    return step, policy.logprobs(step.batch)


def completions_of(values: Tensor, batch: Batch) -> list[list[float]]:
    """A list for each completion."""
    rows = zip(values, batch.prompt_lengths.tolist(), batch.attention_mask.sum(1).tolist(), strict=True)
    return [row[start:end].tolist() for row, start, end in rows]


def record(folder: Path, **given: Any) -> Path:
    """`record_step`, with the values of the tokens among the other arguments."""
    tokens = {field.name: given.pop(field.name) for field in fields(TokenValues) if field.name in given}
    return record_step(folder, tokens=TokenValues(**tokens), **given)


def recorded(folder: Path, order: Sequence[int], step: Step, new: Tensor, **changes: Any) -> Path:
    """The same step through the plain function, its completions in any order."""
    rows = [(group.prompt, each) for group in step.groups for each in group.rollouts]
    batch = step.batch
    assert batch.advantages is not None
    assert step.update is not None
    given: dict[str, Any] = {
        "prompts": [prompt.token_ids for prompt, _ in rows],
        "completions": [each.token_ids for _, each in rows],
        "rewards": [each.reward for _, each in rows],
        "answers": [prompt.answer for prompt, _ in rows],
        "truncated": [each.finish_reason is FinishReason.length for _, each in rows],
        "rollout_logprobs": [each.logprobs for _, each in rows],
        "advantages": completions_of(batch.advantages, batch),
        "old_logprobs": completions_of(step.update.tokens["logprobs"], batch),
        "entropy": completions_of(step.update.tokens["entropy"], batch),
        "new_logprobs": completions_of(new, batch),
    }
    shuffled = {name: [values[place] for place in order] for name, values in given.items()}
    parts = {"exact": [rows[place][1].reward for place in order]}
    return record(folder, step=1, tokenizer=TOKENIZER, reward_parts=parts, objective=dapo(), **shuffled | changes)


def test_record_and_metrics_equal_those_of_the_outdo_loop(tmp_path: Path) -> None:
    step, new = one_step()
    record = token_record(step, dapo(), new)
    own = record_table(step, record, TokenTexts(TOKENIZER), about={})
    assert recorded(tmp_path, range(6), step, new) == parquet.path_of(tmp_path, 1)
    found = parquet.read(tmp_path, 1)
    assert found.schema.names == own.schema.names
    for name in own.schema.names:
        if name != "prompt_id":  # a foreign prompt is named after its tokens
            for a, b in zip(found[name].to_pylist(), own[name].to_pylist(), strict=True):
                assert a == (pytest.approx(b, abs=1e-7) if name in {*COLUMNS, "advantage"} else b), name
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    expected = step_metrics(step) | movement_metrics(record, step.batch)
    of_update = expected.keys() - line.keys()
    assert {name for name in of_update if not name.startswith(("updates/", "passes/"))} <= step.updates[
        0
    ].metrics.keys()
    assert not {name for name in line if name.startswith("updates/")}  # nothing is known of another loop's updates
    assert line == {"step": 1} | {name: pytest.approx(expected[name]) for name in line if name != "step"}
    assert {"reward", "moved_as_intended", "attained"} <= line.keys()


def test_completions_of_a_prompt_form_a_group_in_any_order(tmp_path: Path) -> None:
    step, new = one_step()
    recorded(tmp_path / "a", range(6), step, new)
    recorded(tmp_path / "b", [0, 3, 1, 4, 2, 5], step, new)
    assert parquet.read(tmp_path / "b", 1).to_pylist() == parquet.read(tmp_path / "a", 1).to_pylist()


def test_texts_and_rewards_are_sufficient(tmp_path: Path) -> None:
    record(
        tmp_path,
        step=3,
        tokenizer=TOKENIZER,
        prompts=["2 + 2 = ", "2 + 2 = "],
        completions=["4", "über 😀"],
        rewards=[1.0, None],
        metrics={"mine": 0.5},
    )
    found = parquet.read(tmp_path, 3)
    assert found["text"].to_pylist() == ["4", "über 😀"]
    assert found["reward"].to_pylist() == [1.0, None]
    assert found["status"].to_pylist() == ["ok", "failed"]
    assert found["clip"].to_pylist()[0] == ["untrained"]
    assert found["rollout_logprobs"].to_pylist()[0] == [None]
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["reward"] == 1.0
    assert line["mine"] == 0.5
    assert None not in line.values()


@pytest.mark.parametrize("form", [numpy.asarray, torch.tensor, lambda values: [*numpy.asarray(values)]])
def test_numbers_of_numpy_and_torch_are_recorded_like_those_of_python(tmp_path: Path, form: Any) -> None:
    def written(folder: Path, numbers: Any, verdicts: Any) -> list[dict[str, Any]]:
        given = {"prompts": ["a", "a"], "completions": ["12", "34"], "answers": numbers([4, 5])}
        values = {"advantages": numbers([1.0, -1.0]), "old_logprobs": numbers([[-0.5, -1.0], [-2.0, -0.25]])}
        parts = {"exact": verdicts, "length": numbers([0.5, 0.25])}
        record(folder, step=1, tokenizer=TOKENIZER, rewards=verdicts, reward_parts=parts, **given, **values)
        return parquet.read(folder, 1).to_pylist()

    expected = written(tmp_path / "python", list, [True, False])
    assert [row["right"] for row in expected] == [True, False]
    assert written(tmp_path / "form", lambda values: in_float32(form(values)), form([True, False])) == expected


def in_float32(values: Any) -> Any:
    """As a model computes it."""
    if isinstance(values, list):
        return [in_float32(each) for each in values]
    if isinstance(values, Tensor):
        return values.float() if values.is_floating_point() else values
    return values.astype(numpy.float32) if numpy.issubdtype(values.dtype, numpy.floating) else values


def test_without_log_probabilities_of_the_engine_there_is_no_mismatch(tmp_path: Path) -> None:
    given: dict[str, Any] = {"prompts": ["a", "a"], "completions": ["1", "2"], "rewards": [1.0, 0.0]}
    known: dict[str, Any] = {"advantages": [1.0, -1.0], "old_logprobs": [[-0.5], [-0.5]]}
    record(tmp_path, step=1, tokenizer=TOKENIZER, **given, **known)
    record(tmp_path, step=2, tokenizer=TOKENIZER, **given, **known, rollout_logprobs=[[-1.0], [math.nan]])
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert not [name for name in first if name.startswith("sampling/")]
    assert second["sampling/sampling_logp_difference/far"] == 1.0
    assert second["sampling/sampling_logp_difference/mean"] == 0.5


def test_all_inconsistencies_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        record(
            tmp_path / "run",
            step=1,
            tokenizer=TOKENIZER,
            prompts=["a", [], "b"],
            completions=["12", "3"],
            rewards=[1.0],
            old_logprobs=[[-1.0], [-1.0]],
            reward_parts={"exact": []},
        )
    assert caught.value.problems == (
        "prompts: 3 entries for 2 completions",
        "rewards: 1 entry for 2 completions",
        "reward_parts['exact']: 0 entries for 2 completions",
        "prompts[1]: no tokens",
        "old_logprobs[0]: 1 number for a completion of 2 tokens",
    )
    assert not (tmp_path / "run").exists()


def test_a_step_is_written_once_and_rewind_allows_it_again(tmp_path: Path) -> None:
    def written(step: int, text: str) -> None:
        record(tmp_path, step=step, tokenizer=TOKENIZER, prompts=["a"], completions=[text], rewards=[1.0])

    written(1, "first")
    written(2, "second")
    with pytest.raises(RunFolderError, match="step 2 cannot follow step 2"):
        written(2, "again")
    assert parquet.read(tmp_path, 2)["text"].to_pylist() == ["second"]
    rewind(tmp_path, 1)
    assert parquet.recorded_steps(tmp_path) == [1]
    written(2, "again")
    assert parquet.read(tmp_path, 2)["text"].to_pylist() == ["again"]
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def test_a_truncated_completion_that_is_left_out_of_the_loss_was_sampled_all_the_same(tmp_path: Path) -> None:
    tokens = {"loss_mask": [[0, 0, 0], [1, 1]], "old_logprobs": [[-1.0] * 3, [-1.0] * 2], "advantages": [1.0, -1.0]}
    given = {
        "prompts": [[3], [3]],
        "completions": [[5, 6, 7], [8, 9]],
        "rewards": [1.0, 0.0],
        "truncated": [True, False],
    }
    record(tmp_path, step=1, tokenizer=TOKENIZER, **given, **tokens)
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    found = {name: line[name] for name in ("num_tokens", "completions/mean_length", "num_trained_tokens")}
    assert found == {"num_tokens": 5, "completions/mean_length": 2.5, "num_trained_tokens": 2}
    assert "num_environment_tokens" not in line
    assert parquet.read(tmp_path, 1, ["clip"])["clip"].to_pylist()[0] == ["truncated"] * 3
