"""A judge on loopback: an OpenAI-compatible endpoint whose replies are a Python function of the request."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = str | tuple[int, str] | None
"""A reply, an HTTP status with a body, or None: the connection hangs until the server ends."""


@dataclass
class StandInJudge:
    """What was asked, and what is answered."""

    reply: Callable[[dict[str, Any]], Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)  # the Authorization headers
    seconds: float = 0.0  # before each answer
    most_at_once: int = 0
    url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: int = 0


@contextmanager
def stand_in_judge(reply: Callable[[dict[str, Any]], Answer]) -> Iterator[StandInJudge]:
    """Serve until the end of the block."""
    judge = StandInJudge(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with judge.lock:
                judge.requests.append(body)
                judge.keys.append(self.headers["Authorization"])
                judge.waiting += 1
                judge.most_at_once = max(judge.most_at_once, judge.waiting)
            time.sleep(judge.seconds)
            answer = judge.reply(body) if self.path == "/v1/chat/completions" else (404, "no such path")
            with judge.lock:
                judge.waiting -= 1
            if answer is None:
                judge.ended.wait()
                return
            status, text = answer if isinstance(answer, tuple) else (200, _completion(answer))
            content = text.encode()
            self.send_response(status)
            self.send_header("Retry-After", "0")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            pass  # a client that did not wait

    server = Server(("127.0.0.1", 0), Handler)
    judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        judge.ended.set()
        server.shutdown()
        server.server_close()


def _completion(text: str) -> str:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def shown(request: dict[str, Any], part: str) -> str:
    """What the judge was shown as `part`: question, reference, answer, answer A, answer 2."""
    text = request["messages"][1]["content"]
    begin = text.index("\n", text.index(f"<{part} ")) + 1
    return text[begin : text.index(f"\n</{part} ", begin)]
