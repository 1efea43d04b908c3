"""Build a reward from a name in a recipe or from a Python function."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from outdo.rewards.base import Reward
from outdo.rewards.combine import WeightedSum
from outdo.rewards.context import RewardContext
from outdo.rewards.in_process import InProcessReward, metric_name
from outdo.rewards.limits import DEADLINE, WorkerLimits
from outdo.rewards.options import reward_mistakes
from outdo.rewards.worker import WorkerReward
from outdo.utils.errors import UserError
from outdo.utils.extras import load_extra, missing_extra
from outdo.utils.imports import resolve, signature_of, signature_of_object, source_file, split
from outdo.utils.options import no_such_name
from outdo.utils.reward_names import REWARD_MODEL
from outdo.utils.secrets import read_secrets

BUILTIN = {
    "exact": "outdo.rewards.exact:exact",
    "last_number": "outdo.rewards.last_number:last_number",
    "math": "outdo.rewards.math:math",
    "multiple_choice": "outdo.rewards.multiple_choice:multiple_choice",
    "code": "outdo.extras.sandbox.code:code",
    "format": "outdo.rewards.format:format",
    "reasoning_gym": "outdo.extras.gym.reward:reasoning_gym",
    "overlong": "outdo.rewards.overlong:overlong",
    "judge": "outdo.extras.judge.reward:judge",
    "environment": "outdo.rewards.environment:environment",
    REWARD_MODEL: "outdo.extras.reward_models.online_model:reward_model",
}
"""The rewards that have a name, and where they are defined: the parameters there are their options."""

OPENED_BY = {
    "code": "outdo.extras.sandbox.code:open_code",
    "judge": BUILTIN["judge"],
    REWARD_MODEL: BUILTIN[REWARD_MODEL],
}
"""The code that opens a built-in reward which is more than a function of a completion: it is called with a
`RewardContext` and the options, and returns the `Reward`."""

RUN_IN_WORKER = frozenset({"math", "reasoning_gym", "code"})
"""The built-in rewards that may never end, and therefore run in worker processes like a user's file."""

PROCESSOR_SECONDS = 2.0
"""How long a built-in reward computes before it is given up. `math` took at most 0.11 s for the 8,792 answers of GSM8K,
and at most 0.26 s for the 423 answers in `tests/rewards/odd_answers.jsonl`."""
BUSY_SECONDS = 120.0
"""How long a call of such a reward may take by the clock: a machine that is sixty times as busy as it can be is not a
reason to give up an answer. The limit of computing ends what never ends."""
MAX_WORKERS = 8
"""Worker processes of a built-in reward, on a machine with more cores than this."""

Spec = str | Callable[..., Any] | Mapping[str, Any] | Sequence[Any]


def load_reward(
    spec: Spec,
    *,
    timeout: float = DEADLINE,
    workers: int | None = None,
    memory: float | None = None,
    environment: Sequence[str] = (),
    right: str | None = None,
) -> Reward:
    """Build a reward from what a recipe or a user names.

    Args:
        spec: a name in `BUILTIN`; `"file.py:function"` or `"package.module:function"`, which run in a worker process; a
            Python function, which runs in this process with no protection if it hangs, crashes, or fills the memory; or
            a list of these, of `(spec, weight)` or of `{"name": spec, "weight": 0.5}`, whose values are summed
            (`WeightedSum`). Further keys next to a name, as in `{"name": "overlong", "max_tokens": 256, "cache": 64}`,
            are options: arguments of the function that are the same for every completion. They win over columns. The
            option `{"env": "NAME"}` or `{"file": "path"}` is a secret, read from that place.
        timeout: seconds that one call of a function in a worker process may take.
        workers: processes that score at the same time, for a function that takes one completion; by default 1, and for
            `math` and `code` one per core.
        memory: GiB for each of these processes (Linux only); by default half of the machine's memory.
        environment: names of further environment variables that these processes get.
        right: the name of the reward that decides whether an answer is right (`outdo.rewards.right`).

    Raises:
        UserError: everything in `spec` that cannot be loaded, with the nearest right name.
    """
    limits = WorkerLimits(timeout=timeout, workers=workers, memory=memory, environment=tuple(environment))
    return _load(spec, RewardContext(limits=limits), right)


