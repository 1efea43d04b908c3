"""What every metric of a run is, in English: `outdo glossary entropy`. The entries are in `glossary.toml`."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, get_args

Topic = Literal["outcome", "data", "tokens", "policy", "engine", "cost"]

TOPICS: tuple[Topic, ...] = get_args(Topic)
"""In the order of reading: did it help, was there something to learn, did the tokens move, how is the policy ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One metric."""

    name: str  # in an entry of `known()`, * may stand for any text
    title: str
    what: str  # exactly
    healthy: str  # where it lies in a run that goes well
    otherwise: str  # what to do when it does not
    better: Literal["up", "down"] | None = None
    topic: Topic


@cache
def known() -> tuple[Entry, ...]:
    """All entries, topic by topic."""
    topics = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Entry(name=name, topic=topic, **text) for topic in TOPICS for name, text in topics[topic].items())


def entry(metric: str) -> Entry | None:
    """The entry of a metric; None where outdo writes no such metric. Of a family (`rewards/*/mean`), filled in."""
    for each in known():
        head, star, tail = each.name.partition("*")
        if not star and metric == each.name:
            return each
        room = len(metric) > len(head + tail)
        if star and room and metric.startswith(head) and metric.endswith(tail):
            middle = metric[len(head) : len(metric) - len(tail)]
            return replace(each, name=metric, title=each.title.replace("*", middle))
    return None


def nearest(metric: str, names: Sequence[str] | None = None) -> str | None:
    """The name most like `metric`, of `names` or of all entries; None if none is like it."""
    names = [each.name for each in known()] if names is None else names
    ends = {name.rpartition("/")[2]: name for name in names}  # `greedy` is meant for `eval/greedy`
    found = get_close_matches(metric, [*names, *ends], n=1)
    return next((name if name in names else ends[name] for name in found), None)
