"""The numbers of the README that can be counted are those of the code."""

import ast
import re
from pathlib import Path

from outdo.config.names import (
    ADVANTAGES,
    ALGORITHMS,
    COMPOSED_PIECES,
    CRITICS,
    DIVERGENCES,
    OBJECTIVES,
    REWARDS,
    SCHEDULES,
    STOPS,
    TRACKERS,
)
from outdo.config.settings import leaves
from outdo.extras.agents.check import LIMITS as AGENT_LIMITS
from outdo.extras.episodes.check import LIMITS
from outdo.extras.trackers.check import tracker_options
from outdo.extras.vllm.check import OWN_OPTIONS
from outdo.utils.imports import signature_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACES = {"objective": OBJECTIVES, "advantage": ADVANTAGES, "kl_in_reward": DIVERGENCES, "critic": CRITICS}
PLACES |= {"stop": STOPS, "algorithm": ALGORITHMS, "schedule": SCHEDULES, "rewards": REWARDS, **COMPOSED_PIECES}


def test_the_settings_are_counted_with_the_options_of_the_pieces():
    counted = re.search(r"\| (\d+), for the whole family: (\d+) of a run, and (\d+) options of named pieces", README)
    assert counted is not None
    specs = [(place, spec) for place, known in PLACES.items() for spec in known.values()]
    options = {(place, option) for place, spec in specs for option in signature_of(spec).options}
    options |= {("engine", option) for option in OWN_OPTIONS}
    options |= {("track", option) for name in TRACKERS for option in tracker_options(name).options}
    options |= {("environment", option) for option in (*LIMITS, *AGENT_LIMITS, "functions", "run")}
    of_a_run, of_pieces = len(leaves()), len(options)
    assert tuple(map(int, counted.groups())) == (of_a_run + of_pieces, of_a_run, of_pieces)


def test_the_lines_of_the_loop_are_counted_without_its_docstring():
    counted = re.search(r"\[one function\]\((.+?)\) of (\d+) lines", README)
    assert counted is not None
    tree = ast.parse((ROOT / counted[1]).read_text(encoding="utf-8"))
    (loop,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "train")
    docstring, end = loop.body[0], loop.end_lineno or 0
    assert int(counted[2]) == end - loop.lineno - ((docstring.end_lineno or 0) - docstring.lineno)


def test_the_picture_of_the_quickstart_has_the_numbers_of_its_table():
    drawn = (ROOT / "docs/pictures/quickstart.svg").read_text(encoding="utf-8")
    for kind, row in (("greedy", "greedy"), ("sampled", "sampled at temperature 1")):
        table = re.search(rf"│ {row} +│ ([0-9.]+%) .*│ ([0-9.]+%) ", README)
        assert table is not None
        assert f"{kind}: {table[1]} to {table[2]}" in drawn
