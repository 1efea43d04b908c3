"""`outdo check`: everything that can be known about a run before its model is loaded.

`check` examines and `show` prints. Faults of the recipe itself are raised earlier, by `config.file.load`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outdo.config.names import REWARD_MODEL
from outdo.config.options import describe_method, needs_reference
from outdo.config.recipe import Recipe
from outdo.config.rules import conflicts
from outdo.data.questions import Question
from outdo.data.splits import load_questions
from outdo.models.inspect_folder import LANGUAGE_MODEL, ModelFacts, inspect_folder
from outdo.models.inspect_folder import REWARD_MODEL as CLASSIFIER
from outdo.rewards import WeightedSum, load_reward
from outdo.rewards.right import UNDEFINED, RightRule, right_rule
from outdo.rewards.types import Reward, RewardOutput, Status, reward_input
from outdo.trainer import cost
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import one_line

Render = Callable[[Question], str]
"""Returns a question as the text that the model reads."""

Probe = Callable[[Recipe], list[str]]
"""Builds the pieces of a recipe, and returns the faults that show only then."""

PROMPTS_SHOWN = 2
NEEDS_RIGHT = frozenset({"rejection", "pass_at_k"})
"""Advantages that count right answers."""

LONGEST_SHOWN = 600
"""Characters of a prompt or completion that are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One completion, and how the reward scored it."""

    kind: str  # reference, empty or wrong
    completion: str
    scored: RewardOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of `check`. The run can start if `mistakes` is empty."""

    recipe: Recipe
    mistakes: Sequence[str]
    notes: Sequence[str] = ()  # options without effect, columns in use, and more
    prompts: Sequence[str] = ()  # the first ones, rendered
    trials: Sequence[Trial] = ()
    arithmetic: cost.Arithmetic | None = None
    memory: Mapping[str, int] = field(default_factory=dict)  # bytes by purpose
    facts: ModelFacts | None = None  # of the recipe's model, if its folder is sound


def check(recipe: Recipe, *, render: Render | None = None, probe: Probe | None = None) -> Report:
    """Check the data, the rewards and the model's folder, and compute what the run will cost.

    `render` returns a question as the model will read it, which needs the tokenizer; without it, prompts are shown as
    they are in the data. `probe` builds the pieces, which needs torch. Mistakes are not raised: the report holds them.
    """
    mistakes, notes = conflicts(recipe)
    method = [] if mistakes else describe_method(recipe)
    questions = facts = None
    try:
        questions = load_questions(recipe)
        notes = [*questions.notes, *notes]
    except UserError as error:
        mistakes += error.problems
    try:
        facts = inspect_folder(recipe.model)
        notes += _context(recipe, facts)
    except ModelError as error:
        mistakes += str(error).splitlines()
    mistakes += _other_models(recipe)
    train = questions.train if questions else ()
    prompts = _rendered(train, None if mistakes else render, mistakes)
    trials, right = _score_trials(recipe, train, mistakes)
    right_note = [] if right is None else [_right_note(right, trials)]
    mistakes += _advantage_without_right(recipe, right_note)
    mistakes += probe(recipe) if probe and not mistakes else []  # last, because it loads torch
    return Report(
        recipe=recipe,
        mistakes=mistakes,
        notes=[*method, *right_note, *notes, *_repetition_note(recipe, train), *_reward_warnings(trials)],
        prompts=prompts,
        trials=trials,
        arithmetic=cost.arithmetic(recipe, len(train)) if train else None,
        memory=_memory(recipe, facts) if facts else {},
        facts=facts,
    )


def _other_models(recipe: Recipe) -> Iterator[str]:
    """Yield the faults in the folders of all models except the policy."""
    reward_models = [reward.options.get("path") for reward in recipe.rewards if reward.name == REWARD_MODEL]
    named = [("reference.model", recipe.reference.model, LANGUAGE_MODEL)]
    named += [("train.critic.path", recipe.critic.options.get("path") if recipe.critic else None, LANGUAGE_MODEL)]
    named += [("rewards.reward_model.path", path, CLASSIFIER) for path in reward_models]
    for key, path, kind in named:
        if isinstance(path, str):
            try:
                inspect_folder(path, kind)
            except ModelError as error:
                yield from (f"{key}: {line}" for line in str(error).splitlines())


