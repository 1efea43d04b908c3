"""What is distributed: complete, the same from every build, and working where there is no repository."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from outdo import __version__

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[1]
COPIES = re.findall(r"^COPY ([^-].*) \S+$", (ROOT / "Containerfile").read_text(encoding="utf-8"), re.MULTILINE)
COPIED = [name for line in COPIES for name in line.split()]


def built(source: Path, out: Path, *kinds: str) -> Path:
    """Build a folder's distributions, without a download; return the last one that was made."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return max(out.iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the container is built from: a copy of the files that its build copies."""
    folder = tmp_path_factory.mktemp("sources")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(sources, tmp_path_factory.mktemp("wheel"), "--wheel")


def test_the_wheel_has_every_file_of_the_package_and_the_licence(sources: Path, wheel: Path):
    with ZipFile(wheel) as file:
        names = set(file.namelist())
    package = {str(path.relative_to(sources / "src")) for path in (sources / "src").rglob("*") if path.is_file()}
    assert len(package) > 300
    about = f"outdo-{__version__}.dist-info"
    assert {name for name in names if not name.startswith(about)} == package
    assert f"{about}/licenses/LICENSE" in names


def test_the_sdist_builds_the_same_wheel_byte_for_byte(wheel: Path, tmp_path: Path):
    sdist = built(ROOT, tmp_path / "dist", "--sdist")
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    again = built(tmp_path / sdist.name.removesuffix(".tar.gz"), tmp_path / "again", "--wheel")
    assert again.read_bytes() == wheel.read_bytes()


def needed(name: str, found: dict[str, Sequence[str]]) -> None:
    """Add to `found` a distribution and those that it needs without extras, with their top-level names."""
    about = distribution(name)
    found[name] = sorted({file.parts[0] for file in about.files or () if file.parts[0] not in ("..", "__pycache__")})
    for line in about.requires or ():
        each = Requirement(line)
        if each.name not in found and (each.marker is None or each.marker.evaluate({"extra": ""})):
            needed(each.name, found)


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, what it says that it needs, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--no-deps", str(wheel)]
    subprocess.run([*command, "--quiet", "--no-index", "--disable-pip-version-check"], check=True, timeout=600)
    packages = next(folder.glob("lib/python*/site-packages"))
    found: dict[str, Sequence[str]] = {}
    needed("outdo", found)
    for each, names in found.items():
        for name in names if each != "outdo" else ():
            place = packages / name
            if not place.exists():
                place.symlink_to(Path(str(distribution(each).locate_file(name))))
    return folder / "bin"


def run(*command: object, cwd: Path) -> str:
    """Run a command as a user does, and return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"COLUMNS": "200"}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_the_wheel_works_in_any_folder_without_the_repository_and_without_extras(clean: Path, tmp_path: Path):
    where = run(clean / "python", "-c", "import outdo; print(outdo.__file__)", cwd=tmp_path)
    assert where.startswith(str(clean.parent))
    assert run(clean / "outdo", "--version", cwd=tmp_path) == f"outdo {__version__}\n"
    assert run(clean / "python", "-m", "outdo", "--version", cwd=tmp_path) == f"outdo {__version__}\n"
    said = run(clean / "outdo", "quickstart", "--task", "sums", "steps=1", cwd=tmp_path)
    assert "the run is in quickstart/seed-0/run-1" in said
    assert (tmp_path / "quickstart/seed-0/run-1/report.html").stat().st_size > 100_000
    assert "Traceback" not in run(clean / "outdo", "doctor", "quickstart/seed-0/run-1", cwd=tmp_path)


def test_bash_completes_commands(tmp_path: Path):
    outdo = Path(sys.executable).with_name("outdo")
    asked = (
        f"source <({outdo} --show-completion bash); COMP_WORDS=(outdo quick); COMP_CWORD=1; _outdo_completion {outdo}"
    )
    assert run("bash", "-c", f"{asked}; echo ${{COMPREPLY[@]}}", cwd=tmp_path) == "quickstart\n"
