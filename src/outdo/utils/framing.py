"""The messages between the trainer and a process of another program: a reward worker, or the server of an engine.

Each request carries a random number, its nonce, and the response repeats it. So the trainer takes nothing else for the
response: not the output of an earlier call, and not what the other program or its processes wrote to the socket.
"""

import os
import struct

NONCE_BYTES = 16
HEADER = struct.Struct(f"!Q{NONCE_BYTES}s")
"""The length of the body, and the nonce."""


def new_nonce() -> bytes:
    """Return a number that nobody can guess and that no other request has."""
    return os.urandom(NONCE_BYTES)


def pack(nonce: bytes, body: bytes) -> bytes:
    """Return a message: a header and its body."""
    return HEADER.pack(len(body), nonce) + body