def faults(recipe: Recipe, broken: Collection[str]) -> list[str]:
    """Return the faults of the data, the model and the rewards of a recipe with wrong settings, named in `broken`."""
    mistakes: list[str] = []
    tables = {key.partition(".")[0] for key in broken}
    if "data" not in tables:
        try:
            load_questions(recipe)
        except UserError as error:
            mistakes += error.problems
    if "model" not in tables:
        try:
            inspect_folder(recipe.model)
        except ModelError as error:
            mistakes += str(error).splitlines()
    if not tables & {"rewards", "reward_limits", "reference", "train"}:
        mistakes += _other_models(recipe)
    if not tables & {"rewards", "reward_limits"}:
        _score_trials(recipe, (), mistakes)
    return mistakes


# ----------------------------------------------------------------------------------------------------------- checking


def _rendered(questions: Sequence[Question], render: Render | None, mistakes: list[str]) -> list[str]:
    shown: list[str] = []
    for question in questions[:PROMPTS_SHOWN]:
        try:
            shown.append(render(question) if render else _plain_prompt(question))
        except (UserError, ModelError) as error:
            mistakes += str(error).splitlines()
            break  # the next question has the same fault
    return shown


def _plain_prompt(question: Question) -> str:
    if isinstance(question.text, str):
        return question.text
    return "\n".join(f"{message['role']}: {message['content']}" for message in question.text)


def _score_trials(
    recipe: Recipe, questions: Sequence[Question], mistakes: list[str]
) -> tuple[list[Trial], RightRule | None]:
    """Score the first question's reference answer, an empty answer and the answer of another question.

    Also returns the rule that decides which answers are right; None if a reward cannot be loaded.
    """
    rules = [{**spec, "weight": weight} for spec, weight in recipe.reward_functions]
    if not rules:  # reward models are not loaded here
        return [], right_rule([REWARD_MODEL])
    try:
        reward = load_reward(rules, timeout=recipe.reward_limits.timeout)
    except UserError as error:
        mistakes += [f"rewards: {mistake}" for mistake in error.problems]
        return [], None
    assert isinstance(reward, WeightedSum)
    try:
        rule = right_rule(reward.names, recipe.eval.right)
    except UserError as error:
        mistakes += [f"eval.right: {mistake}" for mistake in error.problems]
        rule = None
    return _trials(reward, questions, mistakes), rule


def _right_note(rule: RightRule, trials: Sequence[Trial]) -> str:
    """Return which answers count as right. A reward of numbers shows only when it is called."""
    scored = [trial.scored for trial in trials if trial.scored.status is Status.ok]
    if rule.reward is None or rule.by_value or not scored or any(output.right is not None for output in scored):
        return rule.reason
    return f'{UNDEFINED}; {rule.reward} returns numbers: set eval.right = "{rule.reward}" if 1 means right'


def _advantage_without_right(recipe: Recipe, right_note: Sequence[str]) -> Iterator[str]:
    name, options = recipe.advantage.name, recipe.advantage.options
    if name in NEEDS_RIGHT and "threshold" not in options and any(note.startswith(UNDEFINED) for note in right_note):
        yield f"train.advantage = {name}: needs to know which answers are right, and {right_note[0]}"


def _trials(reward: Reward, questions: Sequence[Question], mistakes: list[str]) -> list[Trial]:
    """Score the three answers; add those that the reward cannot score to `mistakes`."""
    try:
        if not questions:
            return []
        question = questions[0]
        completions = {"reference": str(question.answer)} if question.answer is not None else {}
        completions |= {"empty": "", "wrong": _wrong_answer(questions)}
        scored = reward([reward_input(question, text) for text in completions.values()])
    finally:
        reward.close()
    trials = [
        Trial(kind=kind, completion=text, scored=each)
        for (kind, text), each in zip(completions.items(), scored, strict=True)
    ]
    failures = {_failure(trial.scored): trial for trial in reversed(trials) if trial.scored.status.is_failure}
    mistakes += [
        f"rewards: scoring the {trial.kind} answer to question {question.id} {failure}"
        for failure, trial in reversed(failures.items())  # each kind of failure once, for the first trial that has it
    ]
    return trials


def _wrong_answer(questions: Sequence[Question]) -> str:
    """Return the first answer whose last word differs from that of the first question's answer."""
    right = str(questions[0].answer).split()[-1:]
    others = (str(question.answer) for question in questions[1:] if question.answer is not None)
    return next((other for other in others if other.split()[-1:] != right), "I do not know.")


def _failure(scored: RewardOutput) -> str:
    kinds = {
        Status.failed: "failed",
        Status.timed_out: "took too long",
        Status.non_finite: "gave no finite number",
    }
    return f"{kinds[scored.status]}: {scored.reason}"


