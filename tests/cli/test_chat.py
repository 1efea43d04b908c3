"""`outdo chat`, through a real terminal."""

import io
import json
import os
import sys

import pexpect
import pytest
from command_cases import SMALL, chain_model
from transformers import AutoTokenizer

SAYS = "ok\x1b[2J\x07"  # would clear the screen and ring


@pytest.fixture
def terminal(tmp_path):
    talking = chain_model(tmp_path / "model", SAYS, after="?", chat=True)
    command = ["-m", "outdo.cli.main", "chat", str(talking), "--temperature", "0", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TERM": "xterm"}
    with pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", timeout=600) as child:
        yield child


def test_a_line_is_answered_harmlessly_and_an_empty_line_ends_it(terminal):
    heard = ""
    for line in ("who are you?", "and now?"):
        terminal.expect_exact("> ")
        heard += terminal.before
        terminal.sendline(line)
        terminal.expect_exact(r"ok\x1b[2J\x07")
        heard += terminal.before
    terminal.expect_exact("> ")
    terminal.sendline("")
    terminal.expect(pexpect.EOF)
    terminal.wait()
    heard += terminal.before
    assert terminal.exitstatus == 0
    assert "an empty line ends the conversation" in heard
    assert "\x1b[2J" not in heard
    assert "\x07" not in heard


@pytest.mark.parametrize("stop", ["b", 0], ids=["text", "token"])
def test_every_command_ends_the_answers_of_a_run_where_its_training_did(outdo, sums, tmp_path, monkeypatch, stop):
    """A model that says abc, in a run whose answers end at b, as a text or as a token id."""
    model, run, out = chain_model(tmp_path / "model", "abc", after="?", chat=True), tmp_path / "run", tmp_path
    if stop == 0:
        stop = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids("b")
    trained = outdo(
        "train",
        f"model={model}",
        f"data.path={sums}",
        *SMALL,
        "steps=1",
        f"sampling.stop={json.dumps([stop])}",
        "sampling.temperature=20",
        f"run={run}",
    )
    assert trained.status == 0, trained.error
    assert outdo("eval", run, "--data", sums, "--limit", 1, "--answers", out / "eval.jsonl").status == 0
    assert outdo("generate", run, "--data", sums, "--limit", 1, "--out", out / "generate.jsonl").status == 0
    for name in ("eval", "generate"):
        assert json.loads((out / f"{name}.jsonl").read_text())["completion"] == "ab"
    monkeypatch.setattr(sys, "stdin", io.StringIO("and now?\n\n"))
    said = outdo("chat", run, "--temperature", 0, "--device", "cpu").out
    assert "ab\n" in said
    assert "abc" not in said
    monkeypatch.setattr(sys, "stdin", io.StringIO("and now?\n\n"))
    assert "ab\n" not in outdo("chat", run, "--device", "cpu").out  # at the temperature of the run any token is likely
