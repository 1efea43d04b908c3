"""The rewards of a recipe for verl's settings."""

from pathlib import Path
from typing import Any

from outdo.extras.convert.conversion import NOT_COMPLETE, RESULTS_COUNT, Conversion, as_list, put_no_reward

BUFFER = "reward_model.overlong_buffer"
OTHER_BUFFERS = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "custom_reward_function.overlong_buffer",
)
"""Further names of the penalty for long answers."""

FUNCTIONS = {"gsm8k": "last_number", "math": "math", "dapo": "math", "aime": "math", "amc": "math", "geo3k": "math"}
"""Parts of the names of data files, and the reward that fits the function which verl chooses for such data."""


def put_rewards(c: Conversion) -> None:
    """Set the rewards: a function, a reward model, what verl chooses by the data, and the penalty for long answers."""
    given = c.given
    path, name = given["custom_reward_function.path"], given["custom_reward_function.name"]
    rewards: list[Any] = [f"{expanded(path)}:{name or 'compute_score'}"] if path else []
    if given["reward_model.enable"]:
        rewards.append(_reward_model(c))
    rewards = rewards or _chosen_by_data(c)
    if not rewards:
        put_no_reward(c, "verl chooses a function by the column data_source, and does not learn from it here")
        return
    manager = str(given["reward_model.reward_manager"] or "naive")
    if manager == "batch":
        c.remark("reward_model.reward_manager", "outdo calls a function of this form with the answers of a batch too")
    elif manager not in ("naive", "dapo"):
        c.remark("reward_model.reward_manager", "outdo calls the function for each answer, or for a batch of them")
    rewards = _with_penalty(c, rewards, manager)
    c.settings["rewards"] = rewards[0] if len(rewards) == 1 else rewards


def _with_penalty(c: Conversion, rewards: list[Any], manager: str) -> list[Any]:
    """Return the rewards with the penalty for long answers, if there is one."""
    given = c.given
    cache, factor = given[f"{BUFFER}.len"], given[f"{BUFFER}.penalty_factor"]
    if not given[f"{BUFFER}.enable"] or not isinstance(cache, int):
        return rewards
    if rewards == ["math"] and manager == "dapo":
        rewards = [{"name": "math", "weight": 2.0}]
        c.remark("reward_model.reward_manager", "verl's rewards are then -1 and 1: the weight 2 has their distance")
    if given.written.get("actor_rollout_ref.rollout.multi_turn.enable"):  # which is reported by itself
        c.remark(f"{BUFFER}.len", RESULTS_COUNT)
    return [*rewards, {"name": "overlong", "weight": float(factor), "cache": cache}]


def _reward_model(c: Conversion) -> Any:
    path = c.given["reward_model.model.path"]
    if path is None:
        c.incomplete.append("reward_model.model.path: the reward model is switched on, and has no path")
    return {"name": "reward_model", "path": path or f"{NOT_COMPLETE}reward_model.model.path"}


def _chosen_by_data(c: Conversion) -> list[Any]:
    """Return the reward that fits the function which verl chooses by the data, if their names say which data they are.

    verl reads the name of the function in each row. Nothing is returned where only teachers push the policy.
    """
    given = c.given
    files = [str(file).lower() for file in as_list(given["data.train_files"]) if "data.train_files" in given.written]
    chosen = {next((reward for part, reward in FUNCTIONS.items() if part in file), None) for file in files}
    if len(chosen) == 1 and None not in chosen:
        (reward,) = chosen
        c.remarks.append(
            f"the reward: verl chooses a function by the column data_source; by the names of the files it is {reward}, "
            "which reads answers in other forms too"
        )
        return [reward]
    if given["distillation.enabled"] and not given["distillation.distillation_loss.use_task_rewards"]:
        return []
    c.incomplete.append(
        "rewards: verl chooses a function by the column data_source; name one that fits your data, such as "
        "last_number for GSM8K, or math, code and others (docs/rewards.md)"
    )
    return [f"{NOT_COMPLETE}the function that verl chooses by data_source"]


def expanded(path: Any) -> str:
    """Return a path with the folder of the user in the place of ~ and $HOME."""
    return str(Path(str(path).replace("$HOME", "~")).expanduser())
