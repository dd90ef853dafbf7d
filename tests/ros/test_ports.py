"""Recovery from shared-memory ports that other processes lock, remove or fill."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from std_msgs.msg import String

from serl.errors import SerlError
from serl.ros import node as node_module
from serl.ros import ports
from serl.ros.environment import Domain, environment, free_domain
from serl.ros.node import RosNode
from serl.ros.ports import (
    SHARED_MEMORY,
    discovery_port,
    full_port,
    hold_ports,
    read_ports,
    reads_domain,
    removed_ports,
    replace_port,
)
from serl.ros.testing.processes import eventually
from serl.ros.topics import ACTORS

pytestmark = pytest.mark.ros

PEER = (sys.executable, str(Path(__file__).parent / "support/peer_process.py"))
TRIES = 5
"""Attempts of timing-dependent tests; Fast DDS looks for dead readers at random times."""


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    """Yield an unused ROS domain."""
    monkeypatch.delenv("ROS_DOMAIN_ID")
    with free_domain({}) as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain.id))
        yield domain


@contextmanager
def locked(domain: Domain) -> Iterator[None]:
    """Hold the lock of the domain's port, as a process that checks for its use does."""
    path = SHARED_MEMORY / f"fastrtps_port{discovery_port(domain.id)}_sl"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink()


