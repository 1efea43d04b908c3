"""The meaning of every metric of a run: `outdo glossary entropy`. The entries are in `glossary.toml`."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from outdo.utils import errors

Topic = Literal["outcome", "data", "tokens", "policy", "engine", "cost"]

TOPICS: tuple[Topic, ...] = get_args(Topic)
"""The topics in reading order: did training help, was there signal, did the tokens move, how is the policy ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The description of one metric."""

    name: str  # in an entry of `entries()`, a * stands for any text
    title: str
    what: str  # the exact definition
    healthy: str  # its values in a run that goes well
    otherwise: str  # what to do with other values
    better: Literal["up", "down"] | None = None
    n: str | None = None  # the metric with the sample size, of a mean or a share whose sample size a run writes
    topic: Topic


@cache
def entries() -> tuple[Entry, ...]:
    """Return all entries, sorted by topic."""
    topics = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Entry(name=name, topic=topic, **text) for topic in TOPICS for name, text in topics[topic].items())


def entry(metric: str) -> Entry | None:
    """Return the entry of a metric, or None if outdo writes no such metric.

    For a member of a family (`rewards/*/mean`), its own name replaces the `*`.
    """
    for known in entries():
        head, star, tail = known.name.partition("*")
        if not star and metric == known.name:
            return known
        room = len(metric) > len(head + tail)
        if star and room and metric.startswith(head) and metric.endswith(tail):
            middle = metric[len(head) : len(metric) - len(tail)]
            return replace(known, name=metric, title=known.title.replace("*", middle))
    return None


@cache
def words() -> dict[str, str]:
    """Return the words that a step's line, the page and the doctor show: the metric of each, or what it means."""
    texts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["words"]
    titles = {known.title.lower(): known.name for known in entries() if "*" not in known.name}
    return titles | {word: " ".join(text.split()) for word, text in texts.items()}


def nearest(metric: str, names: Sequence[str] | None = None) -> str | None:
    """Return the name in `names` (or of all entries) that is most similar to `metric`; None if none is similar."""
    names = [*(known.name for known in entries()), *words()] if names is None else names
    ends = {name.rpartition("/")[2]: name for name in reversed(names)}  # so that `greedy` finds `eval/greedy`
    similar = errors.nearest(metric, [*names, *ends])
    return similar if similar is None or similar in names else ends[similar]
