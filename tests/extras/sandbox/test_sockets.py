"""Test what the sandbox says of sockets: none that reaches anybody, and the pair that asyncio needs."""

import pytest

from outdo.extras.sandbox import Ending, Sandbox

pytestmark = pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock"], indirect=True)


def test_a_program_may_use_asyncio(sandbox: Sandbox):
    outcome = sandbox.run("import asyncio\n\nasync def main():\n    print(7)\n\nasyncio.run(main())")
    assert (outcome.ending, outcome.stdout) == (Ending.exited, "7\n"), outcome.stderr


@pytest.mark.parametrize("family", ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"])
def test_a_program_opens_no_socket_that_could_reach_somebody(sandbox: Sandbox, family: str):
    outcome = sandbox.run(f"import socket\nsocket.socket(socket.{family})")
    assert "PermissionError" in outcome.stderr
