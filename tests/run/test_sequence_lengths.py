"""Memory is estimated from the prompts that are there, in the micro-batches that the run makes of them."""

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from outdo.config.file import load
from outdo.config.recipe import Recipe
from outdo.data.questions import Question
from outdo.models.inspect_folder import inspect_folder
from outdo.models.policy import Policy
from outdo.run.assemble.micro_batch_size import bytes_per_token
from outdo.run.check import cost
from outdo.run.check.estimate import Machine
from outdo.run.check.preflight import Rendered, Report, check
from outdo.run.check.sequence_lengths import (
    SAMPLED,
    SequenceLengths,
    largest_micro_batch,
    micro_batches,
    sampled_places,
)
from outdo.run.check.step_memory import numbers_of_layer
from outdo.testing import byte_bpe_tokenizer, tiny_model
from outdo.types.rows import pack_by_tokens

SMALL = ["train.prompts=2", "train.group_size=4", "sampling.max_tokens=10", "steps=8"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and questions of which number n has n characters."""
    folder = tmp_path_factory.mktemp("lengths")
    tiny_model(folder / "model")
    rows = [{"prompt": "x" * (n + 1), "answer": "1"} for n in range(40)]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def recipe(home: Path, *settings: str) -> Recipe:
    return load(None, [f"model={home / 'model'}", f"data.path={home / 'data.jsonl'}", *SMALL, *settings])


def by_characters(question: Question) -> Rendered:
    text = str(question.text)
    return Rendered(text, tokens=len(text))


def checked(home: Path, *settings: str) -> Report:
    return check(recipe(home, *settings), render=by_characters)


# ----------------------------------------------------------------------------------------------------------- the sample


def test_a_sample_is_spread_over_all_questions_and_has_all_of_few():
    assert sampled_places(0, 2) == sampled_places(0, 0) == []
    assert sampled_places(1, 2) == [0]
    assert sampled_places(5, 2) == [0, 1, 2, 3, 4]
    places = sampled_places(10 * SAMPLED + 3, 2)
    assert places[:2] == [0, 1]  # which are also shown
    assert len(places) == SAMPLED
    assert {after - before for before, after in pairwise(places[2:])} == {10, 11}


def test_prompts_of_known_length_take_the_place_of_the_longest_allowed(home: Path):
    known, unknown = checked(home), check(recipe(home))
    name = "activations while training"
    assert known.memory[name] < unknown.memory[name] / 5
    said = "memory: estimated with prompts of 1 to 40 tokens (40 of 40 questions), each computed once for its group"
    assert any(note.startswith(said) for note in known.notes)
    said = "tokens for each prompt, as many as are allowed, since the data were not tokenised"
    assert any(said in note for note in unknown.notes)


def test_streamed_questions_are_sampled_as_well(home: Path):
    path = f"data.path={{path = '{home / 'data.jsonl'}', streaming = true}}"
    assert checked(home, path).memory == checked(home).memory


def test_prompts_that_are_refused_are_an_error_and_those_left_out_a_warning(home: Path):
    allowed = "data.max_prompt_tokens=30"
    worst = "question 40: its prompt has 40 tokens, more than the 30 allowed"
    counted = "10 of 40 training prompts looked at are too long (data.max_prompt_tokens)"
    assert checked(home, allowed, "data.overlong=refuse").errors[0] == f"{worst}; {counted}"
    dropped = checked(home, allowed)
    assert dropped.errors == []
    assert f"{worst}, and is left out; {counted}" in dropped.warnings
    assert any("prompts of 1 to 30 tokens" in note for note in dropped.notes)
    none_left = check(recipe(home, "data.max_prompt_tokens=1"), render=lambda question: Rendered("x", tokens=2))
    assert none_left.errors[0].startswith("question 1: its prompt has 2 tokens, more than the 1 allowed; 40 of 40")
    assert not checked(home, "data.max_prompt_tokens=40", "data.overlong=refuse").errors


def test_the_longest_of_many_prompts_is_found_outside_the_sample(home: Path, tmp_path: Path):
    rows = [{"prompt": "x" * (50 if n in (1234, 1235) else 5) + str(n), "answer": "1"} for n in range(10 * SAMPLED)]
    (tmp_path / "many.jsonl").write_text("\n".join(map(json.dumps, rows)))
    settings = ["data.max_prompt_tokens=30", f"data.path={tmp_path / 'many.jsonl'}"]
    (warning,) = (each for each in checked(home, *settings).warnings if "too long" in each)
    worst = "question 1235: its prompt has 54 tokens, more than the 30 allowed"
    counted = f"2 of {SAMPLED + 8} training prompts looked at, of 2,560 training questions, are too long"
    assert warning == f"{worst}, and is left out; {counted} (data.max_prompt_tokens)"
    found = checked(home, *settings, "data.overlong=refuse")
    assert found.errors[0] == f"{worst}; {counted} (data.max_prompt_tokens)"
    assert any(f"prompts of 6 to 9 tokens ({SAMPLED} of 2,560 questions)" in note for note in found.notes)


def test_a_held_out_prompt_that_is_too_long_is_found_as_well(home: Path, tmp_path: Path):
    (tmp_path / "held_out.jsonl").write_text(
        json.dumps({"prompt": "x" * 50, "answer": "1"}) + "\n" + json.dumps({"prompt": "x", "answer": "1"})
    )
    settings = ["data.max_prompt_tokens=45", f"data.eval_path={tmp_path / 'held_out.jsonl'}"]
    worst = "question 1: its prompt has 50 tokens, more than the 45 allowed"
    counted = "1 of 2 held-out prompts looked at are too long (data.max_prompt_tokens)"
    assert f"{worst}, and is left out; {counted}" in checked(home, *settings).warnings
    assert checked(home, *settings, "data.overlong=refuse").errors == [f"{worst}; {counted}"]


# ------------------------------------------------------------------------------------------------------- micro-batches


@pytest.mark.parametrize("budget", [1, 60, 200, 1000])
def test_micro_batches_are_those_of_a_run(budget: int):
    random = Random(budget)
    for group in (1, 3, 8):
        prompts = [random.randint(1, 40) for _ in range(9)]
        rows = len(prompts) * group - group // 2  # the last group is of another process in part
        lengths = [prompts[row // group] + 10 for row in range(rows)]
        groups = [row // group for row in range(rows)]
        expected = pack_by_tokens(range(rows), lengths, groups, budget, whole_groups=False)
        found = micro_batches(prompts, 10, group, budget, rows)
        assert [sum(count for _, count in part) for part in found] == [len(part) for part in expected]
        for part, of_run in zip(found, expected, strict=True):
            assert [place for place, count in part for _ in range(count)] == [groups[row] for row in of_run]


def test_a_shared_prompt_counts_once_and_a_padded_one_for_each_answer(home: Path):
    step = recipe(home)
    shared, padded = (
        largest_micro_batch(SequenceLengths(prompts=(30,), completion=10, shared=shared), step)
        for shared in (True, False)
    )
    assert shared is not None
    assert padded is not None
    assert (shared.tokens, shared.repeated) == (2 * 30 + 8 * 10, 8 * 30)
    assert (padded.tokens, padded.repeated) == (8 * (30 + 10), 0)


def test_one_long_prompt_among_many_counts_as_often_as_a_step_has_it(home: Path):
    lengths = SequenceLengths(prompts=(*[20] * 63, 400), completion=10)
    found = largest_micro_batch(lengths, recipe(home, "steps=1000"))
    assert found is not None
    assert 2 * 20 + 8 * 10 <= found.tokens <= 400 + 20 + 8 * 10


# ------------------------------------------------------------------------------------------------------------- a layer


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_the_numbers_of_a_layer_are_those_that_autograd_keeps(architecture: str, tmp_path: Path):
    make, config = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}[architecture]
    tokenizer = byte_bpe_tokenizer([], 264)
    torch.manual_seed(0)
    sizes = {"vocab_size": 264, "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 16}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    make(config(**sizes, **ends, num_attention_heads=6, num_key_value_heads=2)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    counted = bytes_per_token(Policy.load(tmp_path, device="cpu"), 128) / 4 / 4  # per layer, in float32
    assert numbers_of_layer(inspect_folder(tmp_path), 96, 4) == pytest.approx(counted, rel=0.1)


# ------------------------------------------------------------------------------------------------------------ the copy


def test_the_copy_of_a_step_counts_where_it_fits(home: Path):
    asked = recipe(home)
    whole = check(asked).memory
    held = cost.peak(whole) - whole[cost.COPY] - whole[cost.LIBRARIES]
    for free, has in ((held + 4 * whole[cost.COPY], True), (held + 4 * whole[cost.COPY] - 1, False)):
        report = check(asked, probe=lambda _, free=free: Machine([], free=free))
        assert (cost.COPY in report.memory) == has
