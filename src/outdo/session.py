"""From a recipe to the objects of the loop: here, and nowhere below, names become things."""

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outdo.advantages import Advantage, per_token
from outdo.data import Question as Row
from outdo.data import Questions, questions_of
from outdo.engines.base import SamplingParams
from outdo.engines.builtin import BuiltinEngine
from outdo.environments.base import Rollouts
from outdo.environments.question import Question
from outdo.errors import Mistakes
from outdo.loading import choose_device
from outdo.models import Models
from outdo.objectives.objective import Objective
from outdo.optimiser import OptimiserSettings
from outdo.policy import Policy, Work
from outdo.prompts import Prompts, tokenise
from outdo.recipe import ADVANTAGES, OBJECTIVES, Piece, Recipe
from outdo.rewards import load_reward
from outdo.rewards.base import Reward
from outdo.signatures import resolve
from outdo.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A run's objects. `notes` are what the user should know before it starts, a line each."""

    recipe: Recipe  # with what was left to outdo filled in
    models: Models
    prompts: Prompts
    held_out: list[Prompt]
    engine: BuiltinEngine
    environment: Question
    rollout: Rollouts
    advantage: Advantage
    objective: Objective
    reward: Reward
    fingerprints: Mapping[str, str]  # of the data files, by the recipe's key
    notes: tuple[str, ...]


def open_session(
    recipe: Recipe, *, model: str | Path | None = None, fingerprints: Mapping[str, str] | None = None
) -> Session:
    """Load everything a recipe names. When a run is resumed, `model` is a checkpoint's folder, and `fingerprints` are
    those that its data files had.

    Raises `Mistakes` for what is wrong with the recipe, the data, the model folder or the reward.
    """
    questions = questions_of(recipe)
    if fingerprints is not None and fingerprints != questions.fingerprints:
        changed = [key for key, value in questions.fingerprints.items() if fingerprints.get(key) != value]
        raise Mistakes([f"{key}: the file's content is not what the run was started with" for key in changed])
    recipe, why = _settled(recipe)
    objective = _objective(recipe.train.objective)
    reward = load_reward([(each.name, each.weight) for each in recipe.rewards], timeout=recipe.reward.timeout)
    policy = Policy.load(
        model or recipe.model,
        device=recipe.device,
        stop_token_ids=recipe.sampling.stop_token_ids,
        optimiser=optimiser_settings(recipe),
        work=Work(minibatches=recipe.train.minibatches, micro_tokens=recipe.train.micro_tokens),
        attention=recipe.attention,
    )
    prompts, held_out, dropped = _prompts(recipe, questions, policy)
    engine = BuiltinEngine(policy, seed=recipe.seed)
    environment = Question(reward, max_failed=recipe.reward.max_failed)
    advantage = _piece(recipe.train.advantage, ADVANTAGES)
    way = f"attention: {policy.forward.way}" + (f" ({policy.forward.why})" if policy.forward.why else "")
    return Session(
        recipe=recipe,
        models=Models.of(policy, objective, refresh_every=recipe.train.reference_every),
        prompts=prompts,
        held_out=held_out,
        engine=engine,
        environment=environment,
        rollout=Rollouts(engine, environment, group_size=recipe.train.group, sampling=sampling_params(recipe)),
        advantage=per_token(advantage),
        objective=objective,
        reward=reward,
        fingerprints=questions.fingerprints,
        notes=(f"device: {recipe.device} ({why})", way, *dropped),
    )


def sampling_params(recipe: Recipe, **changes: Any) -> SamplingParams:
    """How the recipe samples, with some of it replaced."""
    return SamplingParams(**(recipe.sampling.model_dump() | changes))


def optimiser_settings(recipe: Recipe) -> OptimiserSettings:
    """AdamW as the recipe has it; the schedule ends with the run's last optimiser step."""
    total = recipe.steps * recipe.train.updates * recipe.train.minibatches
    return OptimiserSettings(total=total, **recipe.optim.model_dump())


def held_out_questions(recipe: Recipe) -> Sequence[Row]:
    """The questions a run is judged by."""
    return questions_of(recipe).held_out[: recipe.eval.rows]


def _settled(recipe: Recipe) -> tuple[Recipe, str]:
    """The recipe with device and threads as they are here, and why; both decide the run's bits."""
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    device, why = choose_device(recipe.device)
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return _placed(recipe).model_copy(update={"device": device.type, "threads": torch.get_num_threads()}), why


def _placed(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that its run can be gone on with from any folder."""
    train, data = recipe.train, recipe.data
    pieces = {name: getattr(train, name) for name in ("advantage", "objective")}
    moved = {name: piece.model_copy(update={"name": _absolute(piece.name)}) for name, piece in pieces.items()}
    paths = {"path": _absolute(data.path), "eval_path": data.eval_path and _absolute(data.eval_path)}
    rewards = tuple(reward.model_copy(update={"name": _absolute(reward.name)}) for reward in recipe.rewards)
    return recipe.model_copy(
        update={
            "model": _absolute(recipe.model),
            "rewards": rewards,
            "data": data.model_copy(update=paths),
            "train": train.model_copy(update=moved),
        }
    )


def _absolute(name: str) -> str:
    """`FILE` or `FILE.py:name` with the whole path where there is such a file; a name of anything else as it is."""
    path, colon, inside = name.partition(".py:")
    where = Path(path + (".py" if colon else ""))
    return f"{where.resolve()}{colon[3:]}{inside}" if where.exists() else name


def _piece(piece: Piece, known: Mapping[str, str]) -> Any:
    """A built-in by its name, or the user's own, with its options filled in."""
    return functools.partial(resolve(known.get(piece.name, piece.name)), **piece.options)


def _objective(piece: Piece) -> Objective:
    try:
        return _piece(piece, OBJECTIVES)()
    except (TypeError, ValueError) as error:
        raise Mistakes([f"train.objective: {piece.name}: {error}"]) from error


def _prompts(recipe: Recipe, questions: Questions, policy: Policy) -> tuple[Prompts, list[Prompt], list[str]]:
    data = recipe.data
    context = policy.context
    longest = data.max_prompt_tokens if context is None else min(data.max_prompt_tokens, context - 1)
    how = {"max_tokens": longest, "template": data.template, "system": data.system, "overlong": data.overlong}
    train = tokenise(questions.train, policy.tokenizer, **how)
    held_out = tokenise(questions.held_out[: recipe.eval.rows], policy.tokenizer, **how)
    notes = [
        f"{len(before) - len(after)} of {len(before)} {what} questions are longer than {longest} tokens and left out"
        for what, before, after in (
            ("training", questions.train, train),
            ("held-out", questions.held_out[: recipe.eval.rows], held_out),
        )
        if len(after) < len(before)
    ]
    prompts = Prompts(train, per_step=recipe.train.prompts, seed=recipe.seed, shuffle=data.shuffle)
    return prompts, held_out, notes
