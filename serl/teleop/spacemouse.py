"""SpaceMouse devices, read by raw HID reports: no driver or package to install."""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from serl.errors import BadInput
from serl.intervention import Event
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
    pushes={
        "left": ("gripper", -1.0),
        "right": ("gripper", 1.0),
        "1": ("gripper", -1.0),
        "2": ("gripper", 1.0),
    },
    dead_zone=0.1,
    threshold=0.001,
    events={
        "3": Event.SUCCESS,
        "4": Event.FAILURE,
        "alt": Event.DISCARD,
        "ctrl": Event.RESET,
        "esc": Event.STOP,
    },
)
"""Moving the device takes over; its buttons close and open the gripper, as in HIL-SERL.

A device with two buttons has none left for labels; those come from the console or a keyboard. The
numbered keys, and those with a name, are those of the SpaceMouse Pro and Enterprise.
"""


_VENDORS = {"0000046D", "0000256F"}  # Logitech made them before 3Dconnexion did
_HID_ID = re.compile(r"^HID_ID=[0-9A-F]{4}:([0-9A-F]{8}):([0-9A-F]{8})$", re.MULTILINE)
_FACT = re.compile(r"^HID_(NAME|UNIQ|PHYS)=(.*)$", re.MULTILINE)
_FULL = 350.0  # counts at the end of an axis
_MAX_REPORT_BYTES = 64
_MOTION, _ROTATION, _BUTTONS = 1, 2, 3

_TWO_BUTTONS = {0: "left", 1: "right"}
_PRO_BUTTONS = {
    0: "menu",
    1: "fit",
    2: "top",
    4: "right side",
    5: "front",
    8: "roll",
    12: "1",
    13: "2",
    14: "3",
    15: "4",
    22: "esc",
    23: "alt",
    24: "shift",
    25: "ctrl",
    26: "lock",
}
_ENTERPRISE_BUTTONS = (
    _PRO_BUTTONS
    | {10: "iso", 35: "enter", 36: "delete", 174: "tab", 175: "space"}
    | {11 + number: str(number) for number in range(1, 11)}
    | {76: "11", 77: "12", 102: "view 1", 103: "view 2", 104: "view 3"}
)
_BUTTONS_OF = dict.fromkeys(("C62B", "C631", "C632", "C638"), _PRO_BUTTONS) | {
    "C633": _ENTERPRISE_BUTTONS
}
"""Button names by the number of their bit in the report, by USB product; others have two buttons.

The numbers of the Pro are those of `SpaceMousePro_HID_map` in Blender's NDOF manager, those of the
Enterprise of a public decoder of these reports. None was checked on a device.
"""


class SpaceMouseInfo(NamedTuple):
    """A connected SpaceMouse.

    Attributes:
        path: device file; its number changes between boots.
        name: the vendor's name of the device.
        product: number of the USB product, four hexadecimal digits.
        serial: serial number; often empty.
    """

    path: Path
    name: str
    product: str
    serial: str
    port: str

    def __str__(self) -> str:
        facts = [str(self.path), self.serial and f"serial {self.serial}", f"port {self.port}"]
        return f"{self.name} ({', '.join(filter(None, facts))})"


class SpaceMouse:
    """A `Device` that decodes the reports of 3Dconnexion devices.

    Wired devices send translation and rotation separately, 6 bytes each; wireless ones send both in
    one report of 12 bytes. Other reports are ignored. A device reports continuously while it is
    pushed and never at rest, so the last report goes stale if it stops while pushed, for example
    when its battery is flat.

    Args:
        receive: returns the next pending report, its id first; None without one.
        buttons: button names by the number of their bit in a report.
        name: name shown to operators.
        now_s: monotonic clock in seconds.
        close: closes the device.
    """

    def __init__(
        self,
        receive: Callable[[], bytes | None],
        buttons: Mapping[int, str] = _TWO_BUTTONS,
        name: str = "SpaceMouse",
        now_s: Callable[[], float] = time.monotonic,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._receive, self._now_s, self._close = receive, now_s, close
        self._names = buttons
        self._buttons, self._axes = Buttons(), dict.fromkeys(MAPPING.axes, 0.0)
        self._report_s = now_s()

    def read(self) -> DeviceReport:
        """Return the current state; raises `DeviceLost` once the device is gone."""
        try:
            while (report := self._receive()) is not None:
                self._take(report)
                self._report_s = self._now_s()
        except OSError as error:
            raise DeviceLost(f"{self.name}: {error.strerror or error}") from error
        stamp_s = self._report_s if any(self._axes.values()) else self._now_s()
        return DeviceReport(dict(self._axes), *self._buttons.take(), stamp_s)

    def close(self) -> None:
        """Close the device; a second call does nothing."""
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
            held = int.from_bytes(body, "little")
            for bit, name in self._names.items():
                self._buttons.set(name, bool(held >> bit & 1))

    def _translate(self, body: bytes) -> None:
        """Convert translation from right, backward and down to forward, left and up."""
        right, back, down = _shares(body)
        self._axes |= {"x": -back, "y": -right, "z": -down}

    def _rotate(self, body: bytes) -> None:
        """Convert rotation about the same axes."""
        right, back, down = _shares(body)
        self._axes |= {"roll": -back, "pitch": -right, "yaw": -down}


def open_spacemouse(which: Path | None = None) -> SpaceMouse:
    """Open the first SpaceMouse, or the one with a path (/dev/hidraw0), serial number or USB port.

    Raises:
        BadInput: no device was found, or permission is denied.
    """
    device, name, product = _choose(which)
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

    buttons = _BUTTONS_OF.get(product, _TWO_BUTTONS)
    return SpaceMouse(receive, buttons, name, close=lambda: os.close(file))


def _choose(which: Path | None) -> tuple[Path, str, str]:
    """Return path, name and product of a connected device; another path is accepted unchecked."""
    found = _find()
    if which is None:
        if not found:
            raise BadInput(f"no SpaceMouse found in {FOLDER}")
        return found[0][:3]
    for each in found:
        if str(which) in {str(each.path), each.serial, each.port}:
            return each[:3]
    if which.exists() or which.is_absolute():
        return which, f"SpaceMouse {which.name}", ""
    there = "; ".join(map(str, found)) or "none"
    raise BadInput(f"no SpaceMouse {str(which)!r} by path, serial number or port; found: {there}")


def _find() -> list[SpaceMouseInfo]:
    """List the vendors' SpaceMouse devices, without mice and keyboards of the same vendor."""
    found = []
    for each in sorted(FOLDER.glob("hidraw*")):
        try:
            about = (each / "device" / "uevent").read_text(errors="replace")
        except OSError:  # unplugged meanwhile
            continue
        ids, facts = _HID_ID.search(about), dict(_FACT.findall(about))
        name = facts.get("NAME", "")
        if ids and ids[1] in _VENDORS and re.search(r"Space|3Dconnexion", name):
            path = FILES / each.name
            serial, port = facts.get("UNIQ", ""), facts.get("PHYS", "")
            found.append(SpaceMouseInfo(path, name, ids[2][-4:], serial, port))
    return found


def _shares(body: bytes) -> tuple[float, float, float]:
    a, b, c = struct.unpack("<3h", body)
    return a / _FULL, b / _FULL, c / _FULL


class SpaceMice:
    """The SpaceMouse's `serl.teleop.mapping.DeviceKind`; its mapping is `teleop.spacemouse`."""

    Config = MappingConfig

    @staticmethod
    def open(path: Path | None, config: MappingConfig) -> SpaceMouse:
        """Open a SpaceMouse; see `open_spacemouse`."""
        return open_spacemouse(path)


device = SpaceMice
