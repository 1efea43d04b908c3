"""The installed packages that outdo uses: their versions, and which of them do not fit.

Only their metadata is read: packages that cannot be imported together are examined too, and nothing is slow.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Literal, NamedTuple, get_args

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from outdo.utils.errors import OutdoError

OUTDO = "outdo"
OF_DEVELOPERS = ("dev", "docs", "peers")
"""Extras that no run uses: their ranges are about outdo's own tests."""

DOCTOR = "outdo doctor --packages"
"""The command that prints what this module finds."""

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = get_args(Level)


class Pair(NamedTuple):
    """Versions of two packages that do not fit, of which their metadata says nothing."""

    one: str
    other: str
    why: str
    install: str
    extras: tuple[str, ...]  # those of outdo that it concerns
    level: Level = "error"  # a note is about programs beside outdo


PAIRS = (
    Pair("peft>=0.21", "torchao<0.16", "peft attaches no LoRA beside it", "torchao>=0.18", ("adapters",)),
    Pair(
        "transformers>=5.16",
        "accelerate<1.1",
        "transformers takes it for not installed, and reads no weights in int8 or nf4 without it",
        "accelerate>=1.1",
        ("int8", "8bit"),
        "warning",
    ),
    Pair(
        "transformers>=5.24",
        "peft<0.22",
        "add_adapter and load_adapter of transformers refuse it; outdo uses neither, so that this concerns only other "
        "programs, which can call peft.get_peft_model",
        "transformers<5.24",
        ("adapters",),
        "note",
    ),
)


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package, and the versions that outdo was made for."""

    name: str
    version: str
    range: str


@dataclass(frozen=True, slots=True)
class Misfit:
    """Packages that do not fit: a sentence, and what to install.

    An error is a known fault, a warning is a version that the metadata of a package excludes.
    """

    level: Level
    text: str
    install: str

    def __str__(self) -> str:
        return f'{self.text}: pip install "{self.install}"'


class _Need(NamedTuple):
    by: str  # the package that needs another one, with its version or its extra
    requirement: Requirement


def packages(extras: Collection[str] | None = None) -> list[Package]:
    """Return the installed packages that outdo itself names: those of its core and of some extras, or of all."""
    ranges: dict[str, SpecifierSet] = {}
    for _, requirement in _own_needs(extras):
        name = canonicalize_name(requirement.name)
        ranges[name] = ranges.get(name, SpecifierSet()) & requirement.specifier
    installed = ((name, version_of(name), str(ranges[name])) for name in sorted(ranges))
    return [Package(name, version, text) for name, version, text in installed if version]


def misfits(extras: Collection[str] | None = None) -> list[Misfit]:
    """Return which packages do not fit, known pairs first: those of outdo's core and of some extras, or of all extras.

    An extra whose packages are not installed is left out.
    """
    return [*_pairs(extras), *_outside(list(_all_needs(extras)))]


def version_of(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def with_versions(names: Sequence[str]) -> str:
    """Return the installed ones of these packages with their versions, as `peft 0.21.0, torch 2.13.0`."""
    return ", ".join(f"{name} {version}" for name in names if (version := version_of(name)))


def explained(fault: str, error: BaseException, extras: Collection[str] = ()) -> str:
    """Return one sentence about an exception of a library: `fault` and its text, unless the packages are to blame.

    They are if a pair of them is known not to fit, or if the exception is an `ImportError`: such a text is about a
    library, not about the model or the setting with which it was called. `extras` are those of outdo in use.
    """
    said = " ".join(str(error).split()) or type(error).__name__
    unfitting = () if isinstance(error, OutdoError) else misfits(extras)
    if known := [str(misfit) for misfit in unfitting if misfit.level == "error"]:
        return f"{'; '.join(known)} (a library says: {said})"
    if isinstance(error, ImportError):
        fault = f"the installed packages do not work together ({_versions(extras)})"
    others = [str(misfit) for misfit in unfitting if misfit.level == "warning"]
    hint = f"; `{DOCTOR}` examines them all" if isinstance(error, ImportError) else ""
    return f"{fault}: {said}" + (f" (perhaps because {'; '.join(others)})" if others else hint)


def not_imported(error: ImportError, name: str, missing: str, extras: Collection[str] = ()) -> str:
    """Return the sentence for a package that cannot be imported: `missing` if it is not there, else why it cannot."""
    absent = isinstance(error, ModuleNotFoundError) and (error.name or name).partition(".")[0] == name
    return missing if absent else explained(f"{name} cannot be imported", error, extras)


def _versions(extras: Collection[str]) -> str:
    heavy = {"torch", "transformers"} | {requirement.name for _, requirement in _own_needs(extras, core=False)}
    return with_versions([OUTDO, *sorted(heavy)])


def _pairs(extras: Collection[str] | None) -> Iterator[Misfit]:
    """Yield the known pairs that are installed here and concern some extras, or any."""
    for pair in PAIRS:
        requirements = Requirement(pair.one), Requirement(pair.other)
        concerns = extras is None or set(extras).intersection(pair.extras)
        if concerns and all(map(_is_met, requirements)):
            names = " with ".join(with_versions([requirement.name]) for requirement in requirements)
            yield Misfit(pair.level, f"{names}: {pair.why}", pair.install)


def _outside(needs: Sequence[_Need]) -> Iterator[Misfit]:
    """Yield each need that is not met, with what meets all needs of that package."""
    versions = {need.requirement.name: version_of(need.requirement.name) for need in needs}
    for by, requirement in needs:
        name, version = requirement.name, versions[requirement.name]
        if not _is_in(version, requirement):
            all_of_it = SpecifierSet()
            for _, other in needs:
                if canonicalize_name(other.name) == canonicalize_name(name):
                    all_of_it &= other.specifier
            installed = f"{version} is installed" if version else "it is not installed"
            yield Misfit("warning", f"{by} needs {name}{requirement.specifier}, and {installed}", f"{name}{all_of_it}")


def _is_met(requirement: Requirement) -> bool:
    return _is_in(version_of(requirement.name), requirement)


def _is_in(version: str | None, requirement: Requirement) -> bool:
    """Return whether an installed version meets a requirement. One without the form of a version meets none."""
    try:
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:  # as old versions of packaging say
        return False


def _own_needs(extras: Collection[str] | None, *, core: bool = True) -> Iterator[_Need]:
    """Yield what outdo needs: its core, and those packages of its extras that are installed."""
    all_of_them = _extras_of(OUTDO) - set(OF_DEVELOPERS)
    if core:
        yield from _needs_of(OUTDO)
    for extra in sorted(all_of_them if extras is None else all_of_them.intersection(extras)):
        for need in _needs_of(OUTDO, extra):
            if version_of(need.requirement.name):
                yield need


def _all_needs(extras: Collection[str] | None) -> Iterator[_Need]:
    """Yield what outdo needs, and what these packages need in turn."""
    waiting, seen = list(_own_needs(extras)), set[tuple[str, str]]()
    while waiting:
        need = waiting.pop(0)
        yield need
        name = canonicalize_name(need.requirement.name)
        for extra in sorted({"", *need.requirement.extras}):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += _needs_of(name, extra)


def _needs_of(name: str, extra: str = "") -> Iterator[_Need]:
    """Yield what a package needs here, by its metadata: itself, or only for one extra; nothing if it is not there."""
    by = f"{name}[{extra}] {version_of(name)}" if extra else f"{name} {version_of(name)}"
    for requirement in _requirements_of(name):
        if _applies(requirement, extra) and not (extra and _applies(requirement, "")):
            yield _Need(by, requirement)


def _applies(requirement: Requirement, extra: str) -> bool:
    """Return whether a requirement is one of this machine's, if the package is installed with an extra."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _requirements_of(name: str) -> Iterator[Requirement]:
    """Yield what the metadata of a package requires, without lines that are not requirements, as old packages have."""
    try:
        lines = metadata.requires(name) or ()
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        with suppress(InvalidRequirement):
            yield Requirement(line)


def _extras_of(name: str) -> set[str]:
    try:
        return set(metadata.metadata(name).get_all("Provides-Extra") or ())
    except metadata.PackageNotFoundError:
        return set()
