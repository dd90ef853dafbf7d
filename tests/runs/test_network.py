from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from serl.errors import BadInput
from serl.runs.config import resolve
from serl.runs.network import NetworkConfig
from serl.system.sockets import is_up


def test_network_is_local_unless_hosts_are_named() -> None:
    assert resolve({}).network.local
    assert not resolve({"network": {"hosts": ["10.0.0.1", "10.0.0.2"]}}).network.local


def test_own_addresses_are_found_among_hosts() -> None:
    hosts = ("198.51.100.77", "127.0.0.1", "127.0.0.2")
    own = (IPv4Address("127.0.0.1"), IPv4Address("127.0.0.2"))
    assert NetworkConfig(hosts=hosts).own_addresses() == own
    with pytest.raises(BadInput, match=r"none of 198\.51\.100\.77 is an address of this host"):
        NetworkConfig(hosts=hosts[:1]).own_addresses()


def test_address_is_up_if_its_interface_runs() -> None:
    assert is_up(IPv4Address("127.0.0.1"))
    assert not is_up(IPv4Address("198.51.100.77"))


@pytest.mark.parametrize("host", ["0.0.0.0", "239.255.0.1", "robot", "10.0.0", "::1", ""])
def test_invalid_host_address_is_refused(host: str) -> None:
    with pytest.raises(BadInput, match=r"network\.hosts\.?") as refusal:
        resolve({"network": {"hosts": [host]}})
    assert "\n" not in str(refusal.value)
