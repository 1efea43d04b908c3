"""A reward whose worker processes run on a machine of a Ray cluster: where there is room.

An actor there has the reward, with the worker processes, the limits and the statuses of `outdo.rewards.worker`. It
loads no torch. What the actor itself can suffer, with its machine, ends in one error, `EngineLostError`: another actor
is started, in what is reserved for it, and the same completions are scored again.
"""

import io
import math
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from threading import Lock
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from outdo.config.engines import RAY_ADDRESS, reward_place_mistakes
from outdo.config.recipe import Recipe
from outdo.extras.ray import cluster
from outdo.extras.ray.cluster import connected, joins
from outdo.rewards.base import Reward
from outdo.rewards.combine import WeightedSum
from outdo.rewards.loading import BUILTIN, load_reward, processes_of
from outdo.rewards.types import DEADLINE, RewardInput, RewardOutput, Status, output_without_value
from outdo.rewards.worker import WorkerReward
from outdo.utils.errors import EngineError, EngineLostError, RewardError, UserError, WorkerError
from outdo.utils.reward_names import name_and_source

RESTARTS = 2
"""How often one call starts another actor before it gives up."""
GRACE = 5.0
"""Seconds by which the answer of an actor may be late: it ends its calls itself when their time is up."""

Result = TypeVar("Result")


class Loaded(NamedTuple):
    """What an actor says of the reward that it has loaded."""

    node: str  # the name of its machine
    patience: float  # seconds in which a call of the function ends
    sandboxes: Sequence[str]  # what runs the programs in completions there


class RayReward(Reward):
    """The reward `spec`, a table with the name and the options, in an actor of Ray.

    `limits` are the further arguments of `load_reward`, without `right`. `start` starts the actor, which needs a CPU
    for each of its worker processes. An actor that ends, gives no sign of life for `cluster.SILENCE` seconds, or
    whose calls do not end in their time, is replaced, up to `RESTARTS` times in a call.
    """

    def __init__(self, spec: Mapping[str, Any], **limits: Any) -> None:
        name = str(spec["name"])
        self.name, self.source = name_and_source(name)
        self.node = ""
        self._spec = spec
        self._limits = {**limits, "workers": processes_of(name, limits.get("workers"))}
        self._role = connected.join(f"the reward {self.name}", [{"CPU": self._limits["workers"]}])
        self._actors: list[Any] = []
        self._patience = 0.0
        self._sandboxes: Sequence[str] = ()
        self._has_numbers = False
        self._lock = Lock()
        self._closed = False

    @property
    def processes(self) -> int:
        """How many worker processes it has at most: as many CPUs are reserved."""
        return self._limits["workers"]

    @property
    def has_numbers(self) -> bool:
        """Whether the function has returned a number so far."""
        return self._has_numbers

    @property
    def sandboxes(self) -> Sequence[str]:
        """What runs the programs in completions on the machine of the actor, which is known when it has started."""
        return self._sandboxes

    def reserve(self) -> None:
        """Reserve the CPUs of the actor, together with those of the other roles that Ray places.

        Raises: EngineError if Ray cannot be used, or has no room.
        """
        connected.reserve(self._role)

    def start(self) -> Sequence[str]:
        """Start the actor, with the first worker process; return where it is.

        Raises:
            UserError: the function cannot be used on that machine.
            EngineError: Ray cannot be used, or has no room.
            WorkerError: the actor was lost `RESTARTS` times and once more.
        """
        with self._lock:
            self._repeated(lambda: None)
        return [f"{self.name} in an actor on {self.node} (Ray)"]

    def __call__(self, inputs: Sequence[RewardInput]) -> list[RewardOutput]:
        """Score every completion.

        Raises:
            RewardError: a worker that had to be replaced does not start again, or the reward was closed meanwhile.
            WorkerError: the actor was lost `RESTARTS` times and once more.
        """
        deadline = DEADLINE.get()
        with self._lock:
            try:
                return self._repeated(lambda: self._score(inputs, deadline), deadline)
            except TimeoutError:
                reason = "the time for the rewards of this step was used up"
                return [output_without_value(Status.timed_out, reason, self.name)] * len(inputs)
            except UserError as error:
                raise RewardError(f"the actor of {self._role.name} does not start again: {error}") from error

    def close(self) -> None:
        """End the actor with its worker processes. A call in another thread ends, and starts none again."""
        self._closed = True
        try:
            self._end()
            if self._lock.acquire(timeout=cluster.ANSWER):  # that call asks Ray no more
                self._lock.release()
        finally:
            connected.leave(self._role)

    def _repeated(self, work: Callable[[], Result], deadline: float = math.inf) -> Result:
        """Do some work with the actor; if it is lost, do it again with another one.

        Raises: TimeoutError if it is lost and the deadline is over.
        """
        for attempts_left in range(RESTARTS, -1, -1):
            try:
                if not self._actors:
                    self._begin()
                self._check_open()
                return work()
            except EngineLostError as error:
                self._end()
                self._check_open()
                if monotonic() >= deadline:
                    raise TimeoutError from error
                if not attempts_left:
                    lost = f"the actor of {self._role.name} was lost {RESTARTS + 1} times"
                    raise WorkerError(f"{lost}: {error}") from error
                sys.stderr.write(f"the actor of {self._role.name} is restarted: {error}\n")
            except BaseException:
                self._end()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _begin(self) -> None:
        """Start an actor, and load the reward there."""
        self._actors = connected.start(self._role, RewardActor)
        arguments = self._spec, os.getcwd(), self._limits
        loaded = self._call("load", arguments, seconds=cluster.START, silence=cluster.START)
        self.node, self._patience, self._sandboxes = loaded

    def _check_open(self) -> None:
        if self._closed:
            raise RewardError(f"{self._role.name} was interrupted")

    def _score(self, inputs: Sequence[RewardInput], deadline: float) -> list[RewardOutput]:
        left = deadline - monotonic()
        scored = self._call("score", (list(inputs), left), seconds=self._patience, until=deadline + GRACE)
        outputs, has_numbers = scored
        self._has_numbers |= has_numbers
        return outputs

    def _call(self, method: str, arguments: tuple[Any, ...], **limits: float) -> Any:
        """Call a method of the actor; show what the reward has printed, and return the result."""
        ((result, printed),) = connected.call(self._role, self._actors, method, [arguments], **limits)
        sys.stderr.write(printed)
        return result

    def _end(self) -> None:
        """End the actor; the next call starts another."""
        actors, self._actors = self._actors, []
        connected.kill(actors)


