"""Read data sets through the library `datasets`: of the Hub, folders of `save_to_disk`, and copies of Hub data."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from outdo.data.data_set_names import SAVED, SAVED_SPLITS, DatasetName, data_set_called
from outdo.data.files import Records
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.hub_names import is_local
from outdo.utils.packages import not_imported

COMMIT = re.compile(r"[0-9a-f]{40}")


def records(path: str, pinned: Mapping[str, str] | None = None) -> Records:
    """Return the rows of the data set that `path` names, from its commit in `pinned` if that has one.

    Raises `UserError` with what is available, if there is no such data set or not the wanted commit.
    """
    source = data_set_called(path)
    assert source is not None, "the caller has asked for a data set"
    return _read(source, pinned)


def _read(source: DatasetName, pinned: Mapping[str, str] | None) -> Records:
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
        set_options = {key: value for key, value in options.items() if value is not None}
        rows = datasets.load_dataset(source.name, split=source.split or "train", **set_options)
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


def parquet_records(path: str, pinned: Mapping[str, str] | None = None) -> Records:
    """Return the rows of a Parquet file, from a copy in the cache of `datasets` that can be mapped into memory."""
    datasets = _library(f'{path}: streaming of Parquet needs the package datasets: pip install "outdo[hub]"')
    try:
        return Records(datasets.load_dataset("parquet", data_files=path, split="train"))
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
