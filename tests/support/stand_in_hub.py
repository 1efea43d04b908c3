"""A stand-in for the API of the Hugging Face Hub, on this machine: it takes uploads, and refuses downloads."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What was uploaded, and what the next requests are refused with."""

    def __init__(self) -> None:
        self.address = ""
        self.created: list[dict[str, Any]] = []
        self.large: dict[str, bytes] = {}  # by SHA-256
        self.uploads = 0  # of large files
        self.files: dict[str, bytes] = {}
        self.refuse_commits = 0
        self.missing: dict[str, str] = {}  # models that cannot be downloaded, and the code of the error

    def batch(self, each: dict[str, Any]) -> dict[str, Any]:
        """Where to upload a large file; nowhere if it is there."""
        if each["oid"] in self.large:
            return each
        return {**each, "actions": {"upload": {"href": f"{self.address}/upload/{each['oid']}"}}}

    def commit(self, lines: bytes) -> None:
        """Keep the files of a commit."""
        for line in map(json.loads, lines.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            if line["key"] == "lfsFile":
                self.files[value["path"]] = self.large[value["oid"]]


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of `huggingface_hub`."""

    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        """Send JSON."""
        body = json.dumps(content).encode()
        self.send_response(status)
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        """Read the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        """Refuse what is missing."""
        code = next((code for name, code in self.hub.missing.items() if name in self.path), None)
        if code is None:
            self.answer({"sha": COMMIT, "siblings": [], "id": "me/model"})
        else:
            self.answer({"error": code}, 403 if code == "GatedRepo" else 404, X_Error_Code=code)

    def do_HEAD(self) -> None:
        """Refuse the same."""
        self.do_GET()

    def do_PUT(self) -> None:
        """Take a large file."""
        content = self.body()
        self.hub.uploads += 1
        self.hub.large[hashlib.sha256(content).hexdigest()] = content
        self.answer({})

    def do_POST(self) -> None:
        """Create, prepare and commit."""
        hub, content = self.hub, self.body()
        if self.path.endswith("/repos/create"):
            hub.created.append(json.loads(content))
            self.answer({"url": f"{hub.address}/me/model", "name": "me/model", "id": "1"})
        elif "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(content)["files"]]
            mode = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            files = [{"path": name, "uploadMode": mode[name], "shouldIgnore": False} for name in names]
            self.answer({"files": files})
        elif self.path.endswith("/objects/batch"):
            self.answer({"transfer": "basic", "objects": list(map(hub.batch, json.loads(content)["objects"]))})
        elif "/commit/" in self.path and hub.refuse_commits:
            hub.refuse_commits -= 1
            self.answer({"error": "no such luck"}, 400)
        elif "/commit/" in self.path:
            hub.commit(content)
            self.answer({"commitUrl": f"{hub.address}/me/model/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({})


@contextmanager
def stand_in_hub() -> Iterator[Hub]:
    """Serve the stand-in inside a `with` block, at `hub.address`."""
    hub = Hub()
    handler = type("OwnHandler", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
