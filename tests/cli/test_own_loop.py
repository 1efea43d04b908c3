"""The loop of docs/checkpoints.md: stopped and started again, it is the loop that was not stopped, bit for bit."""

import json
import re
import runpy
from pathlib import Path

import pytest
from run_cases import SCORE

from outdo.run.checkpoints.checkpoint import weights_hash
from outdo.run.checkpoints.names import saved_steps
from outdo.testing import tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


def run_to(steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the program in a folder to a step; the hash of the weights in its newest checkpoint."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    smaller = program.replace("STEPS, FOLDER = 20", f"STEPS, FOLDER = {steps}").replace("max_tokens=48", "max_tokens=4")
    assert smaller.count(f"= {steps}, ") == 1
    monkeypatch.chdir(folder)
    smaller = smaller.replace("per_step=32", "per_step=3").replace('"exact"', '"score.py:score"')
    (folder / "loop.py").write_text(smaller)
    runpy.run_path(str(folder / "loop.py"))
    assert saved_steps(folder / "loop" / "checkpoints") == [steps, steps - 1]
    return weights_hash(folder / "loop" / "checkpoints" / f"step_{steps:06d}")


def test_the_loop_of_the_page_continues_bit_for_bit(tmp_path, monkeypatch):
    homes = [tmp_path / name for name in ("straight", "stopped")]
    for home in homes:
        tiny_model(home / "quickstart" / "seed-0" / "warm")
        rows = [{"prompt": f"{n}", "answer": f"{n}"} for n in range(10)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (home / "quickstart" / "seed-0" / "questions.jsonl").write_text(text)
        (home / "score.py").write_text(SCORE)
    straight = run_to(5, homes[0], monkeypatch)
    assert run_to(2, homes[1], monkeypatch) != straight
    assert run_to(5, homes[1], monkeypatch) == straight
    assert run_to(5, homes[1], monkeypatch) == straight  # there is nothing left to do
