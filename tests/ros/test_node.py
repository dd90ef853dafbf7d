from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.parameter import Parameter
from std_msgs.msg import String

from serl.errors import CorruptData
from serl.ros import node as node_module
from serl.ros.environment import environment, ros_name
from serl.ros.node import RosNode, namespace, run_node
from serl.ros.ports import read_ports
from serl.ros.telemetry import Stats, StatsMonitor
from serl.ros.testing.processes import eventually
from serl.ros.topics import ACTORS, Topic, from_cdr, to_cdr

from .conftest import LIMIT_S, Run
from .support.starved import Waiting

pytestmark = pytest.mark.ros


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("actor0", "actor0"),
        ("2026-11-21_10-00-00", "run_2026_11_21_10_00_00"),
        ("__a--b..c ", "a_b_c"),
        ("", "run"),
        ("\u00fcber", "ber"),
    ],
)
def test_any_text_becomes_a_valid_name(text: str, name: str) -> None:
    assert ros_name(text) == name


def test_the_namespace_is_the_folders_name(tmp_path: Path) -> None:
    assert namespace(tmp_path / "run_1" / "..") == namespace(tmp_path)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C does what it usually does, whichever other node of this process has seen to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_first_signal_asks_and_a_later_one_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_ECHO_S", 60.0)
    with RosNode("a", tmp_path) as node:
        assert not node.stopping
        for _ in range(2):  # as a terminal and `ros2 launch` send one Ctrl-C
            signal.raise_signal(signal.SIGINT)  # not os.kill: another thread might take it, later
            assert node.stopping
        monkeypatch.setattr(node_module, "_ECHO_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("managed", [False, True])
def test_a_node_leaves_the_network_with_its_context(tmp_path: Path, managed: bool) -> None:
    """One that stays reads the ports of its domain without anybody who empties them."""
    before = read_ports()
    with RosNode("left", tmp_path, managed=managed):
        assert read_ports() != before
    assert read_ports() == before


def test_a_failing_callback_ends_the_process_loudly(tmp_path: Path) -> None:
    def fail(message: object) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        _listen(tmp_path, fail)


def test_a_node_whose_context_is_shut_down_ends_loudly(tmp_path: Path) -> None:
    def shut_down() -> None:
        with RosNode("a", tmp_path) as node:
            node.handle.context.shutdown()
            eventually(lambda: node.stopping)

    with pytest.raises(ExternalShutdownException):
        shut_down()


@pytest.mark.parametrize(
    ("error", "defect"),
    [
        (AttributeError("handle"), False),
        (rclpy_implementation.InvalidHandle("destruction was requested"), False),
        (RuntimeError("a defect"), True),
    ],
)
def test_what_rclpy_trips_over_as_it_is_shut_down_is_no_defect(
    error: Exception, defect: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spin(executor: SingleThreadedExecutor) -> None:
        eventually(lambda: executor._is_shutdown)
        raise error

    monkeypatch.setattr(SingleThreadedExecutor, "spin", spin)
    expected = [error] if defect else []
    raised = []
    try:
        with RosNode("a", tmp_path):
            pass
    except RuntimeError as found:
        raised.append(found)
    assert raised == expected


def test_a_run_opens_no_network_socket(tmp_path: Path) -> None:
    before = set(psutil.Process().net_connections("inet"))  # another test may have left some
    with RosNode("a", tmp_path) as node:
        node.publisher(ACTORS)
        assert set(psutil.Process().net_connections("inet")) <= before


def test_stats_of_every_source_are_kept_with_their_age(tmp_path: Path) -> None:
    with RosNode("a", tmp_path) as node:
        Stats(node, "one", lambda: {"steps": 3, "success": 0.5, "state": "training"})
        Stats(node, "two", lambda: {})
        monitor = StatsMonitor(node)
        eventually(lambda: len(monitor.latest()) == 2)
        reading = monitor.latest()["one"]
        assert reading.values == {"steps": 3.0, "success": 0.5, "state": "training"}
        assert 0 <= reading.age_s < 5


def test_what_happens_periodically_goes_on_when_ros_time_stands_still(tmp_path: Path) -> None:
    calls: list[int] = []
    with RosNode("a", tmp_path) as node:
        node.handle.set_parameters([Parameter("use_sim_time", value=True)])  # nobody tells /clock
        node.every(0.01, lambda: calls.append(node.handle.get_clock().now().nanoseconds))
        eventually(lambda: len(calls) >= 3)
    assert set(calls) == {0}


@pytest.mark.parametrize("size", [0, 1, 5, 98_000])
def test_bulk_messages_carry_their_payload(size: int) -> None:
    payload = os.urandom(size)
    message = to_cdr(payload)
    assert from_cdr(message) == payload
    for bad in (message[:-4], message[:10], b"\x00\x00" + message[2:], message + bytes(4)):
        with pytest.raises(CorruptData):
            from_cdr(bad)


def _listen(folder: Path, callback: Callable[[object], None]) -> None:
    with RosNode("a", folder) as node:
        publisher = node.publisher(ACTORS)
        node.subscribe(ACTORS, callback)
        publisher.publish(ACTORS.kind())
        eventually(lambda: node.stopping)


def test_what_the_disk_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a")

    assert run_node(run) == 1
    assert capsys.readouterr().err == f"[Errno {errno.EROFS}] Read-only file system: 'runs/a'\n"


def test_a_run_is_in_the_namespace_that_ros_was_asked_for(run: Run) -> None:
    words = ("--run", str(run.folder), "--ros-args", "-r", "__ns:=/cell")
    process = subprocess.Popen(
        [sys.executable, "-m", "serl.ros.nodes.idle", *words],
        env=environment(int(os.environ["ROS_DOMAIN_ID"]), run.folder),
        stdin=subprocess.PIPE,
        text=True,
    )
    run.processes.append(process)
    with RosNode("watch", run.folder, local=True) as node:

        def names() -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = node.handle.get_node_names_and_namespaces()
            return found

        eventually(lambda: process.poll() is not None or ("doctor", "/cell") in names())
        eventually(lambda: node.handle.count_subscribers("/cell/stats") == 1)
        assert not node.handle.count_subscribers(node.absolute("stats"))


def test_who_drains_takes_all_that_waits_before_anybody_else_is_served(tmp_path: Path) -> None:
    """So who is starved is not behind by what waits, and still sees all of it."""
    drained, other = Topic("drained", String, 10), Topic("other", String, 10)
    heard, free = list[str](), threading.Event()

    def hear(message: Any) -> None:
        heard.append(message.data)
        free.wait(LIMIT_S)

    with (
        RosNode("busy", tmp_path, local=True) as busy,
        RosNode("talker", tmp_path, local=True) as talker,
    ):
        busy.subscribe(drained, hear, drain=True)
        busy.subscribe(other, hear)
        waiting = [Waiting(busy, topic) for topic in (drained, other)]
        publishers = [talker.publisher(topic) for topic in (drained, other)]
        pairs = list(zip(waiting, publishers, strict=True))
        eventually(lambda: all(each.hears(publisher) for each, publisher in pairs))
        publishers[0].publish(String(data="first"))
        eventually(lambda: heard)
        for number in range(5):
            for publisher, name in zip(publishers, ("drained", "other"), strict=True):
                publisher.publish(String(data=f"{name} {number}"))
        eventually(lambda: [each.newest().data for each in waiting] == ["drained 4", "other 4"])
        free.set()
        eventually(lambda: len(heard) == 11)
    assert heard[1:6] == [f"drained {number}" for number in range(5)]
