"""Test functions of the user as tools: one that hangs, crashes or fills its memory ends its own call alone."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from episode_cases import call, question, tool_template

from outdo.config.recipe import Piece
from outdo.extras.episodes.dialogue import Dialogue
from outdo.extras.episodes.environment import Episodes
from outdo.extras.episodes.tools import LateError, ToolError
from outdo.extras.tools.environment import load_episodes
from outdo.extras.tools.tool_worker import ToolWorkers
from outdo.rewards.limits import WorkerLimits
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.testing import ScriptedEngine
from outdo.utils.errors import MachineError, UserError

TOOL = '''
import ctypes, os, threading, time
from pathlib import Path

if Path("broken").exists():
    raise RuntimeError("broken")


def tool(do: str) -> str:
    """Do something.

    Args:
        do: What.
    """
    return ACTIONS[do]()


def leave_an_end():
    threading.Timer(0.2, os._exit, [7]).start()
    return "left"


def wait():
    time.sleep(0.5)
    return os.getpid()


async def later():
    return "later"


ACTIONS = {
    "text": lambda: "a text",
    "table": lambda: {"é": [1, None]},
    "later": later,
    "process": os.getpid,
    "key": lambda: os.environ.get("A_KEY", "none"),
    "raise": lambda: [].pop(),
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: (_ for _ in ()).throw(SystemExit(3)),
    "crash": lambda: ctypes.string_at(0),
    "fill": lambda: [bytearray(1 << 24) for _ in range(1 << 20)],
    "long": lambda: "x" * (1 << 21),
    "hang": lambda: time.sleep(3600),
    "loop": lambda: sum(iter(int, 1)),
    "wait": wait,
    "leave": leave_an_end,
}
'''
LIMITS = WorkerLimits(timeout=600.0, workers=4, memory=0.5)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tool.py").write_text(TOOL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def tool(folder: Path) -> Iterator[ToolWorkers]:
    workers = ToolWorkers("tool.py:tool", str(folder), LIMITS)
    yield workers
    workers.close()


def test_a_result_is_text_or_json_and_an_exception_is_an_error(tool: ToolWorkers) -> None:
    assert tool.call(do="text") == "a text"
    assert tool.call(do="table") == '{"é": [1, null]}'
    assert tool.call(do="later") == "later"
    for do, message in {"raise": "IndexError: pop from empty list", "sys.exit": "SystemExit: 3"}.items():
        with pytest.raises(ToolError, match=message):
            tool.call(do=do)
    with pytest.raises(ToolError, match="the result has 2097152 characters; at most 1048576 are read"):
        tool.call(do="long")


def test_a_tool_that_ends_crashes_or_fills_its_memory_is_an_error_and_other_episodes_go_on(tool: ToolWorkers) -> None:
    with ThreadPoolExecutor() as threads:
        others = [threads.submit(tool.call, do="wait") for _ in range(2)]
        for do, message in {
            "exit": "tool ended its process: exit status 3",
            "crash": "tool ended its process: SIGSEGV",
            "fill": "MemoryError",
        }.items():
            with pytest.raises(ToolError, match=message):
                tool.call(do=do)
        assert all(int(each.result()) for each in others)
    assert tool.call(do="text") == "a text"


def test_a_tool_that_never_returns_is_killed_at_its_deadline(tool: ToolWorkers) -> None:
    process = int(tool.call(do="process"))
    tool.limits = replace(LIMITS, timeout=1.0)
    for do in ("hang", "loop"):
        with pytest.raises(LateError, match="tool had no result after 1 s"):
            tool.call(do=do)
    assert not Path(f"/proc/{process}").exists()
    tool.limits = LIMITS
    assert tool.call(do="text") == "a text"


def test_what_an_earlier_call_left_running_fails_no_other_call(tool: ToolWorkers) -> None:
    tool.call(do="leave")
    assert int(tool.call(do="wait"))


def test_long_calls_run_at_the_same_time_in_no_more_processes_than_are_allowed(tool: ToolWorkers) -> None:
    tool.limits = LIMITS
    with ThreadPoolExecutor(12) as threads:
        processes = Counter(threads.map(lambda _: tool.call(do="wait"), range(12)))
    assert 1 < len(processes) <= 4
    assert sum(processes.values()) == 12


def test_a_tool_whose_process_does_not_start_again_ends_the_run(tool: ToolWorkers, folder: Path) -> None:
    (folder / "broken").touch()
    with pytest.raises(ToolError):
        tool.call(do="exit")
    with pytest.raises(MachineError, match=r"the worker of the tool tool does not start again: .*RuntimeError: broken"):
        tool.call(do="text")


def episodes(**options: Any) -> Episodes:
    return load_episodes(Piece(name="tools", options={"functions": {"name": "tool.py:tool", **options}}))


def test_the_policy_reads_what_a_tool_of_a_recipe_did_and_each_fault_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_KEY", "value")
    monkeypatch.setenv("A_SECRET", "value")
    loaded = episodes(workers=2, environment=["A_KEY"])
    template = tool_template()
    script = [call("tool", do=do) for do in ("key", "table", "exit", "raise")]
    environment = Dialogue(loaded.make, template)
    engine = ScriptedEngine([*script, call("tool", to="x"), "done"], template.tokenizer)
    sampling = SamplingParams(max_tokens=4000)
    (group,) = environment.rollouts(engine, [question(template)], 1, sampling, step=1, purpose="train")
    (rollout,) = group.rollouts
    pairs = zip(rollout.token_ids, rollout.loss_mask, strict=True)
    read = str(template.tokenizer.decode([token for token, own in pairs if not own]))
    for result in (
        "value",
        '{"é": [1, null]}',
        "error: tool ended its process: exit status 3",
        "error: IndexError: pop",
    ):
        assert f"<tool_response>{result}" in read
    assert +Counter(rollout.counts) == {"tools/calls": 5, "tools/raised": 2, "tools/unparsed": 1}


def test_a_file_that_cannot_be_imported_is_refused_before_a_model_loads(folder: Path) -> None:
    (folder / "broken").touch()
    with pytest.raises(UserError, match="RuntimeError: broken"):
        ToolWorkers("tool.py:tool", str(folder), LIMITS)
