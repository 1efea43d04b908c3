"""The end of `outdo quickstart`: some answers, what the doctor finds, and the result beside that of recorded runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from outdo.cli.answering import answering
from outdo.config.recipe import Recipe
from outdo.data.questions import Question, questions_from
from outdo.extras.quickstart.recorded import Recorded, Spread
from outdo.models.completion_text import completion_text
from outdo.models.policy import Policy
from outdo.rewards import load_reward
from outdo.run.assemble.engines import named_engine, open_engine
from outdo.run.assemble.environment import open_environment
from outdo.run.display import Display
from outdo.run.evaluation import held_out_completions
from outdo.run.export.find_model import find_model
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.outcome import EVALUATIONS, left_out
from outdo.utils.text import between, counted

DOCTOR = "outdo.extras.doctor.command:run_doctor"
ANSWERED, SHOWN = 32, 3  # questions that are answered before and after, and those of them that are shown

GAIN = 0.25
"""By how much the share of right held-out answers rises at least in a run that worked out."""

LABELS = {"greedy": "this run, greedy", "sampled": "sampled at temperature 1"}

Numbers = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An answer, or an episode with all that was said in it."""

    text: str
    right: bool | None  # None: not defined by the rewards

    def __str__(self) -> str:
        return self.text + {True: " right", False: " wrong", None: ""}[self.right]


def conclude(run: Path, model: Path, questions: Path, display: Display, *, recorded: Recorded | None = None) -> None:
    """Print three questions with both answers, what the doctor finds, and how many answers are right before and after.

    `model` is the one before the run, `questions` are the held-out ones, `recorded` are other runs with its settings.
    """
    summary = json.loads((run / "summary.json").read_text())
    display.console.print(_answers_table(run, model, questions))
    if missing_extra(DOCTOR, "doctor") is None:
        load_extra(DOCTOR, "doctor")([run], display.console)
    display.console.print(result_table(summary, recorded))
    display.say(f"the run is in {run}; training took {summary['seconds']:.0f} s. Try next:")


def result_table(summary: Mapping[str, Any], recorded: Recorded | None) -> Table:
    """Return the share of right held-out answers before and after a run, and of the recorded runs."""
    before, after = summary["before"], summary["after"]
    table = Table("held-out questions right", "before", "after", title=f"{counted(summary['steps'], 'step')} of GRPO")
    for name in EVALUATIONS:
        if name in before or name in after:
            table.add_row(LABELS[name], *(_share(numbers, name) for numbers in (before, after)))
    if recorded:
        ends = (recorded.before, recorded.after)
        runs, kinds = counted(recorded.runs, "run"), counted(recorded.processors, "kind")
        table.add_section()
        table.add_row(f"median of {runs}", *(f"{end.median:.1%}" for end in ends))
        table.add_row("lowest to highest", *map(_range, ends))
        table.caption = f"recorded: {runs} with other seeds, on {kinds} of processor, greedy answers"
    return table


def disappointment(summary: Mapping[str, Any]) -> str:
    """Return in which way a run did not work out; an empty text if it did, or if it was not measured.

    It worked out if the share of right held-out answers rose by `GAIN` and the 95 % intervals do not overlap.
    """
    before, after = summary["before"], summary["after"]
    kind = next((kind for kind in EVALUATIONS if kind in before and kind in after), None)
    if kind is None:
        return ""
    reasons: list[str] = []
    if after[kind] < before[kind]:
        reasons.append("fewer than before")
    elif after[kind] - before[kind] < GAIN:
        reasons.append(f"less than {100 * GAIN:.0f} points more")
    if after[f"{kind}_low"] <= before[f"{kind}_high"] and before[f"{kind}_low"] <= after[f"{kind}_high"]:
        reasons.append("the 95% intervals overlap")
    if not reasons:
        return ""
    return (
        f"this run did not work out: {before[kind]:.1%} of the held-out questions were right before, "
        f"{after[kind]:.1%} are after: {' and '.join(reasons)}"
    )


def _answers_table(run: Path, model: Path, questions: Path) -> Table:
    """Return some held-out questions with the answers before and after, wrong ones first."""
    trained = find_model(str(run))
    assert trained.recipe
    assert trained.step is not None
    if trained.recipe.environment is None:
        kind, (asked, *answers) = "greedy", _recorded_answers(run, trained.step)
    else:  # the record of an evaluation has the last turn of an episode only
        chosen = questions_from(str(questions), limit=ANSWERED)
        kind, asked = "sampled", [str(question.text) for question in chosen]
        answers = [_answers(name, chosen, trained.recipe) for name in (str(model), trained.model)]
    answered = sorted(zip(asked, *answers, strict=True), key=lambda row: row[1].right is True)
    table = Table("question", f"{kind} before", f"{kind} after")
    for question, *both in answered[:SHOWN]:
        table.add_row(*map(escape, (question, *map(str, both))))
    return table


def _recorded_answers(run: Path, step: int) -> tuple[list[str], list[Shown], list[Shown]]:
    """Return the held-out questions, and the greedy answer to each before the run and after `step`."""
    before, after = (
        {answer["id"]: answer for answer in held_out_completions.read(run, when) if answer["kind"] == "greedy"}
        for when in (0, step)
    )
    asked = [str(answer["prompt"]) for answer in before.values()]
    first, last = (
        [Shown(text=answers[name]["completion"], right=answers[name]["right"]) for name in before]
        for answers in (before, after)
    )
    return asked, first, last


def _answers(model: str, questions: Sequence[Question], recipe: Recipe) -> list[Shown]:
    """Sample one answer to each question, with the same random numbers for every model."""
    policy = Policy.load(model, device="cpu")
    how = answering("quickstart", recipe, k=1, temperature=1.0, max_tokens=None, template=None)
    reward = load_reward([{**spec, "weight": weight} for spec, weight in recipe.reward_functions])
    engine = open_engine(named_engine(None), policy)
    try:
        environment = open_environment(how.environment, policy, reward, **how.in_prompts)
        prompts = how.prompts(questions, policy)
        groups = environment.rollouts(engine, prompts, 1, how.sampling, step=0, purpose="shown")
        rollouts = [group.rollouts[0] for group in groups]
        return [
            Shown(text=completion_text(engine.tokenizer, rollout.token_ids), right=rollout.right)
            for rollout in rollouts
        ]
    finally:
        engine.close()
        reward.close()


def _share(numbers: Numbers, name: str) -> str:
    if name not in numbers:
        return left_out(name, numbers)
    parts = [f"{numbers[f'{name}_low']:.1%} to {numbers[f'{name}_high']:.1%}", left_out(name, numbers)]
    return f"{numbers[name]:.1%} ({'; '.join(filter(None, parts))})"


def _range(spread: Spread) -> str:
    text = between(spread.lowest, spread.highest, "{:.1%}".format)
    return f"{spread.median:.1%}" if spread.lowest == spread.highest else text
