"""Every benchmark script imports: a renamed module does not break a script that runs only once in a while."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parents[2].glob("benchmarks/*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_script_imports(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(script.parent)
    assert runpy.run_path(str(script), run_name="imported")
