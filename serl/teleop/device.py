"""What a device reports, and the contract of its driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from serl.errors import SerlError


class DeviceLost(SerlError):
    """A device was unplugged, or can be read no more."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The state of a device.

    Attributes:
        axes: positions from -1 to 1, by name; an axis that is absent rests at 0.
        buttons: names of those held down.
        presses: names of those that went down since the last report, also for a moment only.
        stamp_s: monotonic time at which this was known to hold.
    """

    axes: Mapping[str, float]
    buttons: frozenset[str]
    presses: tuple[str, ...]
    stamp_s: float


class Device(Protocol):
    """A keyboard, a gamepad, a SpaceMouse, a topic: something with axes and buttons."""

    name: str

    def read(self) -> DeviceReport | None:
        """The state now, None before there is any; never blocks.

        Raises:
            DeviceLost: it is gone. It may come back.
        """
        ...

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        ...


@runtime_checkable
class RemoteDevice(Protocol):
    """What a `Device` has besides whose person is in another process, and may end with it."""

    @property
    def silence_s(self) -> float:
        """Seconds since that process was heard; infinite before it was."""
        ...


class Buttons:
    """Which buttons are down, and which were pressed since somebody looked."""

    def __init__(self) -> None:
        self._down: set[str] = set()
        self._presses: list[str] = []
        self._known = False

    def set(self, name: str, down: bool) -> None:
        """A button went down or up; saying the same twice changes nothing."""
        if down and name not in self._down:
            self._down.add(name)
            self._presses.append(name)
        if not down:
            self._down.discard(name)

    def hold(self, down: frozenset[str]) -> None:
        """Exactly these are down; those of the first call were never seen going down."""
        for name in self._down - down:
            self.set(name, False)
        for name in sorted(down):
            self.set(name, True)
        if not self._known:
            self._known = True
            self._presses.clear()

    def take(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Those that are down, and the presses since the last call."""
        presses, self._presses = tuple(self._presses), []
        return frozenset(self._down), presses
