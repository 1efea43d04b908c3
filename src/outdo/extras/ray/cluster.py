"""Ray: the cluster that this process joins or starts, and the actors that it places there.

The parts of a run that use Ray, its engine and its rewards, are roles. Each says what it needs (`RayCluster.join`)
before the first of them starts, so that Ray finds room for all of them, or for none: one placement group. Ray ends with
the last role.

Ray does not notice that an actor hangs, or that it is stopped. So no wait here is without end: each call watches the
progress of the actors, and an actor that is silent or gets nowhere is lost, as one that has ended is. Ray itself
restarts nothing.

With RAY_ADDRESS the process joins that cluster. Without it, it starts a Ray for itself on this machine, which listens
on loopback only, has a token of its own, and ends with this process. Ray is the extra `ray`; it reads some of its
settings from the environment while it is imported, so that it is imported here, and only when it is used.
"""

import atexit
import logging
import math
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar
from weakref import WeakSet

from outdo.config.engines import RAY_ADDRESS
from outdo.utils.deadline import within
from outdo.utils.errors import EngineError, EngineLostError
from outdo.utils.watchdog import Watchdog

VISIBLE = "CUDA_VISIBLE_DEVICES"
CONNECT = 120.0
"""Seconds in which a cluster that runs already has to be joined."""
BEGIN = 600.0
"""Seconds in which a Ray of this process has to start; in them it gives up by itself, unless it hangs."""
ROOM = 120.0
"""Seconds in which a cluster has to have room for the actors."""
ANSWER = 120.0
"""Seconds in which Ray itself has to answer. It waits without end for a process of its own that is stopped."""
START = 600.0
"""Seconds until the first sign of life of an actor: it imports what it needs."""
SILENCE = 120.0
"""Seconds without a sign of life after which an actor is lost."""
POLL = 1.0
"""Seconds between two looks at the progress of the actors."""
WATCH = "watch"
"""The concurrency group of the methods of an actor that answer while another one computes."""
STORE = 2**28
"""Bytes of shared memory for what is sent to the actors: some buckets of weights."""
ADVICE = "; their logs are in the folder of Ray's session"

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_ENABLE_AUTO_CONNECT": "0"}
"""No statistics are sent to Ray's authors, who connects needs a token, and a thread that asks a Ray that has ended does
not start another one. The user's environment may say otherwise."""

Result = TypeVar("Result")


@dataclass(eq=False, slots=True, weakref_slot=True, kw_only=True)
class Role:
    """A part of a run whose actors Ray places: the resources of each of them, and where these are reserved.

    A role that nobody holds any more has left.
    """

    name: str
    bundles: Sequence[Mapping[str, float]]
    gpus: Sequence[int] = ()  # of this machine, for a Ray that is started here
    group: Any = None
    first: int = 0  # the number of its first bundle in the group


