"""The names of runs and of folders."""

from pathlib import Path

import pytest

from outdo.utils.run_names import folder_name


@pytest.mark.parametrize(
    ("given", "name"),
    [(".", "sums"), ("./", "sums"), ("../sums", "sums"), ("..", "models"), ("owner/name", "name"), ("a/b/", "b")],
)
def test_a_folder_has_a_name_however_it_is_given(
    given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "sums"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    assert folder_name(given) == name
