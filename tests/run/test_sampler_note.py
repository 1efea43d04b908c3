"""A run says how it samples, and whether sampler and trainer agree."""

import io
import re

import pytest
from engine_cases import other_model
from rich.console import Console
from run_cases import write_home, write_rows

from outdo.cli.recipe import probe_machine
from outdo.config.file import load
from outdo.rollouts.engines import builtin
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.run.check import fallbacks
from outdo.run.check.preflight import Report
from outdo.run.display import Display
from outdo.run.training import start
from outdo.testing import byte_bpe_tokenizer

BART = {"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64, "d_model": 32, "init_std": 0.2}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Train a decoder of the BART type, which counts positions from its padding, for two steps; return the output."""
    home = write_home(tmp_path)
    write_rows(home / "train.jsonl", [{"prompt": "0" * n + "1+1=", "answer": "2"} for n in (0, 9)])
    model = other_model("bart", **BART)
    model.generation_config.forced_eos_token_id = None
    model.save_pretrained(home / "bart")
    byte_bpe_tokenizer([], 264).save_pretrained(home / "bart")
    monkeypatch.chdir(home)

    def trained(*settings: str) -> str:
        recipe = load(home / "recipe.toml", ["model=bart", "steps=2", "eval.every=0", *settings])
        console = Console(file=io.StringIO(), width=200)
        assert start(Report(recipe=recipe, errors=()), home / "run", Display(console, live=False)) == 0
        return console.file.getvalue()

    return trained


def test_a_run_says_how_it_samples_where_that_is_not_the_fastest_way(run):
    said = run()
    assert (
        "warning: sampling: model.generate with prompts of one length at a time (model.generate: its log-prob" in said
    )
    assert "without continuous batching; sampling takes twice as long or more" in said
    assert "warning: attention: padded (it counts positions itself, and does not read those that it is given)" in said
    assert "sampler and trainer differ" not in said


@pytest.mark.parametrize("arch", ["bart", "llama"])
def test_a_check_warns_of_what_the_run_will_warn_of(tmp_path, arch, monkeypatch):
    home = write_home(tmp_path)
    monkeypatch.chdir(home)
    other_model(arch, **(BART if arch == "bart" else {})).save_pretrained(home / arch)
    byte_bpe_tokenizer([], 264).save_pretrained(home / arch)
    recipe = load(home / "recipe.toml", [f"model={home / arch}"])
    warnings = probe_machine(recipe).warnings
    expected = ["attention: padded", "sampling: model.generate"] if arch == "bart" else []
    assert [" ".join(each.split()[:2]) for each in warnings] == expected


def test_a_model_too_large_to_be_tried_before_it_is_loaded_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(fallbacks, "MOST_WEIGHTS", 1000)
    monkeypatch.chdir(write_home(tmp_path))
    recipe = load(tmp_path / "recipe.toml")
    notes = probe_machine(recipe).notes
    assert any("is known when it is loaded: two of its layers are too large" in note for note in notes)


@pytest.mark.parametrize(("precision", "lines"), [("float32", 1), ("bfloat16", 0)])
def test_a_difference_between_sampler_and_trainer_is_in_the_line_of_the_first_step(run, monkeypatch, precision, lines):
    wrong = next(mode for mode in MODES if not mode.continuous)
    monkeypatch.setattr(builtin, "choose_mode", lambda *how: SamplingChoice(wrong))
    said = run(f"precision={precision}")
    assert len(re.findall(r"^step 1/2 .* sampler and trainer differ by [\d.]+ nats", said, re.MULTILINE)) == lines
    assert said.count("sampler and trainer differ by") == lines
