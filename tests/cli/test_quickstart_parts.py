"""The parts of the first job: a task that is what it says, a model folder like any other."""

import re

import pytest
import torch

from outdo.extras.quickstart.model import build
from outdo.extras.quickstart.sums import Addition, demonstrations, held_out, problems, rows, working
from outdo.models.inspect_folder import inspect_folder
from outdo.models.loading import load_model, load_tokenizer
from outdo.models.prompt_encoding import encode_prompt
from outdo.rewards.exact import exact


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build(tmp_path_factory.mktemp("quickstart") / "model", seed=0)


def carries(text):
    return len(re.findall(r"\d\+\d\+1=", text))


def test_the_written_addition_goes_by_columns_and_carries():
    assert working(Addition(347, 285)) == "7+5=12,4+8+1=13,3+2+1=6#632"
    assert working(Addition(100, 200)) == "0+0=0,0+0=0,1+2=3#300"
    assert working(Addition(999, 999)) == "9+9=18,9+9+1=19,9+9+1=19#1998"
    assert working(Addition(347, 285), forgotten={1}) == "7+5=12,4+8=12,3+2+1=6#622"


def test_every_working_is_right_and_is_wrong_where_a_carry_was_forgotten():
    chosen = problems(500, seed=1)
    for problem, row in zip(chosen, demonstrations(chosen, seed=2), strict=True):
        assert exact(row["completion"], problem.answer)
    for problem, row in zip(chosen, demonstrations(chosen, seed=2, careless=1.0), strict=True):
        assert exact(row["completion"], problem.answer) == (carries(working(problem)) == 0)


def test_what_is_held_out_is_never_trained_on_not_even_mirrored():
    kept = held_out()
    trained = problems(5_000, seed=0, exclude=kept)
    assert len(kept) == 512
    assert not {frozenset(problem) for problem in trained} & {frozenset(problem) for problem in kept}


def test_the_model_is_an_ordinary_folder_that_follows_from_the_seed(folder, tmp_path):
    assert 500_000 < (inspect_folder(folder).parameters or 0) < 1_500_000
    before = torch.get_rng_state()
    again, other = build(tmp_path / "again", seed=0), build(tmp_path / "other", seed=1)
    assert torch.equal(torch.get_rng_state(), before)  # the random numbers of others
    weights = (folder / "model.safetensors").read_bytes()
    assert (again / "model.safetensors").read_bytes() == weights
    assert (other / "model.safetensors").read_bytes() != weights


def test_every_task_text_goes_through_the_tokenizer_unchanged_one_token_a_character(folder):
    tokenizer = load_tokenizer(folder)
    for row in rows(problems(50, seed=1)):
        ids = encode_prompt(tokenizer, row["prompt"])
        assert tokenizer.decode(ids) == row["prompt"]
        assert len(ids) == len(row["prompt"])
    assert tokenizer.unk_token_id not in tokenizer.encode(working(Addition(347, 285)))
    assert tokenizer.encode("347 + 285 :") == tokenizer.encode("347+285:")  # people may type blanks
    assert tokenizer.unk_token_id in tokenizer.encode("three")


def test_the_longest_question_and_answer_fit_the_model(folder):
    hardest = Addition(999, 999)
    ids = load_tokenizer(folder).encode(hardest.prompt + working(hardest))
    assert load_model(folder)(torch.tensor([ids])).logits.shape == (1, len(ids), 18)
    assert len(ids) < (inspect_folder(folder).max_positions or 0)
