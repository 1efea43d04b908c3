"""A server that speaks the protocol of vLLM's server without vLLM: its "model" is the file of weights it was sent.

Each answer has one token for each token that was requested, drawn by the seed of the request and the sum of the
weights, so that answers show which weights and which seed they are from. The environment variable STAND_IN names a
file with one fault, which happens once: `die`, `stop`, `fail`, `stall`, `garbage`, `nonce`, or none.
"""

import importlib.util
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

where = os.environ["OUTDO_SERVER"]
spec = importlib.util.spec_from_file_location("server", where)
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)


def fault() -> str:
    """The next fault, which is then removed from the file."""
    path = Path(os.environ["STAND_IN"])
    faults = path.read_text().split() if path.exists() else []
    path.write_text(" ".join(faults[1:]))
    return faults[0] if faults else ""


class StandIn(server.LLMServer):
    """Answers with tokens that depend on the weights and the seed."""

    weights = 0

    def start(self, protocol, options):
        if protocol != server.PROTOCOL:
            raise server.FailureError("another protocol")
        if options.get("refuse"):
            raise ValueError("no such option")
        return {"vllm": "stand-in"}

    def update(self, version, folder, is_adapter):
        self.weights = sum(sum(path.read_bytes()) for path in Path(folder).glob("*.safetensors"))
        self.version = version
        return {"version": version}

    def generate(self, requests, sampling):
        self.misbehave(fault())
        answers = []
        for request in requests:
            drawn = random.Random(f"{self.weights} {request['seed']}")
            tokens = [drawn.randrange(5, 200) for _ in range(request["max_tokens"])]
            answers.append({"token_ids": tokens, "logprobs": [-1.0] * len(tokens), "finish_reason": "length"})
            self.progress += 1
        return {"version": self.version, "answers": answers}

    def score(self, sequences):
        return {"version": self.version, "scores": [[-1.0] * (len(each) - 1) for each in sequences]}

    def misbehave(self, kind):
        if kind == "die":
            os._exit(3)
        if kind == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if kind == "fail":
            raise RuntimeError("HTTP 500")
        if kind == "stall":
            time.sleep(60)  # long after the deadline: it ends, so that a test ends without the guard
        if kind == "garbage":
            os.write(int(sys.argv[1]), b"x" * 100)
        if kind == "nonce":
            body = json.dumps({"version": 0, "answers": []}).encode()
            os.write(int(sys.argv[1]), server.HEADER.pack(len(body), b"1" * 16) + body)


if __name__ == "__main__":
    server.serve(StandIn(), int(sys.argv[1]))