def _load(spec: Spec, context: RewardContext, right: str | None = None) -> Reward:
    if isinstance(spec, Mapping) or (right is not None and not isinstance(spec, list | tuple)):
        spec = [spec]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return _load_sum([_parse_entry(entry) for entry in spec], context, right)
    return open_reward(spec, {}, context)


def _load_sum(
    entries: Sequence[tuple[Any, Any, Mapping[str, Any]]], context: RewardContext, right: str | None
) -> WeightedSum:
    mistakes: list[str] = []
    loaded: list[tuple[Reward, float]] = []
    for spec, weight, options in entries:
        try:
            reward = open_reward(spec, options, context) if options else _load(spec, context)
            loaded.append((reward, weight))
        except UserError as error:
            mistakes.extend(error.problems)
    try:
        total = WeightedSum(loaded, right=right) if loaded or not mistakes else None
    except UserError as error:
        mistakes.extend(error.problems)
        total = None
    if total is None or mistakes:
        for reward, _ in loaded:
            reward.close()
        raise UserError(mistakes)
    return total


def _parse_entry(entry: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """Return what to load, its weight, and its options."""
    if isinstance(entry, Mapping):
        if "name" not in entry:
            raise UserError([f'a reward is written {{"name": ..., "weight": ...}}, not {dict(entry)!r}'])
        options = {name: value for name, value in entry.items() if name not in ("name", "weight")}
        return entry["name"], entry.get("weight", 1.0), options
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        return entry[0], entry[1], {}
    return entry, 1.0, {}


def open_reward(spec: Any, options: Mapping[str, Any], context: RewardContext) -> Reward:
    """Return one reward: a name in `BUILTIN`, `"file.py:name"` or a function, with its options (see `load_reward`).

    Raises:
        UserError: everything that is wrong with it.
    """
    if isinstance(spec, str) and spec not in BUILTIN:
        if ":" not in spec and not spec.endswith(".py"):
            raise UserError([no_such_name("rewards", spec, list(BUILTIN), own="file.py:name")])
        where, _ = split(spec)
        if where.endswith(".py"):
            source_file(where)
    if isinstance(spec, str) and (missing := missing_extra(BUILTIN.get(spec, spec), f"rewards.{spec}")):
        raise UserError([missing])
    if mistakes := _option_mistakes(spec, options):
        raise UserError(mistakes)
    options, secrets = read_secrets(options, str(spec))  # after the check, whose messages show values
    if not isinstance(spec, str):
        return InProcessReward(spec, options=options)
    if spec in BUILTIN:
        return _open_builtin(spec, options, replace(context, secrets=secrets))
    return WorkerReward(spec, options=options, limits=context.limits, secrets=secrets)


def _option_mistakes(spec: Any, options: Mapping[str, Any]) -> list[str]:
    if not isinstance(spec, str):
        name = metric_name(spec)
        return list(reward_mistakes(name, options, signature_of_object(spec, name))) if callable(spec) else []
    try:
        return list(reward_mistakes(spec, options, signature_of(BUILTIN.get(spec, spec)), builtin=spec in BUILTIN))
    except UserError:  # the worker tells why the code cannot be imported
        return []


def _open_builtin(name: str, options: Mapping[str, Any], context: RewardContext) -> Reward:
    limits = replace(context.limits, workers=processes_of(name, context.limits.workers))
    if name in OPENED_BY:
        return load_extra(OPENED_BY[name], f"rewards.{name}")(replace(context, limits=limits), **options)
    if name in RUN_IN_WORKER:
        timeout = max(limits.timeout, BUSY_SECONDS)
        limits = replace(limits, timeout=timeout, processor_seconds=PROCESSOR_SECONDS)
        return WorkerReward(BUILTIN[name], name, options=options, limits=limits)
    return InProcessReward(resolve(BUILTIN[name]), name, options=options)


def runs_in_worker(name: str) -> bool:
    """Return whether a reward runs in worker processes: one of the user, or a built-in one that may never end."""
    return ":" in name or name in RUN_IN_WORKER


def processes_of(name: str, workers: int | None) -> int:
    """Return how many worker processes a reward has; `workers` is the setting, if there is one."""
    return workers or (min(MAX_WORKERS, _cores()) if name in BUILTIN else 1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
