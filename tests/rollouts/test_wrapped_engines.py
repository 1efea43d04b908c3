"""An engine around another one hides nothing of it, but what it does otherwise itself."""

from collections.abc import Callable
from typing import Any

import pytest
from engine_cases import fresh, requests, shared

from outdo.extras.remote_engines.proof import FLOAT32, Proof
from outdo.extras.remote_engines.remote import RemoteEngine
from outdo.extras.replicas.engine import ReplicatedEngine
from outdo.extras.staleness.partial_completions import PresampledEngine
from outdo.rollouts.engines.base import Engine
from outdo.rollouts.engines.modes import MODES, SamplingChoice
from outdo.rollouts.engines.sampling import SamplingParams
from outdo.rollouts.engines.wrapped import WrappedEngine
from outdo.utils.rng import Stream
from outdo.utils.world import ALONE

RETURNED = {
    "version": 3,
    "tokenizer": "a tokenizer",
    "update_weights": None,
    "generate": ["an answer", "another one"],
    "score": [[-1.0]],
    "returns_experts": False,
    "reads_inputs": True,
    "check_inputs": None,
    "choice": SamplingChoice(MODES[1]),
    "delivered_bytes": 7,
    "notes": ["it is elsewhere"],
    "completed": (1, 2),
    "divide_episodes": ["an episode"],
    "end_episodes": None,
    "metrics": {"engine/own": 1.0},
    "sleep": True,
    "health": None,
    "restart": None,
    "close": None,
}
"""What the wrapped engine returns: never what `Engine` itself returns."""
ARGUMENTS = {
    "update_weights": lambda: (fresh(),),
    "generate": lambda: (requests()[:2], SamplingParams()),
    "score": lambda: ([[1, 2]],),
    "check_inputs": lambda: ([],),
    "divide_episodes": lambda: ([], lambda engine, groups: []),
    "end_episodes": lambda: ([Stream("train", 1, "a question", 0)],),
}
ATTRIBUTES = {"version", "tokenizer", "returns_experts", "reads_inputs", "choice", "delivered_bytes", "completed"}


class Unproved(Proof):
    def check(self, *how: Any) -> None: ...


WRAPPERS: dict[str, Callable[[Engine], WrappedEngine]] = {
    "replicas": lambda engine: ReplicatedEngine(engine, ALONE),
    "partial rollouts": PresampledEngine,
    "remote": lambda engine: RemoteEngine(lambda policy: engine, fresh(), Unproved(FLOAT32)),
}
OTHERWISE = {
    ("replicas", "completed"): "it would be the part of one replica",
    ("replicas", "divide_episodes"): "it divides them itself",
    ("remote", "version"): "it is that of the last delivery",
    ("remote", "delivered_bytes"): "the first replica tells the others",
    ("remote", "divide_episodes"): "it repeats the calls of an episode, or all episodes",
}
MEMBERS = [name for name in vars(Engine) if not name.startswith("_")]


def told(asked: list[str]) -> Engine:
    """An engine that notes what it is asked."""

    def member(name: str) -> Any:
        def answer(engine: Engine, *arguments: object) -> Any:
            asked.append(name)
            return RETURNED[name]

        return property(answer) if name in ATTRIBUTES else answer

    return type("Told", (Engine,), {"policy": shared(), **{name: member(name) for name in MEMBERS}})()


def ask(engine: Engine, name: str) -> Any:
    if name in ATTRIBUTES:
        return getattr(engine, name)
    return getattr(engine, name)(*ARGUMENTS.get(name, tuple)())


def test_a_wrapped_engine_passes_on_every_member_of_an_engine():
    assert set(RETURNED) == set(MEMBERS) == {name for name in vars(WrappedEngine) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("wrapper", "name"), [(each, name) for each in WRAPPERS for name in MEMBERS if (each, name) not in OTHERWISE]
)
def test_a_wrapper_asks_the_engine_in_it(wrapper, name):
    asked = list[str]()
    engine = WRAPPERS[wrapper](told(asked))
    asked.clear()
    returned = ask(engine, name)
    assert name in asked
    if name in ("notes", "metrics"):  # those of the engine, beside others
        assert all(each in returned for each in RETURNED[name])
    elif name != "update_weights":
        assert returned == RETURNED[name]


def test_a_remote_engine_has_the_version_and_the_bytes_of_the_last_delivery():
    engine = WRAPPERS["remote"](told([]))
    assert engine.delivered_bytes == 0
    engine.update_weights(fresh())
    assert (engine.version, engine.delivered_bytes) == (3, 7)
