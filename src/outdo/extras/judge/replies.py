"""The replies of a judge that were paid for: a file of JSON lines, `judge.jsonl` in the run folder.

    {"key": "9f2c...", "text": "... Score: 7", "input_tokens": 310, "output_tokens": 24}

`key` is a hash of the endpoint and of the whole request, so that a request is sent once: a resumed run, or an answer
that is sampled a second time, reads the reply here.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from outdo.utils.errors import RunFolderError

FILE = "judge.jsonl"
"""The file of replies in the folder of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReply:
    """What a judge replied to one request, and what it charged for."""

    text: str
    input_tokens: int
    output_tokens: int


def key_of(url: str, request: Mapping[str, Any]) -> str:
    """Return the key of a request to the endpoint `url`."""
    content = json.dumps([url, request], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


class Replies:
    """Replies by the key of their request, kept in `path`; without a path they are kept in memory alone.

    A last line that was cut off, because the process was killed, is dropped.

    Raises: RunFolderError if the file cannot be read or written, or is not a file of replies.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.by_key: dict[str, JudgeReply] = {}
        self._lock = Lock()
        if path is not None and path.exists():
            self._load(path)

    def get(self, key: str) -> JudgeReply | None:
        """Return the reply to a request; None if there is none."""
        return self.by_key.get(key)

    def add(self, key: str, reply: JudgeReply) -> None:
        """Keep a reply. It is in the file when this returns, also if the process is killed then."""
        with self._lock:
            self.by_key[key] = reply
            if self.path is not None:
                line = json.dumps({"key": key, **asdict(reply)}, ensure_ascii=False)
                try:
                    with self.path.open("a", encoding="utf-8", errors="surrogatepass") as file:
                        file.write(f"{line}\n")
                except OSError as error:
                    raise RunFolderError(f"{self.path}: cannot be written: {error.strerror}") from error

    def tokens(self) -> tuple[int, int]:
        """Return the input and output tokens of all replies."""
        replies = list(self.by_key.values())
        return sum(reply.input_tokens for reply in replies), sum(reply.output_tokens for reply in replies)

    def _load(self, path: Path) -> None:
        try:
            content = path.read_bytes()
            whole = content[: content.rfind(b"\n") + 1]
            if len(whole) < len(content):
                with path.open("r+b") as file:
                    file.truncate(len(whole))
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from error
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                fields = json.loads(line.decode("utf-8", "surrogatepass"))
                key = str(fields.pop("key"))
                self.by_key[key] = JudgeReply(**fields)
            except (ValueError, TypeError, AttributeError, KeyError):
                raise RunFolderError(f"{path}: line {number} is not a reply of a judge; move the file away") from None
