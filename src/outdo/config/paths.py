"""Make the paths in a recipe absolute, so that its run can be resumed from any folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.config.recipe import Piece, Recipe


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """Return the recipe with every path and every `file.py:name` absolute; other names stay as they are."""
    train, data, reference = recipe.train, recipe.data, recipe.reference
    pieces = {name: getattr(train, name) for name in ("objective", "advantage", "kl_in_reward", "critic", "stop")}
    absolute_pieces = {name: _absolute_piece(piece) for name, piece in pieces.items() if piece is not None}
    sources = tuple(source.model_copy(update={"path": absolute_data(source.path)}) for source in data.path)
    files: dict[str, Any] = {"path": sources, "eval_path": data.eval_path and tuple(map(absolute_data, data.eval_path))}
    if data.select is not None:
        files["select"] = data.select.model_copy(update={"file": absolute(data.select.file)})
    return recipe.model_copy(
        update={
            "model": absolute(recipe.model),
            "rewards": tuple(_absolute_piece(reward) for reward in recipe.rewards),
            "data": data.model_copy(update=files),
            "train": train.model_copy(update=absolute_pieces),
            "reference": reference.model_copy(update={"model": reference.model and absolute(reference.model)}),
            "optim": recipe.optim.model_copy(update={"algorithm": _absolute_piece(recipe.optim.algorithm)}),
        }
    )


def absolute(path: str) -> str:
    """Return an absolute path if the file or folder exists; else, as for a name on the Hub, the text itself."""
    return str(Path(path).resolve()) if Path(path).exists() else path


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


def _absolute_piece(piece: Piece) -> Piece:
    name, options = _absolute_option("name", piece.name), _absolute_option("", piece.options)
    return piece.model_copy(update={"name": name, "options": options})


def _absolute_option(name: str, value: Any) -> Any:
    """Return an option with absolute paths: those of code in a file, and those of options called `path`."""
    if isinstance(value, Mapping):
        return {key: _absolute_option(key, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_absolute_option(name, inner) for inner in value]
    if isinstance(value, str) and name == "path":
        return absolute(value)
    if isinstance(value, str) and ".py:" in value:
        file, _, function = value.rpartition(":")
        return f"{absolute(file)}:{function}"
    return value
