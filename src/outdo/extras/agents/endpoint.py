"""A server on this machine that speaks the protocol of OpenAI's chat completions, for the agents of a run.

It listens on 127.0.0.1, at a free port. Every episode has a session, whose name is a random part of its address: who
does not know it gets nothing. A request for another host name that points here (`Host`) is refused, so that no page of
a browser reaches it. The server samples nothing: it hands each call to the session, and waits for the answer.
"""

import asyncio
import json
import secrets
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import uvicorn
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from outdo.extras.agents.chat import CallError, ChatAnswer, ChatCall, read_call

HOST = "127.0.0.1"

MODEL = "policy"
"""The name under which the policy is listed; a call may name any other."""

LONGEST_REQUEST = 2**23
"""Bytes of a request. The longest contexts of today's models have about 2^20 tokens."""

Submit = Callable[[ChatCall], "Future[ChatAnswer]"]
"""Takes a call of a session. The answer may be a `CallError`; it is cancelled if the session is closed."""

SETTINGS: dict[str, Any] = {
    "access_log": False,  # it would show the sessions
    "log_config": None,
    "proxy_headers": False,
    "server_header": False,
    "lifespan": "off",
    "ws": "none",
    "http": "h11",
    "loop": "asyncio",
    "timeout_graceful_shutdown": 1,
}


class Endpoint:
    """An OpenAI-compatible server in a thread of its own. It ends with `close`, or when nobody holds it any more."""

    def __init__(self) -> None:
        self._sessions: dict[str, Submit] = {}
        listening = socket.socket()
        listening.bind((HOST, 0))
        listening.listen(socket.SOMAXCONN)
        self.port: int = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(_application(self._sessions, self.port), **SETTINGS))
        thread = threading.Thread(target=_serve, args=(server, listening), daemon=True, name="outdo endpoint")
        thread.start()
        self.close = weakref.finalize(self, _stop, server, thread)

    def open(self, submit: Submit) -> str:
        """Open a session whose calls go to `submit`; return its address, the `base_url` of a client."""
        session = secrets.token_urlsafe(32)
        self._sessions[session] = submit
        return f"http://{HOST}:{self.port}/{session}/v1"

    def close_session(self, address: str) -> None:
        """Answer no further calls to the address of a session."""
        self._sessions.pop(address.split("/")[3], None)


def _serve(server: uvicorn.Server, listening: socket.socket) -> None:
    with listening:
        server.run(sockets=[listening])


def _stop(server: uvicorn.Server, thread: threading.Thread) -> None:
    server.should_exit = True
    if thread is not threading.current_thread():  # the garbage collector runs in any thread
        thread.join()


def _application(sessions: dict[str, Submit], port: int) -> Callable[[Scope, Receive, Send], Any]:
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]

    async def respond(request: Request) -> Response:
        if request.headers.get("host") not in hosts:
            raise CallError("this server answers only requests to its own name", code="wrong_host")
        _, session, *path = request.scope["path"].split("/")
        if session not in sessions:
            raise CallError("there is no such session, or its episode has ended", code="no_session", status=404)
        match request.method, path:
            case "GET", ["v1", "models"]:
                return JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "outdo"}]})
            case "POST", ["v1", "chat", "completions"]:
                return await _complete(request, sessions[session])
        raise CallError("expected POST v1/chat/completions or GET v1/models", code="not_found", status=404)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # websockets and lifespans are switched off
        try:
            response = await respond(Request(scope, receive))
        except CallError as error:
            response = JSONResponse(error.body(), error.status)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    return application


async def _complete(request: Request, submit: Submit) -> Response:
    """Return the answer to a call when it is sampled."""
    body = await _read_body(request)
    try:
        call = read_call(from_json(body, allow_inf_nan=False))  # refuses lone surrogates and deep nesting too
    except CallError:
        raise
    except ValueError as error:
        raise CallError(f"the request is no JSON: {error}") from error
    try:
        answer = await asyncio.wrap_future(submit(call))
    except (asyncio.CancelledError, CancelledError) as error:
        raise CallError("the episode has ended", code="no_session", status=404) from error
    if not call.stream:
        return JSONResponse(answer.body())
    return StreamingResponse(_events(answer, usage=call.stream_usage), media_type="text/event-stream")


async def _read_body(request: Request) -> bytes:
    """Return the body of a request; it is read no further than it may be long."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_REQUEST:
            raise CallError(f"the request has more than {LONGEST_REQUEST} bytes", code="request_too_large", status=413)
    return bytes(body)


async def _events(answer: ChatAnswer, *, usage: bool) -> AsyncIterator[str]:
    for chunk in answer.chunks(usage=usage):
        yield f"data: {json.dumps(chunk)}\n\n"
    yield "data: [DONE]\n\n"
