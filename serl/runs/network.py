"""Whether a run stays on one host, or which hosts take part in it."""

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
    """The hosts of a run; by default it stays on one and opens no socket to the network.

    Attributes:
        hosts: addresses of all hosts that take part, this one's among them; empty for one host.
        key_file: the key that these hosts share; see `serl.system.authentication`.
        domain: the ROS domain that they use, unless `ROS_DOMAIN_ID` asks for another.
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
        """The run stays on one host."""
        return not self.hosts

    def own_addresses(self) -> tuple[IPv4Address, ...]:
        """Those of `hosts` that are this host's.

        Raises:
            BadInput: none is, or its interface is down.
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
    """This host has the address, and its interface runs: it is on and its cable is plugged in."""
    return _is_own(address) and address not in _stopped()


def _stopped() -> set[IPv4Address]:
    """Addresses of interfaces that do not run."""
    stopped = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _IFREQ.pack(name.encode(), b"")
            with suppress(OSError):  # it has no address
                found = ioctl(probe, _SIOCGIFADDR, request)
                (flags,) = struct.unpack_from("H", ioctl(probe, _SIOCGIFFLAGS, request), 16)
                if not flags & _IFF_RUNNING:
                    stopped.add(IPv4Address(found[20:24]))
    return stopped
