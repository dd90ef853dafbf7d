"""One process = one participant = one executor in a daemon thread; callbacks only fill queues."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import rclpy
from rclpy.context import Context
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor

from serl.errors import BadInput, SerlError
from serl.ros.environment import domain_id_of, settle
from serl.ros.topics import Topic


class RosNode:
    """A context manager: the process's ROS 2 node, spinning while it is open.

    SIGTERM and SIGINT set `stopping`, which main loops look at; a second one acts as if there were
    no node. The executor is the single-threaded one on purpose: the others lose messages or starve
    threads (measured, rclpy 7.1.6).

    Args:
        name: name of the node, made valid if it is not.
        run_folder: the run; its name gives the namespace, its `log` folder takes ROS's logs.

    Attributes:
        stopping: the process was asked to end, or a callback failed.
        handle: the rclpy node.
    """

    def __init__(self, name: str, run_folder: Path) -> None:
        self.stopping = False
        self._failure: Exception | None = None
        self._arrived = threading.Event()
        settle(os.environ, domain_id_of(), run_folder)
        self._context = Context()
        rclpy.init(context=self._context)
        self.handle: Any = rclpy.create_node(
            ros_name(name),
            context=self._context,
            namespace=namespace(run_folder),
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.handle)
        self._thread = threading.Thread(target=self._spin, name="ros", daemon=True)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._stop)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._executor.shutdown()
        self._thread.join()
        self.handle.destroy_node()
        self._context.try_shutdown()
        self._restore_signals()
        if self._failure is not None and error is None:
            raise self._failure

    def publisher(self, topic: Topic) -> Any:
        """A publisher on a topic of the run."""
        return self.handle.create_publisher(topic.kind, topic.name, topic.qos)

    def subscribe(
        self, topic: Topic, callback: Callable[[Any], None], *, raw: bool = False
    ) -> None:
        """Call back in the executor's thread with each message, or its CDR bytes when `raw`."""

        def deliver(message: Any) -> None:
            callback(message)
            self._arrived.set()

        self.handle.create_subscription(topic.kind, topic.name, deliver, topic.qos, raw=raw)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a message arrives; one that arrived since the last call ends it at once."""
        self._arrived.wait(timeout_s)
        self._arrived.clear()

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call back in the executor's thread, periodically."""
        self.handle.create_timer(period_s, callback)

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
        except Exception as error:  # a defect: better to end than to go on deaf
            self._failure = error
            self.stopping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        self._restore_signals()

    def _restore_signals(self) -> None:
        while self._previous:
            signal.signal(*self._previous.popitem())


def run_node(run: Callable[[], None]) -> int:
    """Run the body of a process; returns its exit code, after one line on what went wrong."""
    try:
        run()
    except BadInput as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except SerlError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


def namespace(run_folder: Path) -> str:
    """The ROS namespace of a run: its folder's name, made valid."""
    return f"/{ros_name(run_folder.resolve().name)}"


def ros_name(text: str) -> str:
    """The text as a valid ROS 2 name: letters, digits and single underscores, no digit first."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
    return name if name[:1].isalpha() else f"run_{name}".rstrip("_")
