"""A `logging` handler that forwards a process's log to `/rosout`, for ROS 2's log viewers."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from builtin_interfaces.msg import Time
from rcl_interfaces.msg import Log
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from serl.ros.topics import Topic
from serl.system.json_fields import printable

MOST = 100
DRAIN_S = 0.2
ROSOUT = Topic(
    "/rosout",
    Log,
    QoSProfile(
        depth=MOST,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
        lifespan=Duration(seconds=10),
    ),
)
"""Topic of log messages; its quality of service differs from ROS 2's own only in the depth."""

_LEVELS = ((logging.CRITICAL, Log.FATAL), (logging.ERROR, Log.ERROR), (logging.WARNING, Log.WARN))


class RosoutHandler(logging.Handler):
    """A handler that queues records of Python's `logging`, which `drain` publishes.

    A thread that logs never waits for ROS 2: a full queue drops and counts its oldest record.
    Records below INFO are not forwarded.

    Args:
        name: name of the logger in the messages: that of the node, by which viewers group.
        publisher: publisher on `ROSOUT`.

    Attributes:
        dropped: number of records that the queue had no room for.
    """

    def __init__(self, name: str, publisher: Any) -> None:
        super().__init__(logging.INFO)
        self.dropped = 0
        self._logger_name, self._publisher = name, publisher
        self._queue: deque[Log] = deque(maxlen=MOST)
        self._reported = 0

    def attach(self) -> None:
        """Add the handler to the root logger; a process without another still prints warnings."""
        if not logging.root.handlers and logging.lastResort is not None:
            logging.root.addHandler(logging.lastResort)
        logging.root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; called with the handler's lock held, which `drain` never takes."""
        try:
            message = self._message(record)
        except Exception:  # a defect in a logging call, which `logging` reports by itself
            self.handleError(record)
            return
        self.dropped += len(self._queue) == MOST
        self._queue.append(message)

    def drain(self) -> None:
        """Publish the records queued before this call; one thread at a time, which may block."""
        for _ in range(len(self._queue)):
            self._publisher.publish(self._queue.popleft())
        if (missing := self.dropped - self._reported) > 0:
            self._reported += missing
            text = f"{missing} messages were logged too fast for /rosout and are missing here"
            record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (), None)
            self._publisher.publish(self._message(record))

    def detach(self) -> None:
        """Remove the handler from the root logger; queued records can still be drained."""
        logging.root.removeHandler(self)

    def _message(self, record: logging.LogRecord) -> Log:
        """Convert a record; text of other programs is escaped, line by line."""
        level = next((of_ros for least, of_ros in _LEVELS if record.levelno >= least), Log.INFO)
        seconds = int(record.created)
        return Log(
            stamp=Time(sec=seconds, nanosec=int(1e9 * (record.created - seconds))),
            level=level,
            name=self._logger_name,
            msg="\n".join(map(printable, self.format(record).split("\n"))),
            file=printable(record.pathname),
            function=printable(record.funcName or ""),
            line=record.lineno,
        )
