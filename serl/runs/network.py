"""The hosts of a run, and the addresses of this host."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from fcntl import ioctl
from ipaddress import IPv4Address
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

from serl.errors import BadInput

# From <linux/sockios.h> and <linux/if.h>.
_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_RUNNING = 0x40
_IFREQ = struct.Struct("16s24s")


class NetworkConfig(BaseModel):
    """The hosts of a run; by default a run stays on one host and opens no network socket.

    Attributes:
        hosts: addresses of all hosts that take part, including this one; empty for a single host.
        key_file: the key that these hosts share; see `serl.system.authentication`.
        domain: the ROS domain of these hosts, unless `ROS_DOMAIN_ID` is set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    hosts: tuple[IPv4Address, ...] = ()
    key_file: Path = Path("~/.config/serl/key")
    domain: int = Field(1, ge=0, le=101)

    @field_validator("hosts")
    @classmethod
    def _single(cls, hosts: tuple[IPv4Address, ...]) -> tuple[IPv4Address, ...]:
        for host in hosts:
            if host.is_unspecified or host.is_multicast:
                raise ValueError(f"{host} is not the address of one host")
        return hosts

    @property
    def local(self) -> bool:
        """Whether the run stays on one host."""
        return not self.hosts

    def own_addresses(self) -> tuple[IPv4Address, ...]:
        """Return the addresses in `hosts` that belong to this host.

        Raises:
            BadInput: none belongs to this host, or its interface is down.
        """
        own = tuple(host for host in self.hosts if _is_own(host))
        if not own:
            hosts = ", ".join(map(str, self.hosts))
            raise BadInput(f"network.hosts: none of {hosts} is an address of this host that is up")
        return own


def _is_own(address: IPv4Address) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def is_up(address: IPv4Address) -> bool:
    """Return whether this host has the address, on an interface that is up and plugged in."""
    return _is_own(address) and address not in _stopped()


def _stopped() -> set[IPv4Address]:
    """Return the addresses of interfaces that are not running."""
    stopped = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), b"")
            with suppress(OSError):  # the interface has no address
                found = ioctl(probe, _SIOCGIFADDR, request)
                (flags,) = struct.unpack_from("H", ioctl(probe, _SIOCGIFFLAGS, request), 16)
                if not flags & _IFF_RUNNING:
                    stopped.add(IPv4Address(found[20:24]))
    return stopped