def _reward_warnings(trials: Sequence[Trial]) -> Iterator[str]:
    value = {trial.kind: trial.scored.value for trial in trials if trial.scored.status is Status.ok}
    for other in ("empty", "wrong"):
        if "reference" in value and value.get(other, -float("inf")) >= value["reference"]:
            numbers = f"{value[other]:g} and {value['reference']:g}"
            yield f"rewards: the {other} answer scores at least as much as the reference answer ({numbers})"


def _context(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    longest, context = cost.longest_sequence(recipe), facts.max_positions
    if facts.folder is None:
        yield f"model {facts.name}: not on this machine yet; it is downloaded when the run starts"
    if context is not None and longest > context:
        yield (
            f"data.max_prompt_tokens + sampling.max_tokens = {longest} is more than the model's context of {context}: "
            f"prompts of more than {context - 1} tokens are left out, and an answer ends at the end of the context"
        )


def _repetition_note(recipe: Recipe, questions: Sequence[Question]) -> Iterator[str]:
    if questions and recipe.train.prompts > len(questions):
        few = f"only {len(questions)} questions"
        yield f"train.prompts = {recipe.train.prompts}: there are {few}, so that each step repeats some"


def _memory(recipe: Recipe, facts: ModelFacts) -> Mapping[str, int]:
    own_critic = recipe.critic is not None and recipe.critic.name == "model"
    return cost.memory(facts, recipe, reference=_has_reference(recipe), critic=own_critic)


def _has_reference(recipe: Recipe) -> bool:
    """Return whether the run has a reference; a user's objective without an option `beta` is assumed to need none."""
    try:
        return needs_reference(recipe)
    except UserError:  # no such objective, which is among the mistakes
        return False


# ----------------------------------------------------------------------------------------------------------- printing


def show(report: Report, console: Console) -> None:
    """Print a report: prompts, rewards, arithmetic, memory, notes, and the mistakes at the end."""
    for number, prompt in enumerate(report.prompts, 1):
        _heading(console, f"Prompt {number} of {len(report.prompts)}")
        console.print(_plain(prompt))
    if report.trials:
        _heading(console, "Reward")
        console.print(_trials_table(report.trials))
    if report.arithmetic:
        _heading(console, "Arithmetic")
        console.print("\n".join(arithmetic_lines(report)), highlight=False, markup=False)
    if report.memory:
        _heading(console, "Memory, about")
        console.print(_memory_table(report.memory))
    _list(console, "Notes", report.notes)
    _list(console, "Mistakes", report.mistakes)
    if not report.mistakes:
        console.print(Text("\nNo mistakes.", style="bold green"))


def arithmetic_lines(report: Report) -> list[str]:
    """Return the run in numbers, a line each; the first describes one step."""
    numbers, recipe = report.arithmetic, report.recipe
    if numbers is None:
        return []
    train, per_step = recipe.train, numbers.optimiser_steps
    return [
        f"one step: {numbers.prompts} questions × {numbers.group} answers = {numbers.sequences:,} sequences, "
        f"at most {numbers.tokens:,} tokens",
        f"optimiser steps in it: {per_step} (passes {train.passes} × minibatches {train.minibatches})",
        f"the run: {recipe.steps:,} steps, {numbers.optimiser_steps_in_all:,} optimiser steps, "
        f"{numbers.epochs:.3g} epochs",
    ]


def _heading(console: Console, title: str) -> None:
    console.print(Text(f"\n{title}", style="bold"))


def _plain(text: str) -> Text:
    """Return text from a file so that rich's markup and control characters have no effect on the terminal."""
    shown = text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]} ... ({len(text):,} characters)"
    return Text("\n".join(one_line(line) for line in shown.splitlines()))


def _list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        _heading(console, title)
        for line in lines:
            console.print(Text("- ").append_text(_plain(line)))


def _trials_table(trials: Sequence[Trial]) -> Table:
    table = Table("answer", "reward", "completion", box=None)
    for trial in trials:
        ok = trial.scored.status is Status.ok
        value = f"{trial.scored.value:g}" if ok else trial.scored.status.value
        table.add_row(trial.kind, value, _plain(trial.completion) if trial.completion else Text("(empty)", style="dim"))
    return table


def _memory_table(parts: Mapping[str, int]) -> Table:
    table = Table("purpose", "GiB", box=None)
    for name, size in parts.items():
        table.add_row(name, f"{size / 2**30:.2f}")
    table.add_row(Text("at the peak", style="bold"), f"{cost.peak(parts) / 2**30:.2f}")
    return table
