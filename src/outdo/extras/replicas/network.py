"""The network interface by which the processes of a run reach each other."""

import fcntl
import os
import socket
import struct
import sys

import torch.distributed as dist

from outdo.extras.replicas.launch import LOOPBACK

INTERFACE = "GLOO_SOCKET_IFNAME"
"""The environment variable with the interface that gloo listens on."""

_SIOCGIFADDR = 0x8915  # of Linux: the IPv4 address of an interface


def choose_interface(store: dist.Store, rank: int, count: int) -> None:
    """Let gloo listen where the other processes reach this one, unless the user has named an interface.

    gloo asks for the address of the host's own name. On many machines that is 127.0.1.1 or another address that the
    other machines do not reach. This takes the interface with the route to `MASTER_ADDR`. Where that is the machine
    itself, the route to another machine counts; the processes exchange their addresses by `store`. Processes of one
    machine use its loopback.

    Leaves the choice to gloo where no interface has the address: with IPv6, and on systems other than Linux.
    """
    if os.environ.get("LOCAL_WORLD_SIZE") == str(count):
        os.environ.setdefault(INTERFACE, LOOPBACK)
        return
    address = _address_towards(os.environ.get("MASTER_ADDR", ""))
    store.set(f"outdo/address/{rank}", address)  # also where an interface is named: another process may wait for it
    if INTERFACE in os.environ:
        return
    if _is_loopback(address):
        others = (store.get(f"outdo/address/{other}").decode() for other in range(count) if other != rank)
        address = next((_address_towards(theirs) for theirs in others if not _is_loopback(theirs)), address)
    if (interface := _interface_with(address)) is not None:
        os.environ[INTERFACE] = interface


def _address_towards(host: str) -> str:
    """Return this machine's address on the route to `host`; nothing without a route. Nothing is sent."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind, protocol) as unconnected:
                unconnected.connect(address)
                return str(unconnected.getsockname()[0])
    except OSError:
        pass  # joining the others says what is wrong
    return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _interface_with(address: str) -> str | None:
    if sys.platform != "linux":
        return None
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", interface.encode())
        try:
            return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
        except OSError:  # it has none
            return None
