"""`outdo`, which stops at one place of its work with a vLLM server until a test has done something to that server.

The variable PLACE names it: `piece 12` is before the piece of a file of weights with this number, `generate 4` before a
call of the engine. The file GATE with the suffix `.reached` appears then, and the run goes on when there is one with
the suffix `.open`. With `load 2` nothing stops, and the server does not load that delivery. WAIT replaces the seconds
in which the server may come back.
"""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from outdo.cli.main import main
from outdo.extras.vllm import http
from outdo.extras.vllm.engine import VllmEngine

place, number = os.environ["PLACE"].split()
gate = Path(os.environ["GATE"])
seen: Counter[str] = Counter()
send, generate = http.HttpServer._send, VllmEngine.generate

http.PIECE = 2**17
http.WAIT = float(os.environ.get("WAIT", http.WAIT))


def is_there(name: str) -> bool:
    seen[name] += 1
    return name == place and seen[name] == int(number)


def pause() -> None:
    gate.with_suffix(".reached").touch()
    while not gate.with_suffix(".open").exists():
        time.sleep(0.01)


def paused_send(self: http.HttpServer, method: str, path: str, *how: Any, **more: Any) -> Any:
    if path == "/collective_rpc" and is_there("load"):
        return None
    if method == "PUT" and is_there("piece"):
        pause()
        self.timeout, before = 3.0, self.timeout
        try:
            return send(self, method, path, *how, **more)
        finally:
            self.timeout = before
    return send(self, method, path, *how, **more)


def paused_generate(self: VllmEngine, *how: Any) -> Any:
    if is_there("generate"):
        pause()
    return generate(self, *how)


http.HttpServer._send, VllmEngine.generate = paused_send, paused_generate

if __name__ == "__main__":
    main()
