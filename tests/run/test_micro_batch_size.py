"""How much is computed at once, and by how many: counted, said, and written down for a resume."""

import functools

import pytest
import torch
from torch import nn

from outdo.config.file import dump, load
from outdo.models.limits import LOGIT_BYTES
from outdo.models.policy import Policy
from outdo.run.assemble import assemble, micro_batch_size
from outdo.testing import tiny_model

GIB = 2**30


@pytest.fixture(scope="module")
def policy():
    return Policy(*tiny_model(hidden=16, layers=1))


def test_the_measured_bytes_of_a_small_model_equal_those_computed_by_hand():
    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Tanh(), nn.Linear(8, 2, bias=False), nn.Sigmoid())
    with micro_batch_size.count_saved(model) as count:
        output = model(torch.ones(5, 4))
    # The input; the tanh's result, which is the next layer's input as well; the sigmoid's result. The weights: not.
    assert count.bytes == 4 * 5 * (4 + 8 + 2)
    assert output.requires_grad


def test_each_further_sequence_keeps_as_much_as_the_first(policy):
    sizes = [micro_batch_size.saved_bytes(policy, rows, 32) for rows in (1, 2, 4)]
    assert sizes == [sizes[0], 2 * sizes[0], 4 * sizes[0]]
    assert micro_batch_size.bytes_per_token(policy, 32) == -(-sizes[0] // 32)


def each(policy):
    """Bytes of one more token: what autograd keeps, and two rows of the narrowest piece of its logits."""
    return micro_batch_size.bytes_per_token(policy, 16) + 2 * 4 * 256


def test_half_the_memory_and_twice_the_workers_give_half_the_tokens(policy):
    found = functools.partial(micro_batch_size.find_micro_batch_tokens, policy, longest=16)
    tokens, why = found(free=4 * GIB)
    assert tokens & (tokens - 1) == 0
    assert found(free=2 * GIB)[0] == found(free=4 * GIB, replicas=2)[0] == tokens // 2
    assert found(free=6 * GIB, reserved=4 * GIB)[0] == tokens // 2
    assert f"{each(policy):,} bytes per token, 50% of 4.0 GiB free" in why


def test_the_found_tokens_fit_and_twice_as_many_do_not(policy):
    logits = 2 * LOGIT_BYTES["cpu"]
    tokens, _ = micro_batch_size.find_micro_batch_tokens(policy, longest=16, free=GIB)
    assert tokens * each(policy) + logits <= GIB // 2 < 2 * tokens * each(policy) + logits


@pytest.mark.parametrize("free", [0, 1000, -5])
def test_a_whole_sequence_is_computed_however_little_memory_there_is(policy, free):
    assert micro_batch_size.find_micro_batch_tokens(policy, longest=77, free=free)[0] == 77


def test_the_free_memory_of_a_cpu_is_that_of_a_machine():
    assert 0 < micro_batch_size.free_memory(torch.device("cpu")) < 2**60


# ----------------------------------------------------------------------------------------------------------- in a run


@pytest.fixture
def recipe(tmp_path):
    tiny_model(tmp_path / "model", hidden=16, layers=1)
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    asked = [f"model={tmp_path / 'model'}", f"data.path={tmp_path / 'data.jsonl'}", "device=cpu", "threads=1"]
    return load(None, [*asked, "train.micro_batch_tokens=auto", "sampling.max_tokens=8"])


def test_the_found_tokens_are_noted_used_and_saved(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(micro_batch_size, "free_memory", lambda device: GIB)
    run = assemble.assemble_run(recipe)
    run.reward.close()
    tokens = run.recipe.train.micro_batch_tokens
    assert isinstance(tokens, int)
    assert run.models.policy.batch_sizes.micro_batch_tokens == tokens
    assert run.models.reference.batch_sizes.micro_batch_tokens == tokens
    assert any(note.startswith(f"train.micro_batch_tokens: {tokens:,} (") for note in run.notes)

    saved = tmp_path / "saved.toml"
    saved.write_text(dump(run.recipe))
    monkeypatch.setattr(micro_batch_size, "free_memory", lambda device: GIB // 8)
    again = assemble.assemble_run(load(saved))
    again.reward.close()
    assert again.models.policy.batch_sizes.micro_batch_tokens == tokens
