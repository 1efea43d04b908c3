"""What teachers need: the rows that name them, the columns that hints and demonstrations name, and memory."""

from collections.abc import Iterator, Sequence
from itertools import islice

from outdo.config.options import has_teacher_divergence, needs_teacher
from outdo.config.recipe import Recipe
from outdo.config.teachers import POLICY, TeacherSection
from outdo.data.questions import Question
from outdo.models.inspect_folder import ModelFacts, inspect_folder
from outdo.models.limits import SUM_BYTES
from outdo.run.check import cost
from outdo.utils.errors import ModelError
from outdo.utils.hints import ANSWER, COLUMN, FEEDBACK, RIGHT, places, teacher_of
from outdo.utils.options import no_such_name
from outdo.utils.text import counted

LOOKED_AT = 10_000
"""Rows that are looked at; the questions of a stream are read from disk."""


BUFFERS = 10
"""Tensors of logits that a divergence and its gradient make at a time, of `SUM_BYTES` each."""


def teacher_faults(recipe: Recipe, questions: Sequence[Question]) -> Iterator[str]:
    """Yield a sentence for each teacher that rows name and that is not there, and for each place that no row fills."""
    rows = list(islice(questions, LOOKED_AT)) if recipe.teachers else []
    if rows:
        yield from _unknown_teachers([teacher.name for teacher in recipe.teachers], rows)
        for teacher in recipe.teachers:
            yield from _empty_places(teacher.hint or "", rows)


def demonstration_faults(recipe: Recipe, questions: Sequence[Question]) -> Iterator[str]:
    """Yield a sentence if no row has the column of the demonstrations."""
    demonstrations = recipe.data.demonstrations
    rows = list(islice(questions, LOOKED_AT)) if demonstrations else []
    columns = {name for question in rows for name, value in question.columns.items() if value not in (None, "")}
    if demonstrations and rows and demonstrations.column not in columns:
        yield no_such_name("data.demonstrations: a column of the rows", demonstrations.column, sorted(columns))


def _unknown_teachers(names: Sequence[str], rows: Sequence[Question]) -> Iterator[str]:
    named = [teacher_of(question.columns) for question in rows]
    for name in sorted({*named} - {"", *names}):
        where = f"{counted(named.count(name), 'row')} of data.path, first {rows[named.index(name)].id}"
        yield no_such_name(f"teachers: {where}, in the column {COLUMN}", name, names)


def _empty_places(hint: str, rows: Sequence[Question]) -> Iterator[str]:
    columns = {name for question in rows for name, value in question.columns.items() if value not in (None, "")}
    filled = {*columns, RIGHT, FEEDBACK, *([ANSWER] if any(question.answer is not None for question in rows) else [])}
    for place in places(hint):
        if place not in filled:
            yield no_such_name("teachers: a place in the hint", place, sorted(filled))


def teacher_memory(recipe: Recipe, facts: ModelFacts, longest: int) -> dict[str, int]:
    """Compute the bytes that teachers take of the policy's device, by purpose; what files do not tell is left out.

    For a divergence over the vocabulary there are the logits of some tokens, and in main memory, of each teacher, the
    hidden states of all sequences of a step, of at most `longest` tokens. Of the policy as a teacher there is its
    output layer as it was before the update.
    """
    if not needs_teacher(recipe):
        return {}
    models = [(teacher, found) for teacher in recipe.teachers if (found := _facts(teacher, facts)) is not None]
    memory = {"weights of the teachers": sum(_weights(*model, recipe) for model in models)}
    if has_teacher_divergence(recipe):
        at_once = SUM_BYTES["cpu"] if cost.on_cpu(recipe) else SUM_BYTES.get(recipe.device, SUM_BYTES["cuda"])
        memory["logits of policy and teachers while training"] = BUFFERS * at_once
        answers = recipe.train.prompts * recipe.train.group_size * longest
        width = sum(model.hidden_size or 0 for _, model in models)
        states = cost.FLOAT32 * width * answers * cost.on_cpu(recipe)
        memory["hidden states of the teachers while training"] = states
    return {name: size for name, size in memory.items() if size}


def _facts(teacher: TeacherSection, policy: ModelFacts) -> ModelFacts | None:
    """Return what is known of a teacher's model; None for a folder that is not sound: `outdo check` has its faults."""
    try:
        return inspect_folder(teacher.model) if teacher.is_folder else policy
    except ModelError:
        return None


def _weights(teacher: TeacherSection, facts: ModelFacts, recipe: Recipe) -> int:
    """Return the bytes of a teacher's weights on the policy's device that no other part of the estimate has."""
    if teacher.model == POLICY:
        return cost.FLOAT32 * (facts.hidden_size or 0) * (facts.vocab_size or 0)
    is_there = teacher.is_folder and teacher.device in ("", recipe.device)
    return cost.adapter_size(facts, _stored(teacher, facts), 0).base if is_there else 0


def _stored(teacher: TeacherSection, facts: ModelFacts) -> str:
    """Return how the weights of a teacher are stored; see `outdo.models.base_weights.choose_weights`."""
    if teacher.weights != "auto":
        return teacher.weights
    return "bfloat16" if facts.dtype == "bfloat16" else "float32"
