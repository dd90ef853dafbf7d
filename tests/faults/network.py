"""Faults of the network between the actor's and the learner's host, and of other users in it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import rclpy

from serl.ros.node import RosNode, namespace
from serl.ros.topics import ACTORS, TRANSITIONS, to_cdr

from ..ros.support.namespaces import Hosts, two_hosts
from .processes import two_actors
from .registry import REGISTRY, Level, Recipe, Scene
from .system import ALLOWED_GROWTH_MB, FEW, LEARNER, System, link_of, moves, running

ROOT, NOBODY = 0, 65534
PATIENCE_S = {ROOT: 60.0, NOBODY: 3.0}
"""Time limit in which an allowed user must connect and another user must not."""


class Apart(NamedTuple):
    """A system with actor and learner on two hosts."""

    system: System
    hosts: Hosts


@contextmanager
def _apart(folder: Path, rate_hz: float = 50.0) -> Iterator[Apart]:
    """Start a system with records in transit; check all files at the end."""
    with two_hosts() as hosts, running(folder, rate_hz=rate_hz, hosts=hosts) as system:
        system.until(moves(system.accepted, FEW))
        yield Apart(system, hosts)
        system.finish()
        system.check()


apart = Scene(_apart, lambda both: both.system.check_books())


@REGISTRY.fault(
    11,
    "Network down",
    injected="the cable between two network namespaces is out for 3 s",
    required="the actor continues; afterwards all records are sent; lost 0, duplicated 0",
    level=Level.PROCESSES,
    needs=(Recipe.NAMESPACES,),
    scene=apart,
)
def link_down(both: Apart) -> None:
    _pull_cable(both, 3.0)


@REGISTRY.longer(link_down, injected="the cable is out for 30 s, then for 300 s")
def link_down_for_long(folder: Path) -> None:
    with _apart(folder, rate_hz=200.0) as both:
        for duration_s in (30.0, 300.0):
            _pull_cable(both, duration_s)


def _pull_cable(both: Apart, duration_s: float) -> None:
    system, hosts = both
    hosts.pull_cable()
    system.rest(0.5)  # for records in flight
    accepted, appended = system.accepted(), system.total()
    system.rest(duration_s)
    assert system.accepted() == accepted
    assert system.total() > appended + FEW
    hosts.plug_cable()
    system.until(moves(system.accepted, FEW))


@REGISTRY.fault(
    11,
    "Network down at the start",
    injected="the cable is out; learner and link are killed and started again 3 s before it is "
    "back",
    required="both wait for the network; lost 0, duplicated 0",
    level=Level.PROCESSES,
    needs=(Recipe.NAMESPACES,),
    scene=apart,
)
def link_down_at_the_start(both: Apart) -> None:
    system, hosts = both
    hosts.pull_cable()
    system.kill(LEARNER, link_of("actor0"))
    system.rest(3.0)
    hosts.plug_cable()
    system.until(moves(system.accepted, FEW))


@REGISTRY.fault(
    12,
    "One packet in five is dropped",
    injected="nftables between two network namespaces, for 30 s",
    required="at least 80 % of the records that the actor makes in these 30 s arrive within the "
    "same 30 s; lost 0, duplicated 0",
    level=Level.SOAK,
    needs=(Recipe.NAMESPACES, Recipe.NFTABLES),
)
def packets_dropped(folder: Path) -> None:
    with _apart(folder, rate_hz=200.0) as (system, hosts):
        for host in range(2):
            for words in (
                "add table inet lossy",
                "add chain inet lossy input { type filter hook input priority 0; }",
                "add rule inet lossy input meta l4proto udp numgen random mod 100 < 20 drop",
            ):
                subprocess.run([*hosts.inside(host), "nft", words], check=True)
        accepted, appended = system.accepted(), system.total()
        system.rest(30.0)
        share = (system.accepted() - accepted) / (system.total() - appended)
        assert share > 0.8, f"{share:.0%} of the records arrived"


@REGISTRY.fault(
    13,
    "Slow network",
    injected="tc: 1 Mbit/s between two network namespaces, a quarter of the actor's data rate",
    required="records that cannot be sent wait on the disk; the link uses at most 50 MB more "
    "memory; the actor keeps its rate; lost 0, duplicated 0",
    level=Level.SOAK,
    needs=(Recipe.NAMESPACES,),
)
def slow_link(folder: Path) -> None:
    with _apart(folder, rate_hz=500.0) as (system, hosts):
        link = system.process(link_of("actor0"))
        before_bytes, before_hz = link.memory_info().rss, _rate_hz(system, 10.0)
        _tc(hosts, "add dev cable root tbf rate 1mbit burst 32kbit latency 400ms")
        accepted, appended = system.accepted(), system.total()
        slow_hz = _rate_hz(system, 30.0)
        made, arrived = system.total() - appended, system.accepted() - accepted
        assert arrived < made / 2, f"{arrived} of {made} records arrived: the link was not slow"
        assert slow_hz > 0.7 * before_hz, f"{slow_hz:.0f} steps/s, {before_hz:.0f} before"
        assert link.memory_info().rss < before_bytes + ALLOWED_GROWTH_MB * 1e6
        _tc(hosts, "del dev cable root")


def _rate_hz(system: System, duration_s: float) -> float:
    """Return the actors' record rate over a duration, Hz."""
    before, begin_s = system.total(), time.monotonic()
    system.rest(duration_s)
    return (system.total() - before) / (time.monotonic() - begin_s)


