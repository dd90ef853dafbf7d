"""Shared-memory ports that other processes lock or remove: what Fast DDS does not notice."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from std_msgs.msg import String

from serl.errors import SerlError
from serl.ros import node as node_module
from serl.ros.environment import SHARED_MEMORY, Domain, free_domain
from serl.ros.node import RosNode
from serl.ros.ports import discovery_port, read_ports, reads_domain, removed_ports
from serl.ros.testing.processes import eventually
from serl.ros.topics import ACTORS

pytestmark = pytest.mark.ros


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    """A ROS domain in which nobody is yet."""
    monkeypatch.delenv("ROS_DOMAIN_ID")
    with free_domain({}) as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain.id))
        yield domain


@contextmanager
def locked(domain: Domain) -> Iterator[None]:
    """Hold the lock of the domain's port, as a process does that looks whether it is in use."""
    path = SHARED_MEMORY / f"fastrtps_port{discovery_port(domain.id)}_sl"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink()


def test_a_node_joins_again_when_another_process_has_held_the_port_of_its_domain(
    domain: Domain, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []
    lock = locked(domain)
    lock.__enter__()
    release = threading.Timer(0.5, lock.__exit__, (None, None, None))
    release.start()
    with RosNode("first", tmp_path) as node:
        release.join()
        eventually(lambda: "Failed init_port" in capfd.readouterr().out)  # by a thread of Fast DDS
        assert reads_domain(read_ports(), domain.id)
        node.subscribe(ACTORS, lambda message: heard.append(message.data))
        with RosNode("second", tmp_path) as other:
            publisher = other.publisher(ACTORS)
            publisher.publish(String(data="hello"))
            eventually(lambda: heard)


def test_a_node_that_cannot_have_the_port_of_its_domain_is_refused(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_JOIN_S", 0.0)
    with locked(domain), pytest.raises(SerlError, match="keeps the port of its ROS domain locked"):
        RosNode("first", tmp_path)


def test_a_node_whose_port_is_removed_ends_in_one_line(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_LOOK_S", 0.1)
    with pytest.raises(SerlError, match="first: deaf: another process removed"):
        _lose(domain, tmp_path)
    assert not removed_ports(domain.id, read_ports().values()), "it has left"


def _lose(domain: Domain, folder: Path) -> None:
    with RosNode("first", folder) as node:
        node.wait(1.0)
        assert not node.stopping
        lock = next(name for name in read_ports().values() if name.endswith("_el"))
        Path(lock.removesuffix("_el")).unlink()
        eventually(lambda: node.stopping)
