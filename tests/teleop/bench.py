"""Fake evdev and HID devices that replay given events."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace

from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.evdev_input import InputDevice, Names
from serl.teleop.spacemouse import SpaceMouse

STICK, TRIGGER = (-32768, 32767), (0, 1023)


class Clock:
    def __init__(self) -> None:
        self.time_s = 100.0

    def now_s(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> None:
        self.time_s += seconds


@dataclass
class Change:
    type: int
    code: int
    value: int


class Kernel:
    """Fake `evdev.InputDevice` with the state of a kernel device."""

    def __init__(self, ranges: dict[int, tuple[int, int]]) -> None:
        self.ranges = ranges
        self.values = {code: 0 for code in ranges}
        self.down: set[int] = set()
        self.waiting: deque[list[Change]] = deque()
        self.gone = False

    def read(self) -> Iterable[Change]:
        if self.gone:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if not self.waiting:
            raise BlockingIOError
        return iter(self.waiting.popleft())

    def active_keys(self) -> list[int]:
        return sorted(self.down)

    def absinfo(self, axis_num: int) -> object:
        low, high = self.ranges[axis_num]
        return SimpleNamespace(value=self.values[axis_num], min=low, max=high)

    def close(self) -> None:
        pass

    def happen(self, *changes: tuple[int, int, int]) -> None:
        """Queue events and the report that ends them."""
        for kind, code, value in changes:
            if kind == 1:
                (self.down.add if value else self.down.discard)(code)
            if kind == 3:
                self.values[code] = value
        self.waiting.append([Change(*change) for change in (*changes, (0, 0, 0))])


@dataclass
class InputBench(Clock):
    """Bench of a keyboard (pushes w) or a gamepad (pushes the deadman and the left stick)."""

    kernel: Kernel
    names: Names
    on: tuple[tuple[int, int, int], ...]
    off: tuple[tuple[int, int, int], ...]
    time_s: float = 100.0

    def __post_init__(self) -> None:
        self.device = InputDevice(self.kernel, self.names, "test device", self.now_s)
        self.mapping = keyboard.MAPPING if self.names is keyboard.NAMES else gamepad.MAPPING

    def push(self) -> None:
        self.kernel.happen(*self.on)

    def release(self) -> None:
        self.kernel.happen(*self.off)

    def die(self) -> None:
        self.kernel.happen(*self.off)  # the kernel releases all keys first
        self.kernel.gone = True


def keyboard_bench() -> InputBench:
    return InputBench(Kernel({}), keyboard.NAMES, ((1, 17, 1),), ((1, 17, 0),))


def gamepad_bench() -> InputBench:
    ranges = dict.fromkeys((0, 1, 3, 4), STICK) | dict.fromkeys((2, 5), TRIGGER)
    on = ((1, 311, 1), (3, 1, -32768))
    return InputBench(Kernel(ranges), gamepad.NAMES, on, ((1, 311, 0), (3, 1, 0)))


_PUSHED = bytes.fromhex("01 0000 5e01 0000")


@dataclass
class SpaceMouseBench(Clock):
    """Bench of a SpaceMouse that is pushed toward the operator."""

    waiting: deque[bytes] = field(default_factory=deque)
    battery: bool = False  # die() drains the battery instead of unplugging the device
    gone: bool = False
    pushed: bool = False  # sends a report at every instant
    last_report_s: float = 0.0
    time_s: float = 100.0

    def __post_init__(self) -> None:
        self.device = SpaceMouse(self._receive, now_s=self.now_s)
        self.mapping = spacemouse.MAPPING

    def _receive(self) -> bytes | None:
        if self.gone:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not self.waiting and self.pushed and self.last_report_s != self.time_s:
            self.waiting.append(_PUSHED)
        self.last_report_s = self.time_s
        return self.waiting.popleft() if self.waiting else None

    def push(self) -> None:
        self.pushed = True
        self.waiting.append(_PUSHED)

    def release(self) -> None:
        self.pushed = False
        self.waiting.append(bytes.fromhex("01 0000 0000 0000"))

    def die(self) -> None:
        self.pushed, self.gone = False, not self.battery
