"""How the checkpoints of a run are written: in a thread while training goes on, or while the run waits.

`run.training` decides after which steps (`save_is_due`), and `checkpoint.save` makes each of them atomic.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from functools import partial

from transformers import PreTrainedTokenizerBase

from outdo.run.assemble.assemble import Run
from outdo.run.checkpoints.save_times import SaveTimes
from outdo.run.checkpoints.state import Copy, Progress, check_finite, content_of, write
from outdo.run.folder.run_folder import RunFolder
from outdo.utils.errors import WorkerError
from outdo.utils.timing import span
from outdo.utils.world import World


class Checkpoints:
    """The checkpoints of a run. At most one is being written, in a background thread, from a copy of its step.

    Of several replicas, which are all in the same state, only the first writes; if they hold parts of the weights, all
    of them do. Their threads exchange these parts over a process group of their own, so that they never meet what the
    training exchanges meanwhile. All replicas have to make this object at the same time.

    Args:
        folder: of the run.
        run: what is trained.
        saved: the step of the newest checkpoint; 0 if there is none.
    """

    def __init__(self, folder: RunFolder, run: Run, *, saved: int) -> None:
        self.folder = folder
        self.run = run
        self.saved = saved
        """The step of the newest checkpoint, or of the one that is being written."""
        self.times = SaveTimes()
        self._published = saved  # the step of the newest checkpoint
        self._beside = run.writers.beside()  # the group of the threads, if replicas write together
        self._copy = Copy(self._beside.mesh)
        self._tokenizer: PreTrainedTokenizerBase | None = None  # one that nobody else uses
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None

    @property
    def _writes(self) -> bool:
        return self.run.world.first or self.run.is_divided

    # -------------------------------------------------------------------------------------------------------- saving

    def save(self, progress: Progress, *, wait: bool) -> None:
        """Save the last finished step, and remove the checkpoints that need not be kept.

        Without `wait` the step is copied, and the copy is written in the background; if memory has no room for a copy,
        it is written before this returns, as with `wait`. The save before has to be waited for: there is one copy.

        Raises: NonFiniteWeightsError if a trained weight is not finite; nothing is written then. CheckpointError if it
            is written before this returns, and cannot be.
        """
        assert self._pending is None, "one save at a time"
        with span("save"):
            if self._writes:
                check_finite(self.run)
                in_background = not wait and self._copy.take_to_save(self.run, progress, self._beside)
                (self._begin if in_background else self._write_now)(progress)
            self.saved = progress.step

    def _begin(self, progress: Progress) -> None:
        policy = self.run.models.policy
        self._tokenizer = self._tokenizer or deepcopy(policy.tokenizer)
        content = self._copy.content(self.run, progress, self._tokenizer)
        self.times.begin()
        self._pending = self._thread.submit(
            self._write, content.step, partial(write, self.folder, self.run, content), self._beside
        )

    def _write_now(self, progress: Progress) -> None:
        content = content_of(self.run, progress)
        self._write(content.step, partial(write, self.folder, self.run, content), self.run.writers)

    def _write(self, step: int, write_by: Callable[[World], None], writers: World) -> None:
        with self.times.measured():
            write_by(writers)
        self._published = step

    # ------------------------------------------------------------------------------------------------------- waiting

    def settle(self) -> None:
        """Wait for the save of this process that is under way, and raise its error. No replica waits for another."""
        pending, self._pending = self._pending, None
        if pending:
            try:
                pending.result()
            finally:
                self.saved = self._published

    def wait(self) -> None:
        """Wait for the save that is under way. If it has failed, this fails on all replicas, which have to call it."""
        with span("save"):
            if self.run.is_divided:
                self.settle()
            else:
                self.run.world.from_first(self.settle)

    def are_overdue(self) -> bool:
        """Return whether a step has to be saved whatever its number: the last save is long ago, or it has failed."""
        pending = self._pending
        has_failed = pending is not None and pending.done() and pending.exception() is not None
        return has_failed or self.times.are_long_ago()

    def then(self, call: Callable[[], None]) -> None:
        """Call something when the checkpoint under way is published; at once if there is none.

        It is not called if the save fails. Its own error is raised like that of the save.
        """
        pending = self._pending
        if pending is None:
            call()
            return

        def after() -> None:
            pending.result()
            call()

        self._pending = self._thread.submit(after)

    def close(self) -> str:
        """End the thread when it has written its checkpoint; return the error that nobody has waited for, if any."""
        self._thread.shutdown()
        pending, self._pending = self._pending, None
        error = pending.exception() if pending else None
        return "" if error is None else f"{error}"

    # ----------------------------------------------------------------------------------------------------- the copy

    def copy_finished(self, progress: Progress) -> None:
        """Copy the last finished step before weights change, if it has no checkpoint and the copy is not in use."""
        is_busy = self._pending is not None and not self._pending.done()
        if self.saved < progress.step and self.run.world.first and not is_busy:
            self._copy.take(self.run, progress)

    def can_save(self, progress: Progress) -> bool:
        """Return whether the last finished step is saved, or can be: from the models, or from the copy."""
        return progress.step in (self.saved, self._copy.step) or progress.is_current(self.run)

    def save_finished(self, progress: Progress) -> tuple[Progress, str]:
        """Save the last finished step, or an earlier one that was copied, if weights have changed since.

        Returns where the run is then, and a line about it for the user; an empty one if no step is finished.
        """
        path, fault = self.folder.path, ""
        try:
            self.settle()
        except WorkerError as error:  # another replica has ended: it is the reason why this one ends
            fault = f"{error}; "
        if self.run.is_divided and self.saved < progress.step:
            divided = f"{fault}each replica holds a part of the weights"
            return progress, f"{divided}: `outdo resume {path}` repeats the steps after the last checkpoint"
        if not progress.is_current(self.run):
            if self._copy.step <= self.saved < progress.step:
                under_way = f"step {progress.step + 1} had already changed the weights"
                return (
                    progress,
                    f"{under_way}, so that `outdo resume {path}` repeats the steps after the last checkpoint",
                )
            if self.saved < self._copy.step:
                progress = self._copy.restore(self.run)
        if self.saved < progress.step:
            self.save(progress, wait=True)
        step = progress.step
        return progress, f"saved after step {step}; continue with `outdo resume {path}`" if step else ""
