"""What source reads besides its arguments: environment variables, and files that it names."""

from pathlib import Path

import pytest

from outdo.utils.source_inputs import files_read, variables_read


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A']",
        "os.environ.get('A', '0')",
        "os.environ.setdefault('A', '0')",
        "os.getenv('A')",
        "getenv('A')",
        "environ['A']",
        "'A' in os.environ",
        "[os.environ[NAME] for _ in '12']",
    ],
)
def test_each_way_to_read_a_variable_is_found(line: str, tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text(f"import os\nfrom os import environ, getenv\nNAME = 'A'\ndef f(completion):\n    return {line}\n")
    assert variables_read(file) == {"A"}


def test_what_is_written_or_computed_is_no_variable_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "reward.py"
    file.write_text("import os\nos.environ['A'] = '1'\nb = os.environ[f'{x}_KEY']\nc = {'A': 1}.get('A')\n")
    assert variables_read(file) == set()
    file.write_text("def broken(:")
    assert variables_read(file) == set() == files_read(file)


@pytest.mark.parametrize(
    "line",
    [
        "open('words.txt')",
        "open('words.txt', 'rb', encoding='utf-8')",
        "open(WORDS)",
        "json.load(open(os.path.join(os.path.dirname(__file__), 'words.txt')))",
        "Path('words.txt').read_text()",
        "(Path(__file__).parent / 'words.txt').read_bytes()",
        "Path(__file__).resolve().parent.joinpath('words.txt').open()",
        "(HERE / 'words.txt').open('r')",
    ],
)
def test_a_file_that_is_read_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = "__file__" in line or "HERE" in line  # of the source; otherwise of the working directory
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    words = (tmp_path if beside else tmp_path / "folder") / "words.txt"
    words.write_text("a")
    file = tmp_path / "reward.py"
    file.write_text(f"WORDS = 'words.txt'\nHERE = Path(__file__).parent\nx = {line}\n")
    assert files_read(file) == {words}


@pytest.mark.parametrize(
    "line",
    [
        "open('words.txt', 'a')",
        "open('words.txt', mode='w')",
        "open('none.txt')",
        "open(f())",
        "'words.txt'",
        "open('words.txt').read(), open('words.txt', 'a').write('b')",  # a log or a cache of its own
        "Path('words.txt').read_text(), Path('words.txt').write_text('b')",
    ],
)
def test_a_file_that_is_written_or_missing_is_not_one_that_is_read(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("a")
    (tmp_path / "reward.py").write_text(f"x = {line}\n")
    assert files_read(tmp_path / "reward.py") == set()
