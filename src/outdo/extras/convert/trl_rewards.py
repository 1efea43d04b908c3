"""The rewards of a recipe for TRL's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.extras.convert.conversion import NOT_COMPLETE, Conversion, as_list
from outdo.extras.convert.reading import CODE
from outdo.utils.text import counted

REWARDS: Mapping[str, tuple[Any, str]] = {
    "accuracy_reward": ("math", "outdo's reward math decides; it reads the answer in other forms too"),
    "reasoning_accuracy_reward": ("math", "outdo's reward math decides, also without a closing </think>"),
    "think_format_reward": (f"{CODE}think_format_reward", ""),
    "get_soft_overlong_punishment": ({"name": "overlong", "max_tokens": 1280, "cache": 256}, ""),
}
"""The reward functions of TRL, what a recipe has for them, and how that differs."""

THINK_FORMAT = '''def think_format_reward(completion, answer):
    """Return 1 if the answer begins with one block of thinking, as TRL's function of this name does."""
    start, end = completion.find("<think>"), completion.find("</think>")
    return float(start == 0 < end and completion.count("<think>") == 1)
'''
"""outdo's reward `format` also wants <answer> tags."""

OF_OPEN_R1 = {"accuracy": "math", "format": "format"}
"""The rewards of open-r1 that outdo has as well."""

UNKNOWN_OF_OPEN_R1 = ("tag_count", "reasoning_steps", "cosine", "repetition_penalty", "length", "code", "binary_code")
UNKNOWN_OF_OPEN_R1 += ("code_format", "ioi_code", "cf_code", "soft_overlong_punishment", "get_weighted_reward")


def put_rewards(c: Conversion) -> None:
    """Set the reward functions with their weights."""
    given = c.given
    functions, weights = as_list(given["reward_funcs"]), given["reward_weights"]
    if given["reward_model_name_or_path"]:
        functions = [{"name": "reward_model", "path": given["reward_model_name_or_path"]}, *functions]
    if weights is not None and len(as_list(weights)) != len(functions):
        c.mistakes.append(
            f"reward_weights: expected {counted(len(functions), 'number')}, one for each function, found {weights}"
        )
        return
    rewards = [_reward(c, function) for function in functions]
    if weights is not None:
        rewards = [_weighted(reward, weight) for reward, weight in zip(rewards, as_list(weights), strict=True)]
    if rewards:
        c.settings["rewards"] = rewards[0] if len(rewards) == 1 else rewards


def _weighted(reward: Any, weight: Any) -> Any:
    table = reward if isinstance(reward, dict) else {"name": reward}
    return reward if weight == 1 else {**table, "weight": weight}


def _reward(c: Conversion, function: Any) -> Any:
    if not isinstance(function, str) or ":" in function:
        return function
    name = function.rpartition(".")[2]
    if name in REWARDS and (name == function or function.startswith("trl.")):
        reward, difference = REWARDS[name]
        if difference:
            c.remarks.append(f"{function}: {difference}")
        if reward == f"{CODE}think_format_reward":
            c.code.append(THINK_FORMAT)
        return reward
    if "." in function and "/" not in function:  # my_rewards.score, as the command `trl grpo` imports it
        return f"{function.rpartition('.')[0]}:{name}"
    return _reward_by_name(c, function)


def _reward_by_name(c: Conversion, function: str) -> Any:
    """Return the reward for a name that is no function of TRL: one of open-r1, or a reward model."""
    if function in OF_OPEN_R1:
        c.remarks.append(
            f"{function}: taken for the reward of open-r1, for which the recipe has {OF_OPEN_R1[function]}"
        )
        return OF_OPEN_R1[function]
    if function in UNKNOWN_OF_OPEN_R1 or not _is_model(function):
        known = "a reward of open-r1 that outdo does not have" if function in UNKNOWN_OF_OPEN_R1 else "not known"
        c.incomplete.append(f"reward_funcs: {function}: {known}; write it as a function, and name it file.py:name")
        return f"{NOT_COMPLETE}{function}"
    return {"name": "reward_model", "path": function}


def _is_model(name: str) -> bool:
    """Return whether a name is that of a model: of the Hub, or a folder; or that of a function in a module."""
    return "/" in name or "." in name or name.startswith("~") or Path(name).is_dir()
