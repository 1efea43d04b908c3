"""From a name in a recipe, or a function in Python, to a reward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outdo.rewards.combine import Combined
from outdo.rewards.in_process import Local
from outdo.rewards.signatures import ARGUMENTS, Convention
from outdo.rewards.types import Reward
from outdo.rewards.worker import DEADLINE, Worker
from outdo.utils.errors import UserError, did_you_mean
from outdo.utils.imports import resolve, signature_of, source_file, split

BUILTIN = {
    "exact": "outdo.rewards.exact:exact",
    "last_number": "outdo.rewards.exact:last_number",
    "math": "outdo.rewards.math:math",
    "format": "outdo.rewards.format:format",
    "overlong": "outdo.rewards.overlong:overlong",
}
"""The rewards that have a name, and where they are defined."""

ENDLESS = frozenset({"math"})
"""Those of them that may never end, and therefore run in a worker, like a user's file."""

Spec = str | Callable[..., Any] | Mapping[str, Any] | Sequence[Any]


def load_reward(spec: Spec, *, timeout: float = DEADLINE) -> Reward:
    """Make a reward of what a recipe or a user names.

    Args:
        spec: a name in `BUILTIN`; `"file.py:function"` or `"package.module:function"`, which run in a worker; a Python
            function, which runs in this process, where nothing can be done if it hangs, crashes, or eats the memory; or
            a list of these, of `(spec, weight)` or of `{"name": spec, "weight": 0.5}`, which are added up (`Combined`).
            What else stands beside a name, as in `{"name": "overlong", "max_tokens": 256, "cache": 64}`, are options:
            arguments of the function that are the same for every completion. They win over columns.
        timeout: seconds that one call of a function in a worker may take.

    Raises:
        UserError: everything in `spec` that cannot be loaded, with the nearest right name.
    """
    if isinstance(spec, Mapping):
        spec = [spec]
    if isinstance(spec, Sequence) and not isinstance(spec, str):
        return _combined([_entry(each) for each in spec], timeout)
    return _single(spec, {}, timeout)


def _combined(entries: Sequence[tuple[Any, Any, Mapping[str, Any]]], timeout: float) -> Combined:
    mistakes: list[str] = []
    loaded: list[tuple[Reward, float]] = []
    for spec, weight, options in entries:
        try:
            reward = _single(spec, options, timeout) if options else load_reward(spec, timeout=timeout)
            loaded.append((reward, weight))
        except UserError as found:
            mistakes.extend(found.problems)
    try:
        combined = Combined(loaded) if loaded or not mistakes else None
    except UserError as found:
        mistakes.extend(found.problems)
        combined = None
    if combined is None or mistakes:
        for reward, _ in loaded:
            reward.close()
        raise UserError(mistakes)
    return combined


def _entry(entry: Any) -> tuple[Any, Any, Mapping[str, Any]]:
    """What to load, its weight, and its options."""
    if isinstance(entry, Mapping):
        if "name" not in entry:
            raise UserError([f'a reward is written {{"name": ..., "weight": ...}}, not {dict(entry)!r}'])
        options = {name: value for name, value in entry.items() if name not in ("name", "weight")}
        return entry["name"], entry.get("weight", 1.0), options
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        return entry[0], entry[1], {}
    return entry, 1.0, {}


def _single(spec: Any, options: Mapping[str, Any], timeout: float) -> Reward:
    return _named(spec, options, timeout) if isinstance(spec, str) else Local(spec, options=options)


def _named(spec: str, options: Mapping[str, Any], timeout: float) -> Reward:
    if spec in BUILTIN:
        return _built_in(spec, options, timeout)
    if ":" not in spec and not spec.endswith(".py"):
        known = f"{', '.join(BUILTIN)}, or your own as file.py:name or package.module:name"
        raise UserError([f"no reward is called {spec!r}{did_you_mean(spec, list(BUILTIN))}; expected {known}"])
    where, _ = split(spec)
    if where.endswith(".py"):
        source_file(where)
    return Worker(spec, options=options, timeout=timeout)


def _built_in(name: str, options: Mapping[str, Any], timeout: float) -> Reward:
    needed = [each for each in signature_of(BUILTIN[name]).required if each not in ARGUMENTS[Convention.plain]]
    if missing := [each for each in needed if each not in options]:
        written = ", ".join(f"{each} = ..." for each in missing)
        raise UserError([f'the reward {name} needs {" and ".join(missing)}: {{name = "{name}", {written}}}'])
    if name in ENDLESS:
        return Worker(BUILTIN[name], name, options=options, timeout=timeout)
    return Local(resolve(BUILTIN[name]), name, options=options)
