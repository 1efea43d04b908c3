"""`outdo chat`, through a real terminal."""

import os
import sys

import pexpect
import pytest
from command_cases import chain_model

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
