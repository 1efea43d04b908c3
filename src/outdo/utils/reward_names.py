"""The names of several rewards: what their parts are called in metrics, in the record, on the page and in findings."""

from collections.abc import Mapping, Sequence
from typing import Any

from outdo.utils.errors import UserError
from outdo.utils.imports import names_of

REWARD_MODEL = "reward_model"
"""The reward that is a trained model; a run adds it after the other rewards."""

KEPT_PROMPT = "outdo_prompt"
"""The entry of a reward model's `tokenizer_config.json` with the text that stands around its prompts."""


def name_and_source(spec: str) -> tuple[str, str]:
    """Return the name of a reward of a recipe, and that of its file or module; a built-in reward has no source."""
    return names_of(spec) if ":" in spec else (spec, "")


def unique_names(named: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return a name for each reward, given as `(name, source)`: its own, or `source.name` where names are the same.

    If these are the same too, the second is called `name_2`.
    """
    names = [name for name, _ in named]
    with_source = [f"{source}.{name}" if source else name for name, source in named]
    unique: list[str] = []
    for name, longer in zip(names, with_source, strict=True):
        base = longer if names.count(name) > 1 and with_source.count(longer) == 1 else name
        candidate, count = base, 1
        while candidate in unique:
            count += 1
            candidate = f"{base}_{count}"
        unique.append(candidate)
    return tuple(unique)


def weights_by_name(rewards: Any) -> dict[str, float]:
    """Return the weight of each reward by the name of its part; empty if `rewards` is not what a recipe holds there."""
    entries = rewards if isinstance(rewards, list | tuple) else [rewards]
    try:
        read = [_spec_and_weight(entry) for entry in entries]
        read.sort(key=lambda pair: pair[0] == REWARD_MODEL)
        names = unique_names([name_and_source(spec) for spec, _ in read])
    except UserError:
        return {}
    return {name: weight for name, (_, weight) in zip(names, read, strict=True)}


def _spec_and_weight(entry: Any) -> tuple[str, float]:
    table = entry if isinstance(entry, Mapping) else {"name": entry}
    spec, weight = table.get("name"), table.get("weight", 1.0)
    if not isinstance(spec, str) or not isinstance(weight, int | float):
        raise UserError([f"expected a reward, found {entry!r}"])
    return spec, float(weight)
