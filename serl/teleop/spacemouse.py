"""A SpaceMouse, by the raw reports of its HID interface: nothing to install, no driver."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from serl.errors import BadInput
from serl.teleop.device import Buttons, DeviceLost, DeviceReport
from serl.teleop.mapping import MappingConfig

FOLDER, FILES = Path("/sys/class/hidraw"), Path("/dev")

MAPPING = MappingConfig(
    axes={
        "x": ("x", 1.0),
        "y": ("y", 1.0),
        "z": ("z", 1.0),
        "roll": ("roll", 1.0),
        "pitch": ("pitch", 1.0),
        "yaw": ("yaw", 1.0),
    },
    pushes={"left": ("gripper", -1.0), "right": ("gripper", 1.0)},
    dead_zone=0.1,
    threshold=0.001,
)
"""To move it is to take over; its buttons close and open the gripper, as in HIL-SERL.

They leave none for labels; those come from the console or a keyboard.
"""


_VENDORS = {"0000046D", "0000256F"}  # Logitech made them before 3Dconnexion did
_HID_ID = re.compile(r"^HID_ID=[0-9A-F]{4}:([0-9A-F]{8}):([0-9A-F]{8})$", re.MULTILINE)
_FACT = re.compile(r"^HID_(NAME|UNIQ|PHYS)=(.*)$", re.MULTILINE)
_FULL = 350.0  # counts at the end of an axis
_MAX_REPORT_BYTES = 64
_MOTION, _ROTATION, _BUTTONS = 1, 2, 3


class Found(NamedTuple):
    """A SpaceMouse that is plugged in.

    Attributes:
        path: to open; numbers change from start to start.
        name: as its vendor calls it.
        serial: its own number; many have none.
        port: of USB that it is plugged into.
    """

    path: Path
    name: str
    serial: str
    port: str

    def __str__(self) -> str:
        facts = [str(self.path), self.serial and f"serial {self.serial}", f"port {self.port}"]
        return f"{self.name} ({', '.join(filter(None, facts))})"


class SpaceMouse:
    """A `Device` that decodes reports of 3Dconnexion's devices.

    Wired ones send translation and rotation apart, 6 bytes each; wireless ones send both in one
    report of 12 bytes. A report that is none of them is ignored. Pushed they report all the time,
    at rest never: so what they said last is old while they are pushed, as when a battery is flat.

    Args:
        receive: the next report that waits, its id first; None without one.
        name: shown to people.
        now_s: monotonic seconds.
        close: lets go of it.
    """

    def __init__(
        self,
        receive: Callable[[], bytes | None],
        name: str = "SpaceMouse",
        now_s: Callable[[], float] = time.monotonic,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._receive, self._now_s, self._close = receive, now_s, close
        self._buttons, self._axes = Buttons(), dict.fromkeys(MAPPING.axes, 0.0)
        self._heard_s = now_s()

    def read(self) -> DeviceReport:
        """The state now; raises `DeviceLost` once it is gone."""
        try:
            while (report := self._receive()) is not None:
                self._take(report)
                self._heard_s = self._now_s()
        except OSError as error:
            raise DeviceLost(f"{self.name}: {error.strerror or error}") from error
        said_s = self._heard_s if any(self._axes.values()) else self._now_s()
        return DeviceReport(dict(self._axes), *self._buttons.take(), said_s)

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        self._close()
        self._close = lambda: None

    def _take(self, report: bytes) -> None:
        kind, body = report[:1], report[1:]
        if kind == bytes([_MOTION]) and len(body) in {6, 12}:
            self._translate(body[:6])
            if len(body) == 12:
                self._rotate(body[6:])
        elif kind == bytes([_ROTATION]) and len(body) == 6:
            self._rotate(body)
        elif kind == bytes([_BUTTONS]) and body:
            self._buttons.set("left", bool(body[0] & 1))
            self._buttons.set("right", bool(body[0] & 2))

    def _translate(self, body: bytes) -> None:
        """The device counts to the right, to the person and down; we forward, left and up."""
        right, back, down = _shares(body)
        self._axes |= {"x": -back, "y": -right, "z": -down}

    def _rotate(self, body: bytes) -> None:
        """About the same axes."""
        right, back, down = _shares(body)
        self._axes |= {"roll": -back, "pitch": -right, "yaw": -down}


def open_spacemouse(which: Path | None = None) -> SpaceMouse:
    """The first SpaceMouse, or the one of a path such as /dev/hidraw0, a serial number or a port.

    Raises:
        BadInput: there is none, or it may not be read.
    """
    device, name = _choose(which)
    try:
        file = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        hint = "; a udev rule may allow it" if isinstance(error, PermissionError) else ""
        raise BadInput(f"{name} {device}: {error.strerror}{hint}") from error

    def receive() -> bytes | None:
        try:
            report = os.read(file, _MAX_REPORT_BYTES)
        except BlockingIOError:
            return None
        return report or None

    return SpaceMouse(receive, name, close=lambda: os.close(file))


def _choose(which: Path | None) -> tuple[Path, str]:
    """Path and name of one that is there, or of whatever is at a path."""
    found = _find()
    if which is None:
        if not found:
            raise BadInput(f"no SpaceMouse found in {FOLDER}")
        return found[0][:2]
    for each in found:
        if str(which) in {str(each.path), each.serial, each.port}:
            return each[:2]
    if which.exists() or which.is_absolute():
        return which, f"SpaceMouse {which.name}"
    there = "; ".join(map(str, found)) or "none"
    raise BadInput(f"no SpaceMouse {str(which)!r} by path, serial number or port; found: {there}")


def _find() -> list[Found]:
    """Devices of the vendors, and their names; not mice and keyboards of the same vendor."""
    found = []
    for each in sorted(FOLDER.glob("hidraw*")):
        about = (each / "device" / "uevent").read_text(errors="replace")
        ids, facts = _HID_ID.search(about), dict(_FACT.findall(about))
        name = facts.get("NAME", "")
        if ids and ids[1] in _VENDORS and re.search(r"Space|3Dconnexion", name):
            path = FILES / each.name
            found.append(Found(path, name, facts.get("UNIQ", ""), facts.get("PHYS", "")))
    return found


def _shares(body: bytes) -> tuple[float, float, float]:
    a, b, c = struct.unpack("<3h", body)
    return a / _FULL, b / _FULL, c / _FULL


class SpaceMice:
    """See `serl.teleop.mapping.DeviceKind`; the mapping is `teleop.spacemouse`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> SpaceMouse:
        """As `open_spacemouse`."""
        return open_spacemouse(path)


device = SpaceMice
