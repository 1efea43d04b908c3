"""Serve the page on this machine while its run goes on.

    GET /?token=T                   the page
    GET /data?token=T&after=40      what is new since step 40 (`collect.metrics_since`); without `after`, everything
    GET /step/40?token=T            the tokens of a step (`collect.step_tokens`)
    GET /held_out?token=T           the answers of the evaluations (`held_out.held_out_data`)

`run=1` in a query means the second run. The server listens only on the loopback address and answers only
requests with the token: none from a page of another site (`Origin`), and none for another host name that points here
(`Host`). It never uses a part of a request as a path: a step is a number that must be among the recorded ones.
"""

import hmac
import json
import secrets
import socket
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outdo.extras.page.collect import BEFORE_ALL, DEFAULT_VIEW, RunData, View, metrics_since, step_tokens
from outdo.extras.page.held_out import held_out_data
from outdo.extras.page.html import render_page, security_policy
from outdo.extras.page.runs import collect_runs
from outdo.utils.errors import RunFolderError, UserError

HOST = "127.0.0.1"

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of every response, including errors; the page's policy is added."""


def app(runs: Sequence[Path], *, port: int, token: str, view: View = DEFAULT_VIEW) -> ASGIApp:
    """Return the server's application for the run folders `runs`, at `port`, for requests with `token`."""
    data_of = cache(RunData)  # of each followed run, so that a poll reads only what is new
    headers = {**HEADERS, "Content-Security-Policy": f"{security_policy(live=True)}; frame-ancestors 'none'"}

    def respond(request: Request) -> Response:
        run = _number(request.query_params.get("run", "0"))
        after = _after(request)
        if run is None or run >= len(runs) or after is None:
            return PlainTextResponse("run and after must be numbers, and the run must exist", 400)
        match request.scope["path"].split("/"):
            case ["", ""]:
                return HTMLResponse(render_page(collect_runs(runs, view), live={"url": "/", "token": token}))
            case ["", "data"]:
                return _json(metrics_since(data_of(runs[run]), after=after))
            case ["", "held_out"]:
                return _json(held_out_data(runs[run], pair=view.evaluations))
            case ["", "step", number] if (step := _number(number)) is not None:
                tokens = step_tokens(runs[run], step)
                return PlainTextResponse("this step is not recorded", 404) if tokens is None else _json(tokens)
        return PlainTextResponse("there is nothing here", 404)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # websockets and lifespans are switched off
        request = Request(scope, receive)
        try:
            response = _error_response(request, port, token) or respond(request)
        except RunFolderError as error:
            response = PlainTextResponse(str(error), 500)
        response.headers.update(headers)
        await response(scope, receive, send)

    return application


def serve(runs: Sequence[Path], *, port: int, view: View = DEFAULT_VIEW, report: Callable[[str], None] = print) -> None:
    """Serve the page until interrupted. Port 0 takes a free port; `say` gets the address, which includes the token.

    Raises: UserError if the port is not available.
    """
    token = secrets.token_urlsafe(32)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # so that a browser that opens the address at once waits instead of failing
        except (OSError, OverflowError) as error:
            raise UserError([f"inspect: --port {port}: {error}; --port 0 takes a free one"]) from error
        port = listening.getsockname()[1]
        application = app(runs, port=port, token=token, view=view)
        # The access log would show the token. There is no proxy before this server whose headers can be trusted.
        settings: dict[str, Any] = {"access_log": False, "log_level": "warning", "proxy_headers": False}
        settings |= {
            "lifespan": "off",
            "ws": "none",
            "server_header": False,
            "timeout_graceful_shutdown": 1,
            "http": "h11",
        }
        config = uvicorn.Config(application, **settings)
        report(f"http://{HOST}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])


def _error_response(request: Request, port: int, token: str) -> Response | None:
    """Return the error response if a request is not allowed, else None."""
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    if request.headers.getlist("host") not in [[name] for name in names]:
        return PlainTextResponse("this server answers only requests to its own name", 403)
    origins = request.headers.getlist("origin")
    if any(origin not in [f"http://{name}" for name in names] for origin in origins):
        return PlainTextResponse("this server answers only requests from its own page", 403)
    if request.method != "GET":
        return PlainTextResponse("only GET is allowed", 405, headers={"Allow": "GET"})
    sent = request.query_params.get("token", "")
    if not hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode()):
        return PlainTextResponse(
            "the token is missing or wrong: outdo printed the address with the token",
            403,
        )
    return None


def _after(request: Request) -> int | None:
    """Return the step after which the news begin, by default before all; None if it is no number."""
    text = request.query_params.get("after")
    return BEFORE_ALL if text is None else _number(text)


def _number(text: str) -> int | None:
    """Return the non-negative number that the text stands for; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _json(content: Any) -> Response:
    return Response(json.dumps(content, separators=(",", ":"), allow_nan=False), media_type="application/json")
