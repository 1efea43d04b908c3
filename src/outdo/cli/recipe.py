"""The recipe that the arguments of `outdo check` and `outdo train` make up, and what is checked of it."""

import itertools
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from outdo.cli.arguments import recipe_and_overrides
from outdo.config.file import RecipeError, load
from outdo.config.recipe import Recipe
from outdo.data.questions import Question
from outdo.models.inspect_folder import inspect_folder
from outdo.run.check.estimate import Machine
from outdo.run.check.preflight import Render, Rendered, faults
from outdo.run.check.prompt_warnings import longest_prompt
from outdo.run.folder.begin import why_taken
from outdo.utils.errors import ModelError, UserError
from outdo.utils.run_names import run_folder
from outdo.utils.thinking import prefill_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from outdo.data.prompts import InputsOf, ToolsOf
    from outdo.run.check.fallbacks import Prediction


def recipe_of(settings: list[str] | None, *, begins: bool = False) -> Recipe:
    """Return the recipe that `[recipe.toml] [key=value ...]` make up.

    Raises `UserError` with its faults, with those of the data, the model and the rewards that it names, and, if a run
    `begins` by it, with why it cannot begin in its folder.
    """
    try:
        return load(*recipe_and_overrides(settings))
    except RecipeError as error:
        others = faults(error.recipe, error.broken) if error.recipe else []
        taken = taken_folder(error.recipe) if begins and error.recipe and "run" not in error.broken else []
        raise UserError([*error.problems, *others, *taken]) from None


def taken_folder(recipe: Recipe) -> list[str]:
    """Return why the run of a recipe cannot begin in the folder that it names; nothing if it can, or names none."""
    problem = why_taken(run_folder(recipe.run)) if recipe.run else None
    return [problem] if problem else []


def free_run_name(model: str) -> str:
    """Return a name for a run of `model` that no folder in `runs/` has yet."""
    return next(name for n in itertools.count(1) if not run_folder(name := f"{model}-{n}").exists())


def probe_machine(recipe: Recipe) -> Machine:
    """Build the pieces of a recipe, fit its adapter to the model, and look for its device, which loads torch."""
    from outdo.models.base_weights import choose_weights
    from outdo.models.chat_options import set_chat_options
    from outdo.models.device import choose_device
    from outdo.models.loading import fit_adapter, load_tokenizer
    from outdo.run.assemble.engines import device_mistakes
    from outdo.run.assemble.environment import examine_environment
    from outdo.run.assemble.hardware import device_memory
    from outdo.run.assemble.method import adapter_of, piece_mistakes
    from outdo.run.assemble.models import teacher_mistakes
    from outdo.utils.machine import free_main_memory

    errors, notes = piece_mistakes(recipe), list[str]()
    size = memory = device = None
    if recipe.environment is not None and not errors:
        facts = inspect_folder(recipe.model)
        tokenizer = load_tokenizer(facts)
        set_chat_options(tokenizer, recipe.data.chat_options)
        errors, notes = examine_environment(recipe, tokenizer, facts)
    if not errors and (adapter := adapter_of(recipe)):
        try:
            facts = inspect_folder(recipe.model)
            fit = fit_adapter(facts, adapter, weights=choose_weights(recipe.weights, facts, frozen=True))
            size, notes = fit.weights, [*notes, *fit.notes]
        except ModelError as error:
            errors += [f"train.adapter: {line}" for line in str(error).splitlines()]
    try:
        device = choose_device(recipe.device)[0].type
        memory = device_memory(recipe.device)
        errors += device_mistakes(recipe.engine, recipe.device, replicas=recipe.cluster.world_size)
        errors += teacher_mistakes(recipe)
    except UserError as error:
        errors += error.problems
    prediction = None if errors else _prediction(recipe)
    machine = Machine(errors, memory, device, size, notes, free=free_main_memory())
    if prediction is None:
        return machine
    notes = [*notes, *prediction.notes]
    return machine._replace(notes=notes, warnings=prediction.warnings, padded=prediction.padded)


def _prediction(recipe: Recipe) -> "Prediction | None":
    """Predict how the model will be computed; None if it is not on this machine yet."""
    from outdo.models.loading import load_tokenizer
    from outdo.run.check.fallbacks import predict

    facts = inspect_folder(recipe.model)
    if facts.folder is None:
        return None
    return predict(recipe, facts, load_tokenizer(facts, stop_token_ids=recipe.sampling.stop_token_ids))


def prompt_renderer(recipe: Recipe) -> Render:
    """Return a function that tokenises a question as the model will read it; its first call loads the tokenizer."""

    @cache
    def tokenizer() -> "PreTrainedTokenizerBase":
        return _tokenizer_of(recipe)

    @cache
    def environment_tools() -> "ToolsOf":
        from outdo.run.assemble.environment import tools_of

        return tools_of(recipe.environment)

    @cache
    def inputs() -> "InputsOf":
        from outdo.run.assemble.data import inputs_of

        return inputs_of(recipe.data.inputs)

    @cache
    def lost() -> list[str]:
        from outdo.run.check.reward_reading import lost_texts

        return list(lost_texts(recipe, tokenizer()))

    def template_does(question: Question) -> dict[str, list[str]]:
        from outdo.models.conversation_notes import beginnings, conversation_notes
        from outdo.models.prompt_encoding import with_system

        if recipe.data.prompt_template is not None or not tokenizer().chat_template:
            return {}
        messages = with_system(question.text, recipe.data.system)
        tools = [*environment_tools()(question.columns), *question.tools]
        doubtful = conversation_notes(tokenizer(), messages, tools)
        return {"doubtful": doubtful, "remarks": beginnings(tokenizer(), messages)}

    def render(question: Question) -> Rendered:
        from outdo.data.prompts import prompt_of
        from outdo.models.completion_text import rendered_text
        from outdo.models.special_tokens import special_tokens_in

        data, asked, tools = recipe.data, question.text, environment_tools()
        how = {"template": data.prompt_template, **data.model_dump(include={"system", "special_tokens"})}
        ids = list(prompt_of(question, tokenizer=tokenizer(), tools=tools, inputs=inputs(), **how).token_ids)
        unknown: Any = tokenizer().unk_token_id
        text = rendered_text(tokenizer(), ids)
        return Rendered(
            text=text,
            tokens=len(ids),
            unknown=0 if unknown is None else ids.count(unknown),
            special=special_tokens_in(tokenizer(), [asked, tools]),
            prefill=prefill_of(text, asked),
            lost=lost(),
            **template_does(question),
        )

    return render


def _tokenizer_of(recipe: Recipe) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of the recipe's model, with the options of its chat template."""
    from outdo.models.chat_options import set_chat_options
    from outdo.models.loading import load_tokenizer

    tokenizer = load_tokenizer(recipe.model, stop_token_ids=recipe.sampling.stop_token_ids)
    set_chat_options(tokenizer, recipe.data.chat_options)
    return tokenizer


def without_overlong(recipe: Recipe, questions: Sequence[Question]) -> list[Question]:
    """Return the questions without those that a run leaves out because their prompts are too long."""
    render, longest = prompt_renderer(recipe), longest_prompt(recipe, inspect_folder(recipe.model))
    return [question for question in questions if render(question).tokens <= longest]
