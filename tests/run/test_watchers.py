"""What watches a run comes by name, and a run goes on without what was deleted."""

from pathlib import Path

import pytest
from run_cases import metrics

from outdo.config.file import load
from outdo.config.names import WATCHERS
from outdo.run.check.preflight import Report
from outdo.run.checkpoints import checkpoint
from outdo.run.checkpoints.resume import resume
from outdo.run.display import Display
from outdo.run.training import start

SETTINGS = ["eval.every=0", "data.eval_path=", "checkpoint.every=1"]


def missing(name: str) -> str:
    return f"outdo.extras.deleted:{name}"


def test_without_record_and_page_a_run_trains_and_goes_on_with_them_when_they_are_back(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_home)
    said: list[str] = []
    monkeypatch.setattr(Display, "say", lambda self, line: said.append(line))
    folder = own_home / "run"
    with monkeypatch.context() as deleted:
        for name in ("record", "page"):
            deleted.setitem(WATCHERS, name, missing(name))
        assert (
            start(Report(recipe=load("recipe.toml", [*SETTINGS, "steps=1"]), errors=()), folder, Display(live=False))
            == 0
        )
    for name in ("record", "page"):
        assert f"{name}: needs outdo.extras.deleted, which this installation of outdo does not have" in "\n".join(said)
    newest = checkpoint.latest(folder / "checkpoints")
    assert newest is not None
    assert "recorder" not in checkpoint.load_state(newest.path)["parts"]
    assert not (folder / "tokens").exists()
    assert not (folder / "report.html").exists()

    assert resume(folder, ["steps=2"], Display(live=False)) == 0
    assert [line["step"] for line in metrics(folder)] == [1, 2]
    assert [file.name for file in (folder / "tokens").iterdir()] == ["step_000002.parquet"]
    assert (folder / "report.html").exists()
