"""The data of a run: its questions, tokenised and in batches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from outdo.config.recipe import Piece, Recipe
from outdo.data.batches import in_batches
from outdo.data.prompts import InputsOf, Prompts, tokenise
from outdo.data.questions import Question
from outdo.data.sequences import Joined
from outdo.data.splits import Questions, load_questions
from outdo.data.streamed_prompts import stream_prompts
from outdo.data.streaming import StreamedQuestions
from outdo.models.chat_options import keep_date
from outdo.models.policy import Policy
from outdo.models.template_header import DATE, now
from outdo.run.assemble.environment import tools_of
from outdo.run.assemble.method import instantiate, within_range
from outdo.run.display import Display
from outdo.run.folder.provenance import saved_revisions
from outdo.types import Prompt
from outdo.utils.text import counted
from outdo.utils.world import World


def with_date_of_template(recipe: Recipe, policy: Policy, world: World) -> Recipe:
    """Return the recipe with the date that the chat template writes, if it writes one and the recipe has none.

    It is that of the start of the run. All processes of a `world` have to call it.
    """
    data = recipe.data
    if data.prompt_template is not None or not (date := keep_date(policy.tokenizer, world.from_first(now))):
        return recipe
    dated = data.model_copy(update={"template": {**data.chat_options, DATE: date}})
    return recipe.model_copy(update={"data": dated})


def inputs_of(piece: Piece | None) -> InputsOf:
    """Return what makes of a row what the model reads beside the tokens of its prompt.

    Raises `UserError` if its code cannot be imported, or refuses its options.
    """
    return (lambda row: {}) if piece is None else within_range("data.inputs", instantiate, piece, {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPrompts:
    """The prompts of a run."""

    prompts: Prompts[Prompt]  # to train on
    held_out: Sequence[Prompt]
    held_out_sets: Mapping[str, str]  # the name of the set of each of them by its id; empty if sets have no names
    commits: Mapping[str, str]  # of the data sets from the Hub
    warnings: Sequence[str]  # which questions are left out because they are too long


def tokenise_questions(recipe: Recipe, questions: Questions, policy: Policy, display: Display) -> RunPrompts:
    """Tokenise the questions of a run."""
    data, warnings = recipe.data, list[str]()
    tools, inputs = tools_of(recipe.environment), inputs_of(data.inputs)
    longest = data.max_prompt_tokens if policy.context is None else min(data.max_prompt_tokens, policy.context - 1)

    def tokenised(kind: str, rows: Sequence[Question]) -> Sequence[Prompt]:
        if isinstance(rows, Joined):
            return Joined([tokenised(kind, part) for part in rows.parts])
        how: dict[str, Any] = {
            "track": partial(_track, display, kind),
            "max_tokens": longest,
            "template": data.prompt_template,
            "system": data.system,
            "special_tokens": data.special_tokens,
            "overlong": data.overlong,
            "tools": tools,
            "inputs": inputs,
        }
        if isinstance(rows, StreamedQuestions):
            prompts = stream_prompts(rows, policy.tokenizer, **how)
        else:
            prompts = tokenise(rows, policy.tokenizer, **how)
        if left_out := len(rows) - len(prompts):
            warnings.append(
                f"left out: {left_out:,} of {counted(len(rows), f'{kind} question')}, longer than {longest} tokens"
            )
        return prompts

    train = tokenised("training", questions.train)
    held_out = tokenised("held-out", questions.evaluated(recipe.eval.rows))
    how = {"per_step": recipe.train.prompts, "seed": recipe.seed, "shuffle": data.shuffle}
    return RunPrompts(
        prompts=in_batches(train, questions, **how),
        held_out=held_out,
        held_out_sets=questions.sets,
        commits=questions.commits,
        warnings=warnings,
    )


def held_out_questions(recipe: Recipe, folder: Path) -> dict[str | None, list[Question]]:
    """Return the questions that the run in `folder` is evaluated on by the name of their set; None if it has none."""
    questions = load_questions(recipe, saved_revisions(folder))
    by_set: dict[str | None, list[Question]] = {}
    for question in questions.evaluated(recipe.eval.rows):
        by_set.setdefault(questions.sets.get(question.id), []).append(question)
    return by_set


def _track(display: Display, kind: str, questions: Sequence[Question]) -> Iterable[Question]:
    return display.track(questions, total=len(questions), what=f"tokenising {kind} questions", stays=False)
