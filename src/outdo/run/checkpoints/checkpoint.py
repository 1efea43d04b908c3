"""Checkpoints: written to a temporary folder, hashed, renamed into place, and used only if every hash is right.

    checkpoints/step_000040/        a Hugging Face model folder, as `from_pretrained` loads it
        config.json, model.safetensors, tokenizer.json ...
        state/state.json            the training state without its tensors
        state/tensors.safetensors   its tensors
        manifest.json               size and SHA-256 of every other file, written last

Replicas that hold parts of the models write it together: each writes some of the tensors, whole, into files of its own,
`model-00001-of-00002.safetensors` and `state/tensors-00001-of-00002.safetensors`.

A published folder is never changed. No pickle is written, and none is opened.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from outdo.models.weight_headers import write_index
from outdo.run.checkpoints.names import checkpoint_name, saved_steps
from outdo.run.checkpoints.state_file import pack, unpack
from outdo.run.folder.model_folder import is_refused
from outdo.run.folder.provenance import version_of
from outdo.utils import atomic
from outdo.utils.errors import CheckpointError, DiskFullError
from outdo.utils.pickle_files import PICKLE_SUFFIXES
from outdo.utils.sharded_tensors import share_of
from outdo.utils.world import ALONE, World

FORMAT = 4
"""Version of the manifest and of `state/`: raise it when what `state_of` returns could not be restored before."""

MANIFEST = "manifest.json"
STATE = "state/state.json"
TENSORS = "state/tensors.safetensors"
PART_OF_TENSORS = re.compile(r"state/tensors-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """The latest complete checkpoint."""

    path: Path
    """Its folder."""
    step: int
    """The last step it holds."""
    broken: tuple[str, ...]
    """The faults of each newer checkpoint, file by file; show them to the user."""


# ---------------------------------------------------------------------------------------------------------- saving


def save(
    folder: Path,
    step: int,
    write_model: Callable[[Path], None],
    state: Mapping[str, Any],
    writers: World = ALONE,
) -> Path:
    """Write `folder/step_000040` for step 40 and return it.

    `write_model(path)` writes the model and its tokenizer into `path`; `state` is an argument for `state_file.pack`.
    Several `writers` call this at the same time. Each writes its part of the model, and of the tensors of `state`, into
    files whose names end with `part_label`. When all have done so, the first one publishes the folder.

    A whole checkpoint of that step is kept and returned: the same run has the same weights at the same step. A broken
    one is replaced. One process at a time may save into `folder`; the lock of the run folder ensures this.

    Raises: DiskFullError if the disk is full, CheckpointError for any other failure. The earlier checkpoints are then
    unchanged, and nothing that looks like a checkpoint remains of this one.
    """
    target = folder / checkpoint_name(step)
    temporary = writers.from_first(lambda: folder / f".tmp-{target.name}-{os.getpid()}")
    try:
        if writers.from_first(lambda: _is_saved(folder, target)):
            return target
        _write(temporary, step, write_model, state, writers)
        writers.from_first(lambda: _publish(temporary, target))
    except BaseException as error:
        if writers.rank == 0:
            _discard(temporary)
        if is_refused(error):
            raise _not_saved(target, error) from error
        raise
    return target


def part_label(writers: World) -> str:
    """Return the end of the names of the files of one of several writers; empty if there is one."""
    return f"-{writers.rank + 1:05}-of-{len(writers):05}" if len(writers) > 1 else ""


def _is_saved(folder: Path, target: Path) -> bool:
    atomic.make_folder(folder)
    remove_leftovers(folder)
    return target.exists() and not verify(target)


def _publish(temporary: Path, target: Path) -> None:
    replaced = temporary.with_name(f"{temporary.name}-replaced")
    if os.path.lexists(target):  # it is broken, and its replacement is complete
        atomic.rename(target, replaced)
    atomic.rename(temporary, target)
    _discard(replaced)


def remove_leftovers(folder: Path) -> None:
    """Remove `folder/.tmp-*` of processes that have ended: they were killed while saving or pruning."""
    for path in folder.glob(".tmp-*"):
        match = re.fullmatch(r"\.tmp-step_\d+-(\d+)(-\w+)?", path.name)
        if match and (int(match[1]) == os.getpid() or not _is_running(int(match[1]))):
            atomic.remove_tree(path)


def prune(folder: Path, keep: int, best: int | None = None) -> list[Path]:
    """Remove all checkpoints except the newest `keep` and that of step `best`; return the removed folders.

    The latest complete checkpoint is never removed, even if all newer ones are broken. What processes have left that
    were killed while saving or pruning is removed too.
    """
    if keep < 1:
        raise ValueError(f"keep = {keep}: at least one checkpoint must be kept")
    steps = saved_steps(folder)
    surplus = [step for step in steps[keep:] if step != best]
    newest_whole = next((step for step in steps if surplus and not verify(folder / checkpoint_name(step))), None)
    removed = [folder / checkpoint_name(step) for step in surplus if newest_whole is not None and step != newest_whole]
    try:
        remove_leftovers(folder)
        for path in removed:  # renamed first, so that a kill half-way leaves no broken checkpoint
            hidden = folder / f".tmp-{path.name}-{os.getpid()}-pruned"
            atomic.rename(path, hidden)
            atomic.remove_tree(hidden)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder}: the old checkpoint cannot be removed: {error.strerror}"
        ) from error
    return removed


def _write(
    aside: Path, step: int, write_model: Callable[[Path], None], state: Mapping[str, Any], writers: World
) -> None:
    writers.from_first(lambda: atomic.make_folder((aside / STATE).parent))
    tree, packed = pack(state)
    tensors = share_of(packed, writers.rank, len(writers))
    label = part_label(writers)

    def write_part() -> dict[str, Any]:
        write_model(aside)
        save_file(tensors, (aside / TENSORS).with_stem(f"tensors{label}"))
        # The whole folder is not listed here: others still write, and safetensors renames temporary files in it.
        parts = sorted(aside.rglob(f"*{label}.*")) if label else []
        return _listed(aside, [path.relative_to(aside).as_posix() for path in parts])

    parts = writers.together(write_part)
    writers.from_first(lambda: _complete(aside, step, tree, parts))


def _complete(aside: Path, step: int, tree: Any, parts: Sequence[Mapping[str, Any]]) -> None:
    """Write what belongs to no part, and the manifest."""
    if len(parts) > 1:
        write_index(aside)
    atomic.write_file(aside / STATE, json.dumps(tree, allow_nan=False).encode())
    names, faults = _inventory(aside)
    if faults:
        raise CheckpointError("a checkpoint of this model cannot be saved:\n" + "\n".join(faults))
    listed = {name: entry for part in parts for name, entry in part.items()}
    listed |= _listed(aside, [name for name in names if name not in listed])
    atomic.write_file(aside / MANIFEST, _manifest(step, listed))
    for directory in [*(path for path in aside.rglob("*") if path.is_dir()), aside]:
        atomic.sync(directory)


def _listed(aside: Path, names: Sequence[str]) -> dict[str, Any]:
    """Bring files to the disk; return what the manifest lists of them."""
    usual = stat.S_IMODE(aside.stat().st_mode) & 0o666
    for name in names:
        if stat.S_IMODE((aside / name).stat().st_mode) != usual:  # safetensors writes files for their owner alone
            (aside / name).chmod(usual)
        atomic.sync(aside / name)
    return {name: {"sha256": _sha256(aside / name), "size": (aside / name).stat().st_size} for name in names}


def _discard(path: Path) -> None:
    with contextlib.suppress(OSError):  # the next save removes what remains; this is no reason to stop a run
        atomic.remove_tree(path)


def _not_saved(target: Path, error: BaseException) -> CheckpointError:
    number = error.errno if isinstance(error, OSError) else None
    if in_rust := re.search(r"os error (\d+)", str(error)):  # safetensors and tokenizers do not raise OSError
        number = int(in_rust[1])
    where = getattr(error, "filename", None) or target
    if number in (errno.ENOSPC, errno.EDQUOT):
        message = f"{target}: no space left for this checkpoint. Earlier checkpoints are unchanged. "
        return DiskFullError(message + "Free some space, or lower checkpoint.keep, and resume.")
    reason = os.strerror(number) if number else str(error)
    return CheckpointError(f"{where}: the checkpoint was not saved: {reason}. Earlier checkpoints are unchanged.")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


# --------------------------------------------------------------------------------------------------------- finding


def latest(folder: Path) -> CheckpointInfo | None:
    """Return the latest complete checkpoint in `folder`, with every file verified; None if there is no checkpoint.

    Raises: CheckpointError if there are checkpoints and none is whole: the user decides whether to start again.
    """
    broken: list[str] = []
    for step in saved_steps(folder):
        path = folder / checkpoint_name(step)
        faults = verify(path)
        if not faults:
            return CheckpointInfo(path=path, step=step, broken=tuple(broken))
        broken += faults
    if broken:
        hint = f"To start again from the first step, remove {folder} or choose another run folder."
        raise CheckpointError("\n".join([f"{folder}: no checkpoint is whole.", *broken, hint]))
    return None


def verify(path: Path) -> list[str]:
    """Return every fault of the checkpoint `path`, a line each, naming the file; nothing if it is whole."""
    try:
        if path.is_symlink() or not path.is_dir():
            return [f"{path}: not a folder"]
        names, faults = _inventory(path)
        if faults:  # no file in it is opened then
            return faults
        listed = _read_manifest(path)
        faults = [f"{path / name}: not in the manifest" for name in names if name not in listed]
        for name in dict.fromkeys([*_state_files(listed), *listed]):
            faults += _compare(path, name, listed)
    except CheckpointError as error:
        return [str(error)]
    except OSError as error:
        return [f"{error.filename or path}: cannot be read: {error.strerror}"]
    return faults


def load_state(path: Path) -> dict[str, Any]:
    """Load the training state of the checkpoint `path`, its two files verified, tensors on the CPU.

    Raises: CheckpointError naming the file that is missing or damaged.
    """
    try:
        listed = _read_manifest(path)
        files = _state_files(listed)
        if faults := [fault for name in files for fault in _compare(path, name, listed)]:
            raise CheckpointError("\n".join(faults))
        tree = json.loads((path / STATE).read_bytes())
        tensors = {key: tensor for name in files[1:] for key, tensor in load_file(path / name).items()}
        state = unpack(tree, tensors)
    except OSError as error:
        raise CheckpointError(f"{error.filename or path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path / STATE}: not a training state: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path / STATE}: not a training state: expected an object")
    return state


def _state_files(listed: Iterable[str]) -> list[str]:
    """Return the names of the files of the training state: the one without tensors, and those of the tensors."""
    return [STATE, *(sorted(filter(PART_OF_TENSORS.fullmatch, listed)) or [TENSORS])]


def _inventory(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of a checkpoint's files, without the manifest, and the faults of files that are not allowed."""
    names, faults = [], []
    for inside in sorted(path.rglob("*")):
        mode, name = inside.lstat().st_mode, inside.relative_to(path).as_posix()
        if stat.S_ISDIR(mode):
            continue
        if not stat.S_ISREG(mode):
            faults.append(f"{inside}: neither a file nor a folder; links and devices are not followed")
        elif inside.suffix.lower() in PICKLE_SUFFIXES:
            faults.append(f"{inside}: a pickle file can run code; it was not opened")
        elif name != MANIFEST:
            names.append(name)
    return names, faults


