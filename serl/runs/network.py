"""The hosts of a run, and what it publishes for other programs."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

from pydantic import Field, field_validator

from serl.errors import BadInput
from serl.system.sockets import is_own
from serl.types import FrozenModel


class RosConfig(FrozenModel):
    """Settings of what a run publishes for other programs of ROS 2.

    Attributes:
        publish_state: publish the state and the views of simulations in the actors' processes as an
            arm's driver does, ten times a second, with their URDF; the console sets it. Arms behind
            ROS 2 always do.
    """

    publish_state: bool = False


class NetworkConfig(FrozenModel):
    """The hosts of a run; by default a run stays on one host and opens no network socket.

    Attributes:
        hosts: addresses of all hosts that take part, including this one; empty for a single host.
        key_file: the key that these hosts share; see `serl.system.authentication`.
        domain: the ROS domain of these hosts, unless `ROS_DOMAIN_ID` is set.
    """

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
            BadInput: none belongs to this host.
        """
        own = tuple(host for host in self.hosts if is_own(host))
        if not own:
            hosts = ", ".join(map(str, self.hosts))
            raise BadInput(f"network.hosts: none of {hosts} is an address of this host")
        return own
