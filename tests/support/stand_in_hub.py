"""A stand-in for the API of the Hugging Face Hub, on this machine.

It takes uploads, and serves the files of data sets and models, or refuses them.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from time import sleep
from typing import Any
from urllib.parse import parse_qs, unquote

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
        self.repositories: dict[
            str, dict[str, dict[str, bytes]]
        ] = {}  # by name, as datasets/me/sums: the files of each commit, the newest last
        self.asked: list[str] = []  # what was asked of them
        self.pause = 0.0  # seconds before each hundredth of a file

    def batch(self, each: dict[str, Any]) -> dict[str, Any]:
        """Where to upload a large file; nowhere if it is there."""
        if each["oid"] in self.large:
            return each
        return {**each, "actions": {"upload": {"href": f"{self.address}/upload/{each['oid']}"}}}

    def add_commit(self, name: str, files: dict[str, bytes]) -> str:
        """Add a commit to the data set `datasets/me/name` or the model `me/name`; return the commit's name."""
        commits = self.repositories.setdefault(name, {})
        commit = hashlib.sha1(repr((name, len(commits), files)).encode()).hexdigest()
        commits[commit] = files
        return commit

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

    def repository(self, name: str) -> None:
        """Answer a request for a data set or a model: its commit, the list of its files, or a file."""
        path = unquote(self.path).partition("?")[0]
        self.hub.asked.append(path)
        rest = path.partition(f"/{name}/")[2].split("/")
        kind, revision = (rest[0], rest[1]) if len(rest) > 1 else ("revision", "main")
        commits = self.hub.repositories[name]
        commit = list(commits)[-1] if revision == "main" else revision
        if commit not in commits:
            self.answer({"error": revision}, 404, X_Error_Code="RevisionNotFound")
            return
        files, file = commits[commit], "/".join(rest[2:])
        listed = [_entry(each, content) for each, content in files.items()]
        if kind == "revision":
            names = [{"rfilename": each} for each in files]
            self.answer({"id": name, "sha": commit, "siblings": names, "private": False, "tags": [], "downloads": 0})
        elif kind == "tree":
            self.answer([each for each in listed if each["path"].startswith(file)])
        elif kind == "paths-info":
            wanted = parse_qs(self.body().decode()).get("paths", [])
            self.answer([each for each in listed if each["path"] in wanted])
        elif file in files:
            self.send_file(files[file], commit)
        else:
            self.answer({"error": file}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)

    def send_file(self, content: bytes, commit: str) -> None:
        """Send a file."""
        self.send_response(200)
        headers = {"Content-Length": str(len(content)), "ETag": f'"{_digest(content)}"', "X-Repo-Commit": commit}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            part = max(1, len(content) // 100)
            for start in range(0, len(content), part):
                sleep(self.hub.pause)
                self.wfile.write(content[start : start + part])

    def named_repository(self) -> str | None:
        """Return the data set or the model that the request is about."""
        return next((name for name in self.hub.repositories if f"/{name}/" in unquote(self.path)), None)

    def do_GET(self) -> None:
        """Serve data sets and models; refuse what is missing."""
        if (name := self.named_repository()) is not None:
            self.repository(name)
            return
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
        if (name := self.named_repository()) is not None:
            self.repository(name)
            return
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


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": _digest(content), "size": len(content), "path": path}


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