def test_node_rejoins_domain_after_another_process_released_its_port(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, received, joined = RosNode._create, list[str](), list[bool]()

    def count(node: RosNode, name: str) -> bool:
        joined.append(create(node, name))
        return joined[-1]

    def hold() -> None:
        with locked(domain):
            held.set()
            eventually(lambda: joined)

    monkeypatch.setattr(RosNode, "_create", count)
    held, holding = threading.Event(), threading.Thread(target=hold)
    holding.start()
    held.wait()
    with RosNode("first", tmp_path) as node:
        holding.join()
        assert not joined[0]
        assert reads_domain(read_ports(), domain.id)
        node.subscribe(ACTORS, lambda message: received.append(message.data))
        with RosNode("second", tmp_path) as other:
            publisher = other.publisher(ACTORS)
            publisher.publish(String(data="hello"))
            eventually(lambda: received)


def test_node_does_not_start_while_port_of_its_domain_is_locked(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_JOIN_S", 0.0)
    with locked(domain), pytest.raises(SerlError, match="keeps the port of its ROS domain locked"):
        RosNode("first", tmp_path)


def test_node_ends_with_one_line_when_its_port_is_removed(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_LOOK_S", 0.1)
    with pytest.raises(SerlError, match="first: deaf: another process removed"):
        _lose(domain, tmp_path)
    assert not removed_ports(domain.id, read_ports().values()), (
        "the node must leave no removed port"
    )


def _lose(domain: Domain, folder: Path) -> None:
    with RosNode("first", folder) as node:
        node.wait(1.0)
        assert not node.stopping
        numbers = range(discovery_port(domain.id), discovery_port(domain.id + 1))
        ports = [Path(lock.removesuffix("_el")) for lock in read_ports().values()]
        next(
            port for port in ports if port.name.removeprefix("fastrtps_port") in map(str, numbers)
        ).unlink()
        eventually(lambda: node.stopping)


def test_node_shuts_down_after_kill_of_a_process_that_sent_to_it(
    domain: Domain, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("support") / "leaving_process.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], timeout=120.0, check=True)


def test_read_ports_excludes_open_port_without_lock() -> None:
    paths = [Path(f"/dev/shm/fastrtps_port9{os.getpid()}{kind}") for kind in ("", "_el")]
    with ExitStack() as opened:
        for path in paths:
            opened.callback(path.unlink)
            opened.enter_context(path.open("w"))
        assert set(map(str, paths)) & set(read_ports().values()) == {str(paths[1])}


def test_held_port_of_killed_reader_is_not_replaced_for_three_seconds(
    domain: Domain, tmp_path: Path
) -> None:
    with RosNode("survivor", tmp_path):
        port, locks = path_of(domain), set(read_ports().values())
        for _ in range(TRIES):
            inode = inode_of(port)
            with peer("killed", domain, tmp_path) as killed:
                killed.kill()
            hold_ports(domain.id, locks)
            begin_s = time.monotonic()
            if inode_of(port) == inode:  # no check before the hold
                break
        eventually(lambda: inode_of(port) not in (0, inode))
        assert time.monotonic() - begin_s > 2.9  # without the hold: 1 s


@contextmanager
def peer(
    name: str, domain: Domain, folder: Path, announcements: int = 40
) -> Iterator[subprocess.Popen[str]]:
    """Run a process with a node of plain rclpy, which leaves the domain at the end.

    It is forgotten 2 s after its death, so that no message to it reaches the next one with its
    number; the default is 20 s.
    """
    text = Path(node_module.__file__).with_name("shared_memory.xml").read_text()
    initial = f"<initialAnnouncements><count>{announcements}</count><period><nanosec>1000000"
    lease = "<leaseDuration><sec>2</sec></leaseDuration>"
    lease += "<leaseAnnouncement><sec>1</sec></leaseAnnouncement>"
    before, _, rest = text.partition("<initialAnnouncements>")
    profile = folder / f"{name}.xml"
    profile.write_text(f"{before}{lease}{initial}{rest.partition('100000000')[2]}")
    process = subprocess.Popen(
        [*PEER, name],
        env={
            **environment(domain.id, folder),
            "FASTRTPS_DEFAULT_PROFILES_FILE": str(profile),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        yield process
        with suppress(subprocess.TimeoutExpired):  # Fast DDS may hang as a node leaves
            process.communicate(timeout=10.0)
    finally:
        process.kill()
        process.wait()


def test_host_without_shared_memory_has_no_port_to_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "SHARED_MEMORY", tmp_path / "missing")
    assert ports.release_ports() == []


def test_port_without_contents_keeps_no_process_waiting(domain: Domain, tmp_path: Path) -> None:
    port = path_of(domain)
    port.write_bytes(bytes(52_400))  # its process was killed before initialising it
    started: dict[str, Any] = {"env": environment(domain.id, tmp_path), "stdin": subprocess.PIPE}
    waiting = subprocess.Popen([*PEER, "waiting"], stdout=subprocess.PIPE, text=True, **started)
    try:
        eventually(lambda: str(port) in Path(f"/proc/{waiting.pid}/maps").read_text())
        newcomer = [sys.executable, "-m", "serl.ros.nodes.idle", "--run", str(tmp_path)]
        subprocess.run(newcomer, **started, timeout=60.0, check=True)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "joined\n"
    finally:
        waiting.kill()
        waiting.wait()


def path_of(domain: Domain) -> Path:
    return SHARED_MEMORY / f"fastrtps_port{discovery_port(domain.id)}"


def inode_of(port: Path) -> int:
    """Return the inode of a port; 0 while it is being replaced."""
    with suppress(FileNotFoundError):
        return port.stat().st_ino
    return 0


def has_moved(process: subprocess.Popen[str], port: Path) -> bool:
    """Return whether a process uses the port of this name, and no older one."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return f"{port}\n" in maps and f"{port} (deleted)\n" not in maps


def fill(domain: Domain, folder: Path) -> bool:
    """Kill a reader whose death Fast DDS does not notice, and fill the port of the domain.

    The death of the first is noticed. The second moves to the new port, and keeps an index that is
    no reader's there; no flood fills the port if this busy machine made it move once more.
    """
    port = path_of(domain)
    with peer("first", domain, folder) as first, peer("second", domain, folder) as second:
        inode = inode_of(port)
        first.kill()
        eventually(lambda: inode_of(port) not in (0, inode))
        eventually(lambda: has_moved(second, port))
        second.kill()
    with peer("flood", domain, folder, announcements=600):
        deadline_s = time.monotonic() + 10.0
        while full_port(domain.id) is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
    time.sleep(4.0)  # living readers empty it and forget dead ones
    return full_port(domain.id) is not None


def test_full_port_of_killed_processes_is_replaced_and_nodes_connect(
    domain: Domain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(node_module, "_LOOK_S", 0.5)
    with peer("survivor", domain, tmp_path):
        assert any(fill(domain, tmp_path) for _ in range(TRIES)), "the port was never full"
        inode = inode_of(path_of(domain))
        with RosNode("newcomer", tmp_path) as node:
            eventually(lambda: "survivor" in node.handle.get_node_names())
            assert inode_of(path_of(domain)) != inode
            assert "a dead process left its port full: replaced" in caplog.text
            time.sleep(4.0)  # each writer has reopened it
            assert not node.stopping, node.deaf
            assert full_port(domain.id) is None


def test_replace_port_keeps_port_that_is_not_full(domain: Domain, tmp_path: Path) -> None:
    assert full_port(domain.id) is None, "no port exists yet"
    with RosNode("first", tmp_path) as node:
        inode = path_of(domain).stat().st_ino
        replace_port(domain.id)
        node.wait(1.0)
        assert (full_port(domain.id), path_of(domain).stat().st_ino) == (None, inode)