class RewardActor:
    """An actor: a reward with its worker processes. Each method returns its result, and what the reward has printed."""

    def __init__(self) -> None:
        self.reward: WorkerReward | None = None

    def call(self, method: str, *arguments: Any) -> tuple[Any, str]:
        """Call a method of this class."""
        with redirect_stderr(io.StringIO()) as printed:
            result = getattr(self, method)(*arguments)
        return result, printed.getvalue()

    def progress(self) -> int:
        """Return a number that changes while completions are scored."""
        return 0 if self.reward is None else self.reward.progress

    def load(self, spec: Mapping[str, Any], folder: str, limits: Mapping[str, Any]) -> Loaded:
        """Load the reward and start its first worker process. A reward of the user works in the trainer's folder."""
        node = os.uname().nodename
        if spec["name"] not in BUILTIN:
            try:
                os.chdir(folder)
            except OSError as error:
                raise UserError([f"{spec['name']}: {node} cannot use the folder of the trainer: {error}"]) from error
        try:
            total = load_reward([spec], **limits)
        except UserError as error:
            where = f"(on {node}, where Ray has placed the reward)"
            raise UserError([f"{mistake} {where}" for mistake in error.problems]) from error
        assert isinstance(total, WeightedSum)
        (reward,) = total.rewards
        assert isinstance(reward, WorkerReward), "only rewards with worker processes are placed"
        self.reward = reward
        return Loaded(node, reward.patience, reward.sandboxes)

    def score(self, inputs: Sequence[RewardInput], seconds: float) -> tuple[list[RewardOutput], bool]:
        """Score every completion in so many seconds; return also whether the reward has returned a number so far."""
        assert self.reward is not None
        token = DEADLINE.set(monotonic() + seconds)
        try:
            return self.reward(inputs), self.reward.has_numbers
        finally:
            DEADLINE.reset(token)


def placed_rewards(recipe: Recipe) -> tuple[str, list[str]]:
    """Return what was found for the rewards that Ray places, and what keeps them from a run; nothing without any.

    Of a cluster that runs already (RAY_ADDRESS), their CPUs are reserved for a moment. Otherwise the run starts a Ray
    of its own, which takes them all.
    """
    if mistakes := reward_place_mistakes(recipe):
        return "", mistakes
    specs = [{"name": placed.name, **recipe.options_of(placed)} for placed in recipe.rewards if placed.place]
    rewards = [RayReward(spec, **recipe.reward_limits.of_workers) for spec in specs]
    if not rewards:
        return "", []
    wanted = ", ".join(f"{reward.name} ({reward.processes} CPU)" for reward in rewards)
    try:
        if not joins():
            cores = os.cpu_count() or 1
            return f"{wanted}: in a Ray that the run starts on {socket.gethostname()}, with {cores} CPU cores", []
        where = f"the Ray cluster {RAY_ADDRESS}={os.environ[RAY_ADDRESS]}"
        rewards[0].reserve()  # all of them
        return f"{wanted}: {where} has room", []
    except EngineError as error:
        return "", [f"rewards: {error}"]
    finally:
        for reward in rewards:
            reward.close()
