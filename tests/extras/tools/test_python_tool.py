"""Test the tool `python`: what the policy reads of a program, and how a program and a sandbox can fail."""

from collections import Counter
from typing import Any

import pytest
from episode_cases import call, question, tool_template

from outdo.config.recipe import Piece
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.episode import Player
from outdo.extras.episodes.tools import ToolBox
from outdo.extras.sandbox import Ending, Limits, Outcome, Sandbox, choose, open_sandbox
from outdo.extras.tools.python_tool import PythonTool
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.run.assemble.environment import environment_notes, tools_of
from outdo.testing import ScriptedEngine
from outdo.types import Rollout
from outdo.utils.errors import UserError

LIMITS = Limits(seconds=1, wall_seconds=600.0, memory=256, output=1 << 15)


class Scripted:
    """A sandbox whose runs end as they are told to."""

    name = description = "scripted"

    def __init__(self, *endings: Ending) -> None:
        self.endings = list(endings)

    def run(self, program: str, stdin: str = "", limits: Limits = LIMITS) -> Outcome:
        return Outcome(ending=self.endings.pop(0), stdout="7\n", stderr="no memory for a process", exit_status=0)


def play(code: str, sandbox: Sandbox, **options: Any) -> tuple[Rollout, str]:
    """An episode in which the policy runs a program: the rollout, and what the policy read."""
    limits = options.pop("limits", LIMITS)
    box = ToolBox([PythonTool(sandbox, limits, characters=options.pop("characters", 2000)).tool()])
    template = tool_template()
    environment = Dialogue(lambda: Player(None, box, timeout=600.0), template, max_failed=1.0)
    engine = ScriptedEngine([call("python", code=code), "done"], template.tokenizer)
    sampling = SamplingParams(max_tokens=4000)
    (group,) = environment.rollouts(engine, [question(template)], 1, sampling, step=1, purpose="train")
    (rollout,) = group.rollouts
    pairs = zip(rollout.token_ids, rollout.loss_mask, strict=True)
    read = str(template.tokenizer.decode([token for token, own in pairs if not own]))
    return rollout, read.partition("<tool_response>")[2].partition("</tool_response>")[0]


TRACEBACK = """\
1
Traceback (most recent call last):
  File "program.py", line 2, in <module>
"""


@pytest.mark.parametrize(
    ("code", "metric", "read"),
    [
        ("print(6 * 7)", None, "42"),
        ("pass", None, "(the program printed nothing)"),
        ("print(1)\n1 / 0", "raised", TRACEBACK),
        ("print(1)\n1 / 0", "raised", "ZeroDivisionError: division by zero\nerror: the program ended with status 1"),
        ("import ctypes\nctypes.string_at(0)", "raised", "error: the program ended with SIG"),
        ("raise SystemExit(3)", "raised", "error: the program ended with status 3"),
        ("x = bytearray(1 << 30)", "raised", "error: the program was ended: it needed more than 256 MiB of memory"),
        ("while True: print('x' * 999)", "raised", "error: the program was ended: it printed more than 32 KiB"),
        (
            "print(1, flush=True)\nwhile True: pass",
            "timed_out",
            "1\nerror: the program was ended after 1 s of computing",
        ),
    ],
)
def test_the_policy_reads_what_a_program_prints_and_how_it_failed(code: str, metric: str | None, read: str) -> None:
    rollout, result = play(code, open_sandbox(unsafe_local=True))
    assert read in result
    assert +Counter(rollout.counts) == {"tools/calls": 1, **({} if metric is None else {f"tools/{metric}": 1})}
    assert rollout.status == "ok"


def test_a_program_that_waits_is_ended_by_the_clock() -> None:
    limits = Limits(seconds=60, wall_seconds=1.0)
    rollout, result = play("import time; time.sleep(3600)", open_sandbox(unsafe_local=True), limits=limits)
    assert result == "error: the program was ended after 60 s of computing, or 1 s by the clock"
    assert rollout.counts["tools/timed_out"] == 1


def test_the_middle_of_a_long_output_is_left_out() -> None:
    _, result = play("print('a' * 50 + 'b' * 50)", open_sandbox(unsafe_local=True), characters=11)
    assert result == f"{'a' * 6}\n[89 characters are not shown]\n{'b' * 5}"


def test_a_sandbox_that_fails_once_is_tried_again_and_the_policy_notices_nothing() -> None:
    rollout, result = play("print(7)", Scripted(Ending.infrastructure, Ending.exited))
    assert (rollout.status, result.splitlines()[0]) == ("ok", "7")
    assert +Counter(rollout.counts) == {"tools/calls": 1}


def test_a_sandbox_that_fails_twice_is_a_verdict_and_no_result() -> None:
    rollout, result = play("print(7)", Scripted(Ending.infrastructure, Ending.infrastructure))
    assert (rollout.status, result) == ("unavailable", "")
    assert not rollout.scored


def test_without_a_sandbox_the_tool_is_refused_unless_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "TIERS", {})
    open_sandbox.cache_clear()
    with pytest.raises(UserError, match=r"no sandbox for programs of the model works on this machine"):
        tools_of(Piece(name="tools", options={"functions": ["python"]}))
    allowed = Piece(name="tools", options={"functions": {"name": "python", "unsafe_local": True}})
    (schema,) = tools_of(allowed)({})
    assert list(schema["function"]["parameters"]["properties"]) == ["code"]
    (note,) = environment_notes(allowed)
    assert "the tool python runs programs in NO SANDBOX" in note
    open_sandbox.cache_clear()
