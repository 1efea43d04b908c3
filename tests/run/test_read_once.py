"""A run reads its questions once: what the check has read is what it trains on."""

from collections import Counter
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from run_cases import write_home

from outdo.cli.train import TrainOptions, run_train
from outdo.data import splits
from outdo.run.display import Display


@pytest.mark.parametrize("options", [TrainOptions(), TrainOptions(dry_run=True)], ids=["trained", "dry"])
def test_each_file_of_questions_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: TrainOptions):
    paths, read_rows = Counter[str](), splits.read_rows

    def counted(path: str, **how: Any) -> Any:
        paths[path] += 1
        return read_rows(path, **how)

    monkeypatch.chdir(write_home(tmp_path))
    monkeypatch.setattr(splits, "read_rows", counted)
    settings = ["recipe.toml", "run=./run", "steps=1"]
    assert run_train(settings, Display(Console(file=StringIO()), live=False), options) == 0
    assert paths
    assert set(paths.values()) == {1}
