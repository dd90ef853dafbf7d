"""The executor of a node in a process with deadlines: few rounds, and no long pauses."""

from __future__ import annotations

import ctypes
import gc
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from rclpy.executors import SingleThreadedExecutor

_MOST_AT_ONCE = 64
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_TRIM_BYTES, _MMAP_BYTES = 64 << 20, 32 << 20


def keep_freed_memory() -> None:
    """Keep up to 64 MB of freed memory per arena instead of giving it back at once.

    A received message of some MB passes through four buffers. Fetching their pages from the kernel
    again, for each message, was half of the message's cost to the process (measured: 5 MB, glibc
    2.36). Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def keep_objects() -> None:
    """Exclude the objects that exist now from the search for garbage, after a last one.

    A full search takes 25 ms in a guard and 100 ms in a process with PyTorch, during which no
    message is taken and no setpoint is sent (measured, Python 3.11).
    """
    gc.collect()
    gc.freeze()


class PacedExecutor(SingleThreadedExecutor):  # type: ignore[misc]
    """An executor that takes messages in rounds, which are at least `round_s` apart.

    A round costs as much as five messages; those that arrived since the last one share it.
    """

    round_s = 0.0
    _woke_s = -math.inf

    def _wait_for_ready_callbacks(self, *args: Any, **settings: Any) -> Iterator[Any]:
        if (left_s := self._woke_s + self.round_s - time.monotonic()) > 0.0:
            time.sleep(left_s)
        for index, ready in enumerate(super()._wait_for_ready_callbacks(*args, **settings)):
            if index == 0:
                self._woke_s = time.monotonic()
            yield ready


class Taker:
    """A callback that also takes the messages waiting behind the one it is called with.

    Messages are serialized when `raw`. A round of the executor costs as much as five messages
    (measured, rclpy 7.1.6).
    """

    def __init__(self, kind: Any, callback: Callable[[Any], None], raw: bool) -> None:
        self.subscription: Any = None  # may call back before `create_subscription` returned
        self._kind, self._raw = kind, raw
        self._callback = callback

    def __call__(self, message: Any) -> None:
        """Deliver a message, then those behind it."""
        self._callback(message)
        if self.subscription is not None:
            handle = self.subscription.handle
            with handle:  # its `__enter__` returns None
                for _ in range(_MOST_AT_ONCE):
                    if (taken := handle.take_message(self._kind, self._raw)) is None:
                        return
                    self._callback(taken[0])