def _tc(hosts: Hosts, words: str) -> None:
    """Limit the sending rate of the actor's host with `tc`."""
    subprocess.run([*hosts.inside(1), "tc", "qdisc", *words.split()], check=True)


@REGISTRY.fault(
    56,
    "Unknown sender",
    injected="another user of the host sends on the run's topics",
    required="the user cannot connect; lost 0, duplicated 0",
    level=Level.PROCESSES,
    needs=(Recipe.ROOT,),
    scene=two_actors,
)
def other_user(system: System) -> None:
    system.until(moves(system.accepted, FEW))
    assert _met(system, ROOT) == 2, "the test is blind"
    assert _met(system, NOBODY) == 0


def _met(system: System, user: int) -> int:
    """Return how many readers of the run's topics a process of another user finds."""
    with TemporaryDirectory() as top:  # other users cannot read the tests' folders
        Path(top).chmod(0o755)
        (place := Path(top) / system.run.path.name).mkdir()
        os.chown(place, user, user)
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.network", str(place), str(user)],
            env=dict(system.supervisor.environment),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return int(done.stdout)


def _talk(folder: Path, patience_s: float) -> int:
    """Search for readers and send them garbage; return how many were found.

    Uses a plain ROS 2 node; serl's would refuse to join when another user holds the domain's port.
    """
    os.environ["ROS_LOG_DIR"] = str(folder)
    rclpy.init()
    node = rclpy.create_node("stranger", namespace=namespace(folder))
    publishers = [
        node.create_publisher(topic.kind, topic.name, topic.qos) for topic in (TRANSITIONS, ACTORS)
    ]
    deadline_s = time.monotonic() + patience_s
    found = 0
    while found < len(publishers) and time.monotonic() < deadline_s:
        publishers[0].publish(to_cdr(b"garbage"))
        found = sum(publisher.get_subscription_count() for publisher in publishers)
        time.sleep(0.1)
    return found


if __name__ == "__main__":
    with RosNode("rehearsal", Path(sys.argv[1]).parent / "rehearsal"):
        pass  # all modules that the other user cannot read are loaded now
    os.setgroups([])
    user = int(sys.argv[2])
    os.setgid(user)
    os.setuid(user)
    sys.stdout.write(str(_talk(Path(sys.argv[1]), PATIENCE_S[user])))
