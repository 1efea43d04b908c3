"""The recipe that the arguments of `outdo check` and `outdo train` make up, and what is checked of it."""

import itertools
from pathlib import Path

from outdo.config.file import RecipeError, load
from outdo.config.recipe import Recipe, run_folder
from outdo.data.questions import Question
from outdo.trainer.preflight import Render, faults
from outdo.utils.errors import UserError


def recipe_of(settings: list[str] | None) -> Recipe:
    """Return the recipe that `[recipe.toml] [key=value ...]` make up.

    Raises `UserError` with its faults, and with those of the data, the model and the rewards that it names.
    """
    try:
        return load(*_recipe_and_overrides(settings))
    except RecipeError as error:
        others = faults(error.recipe, error.broken) if error.recipe else []
        raise UserError([*error.problems, *others]) from None


def free_run_name(model: str) -> str:
    """Return a name for a run of `model` that no folder in `runs/` has yet."""
    return next(name for n in itertools.count(1) if not run_folder(name := f"{model}-{n}").exists())


def probe_pieces(recipe: Recipe) -> list[str]:
    """Build the pieces of a recipe, which loads torch; return the faults of their options."""
    from outdo.trainer.build_method import piece_mistakes

    return piece_mistakes(recipe)


def prompt_renderer(recipe: Recipe) -> Render:
    """Return a function that shows a question as the model will read it; its first call loads the tokenizer."""

    def render(question: Question) -> str:
        from outdo.models.loading import load_tokenizer
        from outdo.models.prompt_encoding import encode_prompt

        tokenizer, data = load_tokenizer(recipe.model), recipe.data
        where = f"question {question.id}"
        text, tools = question.text, question.tools
        ids = encode_prompt(tokenizer, text, template=data.template, system=data.system, tools=tools, where=where)
        return str(tokenizer.decode(ids))

    return render


def _recipe_and_overrides(settings: list[str] | None) -> tuple[Path | None, list[str]]:
    files = [setting for setting in settings or [] if "=" not in setting]
    if len(files) > 1:
        raise UserError([f"{file}: expected key=value; the recipe is {files[0]}" for file in files[1:]])
    return Path(files[0]) if files else None, [setting for setting in settings or [] if "=" in setting]
