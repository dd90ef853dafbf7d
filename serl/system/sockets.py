"""The sockets at which a process can be reached, as the kernel lists them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from serl.errors import BadInput, SerlError

_LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""Socket state by table: TCP that accepts connections, UDP that accepts datagrams of any sender."""


class Socket(NamedTuple):
    """A bound socket that is not connected to a peer.

    Attributes:
        protocol: tcp, tcp6, udp or udp6.
        address: address that the socket is bound to; 0.0.0.0 and :: are every address of the host.
        port: port that the socket is bound to.
    """

    protocol: str
    address: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        return f"{self.protocol} {self.address} port {self.port}"


def open_sockets(process: int | None = None) -> list[Socket]:
    """Return the listening TCP and unconnected UDP sockets of a process, by default of this one."""
    proc = Path("/proc") / str(process or "self")
    own = set(_inodes(proc / "fd"))
    found = [
        Socket(protocol, _address(where.partition(":")[0]), int(where.partition(":")[2], 16))
        for protocol, state in _LISTENING.items()
        for where, found_state, inode in _rows(proc / "net" / protocol)
        if found_state == state and inode in own
    ]
    return sorted(found, key=str)


def check_reach(name: str, addresses: set[IPv4Address]) -> None:
    """Check that this process can be reached at these addresses and within this host alone.

    Args:
        name: name of the process, for the error.
        addresses: addresses of this host; none for a process that only this host may reach.

    Raises:
        BadInput: the process can be reached at another address.
        SerlError: the process is not bound to one of the addresses.
    """
    sockets = open_sockets()
    expected = ", ".join(sorted(map(str, addresses))) or "this host alone"
    if strange := [
        each for each in sockets if not each.address.is_loopback and each.address not in addresses
    ]:
        found = ", ".join(map(str, strange))
        raise BadInput(f"{name}: can be reached at {found}; expected {expected}")
    if not addresses <= {found.address for found in sockets}:
        raise SerlError(f"{name}: cannot be reached at {expected}: did its network go down?")


def close_inherited_sockets() -> None:
    """Close the sockets inherited from the parent process, before this process opens its own.

    `ros2 launch` passes on all its open files (close_fds=False in osrf_pycommon 2.0.2), including
    the sockets of its own node, which other hosts can reach.
    """
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of this listing itself
            if int(entry) > 2 and stat.S_ISSOCK(os.fstat(int(entry)).st_mode):
                os.close(int(entry))


def _inodes(folder: Path) -> Iterator[str]:
    for entry in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed since it was listed
            kind, _, inode = os.readlink(folder / entry).partition(":")
            if kind == "socket":
                yield inode[1:-1]


def _rows(table: Path) -> Iterator[tuple[str, str, str]]:
    """Yield local address, state and inode of each row; none if the kernel lacks the table."""
    with suppress(FileNotFoundError):
        for line in table.read_text().splitlines()[1:]:
            words = line.split()
            yield words[1], words[3], words[9]


def _address(text: str) -> IPv4Address | IPv6Address:
    """Parse an address that the kernel prints as words of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(text)
    if sys.byteorder == "little":
        raw = b"".join(raw[start : start + 4][::-1] for start in range(0, len(raw), 4))
    address = ip_address(raw)
    return getattr(address, "ipv4_mapped", None) or address
