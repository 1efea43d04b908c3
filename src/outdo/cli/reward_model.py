"""`outdo reward-model`: train a reward model on preferences or on rated answers."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outdo.cli.arguments import not_empty
from outdo.data.files import Rows, read_rows, shorten
from outdo.data.questions import PROMPT_COLUMNS, Columns, to_questions
from outdo.models.inspect_folder import EITHER, REWARD_MODEL, inspect_folder
from outdo.models.loading import load_tokenizer
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards.model import Comparison, FitStep, Loss, Ranking, RewardModel, Text, comparisons_of, fit, is_useful
from outdo.trainer.display import Display
from outdo.utils.errors import ModelError, UserError, did_you_mean

Kind = Literal["pairs", "scored", "regression"]
ROLES: Mapping[Kind, tuple[str, ...]] = {
    "pairs": ("prompt", "chosen", "rejected"),
    "scored": ("prompt", "completion", "reward"),
    "regression": ("prompt", "completion", "reward"),
}
NAMES: Mapping[str, tuple[str, ...]] = {  # the names by which each column is found, the most likely first
    "prompt": PROMPT_COLUMNS,
    "chosen": ("chosen", "preferred", "better", "winner"),
    "rejected": ("rejected", "dispreferred", "worse", "loser"),
    "completion": ("completion", "response", "answer", "output", "text"),
    "reward": ("reward", "score", "rating", "value", "label"),
}


def run_reward_model(
    model: str,
    data: str,
    out: Path,
    display: Display,
    *,
    kind: Kind = "pairs",
    steps: int,
    batch: int,
    optimiser: OptimiserSettings,
    seed: int,
    device: str,
    holdout: float = 0.1,
    template: str | None = None,
    columns: Mapping[str, str | None] | None = None,
) -> None:
    """Train a reward model on a file, and write it to a new folder.

    `model` is a language model, which gets a new head, or a reward model, whose training continues. `columns` names the
    columns of `data` that are not found by their names. The share `holdout` of the prompts is held out for a test.

    Raises `UserError` with every fault of the folders and the data, before a model is loaded.
    """
    loss: Loss = "regression" if kind == "regression" else "pairs"
    train, held_out = _checked_data(model, data, out, kind, columns or {}, holdout, seed)
    useful = [each for each in train if is_useful(each, loss)]
    if len(useful) < len(train):
        display.say(f"left out: {len(train) - len(useful)} of {len(train)} prompts, whose answers have equal values")
    reward = _load(model, seed, device=device, optimiser=replace(optimiser, total=steps), template=template)
    trained_on, tested_on = _short_enough(reward, useful, display), _short_enough(reward, held_out, display)
    if not trained_on:
        raise UserError([f"{data}: no comparison fits into the model's context of {reward.context} tokens"])
    before = reward.ranking(tested_on)
    for line in _progress(fit(reward, trained_on, steps=steps, batch=batch, seed=seed, loss=loss), steps, display):
        display.say(line)
    reward.save(out)
    if before.pairs:
        display.say(f"held-out: {_sentence(reward.ranking(tested_on))} (before training {before.share:.1%})")
    display.say(f"the reward model is in {out}")


def _progress(fit_steps: Iterable[FitStep], steps: int, display: Display) -> Iterator[str]:
    """Train; without a progress bar, yield twenty lines, each on the steps since the line before."""
    since: list[FitStep] = []
    for step in display.track(fit_steps, total=steps):
        since.append(step)
        if not display.live and (step.index % max(1, steps // 20) == 0 or step.index == steps):
            ranking = sum((each.ranking for each in since), Ranking())
            mean = math.fsum(each.metrics["loss"] for each in since) / len(since)
            yield f"step {step.index}/{steps}  {_sentence(ranking)}  loss {mean:.4g}"
            since = []


def _short_enough(reward: RewardModel, comparisons: Sequence[Comparison], display: Display) -> list[Comparison]:
    """Return the comparisons that fit into the model's context; print how many are left out."""
    kept = [each for each in comparisons if reward.fits(each)]
    if left := len(comparisons) - len(kept):
        longer = f"longer than the model's context of {reward.context} tokens"
        display.say(f"left out: {left} of {len(comparisons)} comparisons, {longer}")
    return kept


def _sentence(ranking: Ranking) -> str:
    if not ranking.pairs:
        return "has no pair of answers to rank"
    return f"ranks {ranking.share:.1%} of {ranking.pairs} pair{'s' * (ranking.pairs != 1)} right"


def _load(model: str, seed: int, *, device: str, optimiser: OptimiserSettings, template: str | None) -> RewardModel:
    """Load a reward model as it is, or a language model's body with a new head."""
    load_tokenizer(model, kind=EITHER)  # which downloads the config.json of a hub model
    architecture = inspect_folder(model, EITHER).architecture or ""
    if architecture.endswith(REWARD_MODEL.endings):
        return RewardModel.load(model, device=device, optimiser=optimiser, template=template)
    return RewardModel.from_policy(model, seed=seed, device=device, optimiser=optimiser, template=template)


# ------------------------------------------------------------------------------------------------------------- the data


