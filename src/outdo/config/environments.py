"""The environment that a recipe may name. Each kind has a row in a table of `outdo.config.names`.

Several of them are one environment, `by_row`: the row of a question names the one in which it is played.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outdo.config.names import AGENT, BY_ROW, ENVIRONMENT_REWARD, ENVIRONMENTS, EPISODE
from outdo.config.recipe import Piece, Recipe
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.extras import load_extra
from outdo.utils.imports import signature_of
from outdo.utils.options import ANYTHING, Check, is_text, no_such_name, option_mistakes
from outdo.utils.reward_names import REWARD_MODEL

BY_ROW_OPTIONS: Mapping[str, Check] = {
    "environments": ANYTHING,
    "column": (is_text, "the name of a column"),
}
"""The options of `by_row`: a table of environments, and the column of the data that names one of them."""


@dataclass(frozen=True, slots=True)
class EnvironmentCheck:
    """Checks the environments of one kind, without torch, and without running the user's code.

    `mistakes` yields what is wrong with the name and the options of an environment; each sentence begins with its key.
    `files` returns what the environment depends on, besides the code that the recipe names.
    """

    mistakes: Callable[[Piece], Iterator[str]]
    files: Callable[[Piece], list[Path]] = lambda piece: []


@dataclass(frozen=True)
class RowEnvironments:
    """The environments that rows may name."""

    pieces: Mapping[str, Piece]
    column: str = "environment"

    def name_in(self, row: Mapping[str, Any]) -> str | None:
        """Return the name of the environment of a row; None if it names none, so that it asks for one answer.

        Raises `ValueError` for a name that no environment has.
        """
        name = row.get(self.column)
        if name in (None, ""):  # CSV has no null
            return None
        if name in self.pieces:
            return str(name)
        hint = did_you_mean(str(name), list(self.pieces)) or f"; expected {', '.join(self.pieces)}, or nothing"
        raise ValueError(f'column "{self.column}" names an environment "{name}" that the recipe does not have{hint}')


def row_environments(piece: Piece | None) -> RowEnvironments | None:
    """Return the environments that rows may name; None if the recipe has one for all questions, or none.

    Also None if they are not a table of environments, which is a mistake of the recipe.
    """
    if piece is None or piece.name != BY_ROW:
        return None
    table, column = piece.options.get("environments"), piece.options.get("column", RowEnvironments.column)
    try:
        pieces = {name: Piece.model_validate(value) for name, value in dict(table or {}).items()}
    except (TypeError, ValueError):
        return None
    return RowEnvironments(pieces, column) if pieces and isinstance(column, str) and column else None


def all_environments(piece: Piece | None) -> list[Piece]:
    """Return the environments in which questions are played."""
    rows = row_environments(piece)
    single = [] if piece is None else [piece]
    return single if rows is None else list(rows.pieces.values())


def check_environment(recipe: Recipe) -> Iterator[str]:
    """Yield what is wrong with the environment of a recipe; its code is read, and not run."""
    piece = recipe.environment
    if piece is None:
        if any(reward.name == ENVIRONMENT_REWARD for reward in recipe.rewards):
            yield f'rewards: "{ENVIRONMENT_REWARD}" needs an environment that gives rewards; set `environment`'
        return
    yield from environment_mistakes(piece)
    if any(reward.name == ENVIRONMENT_REWARD and reward.weight != 1 for reward in recipe.rewards):
        yield f'rewards: "{ENVIRONMENT_REWARD}" takes no weight; what the environment gives is added as it is'
    if any(reward.name == REWARD_MODEL and "labels" in reward.options for reward in recipe.rewards):
        yield (
            f"rewards.{REWARD_MODEL}.labels: a reward model learns from answers to one prompt, and the episodes of an "
            "environment differ before their last turn; leave `labels` and its options out"
        )
    if recipe.data.prompt_template is not None:
        yield "data.template: an environment needs the model's own chat template; leave it out"


def kind_of(piece: Piece) -> str:
    """Return the name that the kind of an environment has in the table of names.

    Of the user's code, an agent is told by its signature: a function with the parameter `base_url`, or an asynchronous
    one. All else makes episodes.
    """
    if ":" not in piece.name:
        return piece.name
    try:
        signature = signature_of(piece.name)
    except UserError:
        return EPISODE
    is_agent = signature.is_async or (not signature.is_class and "base_url" in signature.parameters)
    return AGENT if is_agent else EPISODE


def environment_mistakes(piece: Piece) -> Iterator[str]:
    """Yield what is wrong with the name and the options of an environment."""
    if piece.name == BY_ROW:
        yield from _by_row_mistakes(piece)
        return
    kind = kind_of(piece)
    if kind not in ENVIRONMENTS:
        known = [name for name in (*ENVIRONMENTS, BY_ROW) if name != EPISODE]
        yield no_such_name("environment", piece.name, known, own=EPISODE)
        return
    try:
        check = _check_of(piece)
    except UserError as error:
        yield from error.problems
    else:
        yield from check.mistakes(piece)


def environment_files(piece: Piece | None) -> list[Path]:
    """Return the files that an environment depends on, besides the code that the recipe names."""
    return [path for environment in all_environments(piece) for path in _check_of(environment).files(environment)]


def _check_of(piece: Piece) -> EnvironmentCheck:
    return load_extra(ENVIRONMENTS[kind_of(piece)].check, "environment")


def _by_row_mistakes(piece: Piece) -> Iterator[str]:
    yield from option_mistakes("environment", BY_ROW, piece.options, checks=BY_ROW_OPTIONS)
    rows = row_environments(piece)
    if rows is None and is_text(piece.options.get("column", RowEnvironments.column)):
        expected = 'a table such as {calculator = {name = "tools", functions = "file.py:name"}, game = "file.py:Class"}'
        yield f"environment.environments: expected {expected}; found {piece.options.get('environments')!r}"
    for name, environment in rows.pieces.items() if rows else ():
        if environment.name == BY_ROW:
            yield f"environment.environments.{name}: rows name one environment, which is not {BY_ROW} again"
            continue
        for mistake in environment_mistakes(environment):
            yield f"environment.environments.{name}{mistake.removeprefix('environment')}"
