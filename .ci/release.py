"""Make the files of a release in `dist`: `make release`.

The wheel and the sdist are built twice from the last commit and have to be the same byte for byte. Beside them are a
software bill of materials (CycloneDX 1.6) of the wheel and of what it needs, in the versions that are installed here,
the notes of the release, which are its section of CHANGELOG.md, and the SHA-256 of every file. Nothing is uploaded.
"""

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import cast
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
UNRELEASED = "not released yet"
"""What the heading of a version in CHANGELOG.md says before its date."""


def main() -> None:
    """Write `dist`, or end with one sentence that says what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--draft", action="store_true", help="accept a version that CHANGELOG.md has not dated")
    arguments = parser.parse_args()
    out: Path = arguments.out
    try:
        version = distribution("outdo").version
        notes = release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, draft=arguments.draft)
        seconds = int(_git("log", "-1", "--format=%ct"))
        first, second = (built(seconds) for _ in range(2))
    except ValueError as error:
        sys.exit(f"release: {error}")
    if first != second:
        names = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        sys.exit(f"release: two builds of one commit differ: {', '.join(names)}")
    files = first | {"release_notes.md": notes.encode()}
    for name, data in first.items():
        if name.endswith(".whl"):
            files["outdo.cdx.json"] = bill_of_materials(data, seconds).encode()
    sums = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items()))
    out.mkdir(parents=True, exist_ok=True)
    for name, data in (files | {"SHA256SUMS": sums.encode()}).items():
        (out / name).write_bytes(data)
    print(
        f"outdo {version}, two equal builds of commit {_git('rev-parse', '--short', 'HEAD')}, in {out}:\n{sums}", end=""
    )


def release_notes(changes: str, version: str, *, draft: bool = False) -> str:
    """Return the section of a version. Raises `ValueError` if there is none, or if it has no date yet."""
    found = re.search(rf"^## {re.escape(version)} · ([^\n]*)\n(.*?)(?=^## |\Z)", changes, re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"CHANGELOG.md: expected a section '## {version} · DATE'")
    if found[1] == UNRELEASED and not draft:
        raise ValueError(f"CHANGELOG.md: {version} is '{UNRELEASED}'; write its date there, or add --draft")
    return f"# outdo {version} · {found[1]}\n{found[2].rstrip()}\n"


def built(seconds: int) -> dict[str, bytes]:
    """Build the sdist from the last commit, and the wheel from the sdist; return both by name."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "outdo"), Path(folder, "dist")
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as file:
            file.extractall(source, filter="data")
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
        done = subprocess.run(
            command, env=os.environ | {"SOURCE_DATE_EPOCH": str(seconds)}, capture_output=True, text=True
        )
        if done.returncode:
            raise ValueError(f"the build failed:\n{done.stdout}{done.stderr}")
        return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def bill_of_materials(wheel: bytes, seconds: int) -> str:
    """Return the CycloneDX JSON of a wheel of outdo; the same for the same wheel, time and installed versions."""
    components: dict[str, Component] = {}
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, hashlib.sha256(wheel).hexdigest()))
    _add("outdo", components, bom)
    root = components.pop("outdo")
    root.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(wheel).hexdigest()))
    bom.metadata = BomMetaData(component=root, timestamp=datetime.fromtimestamp(seconds, UTC))
    for component in components.values():
        bom.components.add(component)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"


def _add(name: str, components: dict[str, Component], bom: Bom) -> Component:
    """Add a distribution, and all that it needs without extras, to `components` and to the dependencies of `bom`."""
    if name in components:
        return components[name]
    about = distribution(name)
    kind = ComponentType.APPLICATION if name == "outdo" else ComponentType.LIBRARY
    component = components[name] = Component(
        name=name,
        type=kind,
        bom_ref=name,
        version=about.version,
        purl=PackageURL("pypi", None, name, about.version),
        licenses=_licence(cast(Message, about.metadata)),
    )
    needed = [each for line in about.requires or () if _applies(each := Requirement(line))]
    bom.register_dependency(component, [_add(canonicalize_name(each.name), components, bom) for each in needed])
    return component


def _applies(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})


def _licence(metadata: Message) -> Iterable:
    """Return the licence that a distribution states: an expression, else a short name, else nothing."""
    stated = metadata.get("License-Expression") or metadata.get("License") or ""
    return [LicenseFactory().make_from_string(stated)] if 0 < len(stated) < 80 and "\n" not in stated else []


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