def _manifest(step: int, listed: Mapping[str, Mapping[str, Any]]) -> bytes:
    return (json.dumps({"format": FORMAT, "step": step, "files": listed}, indent=1, sort_keys=True) + "\n").encode()


def _read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """Return the files that a manifest lists, with `sha256` and `size`. Any changed bit in it is an error."""
    manifest = path / MANIFEST
    if manifest.is_symlink() or not manifest.is_file():
        raise CheckpointError(f"{manifest}: missing")
    content = manifest.read_bytes()
    try:
        parsed = json.loads(content)
        if parsed["format"] != FORMAT:
            raise CheckpointError(
                f"{manifest}: checkpoint format {parsed['format']!r}, and outdo {version_of('outdo')} reads format "
                f"{FORMAT}; the version of outdo that wrote it can continue the run"
            )
        step, listed = parsed["step"], parsed["files"]
        for name, entry in listed.items():
            _check_entry(name, entry["sha256"], entry["size"])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest}: {f'not a manifest: {error}' if content else 'empty'}") from error
    if not isinstance(step, int) or path.absolute().name != checkpoint_name(step):
        raise CheckpointError(f"{manifest}: of step {step!r}, in the folder {path.absolute().name}")
    return listed


def _check_entry(name: str, sha256: Any, size: Any) -> None:
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts or str(plain) != name or "\0" in name:
        raise ValueError(f"it lists {name!r}, which is outside the checkpoint")
    if not isinstance(sha256, str) or not isinstance(size, int):
        raise ValueError(f"it does not say the SHA-256 and size of {name!r}")


