"""The lock, constraints.txt: complete, inside the ranges of pyproject.toml, and usable with any index."""

import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, Sequence[str]] = PROJECT["project"]["optional-dependencies"]
STATED = [
    *PROJECT["project"]["dependencies"],
    *(line for lines in EXTRAS.values() for line in lines),
    *PROJECT["build-system"]["requires"],
]
PLATFORMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"))
SYSTEMS = [
    {
        "python_version": f"3.{minor}",
        "python_full_version": f"3.{minor}.7",
        "sys_platform": name,
        "platform_system": system,
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "os_name": "posix",
    }
    for minor in (11, 12, 13, 14)
    for name, system, machine in PLATFORMS
]


def lines(name: str) -> list[str]:
    """The lines of a file that are no comments."""
    return [line for line in (ROOT / name).read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]


def pins(system: dict[str, str] | None = None, file: str = "constraints.txt") -> dict[str, list[str]]:
    """The versions of each package that a lock has for a system, or for the one that runs this."""
    found: dict[str, list[str]] = {}
    for each in map(Requirement, lines(file)):
        if each.marker is None or each.marker.evaluate(system):
            found.setdefault(canonicalize_name(each.name), []).append(str(each.specifier).removeprefix("=="))
    return found


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-vllm.txt"])
def test_each_line_is_one_version_of_one_package_and_names_no_index_no_address_and_no_build(file: str):
    pin = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.!]*( ; [^#@]+)?")  # no +cpu, no hash, no @ URL
    assert len(lines(file)) > 150
    assert [line for line in lines(file) if not pin.fullmatch(line)] == []


@pytest.mark.parametrize("file", ["constraints.txt", "constraints-vllm.txt"])
def test_no_python_and_platform_has_two_versions_of_a_package(file: str):
    twice = {name for system in SYSTEMS for name, versions in pins(system, file).items() if len(versions) > 1}
    assert twice == set()


def test_each_dependency_is_pinned_inside_its_range_for_every_python_and_platform():
    for system in SYSTEMS:
        locked = pins(system)
        for each in map(Requirement, STATED):
            assert canonicalize_name(each.name) in locked, f"{each.name} is not in constraints.txt: make lock"
            version = locked[canonicalize_name(each.name)][0]
            assert version in each.specifier, f"constraints.txt has {each.name} {version}, pyproject.toml {each}"


@pytest.mark.parametrize("stem", ["constraints", "constraints-vllm"])
def test_the_pins_that_a_person_chose_are_in_the_lock(stem: str):
    assert set(lines(f"{stem}.in")) <= set(lines(f"{stem}.txt"))


def needed(name: str, extras: Sequence[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the installed packages that one needs, with extras of it, and the packages that these need."""
    try:
        stated = [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return
    for extra in ("", *extras):
        if (name, extra) not in seen:
            seen.add((name, extra))
            yield name
            for each in stated:
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    yield from needed(canonicalize_name(each.name), sorted(each.extras), seen)


def test_every_installed_package_that_outdo_or_an_extra_needs_is_pinned():
    installed = set(needed("outdo", sorted(EXTRAS), set())) - {"outdo"}
    assert len(installed) > 150
    assert installed - pins().keys() == set()


def test_the_tests_run_with_the_versions_of_the_lock():
    locked = pins()
    differ = [
        f"{name} {found} (constraints.txt: {locked[name][0]})"
        for name in sorted(set(needed("outdo", sorted(EXTRAS), set())) & locked.keys())
        if Version(found := distribution(name).version).public != locked[name][0]
    ]
    if differ and os.environ.get("CI_NEEDS_LOCK") != "1":
        pytest.skip(f"this environment was not made by `make test`: {', '.join(differ)}")
    assert differ == []
