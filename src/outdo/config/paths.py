"""A recipe with absolute paths, so that its run can be gone on with from any folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.config.recipe import Piece, Recipe


def placed(recipe: Recipe) -> Recipe:
    """Every path in the recipe, and every `file.py:name`, from the root; hub names and names of pieces as they are."""
    train, data, reference = recipe.train, recipe.data, recipe.reference
    pieces = {name: getattr(train, name) for name in ("objective", "advantage", "kl_in_reward", "critic", "stop")}
    moved = {name: _piece(piece) for name, piece in pieces.items() if piece is not None}
    files = {"path": absolute(data.path), "eval_path": data.eval_path and absolute(data.eval_path)}
    if data.select is not None:
        files["select"] = data.select.model_copy(update={"file": absolute(data.select.file)})
    return recipe.model_copy(
        update={
            "model": absolute(recipe.model),
            "rewards": tuple(_piece(reward) for reward in recipe.rewards),
            "data": data.model_copy(update=files),
            "train": train.model_copy(update=moved),
            "reference": reference.model_copy(update={"model": reference.model and absolute(reference.model)}),
            "optim": recipe.optim.model_copy(update={"algorithm": _piece(recipe.optim.algorithm)}),
        }
    )


def absolute(path: str) -> str:
    """The path from the root if something is there; anything else, such as a name on the hub, as it is."""
    return str(Path(path).resolve()) if Path(path).exists() else path


def _piece(piece: Piece) -> Piece:
    return piece.model_copy(update={"name": _option("name", piece.name), "options": _option("", piece.options)})


def _option(name: str, value: Any) -> Any:
    """An option with what it names made absolute: code in a file, or what is called a path."""
    if isinstance(value, Mapping):
        return {key: _option(key, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_option(name, inner) for inner in value]
    if isinstance(value, str) and name == "path":
        return absolute(value)
    if isinstance(value, str) and ".py:" in value:
        file, _, function = value.rpartition(":")
        return f"{absolute(file)}:{function}"
    return value
