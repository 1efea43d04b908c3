"""How a server of vLLM gets all weights over HTTP. This runs in the environment of vLLM.

`vllm serve --middleware outdo.extras.vllm.receiver.Receiver` writes the files of a delivery into a folder, piece by
piece; when they are whole, its workers load them (`Loader` of `server.py`). So a delivery that is cut off changes no
weight. The files are safetensors and JSON: nothing is unpickled.
"""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

ENDPOINT = "/outdo/weights"
PIECE = re.compile(rf"{ENDPOINT}/([\w-]+)/([\w-][\w.-]*)/(\d+)", re.ASCII)
"""The name of a delivery, that of a file, and the bytes of the file before this piece."""

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Receiver:
    """ASGI middleware that takes weights at `ENDPOINT`, and passes on all other requests.

    PUT appends a piece to a file, and returns the folder of the delivery; DELETE removes all deliveries; GET does
    nothing: its answer tells that the server gets weights.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self.app = app
        self.folder = Path(tempfile.mkdtemp(prefix="outdo-weights-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Callable[..., Awaitable[None]]) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(ENDPOINT):
            await self.app(scope, receive, send)
            return
        if (body := await _body(receive)) is None:
            return
        try:
            status, answer = 200, self._answer(scope["method"], scope["path"], body)
        except (OSError, ValueError) as error:
            status, answer = 400, {"error": str(error)}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, method: str, path: str, body: bytes) -> dict[str, str]:
        if method == "PUT":
            return {"folder": str(self._append(path, body))}
        if method == "DELETE":
            for delivery in self.folder.iterdir():
                shutil.rmtree(delivery)
        return {}

    def _append(self, path: str, piece: bytes) -> Path:
        """Append a piece to its file; return the folder. Raises ValueError if the piece before it is missing."""
        if (match := PIECE.fullmatch(path)) is None:
            raise ValueError(f"{path}: expected {ENDPOINT}/NAME/FILE/OFFSET")
        delivery, name, offset = match.groups()
        folder = self.folder / delivery
        folder.mkdir(exist_ok=True)
        with (folder / name).open("ab") as file:
            if file.tell() != int(offset):
                raise ValueError(f"{path}: the file has {file.tell()} bytes")
            file.write(piece)
        return folder


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is cut off."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)
