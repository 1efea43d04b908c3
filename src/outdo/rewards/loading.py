"""From a name in a recipe, or a function in Python, to a reward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outdo.errors import Mistakes
from outdo.rewards.base import Reward
from outdo.rewards.combine import Combined
from outdo.rewards.local import Local
from outdo.rewards.worker import DEADLINE, Worker
from outdo.signatures import did_you_mean, resolve, source_file, split

BUILTIN = {
    "exact": "outdo.rewards.exact:exact",
    "last_number": "outdo.rewards.exact:last_number",
    "math": "outdo.rewards.math:math",
    "format": "outdo.rewards.format:format",
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
        timeout: seconds that one call of a function in a worker may take.

    Raises:
        Mistakes: everything in `spec` that cannot be loaded, with the nearest right name.
    """
    if isinstance(spec, Mapping):
        spec = [spec]
    if isinstance(spec, str):
        return _named(spec, timeout)
    if isinstance(spec, Sequence):
        return _combined([_weighted(entry) for entry in spec], timeout)
    return Local(spec)


def _combined(entries: Sequence[tuple[Any, Any]], timeout: float) -> Combined:
    mistakes: list[str] = []
    loaded: list[tuple[Reward, float]] = []
    for spec, weight in entries:
        try:
            loaded.append((load_reward(spec, timeout=timeout), weight))
        except Mistakes as found:
            mistakes.extend(found.mistakes)
    try:
        combined = Combined(loaded) if loaded or not mistakes else None
    except Mistakes as found:
        mistakes.extend(found.mistakes)
        combined = None
    if combined is None or mistakes:
        for reward, _ in loaded:
            reward.close()
        raise Mistakes(mistakes)
    return combined


def _weighted(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, Mapping):
        if entry.keys() - {"name", "weight"} or "name" not in entry:
            raise Mistakes([f'a reward is written {{"name": ..., "weight": ...}}, not {dict(entry)!r}'])
        return entry["name"], entry.get("weight", 1.0)
    if isinstance(entry, Sequence) and not isinstance(entry, str) and len(entry) == 2:
        return entry[0], entry[1]
    return entry, 1.0


def _named(spec: str, timeout: float) -> Reward:
    if spec in ENDLESS:
        return Worker(BUILTIN[spec], spec, timeout=timeout)
    if spec in BUILTIN:
        return Local(resolve(BUILTIN[spec]), spec)
    if ":" not in spec and not spec.endswith(".py"):
        known = f"{', '.join(BUILTIN)}, or your own as file.py:name or package.module:name"
        raise Mistakes([f"no reward is called {spec!r}{did_you_mean(spec, list(BUILTIN))}; expected {known}"])
    where, _ = split(spec)
    if where.endswith(".py"):
        source_file(where)
    return Worker(spec, timeout=timeout)
