"""Ray: the cluster that this process joins or starts, and the actors that it places there.

With RAY_ADDRESS the process joins that cluster. Without it, it starts a Ray for itself on this machine, which listens
on loopback only, has a token of its own, and ends with this process. Ray is the extra `ray`; it reads some of its
settings from the environment while it is imported, so that it is imported here, and only when it is used.
"""

import atexit
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from outdo.utils.deadline import within
from outdo.utils.errors import EngineError, EngineLostError

ADDRESS, VISIBLE = "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"
ROOM = 120.0
"""Seconds in which a cluster has to have room for the actors."""
ANSWER = 120.0
"""Seconds in which Ray itself has to answer. It waits without end for a process of its own that is stopped."""
WATCH = "watch"
"""The concurrency group of the methods of an actor that answer while another one computes."""
STORE = 2**28
"""Bytes of shared memory for what is sent to the actors: some buckets of weights."""
ADVICE = "; their logs are in the folder of Ray's session"

ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}
"""No statistics are sent to Ray's authors, and who connects needs a token. The user's environment may say otherwise."""

Result = TypeVar("Result")


class Cluster:
    """The Ray of this process."""

    def __init__(self) -> None:
        self._ray: Any = None
        self._folder: str | None = None

    def open(self, *, cpus: int, gpus: Sequence[int]) -> Any:
        """Return the module `ray`, connected: to the cluster of RAY_ADDRESS, or to one that is started here.

        A Ray that is started here has room for `cpus` threads at least, and has the GPUs with these numbers.

        Raises: EngineError with the reason if it does not connect, EngineLostError if it does not start.
        """
        if self._ray is None and "ray" in sys.modules and not joins():
            raise EngineError(
                "Ray was imported before outdo could set it up, with a token and on loopback only: leave "
                "`import ray` out of code of your own, or start Ray yourself and set RAY_ADDRESS"
            )
        ray = _imported()
        self._ray = ray
        if not ray.is_initialized():
            try:
                self._init(ray, cpus=cpus, gpus=gpus)
            except Exception as error:  # of many kinds
                self.close()
                # On a busy machine Ray does not always start in the time that it gives itself.
                kind = EngineError if joins() else EngineLostError
                raise kind(f"Ray cannot be used: {_sentence(error)}") from error
        return ray

    def _init(self, ray: Any, *, cpus: int, gpus: Sequence[int]) -> None:
        common: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
        if joins():
            ray.init(**common)
        else:
            self._folder = tempfile.mkdtemp(prefix="outdo-ray-")
            with _own_handlers(), _visible(gpus):
                ray.init(
                    address="local",
                    num_cpus=max(cpus, os.cpu_count() or 1),
                    num_gpus=len(gpus),
                    include_dashboard=False,
                    object_store_memory=STORE,
                    _node_ip_address="127.0.0.1",
                    _temp_dir=self._folder,
                    **common,
                )

    def reserve(self, bundles: Sequence[Mapping[str, float]]) -> Any:
        """Return a placement group with these bundles of resources, all of them on machines that have them free.

        Raises: EngineError if the cluster has no room for them.
        """
        group = self.ask(lambda ray: ray.util.placement_group([dict(each) for each in bundles], strategy="PACK"))
        with translated():
            if group.wait(ROOM):
                return group
        available = self.ask(lambda ray: ray.available_resources())
        self.release(group)
        found = {name: available.get(name, 0) for name in bundles[0]}
        wanted, free = (", ".join(f"{each[name]:g} {name}" for name in each) for each in (bundles[0], found))
        raise EngineError(
            f"the Ray cluster has no room for engine.processes = {len(bundles)} with {wanted} each: free are {free}"
        )

    def release(self, group: Any) -> None:
        """Give the machines of a placement group back; its actors end."""
        self.ask(lambda ray: ray.util.remove_placement_group(group))

    def start(self, kind: type, group: Any, bundles: Sequence[Mapping[str, float]], *arguments: Any) -> list[Any]:
        """Start an actor of a class in each bundle of a group. One whose process ends is not started again by Ray."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        actor = self._ray.remote(max_restarts=0, concurrency_groups={WATCH: 1})(kind)
        placed = [
            actor.options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            )
            for number, bundle in enumerate(bundles)
        ]
        return self.ask(lambda _: [each.remote(*arguments) for each in placed])

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
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


connected = Cluster()
"""The Ray of this process: there is at most one."""


def _imported() -> Any:
    """Set the environment of Ray, and import it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not joins():
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # so that it uses the loopback interface
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "300")
    import ray

    return ray


def joins() -> bool:
    """Return whether a cluster that runs already is to be used."""
    return ADDRESS in os.environ


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
def _own_handlers() -> Iterator[None]:
    """Keep this process's handler of SIGTERM: Ray replaces it by one that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        raise EngineError("Ray has to be started by the main thread")
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
