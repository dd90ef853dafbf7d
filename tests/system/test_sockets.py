from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from serl.system.sockets import open_sockets

FAMILIES = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM),
    "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM),
    "udp6": (socket.AF_INET6, socket.SOCK_DGRAM),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def bound_socket(stack: ExitStack, protocol: str, address: str) -> socket.socket:
    opened = stack.enter_context(socket.socket(*FAMILIES[protocol]))
    opened.bind((address, 0))
    if protocol.startswith("tcp"):
        opened.listen()
    return opened


@pytest.mark.parametrize(
    ("protocol", "address", "shown", "loopback"),
    [
        ("tcp", "127.0.0.1", "127.0.0.1", True),
        ("udp", "127.0.0.1", "127.0.0.1", True),
        ("udp", "127.1.2.3", "127.1.2.3", True),
        ("udp", "0.0.0.0", "0.0.0.0", False),
        ("tcp6", "::1", "::1", True),
        ("udp6", "::", "::", False),
        ("udp6", "::ffff:127.0.0.1", "127.0.0.1", True),
    ],
)
def test_open_sockets_lists_bound_socket(
    stack: ExitStack, protocol: str, address: str, shown: str, loopback: bool
) -> None:
    before = open_sockets()
    try:
        port = bound_socket(stack, protocol, address).getsockname()[1]
    except OSError as error:
        pytest.skip(f"this machine has no {protocol} on {address}: {error}")
    (found,) = set(open_sockets()) - set(before)
    assert str(found) == f"{protocol} {shown} port {port}"
    assert found.address.is_loopback == loopback
    stack.close()
    assert open_sockets() == before


def test_open_sockets_omits_connected_sockets(stack: ExitStack) -> None:
    server = bound_socket(stack, "tcp", "127.0.0.1")
    before = open_sockets()
    client = stack.enter_context(socket.create_connection(server.getsockname()))
    stack.enter_context(server.accept()[0])
    asker = stack.enter_context(socket.socket(*FAMILIES["udp"]))
    asker.connect(client.getsockname())
    assert open_sockets() == before


def test_open_sockets_lists_sockets_of_given_process() -> None:
    code = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0));"
        "print(s.getsockname()[1], flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    port = int(child.stdout.readline())
    assert [found.port for found in open_sockets(child.pid)] == [port]
    assert port not in [found.port for found in open_sockets()]
    child.communicate("\n")


def test_close_inherited_sockets_closes_only_inherited_ones(stack: ExitStack) -> None:
    handed = bound_socket(stack, "udp", "0.0.0.0")
    handed.set_inheritable(True)
    code = (
        "import sys, socket\n"
        "from serl.system.sockets import close_inherited_sockets, open_sockets\n"
        "print(len(open_sockets()))\n"
        "close_inherited_sockets()\n"
        "print(len(open_sockets()))\n"
        "own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "own.bind(('127.0.0.1', 0))\n"
        "print(len(open_sockets()))\n"
    )
    command = [sys.executable, "-c", code]
    completed = subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["1", "0", "1"]
    assert handed.getsockname()[1] in {found.port for found in open_sockets()}, (
        "the parent's socket stays open"
    )
