from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
from serl.runs.folder import STAGES

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
def test_ros_name_turns_any_text_into_valid_name(text: str, name: str) -> None:
    assert ros_name(text) == name


def test_namespace_is_name_of_resolved_folder(tmp_path: Path) -> None:
    assert namespace(tmp_path / "run_1" / "..") == namespace(tmp_path)


def test_namespace_of_stage_is_below_that_of_its_run(tmp_path: Path) -> None:
    run = tmp_path / "2026-11-28_00-00-00"
    assert namespace(run / STAGES / "near") == "/run_2026_11_28_00_00_00/near"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Restore the default SIGINT handler during the test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_first_sigint_requests_stop_and_later_one_interrupts(
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
def test_node_releases_its_ports_when_its_context_ends(tmp_path: Path, managed: bool) -> None:
    """Check ports, as a remaining reader would fill the ports of its domain."""
    before = read_ports()
    with RosNode("left", tmp_path, managed=managed):
        assert read_ports() != before
    assert read_ports() == before


def test_exception_in_callback_is_raised_at_exit_of_node(tmp_path: Path) -> None:
    def fail(message: object) -> None:
        raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        _listen(tmp_path, fail)


def test_node_raises_when_its_context_is_shut_down(tmp_path: Path) -> None:
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
def test_node_ignores_known_rclpy_errors_during_shutdown(
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


def test_stats_monitor_keeps_values_and_age_of_every_source(tmp_path: Path) -> None:
    with RosNode("a", tmp_path) as node:
        Stats(node, "one", lambda: {"steps": 3, "success": 0.5, "state": "training"})
        Stats(node, "two", lambda: {})
        monitor = StatsMonitor(node)
        eventually(lambda: len(monitor.latest()) == 2)
        reading = monitor.latest()["one"]
        assert reading.values == {"steps": 3.0, "success": 0.5, "state": "training"}
        assert 0 <= reading.age_s < 5


def test_periodic_callbacks_continue_while_ros_time_is_frozen(tmp_path: Path) -> None:
    calls: list[int] = []
    with RosNode("a", tmp_path) as node:
        node.handle.set_parameters([Parameter("use_sim_time", value=True)])  # without /clock
        node.every(0.01, lambda: calls.append(node.handle.get_clock().now().nanoseconds))
        eventually(lambda: len(calls) >= 3)
    assert set(calls) == {0}


@pytest.mark.parametrize("size", [0, 1, 5, 98_000])
def test_cdr_messages_preserve_payload_and_reject_corruption(size: int) -> None:
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


def test_run_node_reports_disk_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "runs/a")

    assert run_node(run) == 1
    assert capsys.readouterr().err == f"[Errno {errno.EROFS}] Read-only file system: 'runs/a'\n"


def test_node_uses_namespace_from_ros_arguments(run: Run) -> None:
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


def test_draining_subscription_takes_all_waiting_messages_first(tmp_path: Path) -> None:
    """Block the executor, and check the order in which waiting messages are received."""
    drained, other = Topic("drained", String, 10), Topic("other", String, 10)
    received, free = list[str](), threading.Event()

    def receive(message: Any) -> None:
        received.append(message.data)
        free.wait(LIMIT_S)

    with (
        RosNode("busy", tmp_path, local=True) as busy,
        RosNode("talker", tmp_path, local=True) as talker,
    ):
        busy.subscribe(drained, receive, drain=True)
        busy.subscribe(other, receive)
        waiting = [Waiting(busy, topic) for topic in (drained, other)]
        publishers = [talker.publisher(topic) for topic in (drained, other)]
        pairs = list(zip(waiting, publishers, strict=True))
        eventually(lambda: all(each.hears(publisher) for each, publisher in pairs))
        publishers[0].publish(String(data="first"))
        eventually(lambda: received)
        for number in range(5):
            for publisher, name in zip(publishers, ("drained", "other"), strict=True):
                publisher.publish(String(data=f"{name} {number}"))
        eventually(lambda: [each.newest().data for each in waiting] == ["drained 4", "other 4"])
        free.set()
        eventually(lambda: len(received) == 11)
    assert received[1:6] == [f"drained {number}" for number in range(5)]


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Let the collector of garbage see all objects again after the test."""
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_rounds_of_node_in_real_time_are_apart_and_collect_no_old_objects(tmp_path: Path) -> None:
    taken_s: list[float] = []
    with RosNode("busy", tmp_path, local=True) as node:
        node.begin_real_time(round_s=0.02)
        node.every(0.001, lambda: taken_s.append(time.monotonic()))
        eventually(lambda: len(taken_s) > 5)
        assert gc.get_freeze_count() > 10_000
    assert min(np.diff(taken_s[1:])) > 0.019
