"""Names of data sets that the library `datasets` reads: those of the Hub, and folders on this machine.

A data set is written `owner/name`, with a configuration as `owner/name/configuration`, a revision as `@revision` and a
split as `:split` after it: `openai/gsm8k/main@cc7b047:test`. A folder on this machine has no revision.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from outdo.utils.hub_names import is_local

HUB_NAME = re.compile(
    r"(?P<name>[^/@:]+/[^/@:]+)"
    r"(/(?P<config>[\w+-][\w.+-]*))?"
    r"(@(?P<revision>[\w./-]+))?"
    r"(:(?P<split>[\w.\[\]:%+-]*))?"
)
SPLIT = re.compile(r"[\w.\[\]:%+-]+")
"""A split, such as `train` or `train[:10%]`."""

SAVED, SAVED_SPLITS = "state.json", "dataset_dict.json"
"""The files by which `load_from_disk` recognises a data set, and one of several splits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetName:
    """A data set of the Hub, or a folder."""

    name: str  # owner/name, or the path of the folder
    config: str | None = None
    revision: str | None = None
    split: str | None = None  # None: train, or the only one

    @property
    def repository(self) -> str:
        """The repository of the Hub with the revision, as a run writes down its commit: `datasets/owner/name@v1`."""
        return f"datasets/{self.name}" + (f"@{self.revision}" if self.revision else "")

    def __str__(self) -> str:
        parts = (("/", self.config), ("@", self.revision), (":", self.split))
        return self.name + "".join(mark + value for mark, value in parts if value)


def folder_data_set(path: str) -> DatasetName | None:
    """Return the data set in a folder on this machine that `path` names; None if it names no such folder.

    A folder that holds only files of other formats is not a data set unless `path` names a configuration or a split.
    """
    folder, split = _before_split(path)
    if Path(path).is_file() or "\0" in path:
        return None
    is_data_set = any((folder / name).exists() for name in (SAVED, SAVED_SPLITS, "README.md", "data"))
    if "/" in path and not is_data_set and not folder.suffix and _has_configurations(folder.parent):
        return DatasetName(name=str(folder.parent), config=folder.name, split=split)
    if folder.is_dir() and (is_data_set or split):
        return DatasetName(name=str(folder), split=split)
    return None


def hub_data_set(path: str) -> DatasetName | None:
    """Return the data set of the Hub that `path` names; None if it means something on this machine.

    A typing error in a local path must never become a request to the Hub.
    """
    match = HUB_NAME.fullmatch(path)
    if match is None or {".", ".."} & set(path.split("/")) or Path(path).exists() or is_local(match["name"]):
        return None
    config, revision, split = match.group("config", "revision", "split")
    return DatasetName(name=match["name"], config=config, revision=revision, split=split or None)


def data_set_called(path: str) -> DatasetName | None:
    """Return the data set that `path` names, in a folder or on the Hub; None if it names neither."""
    return folder_data_set(path) or hub_data_set(path)


def _before_split(path: str) -> tuple[Path, str | None]:
    before, colon, split = path.partition(":")
    is_split = colon and SPLIT.fullmatch(split) and not Path(path).exists()
    return (Path(before), split) if is_split else (Path(path), None)


def _has_configurations(folder: Path) -> bool:
    """Return whether a folder is a copy of a data set of the Hub whose card lists configurations."""
    card = folder / "README.md"
    return card.is_file() and "config_name:" in card.read_text(encoding="utf-8", errors="replace")
