"""The worker process of a tool: it imports the user's file, then makes one call after another until its parent ends."""

import inspect
import pickle
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from outdo.rewards import worker_main
from outdo.utils.errors import UserError
from outdo.utils.event_loop import EventLoop
from outdo.utils.text import text_or_json

MOST_CHARACTERS = 1 << 20
"""Characters of a result; a longer one is an error that the policy reads."""


def serve(descriptor: int, memory: int) -> None:
    """Answer the requests on the socket `descriptor`; `memory` is the most that this process may use, in bytes."""
    worker_main.serve(descriptor, memory, load=_load)


def _load(request: bytes) -> tuple[worker_main.Respond | None, float | None, dict[str, Any]]:
    """Load the function that the request names."""
    try:
        function = worker_main.load_function(pickle.loads(request)["spec"])
    except UserError as error:
        return None, None, {"mistakes": error.problems}
    return partial(_respond, function), None, {}


def _respond(function: Callable[..., Any], request: bytes) -> dict[str, Any]:
    """Make a call, whose arguments are the request."""
    try:
        result = function(**pickle.loads(request))
        text = text_or_json(_loop().run(result) if inspect.isawaitable(result) else result)
    except (Exception, SystemExit) as error:
        return {"raised": f"{type(error).__name__}: {error}"[:MOST_CHARACTERS]}
    if len(text) > MOST_CHARACTERS:
        return {"raised": f"the result has {len(text)} characters; at most {MOST_CHARACTERS} are read"}
    return {"text": text}


@cache
def _loop() -> EventLoop:
    """Return the event loop of an asynchronous function, whose calls may share a session."""
    return EventLoop()
