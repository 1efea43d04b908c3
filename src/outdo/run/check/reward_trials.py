"""Try the rewards of a recipe before a run: on the answers to the first question, and on every reference answer."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outdo.config.names import ENVIRONMENT_REWARD
from outdo.config.recipe import Recipe
from outdo.data.questions import Question
from outdo.rewards import WeightedSum, load_reward
from outdo.rewards.base import Reward
from outdo.rewards.final_answer import written_out
from outdo.rewards.matchers import matcher_called, matchers_in
from outdo.rewards.right import UNDEFINED, RightRule, right_rule
from outdo.rewards.types import RewardInput, RewardOutput, Status, reward_input
from outdo.utils.errors import UserError
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.text import counted, one_line

REFERENCES = 500
"""Reference answers that are tried at most."""

SECONDS = 30.0
"""Seconds after which no further references are tried: a reward may be slow."""

AT_ONCE = 50
"""References that are tried between two looks at the clock."""

IN_EVERY_FORM = 8
"""References that are tried in every form, to find parts of the reward that are constant."""

MOST_TOKENS = 1_000_000
"""Tokens of the longest answer that is tried."""

UNKNOWN = "I do not know."
"""An answer that is wrong whatever the question."""

NOT_TRAINED = "an answer to which no reward applies is not trained on"

NAMED = 5
"""Questions that a warning names at most."""

FORMS: Sequence[Callable[[str], str]] = (
    lambda answer: answer,
    lambda answer: f"The answer is {_final(answer)}.",
    lambda answer: f"#### {_final(answer)}",
    lambda answer: rf"The answer is $\boxed{{{_final(answer)}}}$.",
    lambda answer: f"<think>First I think.</think>\n<answer>{_final(answer)}</answer>",
    lambda answer: f"First I think.</think>\n<answer>{_final(answer)}</answer>",  # the prompt ends in <think>
)
"""Forms that a model's answer may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One completion, and how the reward scored it."""

    kind: str  # reference, empty or wrong
    completion: str
    scored: RewardOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTrials:
    """What the trials of a recipe's rewards showed."""

    errors: Sequence[str] = ()
    warnings: Sequence[str] = ()
    trials: Sequence[Trial] = ()  # of the first question
    notes: Sequence[str] = ()  # which answers count as right; empty if a reward cannot be loaded


def try_rewards(recipe: Recipe, questions: Sequence[Question], *, references: int = 0) -> RewardTrials:
    """Score the answers to the first question, and the first `references` reference answers in several forms.

    Reward models are not loaded, and a reward whose calls cost money sees the answers to the first question alone.
    """
    named = [(spec, weight) for spec, weight in recipe.reward_functions if spec["name"] != ENVIRONMENT_REWARD]
    rules = [{**spec, "weight": weight} for spec, weight in named]
    if not rules:
        return RewardTrials(notes=[right_rule([REWARD_MODEL]).reason])
    try:
        reward = load_reward(rules, **recipe.reward_limits.of_workers)
    except UserError as error:
        return RewardTrials(errors=[_at_its_key(mistake) for mistake in error.problems])
    assert isinstance(reward, WeightedSum)
    answered = _references_are_answers(rules)
    rule, errors = _right_rule(reward, recipe)
    try:
        trials = _first_trials(reward, questions, reference=answered) if questions else []
        reward.verdicts.decide()  # as the run does
        errors += _failures(trials, questions)
        warnings = [*_not_preferred(trials)]
        if not errors:
            tried = questions[: references if answered and not reward.is_paid else 0]
            warnings += _try_references(reward, tried, trials, max_tokens=recipe.sampling.max_tokens)
    finally:
        reward.close()
    notes = [*([] if rule is None else [_right_note(rule, reward)]), *map(_sandbox_note, reward.sandboxes)]
    return RewardTrials(errors=errors, warnings=warnings, trials=trials, notes=notes)


def _at_its_key(mistake: str) -> str:
    return mistake if mistake.startswith("rewards") else f"rewards: {mistake}"


