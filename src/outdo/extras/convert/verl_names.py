"""The names of verl's settings: of its tables, and of what it has under two names."""

from collections.abc import Mapping
from typing import Any

from outdo.extras.convert.account import table_of
from outdo.extras.convert.verl_rewards import BUFFER, OTHER_BUFFERS
from outdo.utils.text import dotted

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
LOSS = f"{ACTOR}.policy_loss"
DISTILLATION, TEACHERS = "distillation.distillation_loss", "distillation.teacher_models"

NEW_NAMES = {
    "reward.custom_reward_function.path": "custom_reward_function.path",
    "reward.custom_reward_function.name": "custom_reward_function.name",
    "reward.reward_model.enable": "reward_model.enable",
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.reward_model.model_path": "reward_model.model.path",
    f"{ACTOR}.optim.warmup_style": f"{ACTOR}.optim.lr_scheduler_type",
    f"{ACTOR}.optim.lr_decay_style": f"{ACTOR}.optim.lr_scheduler_type",
    "distillation.teacher_model.model_path": f"{TEACHERS}.teacher_model.model_path",
    f"{DISTILLATION}.use_policy_loss": f"{DISTILLATION}.use_task_rewards",
}
"""Settings that verl has under two names, by the one that is not read here."""


def by_one_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the names that are read here. Under the other name verl's own files have null or a default."""
    table = table_of("verl")
    defaults = {**table["usual"], **dict(dotted(table["defaults"]))}
    written: dict[str, Any] = {}
    for name, value in settings.items():
        here = name_here(name)
        if here not in written or value not in (None, defaults.get(here)):
            written[here] = value
    return written


def name_here(name: str) -> str:
    """Return the name by which a setting is read here."""
    table, _, last = name.rpartition(".")
    return f"{BUFFER}.{last}" if table in OTHER_BUFFERS else NEW_NAMES.get(name, name)
