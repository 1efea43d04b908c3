"""The base of an adapter: which files it has, written beside the adapter and compared when it is loaded.

An adapter on another base computes something else, and nothing else would show it: the shapes are the same.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from outdo.utils.errors import ModelError

BASE_FILE = "base.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A base: its path, or its name on the Hub with its commit, and the SHA-256 of each file of its weights."""

    name: str
    revision: str | None = None
    sha256: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, folder: Path) -> "BaseModel":
        """Read the weight files in `folder`; those that are unchanged since the last call are not read again.

        `name` is an absolute path, or `owner/name` or `owner/name@revision` on the Hub.
        """
        files = sorted(folder.glob("*.safetensors"))
        hashes = {path.name: sha256_of(path) for path in files}
        if Path(name).is_absolute():
            return cls(name=name, sha256=hashes)
        assert folder.parent.name == "snapshots"  # of the Hub's cache: snapshots/COMMIT
        return cls(name=name.partition("@")[0], revision=folder.name, sha256=hashes)

    @classmethod
    def of_file(cls, file: Path) -> "BaseModel":
        """Read a GGUF file, whose folder in the cache may be made again. The path is absolute."""
        return cls(name=str(file), sha256={file.name: sha256_of(file)})

    def write(self, folder: Path) -> None:
        """Write `base.json` into the folder of an adapter."""
        (folder / BASE_FILE).write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def check_base(adapter: Path, base: BaseModel) -> None:
    """Raise `ModelError` if `base` is not the model that the adapter in the folder was trained on.

    An adapter of another library has no `base.json`, and is not compared.
    """
    path = adapter / BASE_FILE
    if not path.exists():
        return
    try:
        saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        expected, trained_on = dict(saved["sha256"]), str(saved["name"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ModelError(f"model {adapter}: {BASE_FILE} cannot be read: {error}") from error
    if expected != base.sha256:
        files = expected.keys() | base.sha256.keys()
        changed = sorted(name for name in files if expected.get(name) != base.sha256.get(name))
        raise ModelError(
            f"model {adapter}: an adapter of another base: {', '.join(changed)} of {base.name} is not the file that it "
            f"was trained on (then {trained_on}); restore that file, or name the right base in adapter_config.json"
        )


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file; one that is unchanged since the last call is not read again."""
    stat = path.stat()
    return _sha256(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, modified: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