class RayCluster:
    """The Ray of this process."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._folder: str | None = None
        self._roles = WeakSet[Role]()

    def join(self, name: str, bundles: Sequence[Mapping[str, float]], gpus: Sequence[int] = ()) -> Role:
        """Return a new role, which will start an actor for each of some bundles of resources.

        All roles that have joined are placed together when the first of them starts; a later one is placed alone.
        """
        role = Role(name=name, bundles=bundles, gpus=gpus)
        self._roles.add(role)
        return role

    def leave(self, role: Role) -> None:
        """End a role, whose actors have been killed. With the last role, Ray ends here."""
        group, role.group = role.group, None
        self._roles.discard(role)
        if not self._roles:
            self.close()
        elif group is not None and all(other.group is not group for other in self._roles):
            self._release(group)

    def open(self) -> Any:
        """Return the module `ray`, connected: to the cluster of RAY_ADDRESS, or to one that is started here.

        A Ray that is started here has room for the threads of all roles at least, and has their GPUs.

        Raises: EngineError with the reason if it does not connect, EngineLostError if it does not start.
        """
        if self._ray is None and "ray" in sys.modules and not joins():
            raise EngineError(
                "Ray was imported before outdo could set it up, with a token and on loopback only: leave "
                "`import ray` out of code of your own, or start Ray yourself and set RAY_ADDRESS"
            )
        ray = self._module()
        if not ray.is_initialized():
            seconds = CONNECT if joins() else BEGIN
            try:
                within(seconds, lambda: self._init(ray), lasting=True)
            except TimeoutError:
                atexit.unregister(ray.shutdown)  # it would wait for the same answer
                raise EngineError(_unanswered(seconds)) from None
            except Exception as error:  # of many kinds
                self.close()
                # On a busy machine Ray does not always start in the time that it gives itself.
                kind = EngineError if joins() else EngineLostError
                raise kind(f"Ray cannot be used: {_sentence(error)}") from error
        return ray

    def _module(self) -> Any:
        """Set the environment of Ray, and import it."""
        if self._ray is None:
            atexit.register(self._drop_folder)  # the first to be registered is called last, after Ray's own
            self._ray = _imported()
        return self._ray

    def _init(self, ray: Any) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
        if joins():
            ray.init(**common)
        else:
            self._folder = tempfile.mkdtemp(prefix="outdo-ray-")
            gpus = [gpu for role in self._roles for gpu in role.gpus]
            cpus = sum(bundle["CPU"] for role in self._roles for bundle in role.bundles)
            with _visible(gpus):
                ray.init(
                    address="local",
                    num_cpus=max(math.ceil(cpus), os.cpu_count() or 1),
                    num_gpus=len(gpus),
                    include_dashboard=False,
                    object_store_memory=STORE,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=self._folder,
                    **common,
                )

    def start(self, role: Role, kind: type, *arguments: Any) -> list[Any]:
        """Start an actor of a class in each bundle of a role. One whose process ends is not started again by Ray.

        Raises: EngineError if the cluster has no room for them, also after a machine was lost.
        """
        self.reserve(role)
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(max_restarts=0, concurrency_groups={WATCH: 1})(kind)
        placed = [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(role.group, placement_group_bundle_index=number),
            )
            for number, bundle in enumerate(role.bundles, role.first)
        ]
        return self.ask(lambda _: [actor.remote(*arguments) for actor in placed])

    def reserve(self, role: Role) -> None:
        """Connect, and wait until a role has its resources, together with the other roles that have none yet.

        Raises: EngineError if Ray cannot be used, or has no room for all of them.
        """
        self.open()
        if role.group is None:
            assert role in self._roles, "it has left"
            together = [role for role in self._roles if role.group is None]
            bundles = [dict(bundle) for role in together for bundle in role.bundles]
            group, first = self.ask(lambda ray: ray.util.placement_group(bundles, strategy="PACK")), 0
            for of_role in together:
                of_role.group, of_role.first, first = group, first, first + len(of_role.bundles)
        reserved: Any = role.group
        with translated():
            has_room = reserved.wait(ROOM)
        if not has_room:
            self._give_up(reserved)

    def _give_up(self, group: Any) -> None:
        """Release a group for which there is no room, and raise `EngineError` with what it needs."""
        available = self.ask(lambda ray: ray.available_resources())
        together = [role for role in self._roles if role.group is group]
        for of_role in together:
            of_role.group = None
        self._release(group)
        wanted = " and ".join(f"{role.name} ({_listed(role.bundles)})" for role in together)
        names = sorted({name for role in together for bundle in role.bundles for name in bundle})
        free = ", ".join(f"{available.get(name, 0):g} {name}" for name in names)
        raise EngineError(f"the Ray cluster has no room for {wanted}: free are {free}")

    def _release(self, group: Any) -> None:
        """Give the machines of a placement group back; its actors end."""
        self.ask(lambda ray: ray.util.remove_placement_group(group))

    def kill(self, actors: Sequence[Any]) -> None:
        """End some actors. Their resources stay reserved for those that are started in their place."""
        if actors and self._ray is not None and self._ray.is_initialized():
            self.ask(lambda ray: [ray.kill(actor) for actor in actors])

    def call(
        self,
        role: Role,
        actors: Sequence[Any],
        method: str,
        calls: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        silence: float | None = None,
        until: float = math.inf,
    ) -> list[Any]:
        """Call a method of each of some actors at the same time; return the results in order.

        An actor has a method `call`, which gets the name and the arguments, and a method `progress`, which returns a
        number and answers meanwhile.

        Raises: what an actor has raised; EngineLostError if one has ended, gives no sign of life for `silence` seconds
        (`SILENCE`), makes no progress for `seconds`, or if there are no results when `time.monotonic` is `until`.
        """
        silence = SILENCE if silence is None else silence
        results = self.ask(
            lambda _: [actor.call.remote(method, *arguments) for actor, arguments in zip(actors, calls, strict=True)]
        )
        with translated():
            watch = _Watch(self._ray, role.name, actors, seconds, silence)
            waiting = list(results)
            while waiting:
                patience = max(0.0, min(POLL, until - monotonic()))
                _, waiting = self._ray.wait(waiting, num_returns=len(waiting), timeout=patience, fetch_local=False)
                if waiting and monotonic() >= until:
                    raise EngineLostError(f"{role.name} had no results in time")
                watch.look([results.index(result) for result in waiting])
            return self._ray.get(results, timeout=SILENCE)

    def ask(self, work: Callable[[Any], Result]) -> Result:
        """Return what `work` makes with the module `ray`.

        Raises: EngineLostError if Ray fails, or does not answer in time.
        """
        try:
            with translated():
                return within(ANSWER, lambda: work(self._ray))
        except TimeoutError:
            raise EngineLostError(f"Ray gave no answer for {ANSWER:g} s{ADVICE}") from None

    def close(self) -> None:
        """Leave the cluster, or end the one that was started here.

        A Ray that hangs is given up: it ends with this process.
        """
        if self._ray is not None:
            try:
                within(ANSWER, self._ray.shutdown)
            except TimeoutError:
                atexit.unregister(self._ray.shutdown)  # it would be called again, and never return
        for role in self._roles:
            role.group = None
        self._drop_folder()

    def _drop_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class _Watch:
    """Asks some actors for signs of life and for their progress."""

    def __init__(self, ray: Any, role: str, actors: Sequence[Any], seconds: float, silence: float) -> None:
        self._ray = ray
        self._role = role
        self._actors = actors
        self._watchdogs = [Watchdog(silence, seconds) for _ in actors]
        self._asked: list[Any] = [None] * len(actors)

    def look(self, waiting: Sequence[int]) -> None:
        """Ask the actors that have not answered for their progress.

        Raises: EngineLostError if one of them is silent, or makes no progress.
        """
        for number in waiting:
            if self._asked[number] is None:
                self._asked[number] = self._actors[number].progress.options(concurrency_group=WATCH).remote()
            elif self._ray.wait([self._asked[number]], timeout=0)[0]:
                self._watchdogs[number].hear(self._ray.get(self._asked[number], timeout=POLL))
                self._asked[number] = None
            if complaint := self._watchdogs[number].complaint():
                raise EngineLostError(f"actor {number + 1} of {self._role} {complaint}")


connected = RayCluster()
"""The Ray of this process: there is at most one."""


def _imported() -> Any:
    """Set the environment of Ray, and import it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not joins():
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that it uses the loopback interface
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "300")
        os.environ.setdefault("RAY_prestart_worker_first_driver", "0")  # a process for each core, which no role uses
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of each start in another thread than the main one
    return ray


