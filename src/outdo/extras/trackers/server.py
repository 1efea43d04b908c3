"""The process of a tracker: it opens the tracker, logs what it reads from stdin, and answers each line on stdout.

The trainer asks with one JSON object per line, and gets one back: `{"error": null, "said": []}`. What the tracker's
client prints goes to stderr, which is a file in the run folder.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, BinaryIO

from outdo.extras.trackers.base import Log, TrackedRun
from outdo.utils.imports import resolve
from outdo.utils.secrets import redact
from outdo.utils.text import one_line

FAILURES = (Exception, SystemExit)
"""What a client or a function of the user may raise."""


def serve(requests: BinaryIO, responses: BinaryIO) -> None:
    """Run the tracker that the first request names until the request to end, or until the trainer has ended."""
    said: list[str] = []

    def respond(error: BaseException | None) -> None:
        reason = None if error is None else one_line(redact(f"{type(error).__name__}: {error}"))
        responses.write(json.dumps({"error": reason, "said": said}).encode() + b"\n")
        responses.flush()
        said.clear()

    setup = json.loads(requests.readline())
    run = TrackedRun(Path(setup["folder"]), setup["name"], setup["after"], said.append)
    try:
        with resolve(setup["tracker"])(run, **setup["options"]) as log:
            respond(None)
            for line in requests:
                entry = json.loads(line)
                if entry == "end":
                    break
                respond(_failure(log, entry))
            signal.alarm(setup["deadline"])  # where the trainer was killed, nobody else ends a client that hangs
        respond(None)
    except FAILURES as error:
        respond(error)


def _failure(log: Log, entry: dict[str, Any]) -> BaseException | None:
    try:
        log(**entry)
    except FAILURES as error:
        return error
    return None


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # everything is delivered; what clients do when an interpreter ends may take a minute
