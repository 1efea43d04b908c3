"""A server that sends whatever bytes a test wants, as slowly as it wants."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body: bytes, headers: bytes = b"") -> list[bytes]:
    """A sound reply."""
    return [OK + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body]


@contextmanager
def hostile_server(reply: Callable[[], Iterable[bytes]]) -> Iterator[str]:
    """Send the parts of `reply()` to whoever connects, until the other end has gone; yields the address."""
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            for part in reply():
                if ended.is_set():
                    return
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # what is left unread when a socket closes resets the connection
                pass

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        ended.set()
        listening.close()
