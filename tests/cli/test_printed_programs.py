"""The Python examples of the README and of docs/pieces.md run as they are printed."""

import re
import runpy
from pathlib import Path

import torch
from command_cases import chain_model
from transformers import AutoModelForCausalLM

import outdo
from outdo.extras.quickstart.command import write_data
from outdo.testing import tiny_model

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_loop.py"
README = ROOT / "README.md"
PIECES = ROOT / "docs" / "pieces.md"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_readme_has_the_same_example():
    program = EXAMPLE.read_text(encoding="utf-8").partition('"""\n\n')[2]
    assert program in blocks(README)


def test_the_program_has_fifteen_lines():
    (program,) = blocks(README)
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 15


def test_the_program_trains_a_model_and_saves_it(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "quickstart" / "seed-0"
    write_data(folder, 0)
    chain_model(folder / "warm", "7", after=":")
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(EXAMPLE), run_name="__main__")
    trained = names["policy"].model.state_dict()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"step {n}" for n in range(1, 21)]
    assert all(re.fullmatch(r"step \d+: \d+% right", line) for line in lines)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "trained").state_dict()
    assert all(torch.equal(weight, trained[name]) for name, weight in loaded.items())


def test_the_pieces_of_the_page_work_in_a_loop_of_plain_transformers_and_give_what_it_shows(tmp_path, monkeypatch):
    untrained, _ = tiny_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for block in blocks(PIECES):
        exec(compile(block, str(PIECES), "exec"), names)
    trained = names["model"].state_dict()
    assert [name for name, weight in untrained.state_dict().items() if not torch.equal(weight, trained[name])]
    batch, logits = names["batch"], names["logits"].detach()
    expected = logits[:, :-1].log_softmax(-1).gather(-1, batch.token_ids[:, 1:, None]).squeeze(-1)
    torch.testing.assert_close(names["logprobs"][:, 1:].detach(), expected)
    mask = batch.loss_mask
    per_answer = (batch.advantages * mask).sum(1) / mask.sum(1)  # the ratio is 1 in a first pass
    torch.testing.assert_close(names["terms"].policy.detach(), per_answer.mean())
    rewards, group = names["rewards"], names["group"]
    torch.testing.assert_close(outdo.group_centred(rewards, group), torch.tensor([0.5, -0.5, 0.0, 0.0]))
    root = 0.5**0.5
    expected = torch.tensor([0.5 / (root + 1e-6), -0.5 / (root + 1e-6), 0.0, 0.0])
    torch.testing.assert_close(outdo.group_standardised(rewards, group), expected)
