"""`outdo reward-model`: train a reward model on preferences or on rated answers."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outdo.cli.arguments import not_empty
from outdo.data.files import read_rows
from outdo.data.preferences import Kind, comparisons_in, describe_format, detect_kind
from outdo.models.inspect_folder import EITHER, REWARD_MODEL, inspect_folder
from outdo.models.loading import load_tokenizer
from outdo.models.optimiser import OptimiserSettings
from outdo.rewards.model import Comparison, FitStep, Loss, Ranking, RewardModel, fit, is_useful
from outdo.storage.model_folder import save_model_folder
from outdo.trainer.display import Display
from outdo.utils.errors import ModelError, UserError
from outdo.utils.text import escape_control, excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceData:
    """The comparisons to train on and those held out, and what they are."""

    kind: Kind
    train: list[Comparison]
    held_out: list[Comparison]
    notes: list[str]  # for the user

    @property
    def loss(self) -> Loss:
        """The loss that is minimised."""
        return "regression" if self.kind == "regression" else "pairs"


def run_reward_model(
    model: str,
    data: str,
    out: Path,
    display: Display,
    *,
    kind: Kind | None = None,
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
    checked = _checked_data(model, data, out, kind, columns or {}, holdout, seed)
    for note in checked.notes:
        display.say(escape_control(note))
    train, loss = checked.train, checked.loss
    useful = [each for each in train if is_useful(each, loss)]
    if len(useful) < len(train):
        display.say(f"left out: {len(train) - len(useful)} of {len(train)} prompts, whose answers have equal values")
    reward = _load(model, seed, device=device, optimiser=replace(optimiser, total=steps), template=template)
    trained_on, tested_on = _short_enough(reward, useful, display), _short_enough(reward, checked.held_out, display)
    if not trained_on:
        raise UserError([f"{data}: no comparison fits into the model's context of {reward.context} tokens"])
    _show_first(reward, trained_on[0], display)
    before = reward.ranking(tested_on)
    for line in _progress(fit(reward, trained_on, steps=steps, batch=batch, seed=seed, loss=loss), steps, display):
        display.say(line)
    save_model_folder(out, reward.save)
    if before.pairs:
        display.say(f"held-out: {_sentence(reward.ranking(tested_on))} (before training {before.share:.1%})")
    display.say(f"the reward model is in {out}")


def _show_first(reward: RewardModel, comparison: Comparison, display: Display) -> None:
    """Print the first comparison as the model reads it: the best and the worst answer, each with its prompt."""
    ranked = sorted(zip(comparison.values, comparison.completions, strict=True), key=lambda each: -each[0])
    for value, completion in (ranked[0], *ranked[1:][-1:]):
        display.say(f"the first comparison, as the model reads it; value {value:g}:")
        display.say(excerpt(str(reward.tokenizer.decode(list(reward.encode(comparison.prompt, completion))))))


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
    model: str,
    data: str,
    out: Path,
    kind: Kind | None,
    columns: Mapping[str, str | None],
    holdout: float,
    seed: int,
) -> PreferenceData:
    """Return the comparisons to train on and those held out. Raises `UserError` with every fault."""
    mistakes: list[str] = []
    if problem := not_empty(out):
        mistakes.append(problem)
    try:
        inspect_folder(model, EITHER)
    except ModelError as error:
        mistakes.append(str(error))
    checked = PreferenceData(kind="pairs", train=[], held_out=[], notes=[])
    try:
        checked = _read(data, kind, columns, holdout, seed)
    except UserError as error:
        mistakes += error.problems
    if mistakes:
        raise UserError(mistakes)
    return checked


def _read(data: str, kind: Kind | None, columns: Mapping[str, str | None], holdout: float, seed: int) -> PreferenceData:
    rows = read_rows(data)
    kind = kind or detect_kind(rows)
    comparisons = comparisons_in(rows, kind, columns)
    train, held_out = hold_out(comparisons, holdout, seed)
    notes = [f"{data}: {len(comparisons):,} prompts; format: {describe_format(rows, kind, columns)}; --kind {kind}"]
    if any(row.get("tools") for row in rows.values.values()):
        notes.append(f"{data}: the column tools is not read: a reward model reads the prompt and the answer")
    checked = PreferenceData(kind=kind, train=train, held_out=held_out, notes=notes)
    if not any(is_useful(each, checked.loss) for each in train):
        missing = "two answers with different rewards to one prompt" if kind == "scored" else "an answer"
        hint = "; --kind regression learns from single answers" if kind == "scored" else ""
        needs = f"without the held-out prompts, it needs at least {missing}{hint}"
        raise UserError([f"{data}: nothing to train on: {needs}"])
    return checked


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
