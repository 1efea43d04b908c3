"""`make release`: notes from the changelog, a valid bill of materials, and two builds that are the same.

The library that validates one takes seconds to import: only the test that needs it does so.
"""

import hashlib
import json
import subprocess
import sys
from importlib.metadata import requires, version
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[1]
CHANGES = """# Changes

## 0.3.0 · not released yet

- new

## 0.2.0 · 2026-11-01

- old

## 0.1.0 · 2026-10-01

- first
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = spec_from_file_location("release", ROOT / ".ci/release.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notes_are_the_section_of_the_version(release):
    assert release.release_notes(CHANGES, "0.2.0") == "# outdo 0.2.0 · 2026-11-01\n\n- old\n"
    assert release.release_notes(CHANGES, "0.1.0").endswith("- first\n")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert len(release.release_notes(changes, version("outdo"), draft=True)) > 1_000


def test_a_version_without_a_section_or_a_date_is_refused(release):
    with pytest.raises(ValueError, match=r"expected a section '## 0\.2 · DATE'"):
        release.release_notes(CHANGES, "0.2")
    with pytest.raises(ValueError, match=r"0\.3\.0 is 'not released yet'; write its date there, or add --draft"):
        release.release_notes(CHANGES, "0.3.0")
    assert "- new" in release.release_notes(CHANGES, "0.3.0", draft=True)


def test_the_bill_of_materials_is_valid_names_every_dependency_and_is_the_same_each_time(release):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    said = release.bill_of_materials(b"a wheel", 1_700_000_000)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
    assert said == release.bill_of_materials(b"a wheel", 1_700_000_000)
    told = json.loads(said)
    assert told["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(b"a wheel").hexdigest()
    names = {each["name"]: each for each in told["components"]}
    needed = [Requirement(line) for line in requires("outdo") or ()]
    assert {each.name for each in needed if each.marker is None} <= names.keys()
    assert names["torch"]["purl"].startswith("pkg:pypi/torch@")
    assert "pytest" not in names  # what an extra brings is no part of it
    graph = {each["ref"]: each.get("dependsOn", []) for each in told["dependencies"]}
    assert ("torch" in graph["outdo"], "sympy" in graph["torch"]) == (True, True)


@pytest.mark.long
def test_the_command_writes_two_equal_builds_their_hashes_and_nothing_else(tmp_path):
    if not (ROOT / ".git").exists():
        pytest.skip("the command builds a commit, and this is no checkout")
    command = [sys.executable, str(ROOT / ".ci/release.py"), "--draft", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    made = f"outdo-{version('outdo')}"
    files = {f"{made}-py3-none-any.whl", f"{made}.tar.gz", "outdo.cdx.json", "release_notes.md"}
    assert {path.name for path in tmp_path.iterdir()} == files | {"SHA256SUMS"}
    for line in (tmp_path / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == digest
        files.remove(name)
    assert not files


def test_two_builds_that_differ_end_the_command(release, monkeypatch, tmp_path):
    builds = iter([{"a.whl": b"1", "a.tar.gz": b"2"}, {"a.whl": b"1", "a.tar.gz": b"3"}])
    monkeypatch.setattr(release, "built", lambda _: next(builds))
    monkeypatch.setattr(sys, "argv", ["release.py", "--draft", "--out", str(tmp_path / "dist")])
    with pytest.raises(SystemExit, match=r"two builds of one commit differ: a\.tar\.gz"):
        release.main()
    assert not (tmp_path / "dist").exists()
