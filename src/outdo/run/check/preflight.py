"""`outdo check`: everything that can be known about a run before its model is loaded.

`check` examines; `run.check.report.show` prints. Faults of the recipe itself are raised earlier, by `config.file.load`.
An error is what stops a run. A warning is what lets it start, and most likely fail or learn nothing. A note is what the
user may want to know.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outdo.config.attention import divided_heads
from outdo.config.engines import (
    borrowed_share,
    is_remote,
    machine_mistakes,
    reward_place_mistakes,
    whole_model_mistakes,
)
from outdo.config.names import QUANTISED
from outdo.config.options import describe_method
from outdo.config.packages import missing_clients, package_faults
from outdo.config.recipe import Recipe
from outdo.config.rules import conflicts
from outdo.data.files import shorten
from outdo.data.questions import Question
from outdo.data.splits import Questions, load_questions
from outdo.models.inspect_folder import LANGUAGE_MODEL, ModelFacts, conversion_notes, inspect_folder
from outdo.models.inspect_folder import REWARD_MODEL as CLASSIFIER
from outdo.rewards.right import UNDEFINED
from outdo.run.check import cost
from outdo.run.check.estimate import Machine, Sample, estimate
from outdo.run.check.prompt_warnings import (
    chat_option_faults,
    context_warnings,
    date_notes,
    episode_faults,
    longest_prompt,
    overlong_prompts,
    overlong_reward_warnings,
    question_warnings,
    template_does,
    template_warnings,
)
from outdo.run.check.reward_inputs import dated_reward_models, missing_variables
from outdo.run.check.reward_trials import RewardTrials, Trial, try_rewards
from outdo.run.check.sequence_lengths import longest_places, sampled_places
from outdo.run.check.teachers import demonstration_faults, teacher_faults
from outdo.utils.errors import ModelError, QuestionError, UserError
from outdo.utils.hints import RIGHT, places
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.text import counted


class Rendered(NamedTuple):
    """A question as the model reads it."""

    text: str
    tokens: int = 0
    unknown: int = 0  # how many of the tokens are the tokenizer's unknown token
    special: Sequence[str] = ()  # special tokens in the text of the question and of its tools
    prefill: str = ""  # what the prompt has written of the answer: see `outdo.utils.thinking.prefill_of`
    lost: Sequence[str] = ()  # a sentence for each text that rewards look for, and that no completion has
    doubtful: Sequence[str] = ()  # what the chat template does with its messages, as parts of a sentence
    remarks: Sequence[str] = ()  # the same, where it is as expected


Render = Callable[[Question], Rendered]
"""Tokenises a question."""

Probe = Callable[[Recipe], Machine]
"""Builds the pieces of a recipe and looks at the device, which needs torch."""

PROMPTS_SHOWN = 2

MOST_UNKNOWN = 0.1
"""Share of unknown tokens in a prompt up to which there is no warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of `check`. The run can start if there are no errors."""

    recipe: Recipe
    errors: Sequence[str]
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()  # options without effect, columns in use, and more
    prompts: Sequence[str] = ()  # the first ones, rendered
    trials: Sequence[Trial] = ()
    arithmetic: cost.Arithmetic | None = None
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by purpose
    alternatives: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # the memory of full, LoRA and QLoRA
    facts: ModelFacts | None = None  # of the recipe's model, if its folder is sound
    questions: Questions | None = None  # of the recipe's data, if its files are sound


def check(recipe: Recipe, *, render: Render | None = None, probe: Probe | None = None, references: int = 0) -> Report:
    """Check the data, the rewards and the model's folder, and compute what the run will cost.

    `render` tokenises a question, which needs the tokenizer; without it, prompts are shown as they are in the data.
    `probe` builds the pieces, which needs torch. The rewards are tried on the first `references` reference answers.
    Errors are not raised: the report holds them.
    """
    errors, notes = conflicts(recipe)
    method = [] if errors else describe_method(recipe)
    questions = facts = None
    warnings: list[str] = []
    try:
        questions = load_questions(recipe)
        notes = [*questions.notes, *notes]
        warnings += question_warnings(questions)
    except UserError as error:
        errors += error.problems
    try:
        facts = inspect_folder(recipe.model)
        notes += [*_model_notes(recipe, facts), *date_notes(recipe, facts)]
        warnings += template_warnings(recipe, facts)
        errors += [*_frozen_weights(recipe, facts), *_whole_model(recipe, facts), *divided_heads(recipe, facts)]
        errors += chat_option_faults(recipe, facts)
    except ModelError as error:
        errors += str(error).splitlines()
    unfit, doubtful = package_faults(recipe, adapter=facts is not None and facts.adapter is not None)
    errors += [*unfit, *_other_models(recipe), *machine_mistakes(recipe.engine), *missing_clients(recipe.track)]
    errors += reward_place_mistakes(recipe)
    train = questions.train if questions else ()
    errors += [*teacher_faults(recipe, train), *demonstration_faults(recipe, train)]
    rewards = try_rewards(recipe, train, references=0 if errors else references)
    errors += [*rewards.errors, *_advantage_without_right(recipe, rewards)]
    render = None if errors else render
    sample, prompts, unread = sample_of(recipe, facts, train, render)  # it may load torch
    refused, dropped = _overlong(recipe, facts, questions, sample, render)
    errors += [*unread, *refused]
    warnings += [*context_warnings(recipe, facts, sample), *overlong_reward_warnings(recipe, facts, sample)]
    notes += [*_prefills(prompts), *_remarks(prompts)]
    machine = probe(recipe) if probe and not errors else Machine(())  # last, because it loads torch
    errors += machine.errors
    estimated = estimate(recipe, facts, sample, machine, held_out=_evaluated(recipe, questions))
    return Report(
        recipe=recipe,
        errors=errors,
        warnings=[
            *machine.warnings,
            *warnings,
            *dropped,
            *estimated.warnings,
            *doubtful,
            *_repetition(recipe, train),
            *_doubtful_prompts(prompts, recipe),
            *rewards.warnings,
            *_hint_without_right(recipe, rewards),
            *missing_variables(recipe),
            *dated_reward_models(recipe),
        ],
        notes=[*method, *rewards.notes, *_placed_rewards(recipe), *machine.notes, *notes, *estimated.notes],
        prompts=[prompt.text for prompt in [*prompts.values()][:PROMPTS_SHOWN]],
        trials=rewards.trials,
        arithmetic=cost.arithmetic(recipe, len(train), estimated.lengths.longest) if train else None,
        memory=estimated.memory,
        alternatives=estimated.alternatives,
        facts=facts,
        questions=questions,
    )


def _other_models(recipe: Recipe) -> Iterator[str]:
    """Yield the faults in the folders of all models except the policy."""
    reward_models = [reward.options.get("path") for reward in recipe.rewards if reward.name == REWARD_MODEL]
    named = [("reference.model", recipe.reference.model, LANGUAGE_MODEL)]
    named += [("teachers", teacher.model, LANGUAGE_MODEL) for teacher in recipe.teachers if teacher.is_folder]
    named += [("train.critic.path", recipe.critic.options.get("path") if recipe.critic else None, LANGUAGE_MODEL)]
    named += [("rewards.reward_model.path", path, CLASSIFIER) for path in reward_models]
    for key, path, kind in named:
        if isinstance(path, str):
            try:
                other = inspect_folder(path, kind)
                if kind is LANGUAGE_MODEL:
                    yield from (f"{key}: {line}" for line in divided_heads(recipe, other))
                else:
                    yield from episode_faults(recipe, path, other)
            except ModelError as error:
                yield from (f"{key}: {line}" for line in str(error).splitlines())


def faults(recipe: Recipe, broken: Collection[str]) -> list[str]:
    """Return the faults of the data, the model and the rewards of a recipe with wrong settings, named in `broken`."""
    errors: list[str] = []
    tables = {key.partition(".")[0] for key in broken}
    if "data" not in tables:
        try:
            load_questions(recipe)
        except UserError as error:
            errors += error.problems
    if "model" not in tables:
        try:
            inspect_folder(recipe.model)
        except ModelError as error:
            errors += str(error).splitlines()
    if not tables & {"rewards", "reward_limits", "reference", "teachers", "train"}:
        errors += _other_models(recipe)
    if not tables & {"rewards", "reward_limits"}:
        errors += try_rewards(recipe, ()).errors
    return errors


# ----------------------------------------------------------------------------------------------------------- checking


def sample_of(
    recipe: Recipe, facts: ModelFacts | None, questions: Sequence[Question], render: Render | None
) -> tuple[Sample, dict[str, Rendered], list[str]]:
    """Return the lengths of a sample of prompts, the prompts by id, and what tokenizer or chat template refuse.

    Beside the sample, the longest texts are tokenised, so that a prompt that is too long is found wherever it is.
    Without `render` the lengths are not known, and only the first prompts are returned.
    """
    places = sampled_places(len(questions), first=PROMPTS_SHOWN)
    beside: list[int] = []
    if render is None:
        places = places[:PROMPTS_SHOWN]
    elif len(places) < len(questions):
        longest = longest_places(len(str(question.text)) for question in questions)
        beside = sorted({*longest}.difference(places))
    rendered: dict[str, Rendered] = {}
    refused: list[str] = []
    for question in (questions[index] for index in (*places, *beside)):
        try:
            rendered[question.id] = render(question) if render else Rendered(_plain_prompt(question))
        except QuestionError as error:
            refused.append(str(error))
        except (UserError, ModelError) as error:
            refused += str(error).splitlines()
            break  # the next question has the same fault
    tokens = [(name, prompt.tokens) for name, prompt in rendered.items()] if render else []
    sample = Sample(
        tokens={name: count for name, count in tokens[: len(places)] if count},
        of=len(questions),
        longest=longest_prompt(recipe, facts),
        beside=dict(tokens[len(places) :]),
    )
    return sample, rendered, shorten(refused, "questions")


def _overlong(
    recipe: Recipe, facts: ModelFacts | None, questions: Questions | None, sample: Sample, render: Render | None
) -> tuple[list[str], list[str]]:
    """Return errors and warnings for the prompts of the sample, and of one of held-out questions, that are too long."""
    errors, warnings = overlong_prompts(sample, recipe.data.overlong, "training")
    if not sample.tokens or questions is None:
        return errors, warnings
    held_out, _, unread = sample_of(recipe, facts, questions.evaluated(recipe.eval.rows), render)
    refused, dropped = overlong_prompts(held_out, recipe.data.overlong, "held-out")
    return [*errors, *unread, *refused], [*warnings, *dropped]


def _evaluated(recipe: Recipe, questions: Questions | None) -> int:
    """Return how many held-out questions each evaluation asks."""
    return len(questions.evaluated(recipe.eval.rows)) if questions else 0


def _doubtful_prompts(prompts: Mapping[str, Rendered], recipe: Recipe) -> Iterator[str]:
    yield from _unknown_tokens(prompts)
    yield from _special_tokens(prompts, special=recipe.data.special_tokens)
    yield from _lost(prompts)
    yield from _template_does({name: prompt.doubtful for name, prompt in prompts.items()})


def _unknown_tokens(prompts: Mapping[str, Rendered]) -> Iterator[str]:
    affected = {name: prompt for name, prompt in prompts.items() if prompt.unknown > MOST_UNKNOWN * prompt.tokens}
    if affected:
        question, prompt = next(iter(affected.items()))
        yield (
            f"data.path: {len(affected)} of {counted(len(prompts), 'prompt')} have characters that the tokenizer does "
            f"not know: {prompt.unknown} of the {counted(prompt.tokens, 'token')} of question {question} are its "
            "unknown token"
        )


def _special_tokens(prompts: Mapping[str, Rendered], *, special: bool) -> Iterator[str]:
    affected = {name: prompt.special for name, prompt in prompts.items() if prompt.special}
    if affected:
        question, tokens = next(iter(affected.items()))
        end = (
            "data.special_tokens = true makes them special tokens, so that a text can end its turn and begin another"
            if special
            else "they are ordinary text; data.special_tokens = true would make them special tokens"
        )
        yield (
            f"data.path: {len(affected)} of {counted(len(prompts), 'prompt')} looked at have special tokens in their "
            f"texts, question {question} for example {tokens[0]}; {end}"
        )


def _lost(prompts: Mapping[str, Rendered]) -> Sequence[str]:
    return next((prompt.lost for prompt in prompts.values()), ())


def _prefills(prompts: Mapping[str, Rendered]) -> Iterator[str]:
    """Yield a sentence if prompts have written the beginning of their answers."""
    written = {question: prompt.prefill for question, prompt in prompts.items() if prompt.prefill}
    if written:
        question, prefill = next(iter(written.items()))
        yield (
            f"prompts: {len(written)} of {len(prompts)} looked at have the beginning of the answer, {prefill!r} in "
            f"question {question}: built-in rewards read it before the completion, other functions get it as `prefill`"
        )


def _remarks(prompts: Mapping[str, Rendered]) -> Iterator[str]:
    yield from _template_does({name: prompt.remarks for name, prompt in prompts.items()})


def _template_does(by_question: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield from (f"data.path: {sentence}" for sentence in template_does(by_question))


def _plain_prompt(question: Question) -> str:
    if isinstance(question.text, str):
        return question.text
    return "\n".join(f"{message['role']}: {message['content']}" for message in question.text)


def _advantage_without_right(recipe: Recipe, rewards: RewardTrials) -> Iterator[str]:
    if "right" in recipe.advantage_requires:
        undefined = (note for note in rewards.notes if note.startswith(UNDEFINED))
        key = f"train.advantage = {recipe.advantage.name}"
        yield from (f"{key}: needs to know which answers are right, and {note}" for note in undefined)


def _hint_without_right(recipe: Recipe, rewards: RewardTrials) -> Iterator[str]:
    """Yield a sentence if a hint needs a right answer, and no answer will be known to be right."""
    if any(RIGHT in places(teacher.hint or "") for teacher in recipe.teachers):
        undefined = (note for note in rewards.notes if note.startswith(UNDEFINED))
        yield from (f"teachers: no answer will have the hint with {{right}}, because {note}" for note in undefined)


def _frozen_weights(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    if recipe.weights in ("bfloat16", *QUANTISED) and not (recipe.train.adapter or facts.adapter):
        yield (
            f'weights = "{recipe.weights}": the weights are trained, in float32; only those of a model that an adapter '
            "freezes (train.adapter) can be stored in fewer bytes"
        )
    if facts.adapter and recipe.train.adapter:
        yield (
            f"train.adapter: {recipe.model} is an adapter, which is trained further without this setting; for another "
            "one beside it, merge it first: `outdo export --merge`"
        )


def _whole_model(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    if not (recipe.train.adapter or facts.adapter):
        yield from whole_model_mistakes(recipe.engine)


def _model_notes(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    if is_remote(recipe.engine) and not borrowed_share(recipe.engine):
        yield f"engine: {recipe.engine.name} has memory of its own, which the estimate leaves out"
    if recipe.cluster.world_size > 1:
        yield f"memory: that of each of the {recipe.cluster.world_size} replicas"
    yield from conversion_notes(facts)
    if facts.folder is None and not facts.dequantised:
        yield f"model {facts.name}: not on this machine yet; it is downloaded when the run starts"
    if facts.adapter:
        yield f"model {facts.adapter}: an adapter of {facts.name}; only the adapter is trained"
    elif facts.dtype not in (None, "float32") and not recipe.train.adapter:
        yield f"model {facts.name}: its weights are {facts.dtype}; they are trained, and saved, in float32"


def _placed_rewards(recipe: Recipe) -> Iterator[str]:
    for reward in recipe.rewards:
        if reward.place:
            yield f"rewards: {reward.name} was tried on this machine; the run scores with it where Ray finds room"


def _repetition(recipe: Recipe, questions: Sequence[Question]) -> Iterator[str]:
    if questions and recipe.train.prompts > len(questions):
        few = f"only {counted(len(questions), 'question')}"
        yield f"train.prompts = {recipe.train.prompts}: the data have {few}, so that each step repeats some"
