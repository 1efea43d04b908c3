"""Change the paths in a recipe: to absolute ones, so that its run can be resumed from any folder, or to file names."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from outdo.config.data import Data
from outdo.config.recipe import Piece, Recipe
from outdo.utils.secrets import SecretPlace

_CODE = re.compile(r"\S+\.py:\w+|[\w.]+:\w+")


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with every path and every `file.py:name` absolute; other names stay as they are."""
    return _with_engine_paths(_with_paths(recipe, absolute, absolute_data), os.path.abspath)


def with_file_names(recipe: Recipe) -> Recipe:
    """Return the recipe with the last part of every local path: the rest means nothing on another machine."""

    def change(option: Any) -> Any:
        if isinstance(option, Mapping):
            return {key: change(value) for key, value in option.items()}
        if isinstance(option, list | tuple):
            return [change(value) for value in option]
        return file_name(option) if isinstance(option, str) else option

    recipe = _with_engine_paths(_with_paths(recipe, file_name, file_name), file_name)
    rewards = tuple(reward.model_copy(update={"options": change(reward.options)}) for reward in recipe.rewards)
    run = recipe.run and file_name(recipe.run)
    return recipe.model_copy(update={"run": run, "rewards": rewards})


def absolute(path: str) -> str:
    """Return an absolute path if the file or folder exists; else, as for a name on the Hub, the text itself.

    Links to folders are followed. A link to a file keeps its name, whose ending says what the file holds: in the Hub's
    cache every file is a link to one without an ending.
    """
    file = Path(path)
    if not file.exists():
        return path
    return str(file.resolve() if file.is_dir() else file.parent.resolve() / file.name)


def absolute_data(path: str) -> str:
    """Return an absolute path, also of a folder that a split, or a configuration and a split, follow."""
    name, colon, split = path.partition(":")
    inside = Path(name).parent
    if Path(path).exists():
        return absolute(path)
    if Path(name).is_dir():
        return absolute(name) + colon + split
    if "/" in name and (inside / "README.md").is_file():  # a configuration of the data set in `inside`
        return f"{absolute(str(inside))}/{Path(name).name}{colon}{split}"
    return path


def file_name(path: str) -> str:
    """Return the last part of an absolute path or of one from a home or parent folder, and other texts as they are."""
    is_local = Path(path).is_absolute() or path.startswith(("~", ".."))
    return Path(path).name if is_local else path


def code_of(recipe: Recipe) -> list[str]:
    """Return what the recipe names of code outside outdo, each once: `/home/me/my_reward.py:score`."""
    optimiser = (recipe.optim.algorithm, recipe.optim.schedule)
    environment = [] if recipe.environment is None else [recipe.environment]
    commands = [str(tracker.options.get("command")) for tracker in recipe.track if tracker.name == "on_end"]
    inputs = [] if recipe.data.inputs is None else [recipe.data.inputs]
    pieces = [*recipe.rewards, *environment, *_pieces(recipe).values(), *optimiser, *recipe.track, *inputs]
    return [*named_code(pieces), *commands]


def named_code(pieces: Sequence[Piece]) -> list[str]:
    """Return what the pieces name of code outside outdo, each once."""

    def names(value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            for inner in value.values():
                yield from names(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                yield from names(inner)
        elif isinstance(value, str) and _CODE.fullmatch(value):
            yield value

    return list(dict.fromkeys(names([[piece.name, piece.options] for piece in pieces])))


def _pieces(recipe: Recipe) -> dict[str, Piece]:
    pieces = {
        name: getattr(recipe.train, name) for name in ("objective", "advantage", "kl_in_reward", "critic", "stop")
    }
    return {name: piece for name, piece in pieces.items() if piece is not None}


def _with_paths(recipe: Recipe, change: Callable[[str], str], change_data: Callable[[str], str]) -> Recipe:
    """Return the recipe with every path changed; `change_data` changes those of data sets."""
    reference = recipe.reference
    pieces = {name: _change_piece(piece, change) for name, piece in _pieces(recipe).items()}
    return recipe.model_copy(
        update={
            "model": change(recipe.model),
            "rewards": tuple(_change_piece(reward, change) for reward in recipe.rewards),
            "track": tuple(_change_piece(tracker, change) for tracker in recipe.track),
            "environment": recipe.environment and _change_piece(recipe.environment, change),
            "data": _with_data_paths(recipe.data, change, change_data),
            "train": recipe.train.model_copy(update=pieces),
            "teachers": tuple(
                teacher.model_copy(update={"model": change(teacher.model)}) if teacher.is_folder else teacher
                for teacher in recipe.teachers
            ),
            "reference": reference.model_copy(update={"model": reference.model and change(reference.model)}),
            "optim": recipe.optim.model_copy(
                update={name: _change_piece(getattr(recipe.optim, name), change) for name in ("algorithm", "schedule")}
            ),
        }
    )


def _with_data_paths(data: Data, change: Callable[[str], str], change_data: Callable[[str], str]) -> Data:
    """Return the data of a recipe with every path changed; `change_data` changes those of data sets."""
    sources = tuple(source.model_copy(update={"path": change_data(source.path)}) for source in data.path)
    held_out = [file.model_copy(update={"path": change_data(file.path)}) for file in data.eval_path or ()]
    files: dict[str, Any] = {"path": sources, "eval_path": tuple(held_out) or None}
    if data.inputs is not None:
        files["inputs"] = _change_piece(data.inputs, change)
    if data.select is not None:
        files["select"] = data.select.model_copy(update={"file": change(data.select.file)})
    return data.model_copy(update=files)


def _with_engine_paths(recipe: Recipe, change: Callable[[str], str]) -> Recipe:
    """Return the recipe with other paths of the engine: links in them are kept, as they name a venv."""
    options = {name: recipe.engine.options.get(name) for name in ("python", "folder")}
    changed = {name: change(path) for name, path in options.items() if isinstance(path, str)}
    engine = recipe.engine.model_copy(update={"options": {**recipe.engine.options, **changed}})
    return recipe.model_copy(update={"engine": engine})


def _change_piece(piece: Piece, change: Callable[[str], str]) -> Piece:
    name, options = _change_option("name", piece.name, change), _change_option("", piece.options, change)
    return piece.model_copy(update={"name": name, "options": options})


def _change_option(name: str, value: Any, change: Callable[[str], str]) -> Any:
    """Change the paths of an option: code in a file, options called `path`, and the files of secrets."""
    if isinstance(value, Mapping):
        is_file = (place := SecretPlace.of(value)) is not None and place.file is not None
        return {key: _change_option("path" if is_file else key, inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_change_option(name, inner, change) for inner in value]
    if isinstance(value, str) and name == "path":
        return change(value)
    if isinstance(value, str) and ".py:" in value:
        file, _, function = value.rpartition(":")
        return f"{change(file)}:{function}"
    return value
