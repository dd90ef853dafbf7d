"""Device reports and the contract of a device driver."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serl.errors import SerlError, described


class DeviceLost(SerlError):
    """A device was unplugged or can no longer be read."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The state of a device at one time.

    Attributes:
        axes: positions in [-1, 1], by name; an absent axis rests at 0.
        buttons: names of the buttons held down.
        presses: names of the buttons pressed since the last report, however briefly.
        stamp_s: monotonic time at which this state was known to hold.
    """

    axes: Mapping[str, float]
    buttons: frozenset[str]
    presses: tuple[str, ...]
    stamp_s: float


class Device(Protocol):
    """A source of axes and buttons: a keyboard, a gamepad, a SpaceMouse or a topic."""

    name: str

    def read(self) -> DeviceReport | None:
        """Return the current state, or None before the first one; never blocks.

        Raises:
            DeviceLost: the device is gone; it may come back.
        """
        ...

    def close(self) -> None:
        """Close the device; a second call does nothing."""
        ...


def read_device(device: Device) -> DeviceReport | None:
    """Return the current state of a device; any failure of its code counts as its loss.

    Raises:
        DeviceLost: the device is gone, or its code failed; the message names the file of the code.
    """
    try:
        return device.read()
    except DeviceLost:
        raise
    except Exception as error:  # each plug-in fails in its own way
        file = getattr(sys.modules.get(type(device).__module__), "__file__", device.name)
        raise DeviceLost(f"device {file}: read: {described(error)}") from error


@runtime_checkable
class RemoteDevice(Protocol):
    """A `Device` operated from another process, which may end independently."""

    @property
    def silence_s(self) -> float:
        """Seconds since the last message of the remote process; infinite before the first."""
        ...


class Buttons:
    """Button state: the buttons held down, and the presses since the last `take`."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._presses: list[str] = []
        self._known = False

    def set(self, name: str, down: bool) -> None:
        """Set a button down or up; repeating the current state changes nothing."""
        if down and name not in self._down:
            self._down.add(name)
            self._presses.append(name)
        if not down:
            self._down.discard(name)

    def hold(self, down: frozenset[str]) -> None:
        """Set exactly these buttons down; those of the first call do not count as presses."""
        for name in self._down - down:
            self.set(name, False)
        for name in sorted(down):
            self.set(name, True)
        if not self._known:
            self._known = True
            self._presses.clear()

    def take(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Return the buttons held down and the presses since the last call."""
        presses, self._presses = tuple(self._presses), []
        return frozenset(self._down), presses