def _checked_data(
    model: str, data: str, out: Path, kind: Kind, columns: Mapping[str, str | None], holdout: float, seed: int
) -> tuple[list[Comparison], list[Comparison]]:
    """Return the comparisons to train on and those held out. Raises `UserError` with every fault."""
    mistakes: list[str] = []
    split: tuple[list[Comparison], list[Comparison]] = ([], [])
    if problem := not_empty(out):
        mistakes.append(problem)
    try:
        inspect_folder(model, EITHER)
    except ModelError as error:
        mistakes.append(str(error))
    try:
        split = hold_out(comparisons_from(data, kind, columns), holdout, seed)
        if not any(is_useful(each, "regression" if kind == "regression" else "pairs") for each in split[0]):
            missing = "two answers with different rewards to one prompt" if kind == "scored" else "an answer"
            mistakes.append(f"{data}: nothing to train on: without the held-out prompts, it needs at least {missing}")
    except UserError as error:
        mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return split


def comparisons_from(path: str, kind: Kind, columns: Mapping[str, str | None]) -> list[Comparison]:
    """Read the comparisons of a file or Hub data set. Raises `UserError` with every faulty row, and why.

    An answer is text, or chat messages: one by the assistant, alone or after the messages of the prompt.
    """
    rows = read_rows(path)
    names = _columns(rows, kind, columns)
    prompts, faults = _prompts(rows, names["prompt"])
    answers: list[tuple[Text, Any, Any]] = []
    for number, row in rows.values.items():
        prompt = prompts.get(number, "")
        first, second = (_value(row, names[role], role, prompt) for role in ROLES[kind][1:])
        faults += [f"{path}, row {number}: {each.reason}" for each in (first, second) if isinstance(each, ValueFault)]
        answers.append((prompt, first, second))
    if faults:
        raise UserError(shorten(faults, source=path))
    if kind == "pairs":
        return [Comparison(prompt=prompt, completions=tuple(pair), values=(1.0, 0.0)) for prompt, *pair in answers]
    return comparisons_of(answers)


def _prompts(rows: Rows, name: str) -> tuple[dict[int, Text], list[str]]:
    """Return the prompts by row number, and the faults of rows and prompts. Many rows may have the same `id`."""
    bare = {number: {key: row[key] for key in row if key != "id"} for number, row in rows.values.items()}
    try:
        checked = to_questions(replace(rows, values=bare), Columns(prompt=name, answer=None))
    except UserError as error:
        usable = {number: row[name] for number, row in bare.items() if isinstance(row.get(name), str | list)}
        return usable, list(error.problems)
    return {int(each.id): each.text for each in checked}, []


def hold_out(comparisons: Sequence[Comparison], share: float, seed: int) -> tuple[list[Comparison], list[Comparison]]:
    """Split into `(train, held_out)`; no prompt is in both.

    The held-out share are the prompts with the smallest SHA-256 together with the seed; at least one.
    """
    prompts = sorted({repr(each.prompt) for each in comparisons}, key=lambda text: _hash(seed, text))
    held_out = set(prompts[: max(1, round(share * len(prompts))) if share else 0])
    train = [each for each in comparisons if repr(each.prompt) not in held_out]
    return train, [each for each in comparisons if repr(each.prompt) in held_out]


def _hash(seed: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}:{text}".encode()).digest()


def _columns(rows: Rows, kind: Kind, named: Mapping[str, str | None]) -> dict[str, str]:
    """Return the column of each role: the one that is named, else the most likely of those that exist."""
    found: dict[str, str] = {}
    mistakes: list[str] = []
    listed = f"(columns: {', '.join(rows.columns[:20])})"
    for role in ROLES[kind]:
        name = named.get(role) or next((each for each in NAMES[role] if each in rows.columns), None)
        found[role] = name or ""
        if name is None:
            mistakes.append(f"{rows.source}: no column looks like the {role}; name it: --{role} NAME {listed}")
        elif name not in rows.columns:
            near = did_you_mean(name, rows.columns)
            mistakes.append(f'{rows.source}: no column "{name}" (given by --{role}){near} {listed}')
    if mistakes and rows.values:
        raise UserError([*mistakes, *_other_kind(rows, kind)])
    return found


def _other_kind(rows: Rows, kind: Kind) -> Iterator[str]:
    """Yield a hint if the file has the columns of another kind of training."""
    other: Kind = "scored" if kind == "pairs" else "pairs"
    if all(any(name in rows.columns for name in NAMES[role]) for role in ROLES[other]):
        yield f"{rows.source}: it has the columns of --kind {other}"


@dataclass(frozen=True, slots=True)
class ValueFault:
    """Why a value cannot be used."""

    reason: str


def _value(row: Mapping[str, Any], name: str, role: str, prompt: Text) -> str | float | ValueFault:
    """Return the value of a column: a number for a reward, else text."""
    if row.get(name) is None:
        return ValueFault(
            f'column "{name}" is null' if name in row else f'no column "{name}"{did_you_mean(name, list(row))}'
        )
    return _number(name, row[name]) if role == "reward" else _answer(name, row[name], prompt)


def _number(name: str, value: Any) -> float | ValueFault:
    try:
        number = float(value)  # a CSV file has only text
    except (TypeError, ValueError):
        number = math.nan
    return (
        number
        if math.isfinite(number)
        else ValueFault(f'column "{name}" holds {str(value)[:40]!r}, which is not a number')
    )


def _answer(name: str, value: Any, prompt: Text) -> str | ValueFault:
    if isinstance(value, str):
        return value
    messages = [dict(each) for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
    own = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    last = messages[-1] if messages else {}
    if last.get("role") == "assistant" and isinstance(last.get("content"), str) and messages[:-1] in ([], own):
        return last["content"]
    return ValueFault(f'column "{name}" is neither text nor chat messages that end with one by the assistant')