def joins() -> bool:
    """Return whether a cluster that runs already is to be used."""
    return RAY_ADDRESS in os.environ


@contextmanager
def translated() -> Iterator[None]:
    """Turn the errors of Ray into `EngineLostError`, and an error that an actor raised into itself."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise error.cause from error
    except RayError as error:
        raise EngineLostError(f"{_sentence(error)}{ADVICE}") from error


@contextmanager
def _visible(gpus: Sequence[int]) -> Iterator[None]:
    """Show only these of the GPUs that this process sees to the processes that are started inside a `with` block."""
    before = os.environ.get(VISIBLE)
    names = before.split(",") if before else []
    os.environ[VISIBLE] = ",".join(names[number] if names else str(number) for number in gpus)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = before


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _unanswered(seconds: float) -> str:
    """Return what is said if Ray does not connect or start in so many seconds."""
    if joins():
        where = f"Ray at {RAY_ADDRESS}={os.environ[RAY_ADDRESS]}"
        return f"{where} gave no answer for {seconds:g} s: does it run there, and are its ports open?"
    return f"Ray did not start within {seconds:g} s{ADVICE}"


def _listed(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return the resources of bundles that are all equal, such as `2 x 4 CPU, 1 GPU`."""
    return f"{len(bundles)} x " + ", ".join(f"{amount:g} {name}" for name, amount in bundles[0].items())