def _right_rule(reward: WeightedSum, recipe: Recipe) -> tuple[RightRule | None, list[str]]:
    """Return the rule of what is right, or None and the errors in `eval.right`."""
    try:
        return right_rule(reward.names, recipe.eval.right), []
    except UserError as error:
        return None, [f"eval.right: {mistake}" for mistake in error.problems]


def _references_are_answers(rules: Sequence[Mapping[str, Any]]) -> bool:
    return all(matcher_called(name).reference_is_answer for name in matchers_in(rules))


def _sandbox_note(description: str) -> str:
    return f"the reward code runs programs in {description}"


# -------------------------------------------------------------------------------------------------- the first question


def _first_trials(reward: Reward, questions: Sequence[Question], *, reference: bool) -> list[Trial]:
    """Score an empty answer to the first question and a wrong one.

    With `reference`, references are answers: that of the first question is tried, and another one is the wrong answer.
    """
    completions = _first_completions(questions, reference=reference)
    scored = reward([reward_input(questions[0], text) for text in completions.values()])
    return [
        Trial(kind=kind, completion=text, scored=score)
        for (kind, text), score in zip(completions.items(), scored, strict=True)
    ]


def _first_completions(questions: Sequence[Question], *, reference: bool) -> dict[str, str]:
    answer = questions[0].answer
    completions = {"reference": written_out(answer)} if reference and answer is not None else {}
    return completions | {"empty": "", "wrong": _wrong_answer(questions, 0) if reference else UNKNOWN}


def tried_first(questions: Sequence[Question]) -> list[RewardInput]:
    """Return the answers by which a run finds out whether its reward gives verdicts (`WeightedSum.tried_first`)."""
    if not questions:
        return []
    completions = _first_completions(questions, reference=True)
    return [reward_input(questions[0], text) for text in completions.values()]


def _wrong_answer(questions: Sequence[Question], index: int) -> str:
    """Return the next answer whose last word differs from that of the answer to question `index`."""
    right = written_out(questions[index].answer).split()[-1:]
    others = (questions[(index + ahead) % len(questions)] for ahead in range(1, len(questions)))
    answers = (written_out(question.answer) for question in others if question.answer is not None)
    return next((answer for answer in answers if answer.split()[-1:] != right), UNKNOWN)


def _failures(trials: Sequence[Trial], questions: Sequence[Question]) -> Iterator[str]:
    """Yield each kind of failure once, for the first trial that has it."""
    failures = {_failure(trial.scored): trial for trial in reversed(trials) if trial.scored.status.is_failure}
    for failure, trial in reversed(failures.items()):
        yield f"rewards: scoring the {trial.kind} answer to question {questions[0].id} {failure}"


def _failure(scored: RewardOutput) -> str:
    kinds = {
        Status.failed: "failed",
        Status.timed_out: "took too long",
        Status.unavailable: "was not possible",
        Status.non_finite: "gave no finite number",
    }
    return f"{kinds[scored.status]}: {scored.reason}"


def _not_preferred(trials: Sequence[Trial]) -> Iterator[str]:
    value = {trial.kind: trial.scored.value for trial in trials if trial.scored.status is Status.ok}
    for other in ("empty", "wrong"):
        if "reference" in value and value.get(other, -float("inf")) >= value["reference"]:
            numbers = f"{value[other]:g} and {value['reference']:g}"
            yield f"rewards: the {other} answer scores at least as much as the reference answer ({numbers})"


def _without_number(trials: Sequence[Trial]) -> Iterator[str]:
    """Yield a sentence for each reward that applies to none of the answers to the first question."""
    for name in dict.fromkeys(name for trial in trials for name in trial.scored.parts):
        if all(trial.scored.parts.get(name) is None for trial in trials):
            yield f"rewards: {name} returned None for each answer to the first question that was tried; {NOT_TRAINED}"


def _right_note(rule: RightRule, reward: WeightedSum) -> str:
    """Return which answers count as right. A reward of numbers shows only when it is called."""
    if rule.reward is None or rule.by_value:
        return rule.reason
    if reward.verdicts.given is not False:
        return reward.right_reason
    return f'{UNDEFINED}; {rule.reward} returns numbers: set eval.right = "{rule.reward}" if 1 means right'


