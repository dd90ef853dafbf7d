"""Keyboards and gamepads read through the kernel's evdev interface: no X11, Wayland or window.

The kernel keeps the state and reports changes only: no event means no change, and a removed device
raises an error when read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from serl.errors import BadInput
from serl.teleop.device import Buttons, DeviceLost, DeviceReport

FOLDER = Path("/dev/input")
_SYN, _KEY, _ABS, _DROPPED = 0, 1, 3, 3


class Range(NamedTuple):
    """Value and range of an axis, as reported by the kernel."""

    value: int
    min: int
    max: int


class EvdevEvent(Protocol):
    """An input event, as `evdev.InputEvent`."""

    type: int
    code: int
    value: int


class Input(Protocol):
    """The part of `evdev.InputDevice` that `InputDevice` uses."""

    def read(self) -> Iterable[EvdevEvent]:
        """Return pending events; raises `BlockingIOError` without any, `OSError` once unplugged."""
        ...

    def active_keys(self) -> list[int]:
        """Return the codes of the keys held down."""
        ...

    def absinfo(self, axis_num: int) -> Any:
        """Return the value and the range of an axis."""
        ...

    def close(self) -> None:
        """Close the device."""
        ...


class Names(NamedTuple):
    """Names of the codes of one kind of device; other codes are ignored.

    Attributes:
        keys: key names by code.
        axes: axis names by code.
        triggers: names of axes with range [0, 1] that rest at their lowest value.
    """

    keys: Mapping[int, str]
    axes: Mapping[int, str] = {}
    triggers: frozenset[str] = frozenset()


class InputDevice:
    """A `Device` read through evdev.

    Args:
        device: an open, non-blocking input device.
        names: names of its axes and buttons.
        name: name shown to operators.
        now_s: monotonic clock in seconds.
    """

    def __init__(
        self,
        device: Input,
        names: Names,
        name: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._device, self._names, self._now_s = device, names, now_s
        self._buttons, self._axes = Buttons(), dict[str, float]()
        self._ranges: dict[int, Range] = {}
        self._dropped = False
        for code in names.axes:
            with suppress(OSError, KeyError):  # the device lacks this axis
                info = device.absinfo(code)
                self._ranges[code] = Range(info.value, info.min, info.max)
        self._read_state()

    def read(self) -> DeviceReport:
        """Return the current state; raises `DeviceLost` once the device is gone."""
        try:
            while True:
                for event in self._device.read():
                    self._take(event)
        except BlockingIOError:
            pass
        except OSError as error:
            raise DeviceLost(f"{self.name}: {error.strerror or error}") from error
        return DeviceReport(dict(self._axes), *self._buttons.take(), self._now_s())

    def close(self) -> None:
        """Close the device; a second call does nothing."""
        self._device.close()

    def _take(self, event: EvdevEvent) -> None:
        if event.type == _SYN:
            if self._dropped and event.code != _DROPPED:
                self._read_state()  # events were lost before this one
            self._dropped = event.code == _DROPPED
        elif self._dropped:
            return
        elif event.type == _KEY and event.code in self._names.keys:
            self._buttons.set(self._names.keys[event.code], event.value != 0)  # 2 is a repetition
        elif event.type == _ABS and event.code in self._ranges:
            self._move(event.code, event.value)

    def _read_state(self) -> None:
        """Read the complete state from the kernel."""
        known = self._names.keys
        with suppress(OSError):  # the next read raises the error
            down = self._device.active_keys()
            self._buttons.hold(frozenset(known[code] for code in down if code in known))
            for code in self._ranges:
                self._move(code, self._device.absinfo(code).value)

    def _move(self, code: int, value: int) -> None:
        name, (_, low, high) = self._names.axes[code], self._ranges[code]
        share = (value - low) / (high - low) if high > low else 0.0
        self._axes[name] = share if name in self._names.triggers else 2.0 * share - 1.0


def open_input(names: Names, wanted: set[int], kind: str, path: Path | None = None) -> InputDevice:
    """Open the first device that has all `wanted` keys, or the one at `path`.

    Raises:
        BadInput: no device was found, permission is denied, or the package evdev is missing.
    """
    try:
        import evdev
    except ImportError:
        raise BadInput(f"{kind}: needs the package evdev: pip install evdev") from None
    refused = 0
    for each in [path] if path else sorted(FOLDER.glob("event*")):
        try:
            device = evdev.InputDevice(str(each))
        except OSError as error:
            refused += isinstance(error, PermissionError)
            if path:
                mend = (
                    "add yourself to the group input"
                    if refused
                    else f"expected one of {FOLDER}/event*"
                )
                raise BadInput(f"{kind} {path}: {error.strerror}; {mend}") from error
            continue
        if path or wanted <= set(device.capabilities().get(_KEY, [])):
            return InputDevice(device, names, f"{kind} {device.name}")
        device.close()
    hint = f"; {refused} may not be read: add yourself to the group input" if refused else ""
    raise BadInput(f"no {kind} found in {FOLDER}{hint}")
