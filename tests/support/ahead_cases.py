"""An engine with a copy of the weights, in the process of the run: cheap, and named in a recipe as a user's own."""

from pathlib import Path

from run_cases import write_home

ENGINE = '''
from pathlib import Path
from threading import Event

from outdo.rollouts.engines.copies import copied_policy
from outdo.rollouts.engines.builtin import BuiltinEngine
from outdo.utils.errors import EngineLostError


class Copying(BuiltinEngine):
    """The built-in engine with a copy of the weights. It writes which weights have sampled which step.

    Unless a file `mended` is there, it hangs at the step `hangs` until it is closed, and is lost at the step `lost`.
    """

    def __init__(self, policy, *, seed=0, hangs=0, lost=0):
        super().__init__(copied_policy(policy), seed=seed)
        self.hangs, self.lost, self.closed = hangs, lost, Event()

    def update_weights(self, policy):
        self.policy = copied_policy(policy)

    def generate(self, requests, sampling):
        stream = requests[0].stream
        if stream.purpose == "train":
            with open("sampled.txt", "a") as file:
                file.write(f"{stream.step} {self.version}\\n")
            if stream.step == self.hangs and not Path("mended").exists():
                self.closed.wait()
                raise EngineLostError("it was closed")
            if stream.step == self.lost and not Path("mended").exists():
                raise EngineLostError("it has ended")
        return super().generate(requests, sampling)

    def restart(self):
        Path("restarted").touch()

    def close(self):
        self.closed.set()
'''

COPYING = "engine=engine.py:Copying"
ACROSS = 'engine={name="engine.py:Copying",partial_rollouts=true}'


def write_ahead(folder: Path) -> Path:
    """What a run needs, and the engine."""
    (folder / "engine.py").write_text(ENGINE)
    return write_home(folder)


def sampled_by(home: Path) -> list[tuple[int, int]]:
    """Each batch that was sampled: its step, and the number of optimiser steps of the weights."""
    path = home / "sampled.txt"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), int(version)) for step, version in lines]
