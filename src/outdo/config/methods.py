"""The objectives and advantages that a recipe can name, and what is true of them, without importing any.

`make methods` writes `methods.toml`, which this module reads, from the marks in `outdo.algorithms`.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from outdo.algorithms.marks import AdvantageFacts, ObjectiveFacts

_TABLE = tomllib.loads(Path(__file__).with_name("methods.toml").read_text(encoding="utf-8"))

OBJECTIVES = {name: ObjectiveFacts(**facts) for name, facts in _TABLE["objectives"].items()}
ADVANTAGES = {name: AdvantageFacts(**facts) for name, facts in _TABLE["advantages"].items()}

LIBRARY_OPTIONS: Mapping[str, Mapping[str, float]] = _TABLE["libraries"]
"""The defaults of an advantage's options for each `train.compat`."""


def facts_of_objective(name: str) -> ObjectiveFacts:
    """Return what is true of an objective; of a user's own, what is assumed."""
    return OBJECTIVES.get(name, ObjectiveFacts())


def facts_of_advantage(name: str) -> AdvantageFacts:
    """Return what is true of an advantage; of a user's own, what is assumed."""
    return ADVANTAGES.get(name, AdvantageFacts())
