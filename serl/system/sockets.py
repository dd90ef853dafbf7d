"""Sockets of a process and addresses of this host, as the kernel lists them."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from socket import AF_INET, AF_INET6, SOCK_DGRAM, SOCK_STREAM, socket
from typing import Any, NamedTuple

from serl.errors import BadInput, SerlError


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
    import psutil  # not loaded with the settings of a run

    found = []
    for each in psutil.Process(process).net_connections("inet"):
        is_tcp = each.type == SOCK_STREAM
        if each.status == psutil.CONN_LISTEN if is_tcp else not each.raddr:
            protocol = ("tcp" if is_tcp else "udp") + "6" * (each.family == AF_INET6)
            address = ip_address(each.laddr.ip)
            address = getattr(address, "ipv4_mapped", None) or address
            found.append(Socket(protocol, address, each.laddr.port))
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


def is_own(address: IPv4Address) -> bool:
    """Return whether this host has the address."""
    with socket(AF_INET, SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def is_up(address: IPv4Address) -> bool:
    """Return whether this host has the address, on an interface that is up and plugged in."""
    return is_own(address) and address not in _down_addresses()


def _is_running(state: Any) -> bool:
    """Return whether psutil's state of an interface is up; an unknown interface counts as up."""
    return state is None or bool(state.isup)


def _down_addresses() -> set[IPv4Address]:
    """Return the addresses of interfaces that are not running."""
    import psutil  # not loaded with the settings of a run

    states = psutil.net_if_stats()
    return {
        IPv4Address(each.address)
        for name, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == AF_INET and not _is_running(states.get(name.partition(":")[0]))
    }