# ----------------------------------------------------------------------------------------------- all reference answers


@dataclass(slots=True)
class _Tried:
    """What is known of the references so far."""

    unrewarded: list[int]  # questions whose reference has not scored more than a wrong answer in any form yet
    values: dict[str, set[float]] = field(default_factory=lambda: defaultdict(set))  # of each part of the reward
    answers: int = 0  # scored

    def note(self, outputs: Sequence[RewardOutput]) -> None:
        self.answers += len(outputs)
        for output in outputs:
            for name, value in output.parts.items():
                self.values[name].update(() if value is None else (value,))


def _try_references(
    reward: Reward, questions: Sequence[Question], first: Sequence[Trial], *, max_tokens: int
) -> Iterator[str]:
    """Score right and wrong answers in each form until the right one scores more; yield what is wrong with the reward.

    Without references the `first` trials are all that is known. `max_tokens` is the length of one further answer, for
    parts of the reward that only count tokens.
    """
    questions = [question for question in questions if question.answer is not None]
    if not questions:
        yield from _without_number(first)
        return
    started, tried = time.monotonic(), _Tried(list(range(len(questions))))
    longest = reward_input(questions[0], _wrong_answer(questions, 0), (0,) * min(max_tokens, MOST_TOKENS))
    tried.note(reward([longest]))
    for form in FORMS:
        rows = sorted({*tried.unrewarded, *range(min(IN_EVERY_FORM, len(questions)))})
        for start in range(0, len(rows), AT_ONCE):
            if time.monotonic() - started > SECONDS:
                number = counted(tried.answers, "answer")
                yield f"rewards: not every reference answer was tried: {number} took {SECONDS:.0f} s"
                return
            _try_form(reward, questions, rows[start : start + AT_ONCE], form, tried)
    if any(tried.values.values()):
        yield from _never_rewarded(questions, tried.unrewarded)
    for name, values in tried.values.items():
        if not values:
            yield f"rewards: {name} returned None for each of {tried.answers} answers that were tried; {NOT_TRAINED}"
        if len(values) == 1:
            yield (
                f"rewards: {name} is {next(iter(values)):g} for each of {tried.answers} answers that were tried, right "
                "and wrong ones in several forms; a constant reward teaches nothing"
            )


def _try_form(
    reward: Reward, questions: Sequence[Question], rows: Sequence[int], form: Callable[[str], str], tried: _Tried
) -> None:
    inputs: list[RewardInput] = []
    for row in rows:
        for answer in (written_out(questions[row].answer), _wrong_answer(questions, row)):
            inputs.append(reward_input(questions[row], form(answer)))
    outputs = reward(inputs)
    tried.note(outputs)
    for row, right, wrong in zip(rows, outputs[::2], outputs[1::2], strict=True):
        scored = right.status is Status.ok and wrong.status is Status.ok
        if row in tried.unrewarded and scored and right.value > wrong.value:
            tried.unrewarded.remove(row)


def _never_rewarded(questions: Sequence[Question], unrewarded: Sequence[int]) -> Iterator[str]:
    if len(unrewarded) == len(questions):
        yield (
            f"rewards: each of {counted(len(questions), 'reference answer')} scores like a wrong one in each of "
            f"{len(FORMS)} forms, so that no right answer is rewarded"
        )
    elif unrewarded:
        first = [questions[row] for row in unrewarded[:NAMED]]
        named = ", ".join(f"{question.id} ({one_line(written_out(question.answer))[:40]})" for question in first)
        more = f" and {len(unrewarded) - NAMED} more" if len(unrewarded) > NAMED else ""
        yield (
            f"rewards: {len(unrewarded)} of {len(questions)} reference answers score like a wrong one in each of "
            f"{len(FORMS)} forms, so that these questions are never rewarded: {named}{more}"
        )


def _final(answer: str) -> str:
    """Return the final answer of a worked solution in GSM8K's form, or the whole answer."""
    return answer.rpartition("####")[2].strip()
