"""Publication of a node's log on /rosout, without blocking the logging thread."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import rclpy
from rcl_interfaces.msg import Log
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

from serl.ros import rosout
from serl.ros.node import RosNode
from serl.ros.rosout import MOST, RosoutHandler
from serl.ros.testing.processes import eventually

from .conftest import Run

pytestmark = pytest.mark.ros

logger = logging.getLogger("serl.somewhere")


class Sink:
    """A publisher without ROS 2 that keeps messages; it may be made to block."""

    def __init__(self) -> None:
        self.messages: list[Log] = []
        self.free = threading.Event()
        self.free.set()

    def publish(self, message: Log) -> None:
        assert self.free.wait(30.0)
        self.messages.append(message)


@contextmanager
def viewer() -> Iterator[Callable[[], list[Log]]]:
    """Yield a reader of /rosout messages in a plain ROS 2 node with default QoS."""
    context, messages = Context(), list[Log]()
    rclpy.init(context=context)
    node = rclpy.create_node("viewer", context=context)
    node.create_subscription(Log, "/rosout", messages.append, 10)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    def received_messages() -> list[Log]:
        executor.spin_once(0.1)
        return messages

    yield received_messages
    executor.shutdown()
    node.destroy_node()
    context.try_shutdown()


def test_warning_reaches_plain_ros_node_with_name_of_logging_node(tmp_path: Path) -> None:
    folder = tmp_path / "run_1"
    folder.mkdir()
    with RosNode("actor0", folder, robot="left") as node, viewer() as received_messages:
        eventually(lambda: node.handle.count_subscribers("/rosout"))
        logger.warning("the %s is \x1b[31mred", "light")
        eventually(received_messages)
        logger.error("worse")
        eventually(lambda: len(received_messages()) > 1)
        warning, error = received_messages()
    assert (warning.level, warning.name) == (Log.WARN, "run_1.left.actor0")
    assert warning.msg == "the light is \\x1b[31mred"
    assert (Path(warning.file), warning.line > 0) == (Path(__file__), True)
    assert warning.function.startswith("test_warning_reaches_plain_ros_node")
    assert (error.level, error.msg) == (Log.ERROR, "worse")
    assert not any(isinstance(handler, RosoutHandler) for handler in logging.root.handlers)


def test_process_without_log_handlers_still_prints_warnings(run: Run) -> None:
    code = (
        "import logging, pathlib, sys\n"
        "from serl.ros.node import RosNode\n"
        "with RosNode('a', pathlib.Path(sys.argv[1])):\n"
        "    logging.getLogger('serl.b').warning('printed once')\n"
    )
    script = run.folder / "warn.py"
    script.write_text(code)
    process = run.start(str(script), str(run.folder))
    assert process.communicate(timeout=60)[1] == "printed once\n"
    assert process.returncode == 0


def test_full_rosout_queue_drops_oldest_messages_without_blocking() -> None:
    sink = Sink()
    handler = RosoutHandler("node", sink)
    sink.free.clear()
    handler.handle(_record("first"))
    draining = threading.Thread(target=handler.drain)
    draining.start()
    eventually(lambda: not handler._queue)  # a peer is dead: it blocks in `publish`
    for number in range(MOST + 5):
        handler.handle(_record(f"{number}"))
    assert handler.dropped == 5
    assert sink.messages == []
    sink.free.set()
    draining.join(30.0)
    handler.drain()
    said = [message.msg for message in sink.messages]
    assert [text for text in said if text.isdigit()] == [f"{n}" for n in range(5, MOST + 5)]
    assert [text for text in said if "missing" in text] == [
        "5 messages were logged too fast for /rosout and are missing here"
    ]
    handler.drain()
    assert len(sink.messages) == len(said)


def test_invalid_logging_call_does_not_fail_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = RosoutHandler("node", Sink())
    handler.handle(logging.LogRecord("a", logging.ERROR, "", 1, "%d", ("x",), None))
    assert not handler._queue


def test_traceback_keeps_its_lines_in_rosout() -> None:
    handler = RosoutHandler("node", sink := Sink())
    try:
        raise ValueError("a\x07b")
    except ValueError:
        record = _record("failed")
        record.exc_info = sys.exc_info()
    handler.handle(record)
    handler.drain()
    lines = sink.messages[0].msg.split("\n")
    assert (lines[0], lines[-1]) == ("failed", "ValueError: a\\x07b")


def test_log_levels_map_to_ros_levels() -> None:
    handler = RosoutHandler("node", sink := Sink())
    for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        handler.handle(_record("a", level))
    handler.drain()
    assert [m.level for m in sink.messages] == [Log.INFO, Log.WARN, Log.ERROR, Log.FATAL]
    assert rosout.ROSOUT.name == "/rosout"
    assert handler.level == logging.INFO


def _record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("serl.a", level, "a.py", 1, text, (), None)