def _compare(path: Path, name: str, listed: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the faults of one listed file."""
    file, expected = path / name, listed.get(name)
    if expected is None or not file.exists():
        return [f"{file}: missing"]
    if not stat.S_ISREG(file.lstat().st_mode):  # the inventory reports it; reading a pipe would never end
        return [f"{file}: not a file"]
    if (size := file.stat().st_size) != expected["size"]:
        return [f"{file}: {size} bytes, the manifest says {expected['size']}"]
    if _sha256(file) != expected["sha256"]:
        return [f"{file}: the SHA-256 is not the manifest's; the content has changed"]
    return []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ---------------------------------------------------------------------------------------------------------- identity


def weights_hash(weights: Mapping[str, Tensor] | Path) -> str:
    """Compute SHA-256 over names in order, dtypes, shapes and bytes of a state dict, or of a folder's `*.safetensors`.

    Equal hashes mean equal weights, bit for bit. Tied weights are twice in a state dict and once in a folder, so
    compare only two of the same kind.
    """
    digest = hashlib.sha256()
    for name, tensor in _in_folder(weights) if isinstance(weights, Path) else sorted(weights.items()):
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        digest.update(json.dumps([name, str(plain.dtype), list(plain.shape)]).encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _in_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    with contextlib.ExitStack() as stack:
        shard_of = {}
        for path in sorted(folder.glob("*.safetensors")):
            try:
                shard = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise CheckpointError(f"{path}: not a safetensors file: {error}") from error
            shard_of |= dict.fromkeys(shard.keys(), shard)
        if not shard_of:
            raise CheckpointError(f"{folder}: no tensors in *.safetensors")
        for name in sorted(shard_of):
            yield name, shard_of[name].get_tensor(name)
