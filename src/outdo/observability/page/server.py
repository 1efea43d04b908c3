"""The page served on this machine while its run goes on.

    GET /?token=T                   the page
    GET /data?token=T&after=40      what is new since step 40 (`gather.news`)
    GET /step/40?token=T            the tokens of a step (`gather.chosen_step`)

`run=1` in a query means the second of two runs. Only the loopback address is listened on, and only who knows the token
is answered: not a page of another site (`Origin`), and not one whose name was made to point here (`Host`). Nothing in
a request is ever used as a path: a step is a number, looked up among those recorded.
"""

import hmac
import json
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from outdo.observability.page.collect import USUAL, View, chosen_step, collect_run, metrics_since
from outdo.observability.page.html import page, policy
from outdo.utils.errors import RunFolderError, UserError

HOST = "127.0.0.1"

HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Of every answer, refusals included, and with them the page's policy."""


def app(runs: Sequence[Path], *, port: int, token: str, shown: View = USUAL) -> ASGIApp:
    """The server's application for the run folders `runs`, reached under `port` by those who know `token`."""
    headers = {**HEADERS, "Content-Security-Policy": f"{policy(live=True)}; frame-ancestors 'none'"}

    def answer(request: Request) -> Response:
        run = _number(request.query_params.get("run", "0"))
        after = _number(request.query_params.get("after", "0"))
        if run is None or run >= len(runs) or after is None:
            return PlainTextResponse("run and after are numbers, and there is such a run", 400)
        match request.scope["path"].split("/"):
            case ["", ""]:
                told = [collect_run(each, shown) for each in runs]
                return HTMLResponse(page(told, live={"url": "/", "token": token}))
            case ["", "data"]:
                return _json(metrics_since(runs[run], after=after))
            case ["", "step", number] if (step := _number(number)) is not None:
                found = chosen_step(runs[run], step)
                return PlainTextResponse("this step is not recorded", 404) if found is None else _json(found)
        return PlainTextResponse("there is nothing here", 404)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"  # neither websockets nor lifespans are switched on
        request = Request(scope, receive)
        try:
            response = _refusal(request, port, token) or answer(request)
        except RunFolderError as error:
            response = PlainTextResponse(str(error), 500)
        response.headers.update(headers)
        await response(scope, receive, send)

    return application


def serve(runs: Sequence[Path], *, port: int, shown: View = USUAL, say: Callable[[str], None] = print) -> None:
    """Serve the page until interrupted. Port 0 takes a free one; `say` is told the address, the token in it.

    Raises: UserError if the port cannot be had.
    """
    token = secrets.token_urlsafe(32)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            listening.listen()  # who opens the address as soon as it is said waits, and is not refused
        except (OSError, OverflowError) as error:
            raise UserError([f"inspect: --port {port}: {error}; --port 0 takes a free one"]) from error
        port = listening.getsockname()[1]
        application = app(runs, port=port, token=token, shown=shown)
        # The access log would show the token. Nothing stands before this server whose headers could be believed.
        settings: dict[str, Any] = {"access_log": False, "log_level": "warning", "proxy_headers": False}
        settings |= {"lifespan": "off", "ws": "none", "server_header": False, "timeout_graceful_shutdown": 1}
        config = uvicorn.Config(application, **settings)
        say(f"http://{HOST}:{port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listening])


def _refusal(request: Request, port: int, token: str) -> Response | None:
    """Why a request is not answered, if it is not."""
    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    if request.headers.getlist("host") not in [[name] for name in names]:
        return PlainTextResponse("this server answers only its own name", 403)
    origins = request.headers.getlist("origin")
    if any(origin not in [f"http://{name}" for name in names] for origin in origins):
        return PlainTextResponse("this server answers only its own page", 403)
    if request.method != "GET":
        return PlainTextResponse("nothing here can be changed", 405, headers={"Allow": "GET"})
    given = request.query_params.get("token", "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        return PlainTextResponse("the address with its token was printed where outdo was started", 403)
    return None


def _number(text: str) -> int | None:
    """A number that is not negative; None where the text is something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def _json(content: Any) -> Response:
    return Response(json.dumps(content, separators=(",", ":"), allow_nan=False), media_type="application/json")
