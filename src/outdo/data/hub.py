"""Read data sets through the library `datasets`: those of the Hub, folders of `save_to_disk`, and copies of Hub data.

A data set is written `owner/name`, with a configuration as `owner/name/configuration`, a revision as `@revision` and a
split as `:split` after it: `openai/gsm8k/main@cc7b047:test`. A folder on this machine has no revision.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from outdo.models.inspect_folder import is_local
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.packages import not_imported

HUB_NAME = re.compile(
    r"(?P<name>[^/@:]+/[^/@:]+)"
    r"(/(?P<config>[\w+-][\w.+-]*))?"
    r"(@(?P<revision>[\w./-]+))?"
    r"(:(?P<split>[\w.\[\]:%+-]*))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
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

    A folder that holds only files of other formats is no data set unless `path` names a configuration or a split.
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


class Records(NamedTuple):
    """The rows of a data set, and the commit that they are from by the name of its repository."""

    rows: Iterable[Mapping[str, Any]]
    commits: Mapping[str, str] = {}  # empty if they are not from the Hub


def records(source: DatasetName, pinned: Mapping[str, str] | None = None) -> Records:
    """Return the rows of a data set, from its commit in `pinned` if that has one.

    Raises `UserError` with what is available, if there is no such data set or not the wanted commit.
    """
    hint = 'pip install "outdo[hub]"; a file on this machine was not found by this name either'
    datasets = _library(f"{source}: data sets of the Hub need the package datasets: {hint}")
    folder = Path(source.name)
    _refuse_pipes(folder)
    saved = any((folder / name).is_file() for name in (SAVED, SAVED_SPLITS))
    try:
        if saved and source.config is None:
            return Records(_split_of_saved(source, datasets.load_from_disk(source.name)))
        wanted = (pinned or {}).get(source.repository, source.revision)
        options = {"name": source.config, "revision": wanted}
        given = {key: value for key, value in options.items() if value is not None}
        rows = datasets.load_dataset(source.name, split=source.split or "train", **given)
        return Records(rows, _commits(source, rows, wanted))
    except UserError:
        raise
    except Exception as error:  # the library raises many types: offline, no such name, no such split
        message = (str(error).strip() or "no reason given").splitlines()[0]
        available = _available(datasets, source) if isinstance(error, ValueError) else ""
        reason = available or f"cannot be loaded: {type(error).__name__}: {message}"
        raise UserError([f"{source}: the data set {reason}"]) from error


def _commits(source: DatasetName, rows: Any, wanted: str | None) -> dict[str, str]:
    """Return the commit of loaded rows by the name of their repository; empty if they are not from the Hub.

    `datasets` names the folder of its copy after the commit. Without the Hub it takes any copy, whatever is `wanted`.
    """
    files = getattr(rows, "cache_files", None) or ()
    commit = next((Path(file["filename"]).parent.name for file in files), "")
    if is_local(source.name) or not COMMIT.fullmatch(commit):
        return {}
    if wanted and COMMIT.fullmatch(wanted) and wanted != commit:
        raise UserError([f"{source}: the commit {wanted} cannot be had; on this machine is {commit}"])
    return {source.repository: commit}


def parquet_records(path: str) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a Parquet file, from a copy in the cache of `datasets` that can be mapped into memory."""
    datasets = _library(f'{path}: streaming of Parquet needs the package datasets: pip install "outdo[hub]"')
    try:
        return datasets.load_dataset("parquet", data_files=path, split="train")
    except Exception as error:  # the library raises many types, with the reason in the cause
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise UserError([f"{path}: not a whole Parquet file: {reason}"]) from None


def _library(missing: str) -> Any:
    """Return the library `datasets`. Raises `UserError` with the sentence `missing` if it is not installed."""
    try:
        import datasets
    except ImportError as error:
        raise UserError([not_imported(error, "datasets", missing, ("hub",))]) from None
    return datasets


def _refuse_pipes(folder: Path) -> None:
    """Raise `UserError` if a folder holds something that may never end, or wait for ever, when it is read."""
    odd = next((path for path in folder.rglob("*") if not path.is_dir() and not path.is_file()), None)
    if odd is not None:
        raise UserError([f"{odd}: is a pipe, a device or a broken link; expected a file"])


def _split_of_saved(source: DatasetName, saved: Any) -> Iterable[Mapping[str, Any]]:
    """Return the split of what `load_from_disk` returned: one data set, or a dictionary of them."""
    if not isinstance(saved, Mapping):
        if source.split is not None:
            raise UserError([f"{source}: the data set in {source.name} has no splits; leave :{source.split} out"])
        return saved
    split = source.split or (next(iter(saved)) if len(saved) == 1 else "train")
    if split not in saved:
        raise UserError([f"{source}: the data set {_choose('split', split, list(saved), f'{source.name}:')}"])
    return saved[split]


def _available(datasets: Any, source: DatasetName) -> str:
    """Return which configurations or splits there are, if the one that was asked for is not among them; else ''."""
    revision = {} if source.revision is None else {"revision": source.revision}
    with suppress(Exception):  # the reason for the first failure is reported then
        configs = list(datasets.get_dataset_config_names(source.name, **revision))
        if (source.config or "default") not in configs and (source.config or len(configs) > 1):
            return _choose("configuration", source.config, configs, f"{source.name}/")
        config = source.config or configs[0]
        splits = list(datasets.get_dataset_split_names(source.name, config, **revision))
        asked = re.split(r"[\[+]", source.split or "train")[0]
        if asked not in splits:
            before = DatasetName(name=source.name, config=source.config, revision=source.revision)
            return _choose("split", asked, splits, f"{before}:")
    return ""


def _choose(what: str, asked: str | None, names: list[str], before: str) -> str:
    """Return the sentence on a configuration or split that does not exist or was not given."""
    missing = f'has no {what} "{asked}"{did_you_mean(asked, names)}' if asked else f"needs a {what}"
    return f"{missing} ({what}s: {', '.join(names)}); write for example {before}{names[0]}"


def _before_split(path: str) -> tuple[Path, str | None]:
    before, colon, split = path.partition(":")
    is_split = colon and SPLIT.fullmatch(split) and not Path(path).exists()
    return (Path(before), split) if is_split else (Path(path), None)


def _has_configurations(folder: Path) -> bool:
    """Return whether a folder is a copy of a data set of the Hub whose card lists configurations."""
    card = folder / "README.md"
    return card.is_file() and "config_name:" in card.read_text(encoding="utf-8", errors="replace")
