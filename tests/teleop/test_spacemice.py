"""Choice among several SpaceMice: by path, serial number or USB port."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import spacemouse
from serl.teleop.mapping import AXES, read_wish
from serl.teleop.spacemouse import SpaceMouse, SpaceMouseInfo, open_spacemouse

COMPACT = "3Dconnexion SpaceMouse Compact"
PORTS = ("usb-0000:00:14.0-1/input0", "usb-0000:00:14.0-2/input0")
UP, BACK = bytes.fromhex("01 0000 0000 a2fe"), bytes.fromhex("01 0000 5e01 0000")


def plug(
    folder: Path,
    number: int,
    vendor: str,
    name: str,
    serial: str = "",
    port: str = "",
    product: str = "C635",
) -> None:
    """Create the sysfs entry of a HID device and a FIFO for its reports."""
    about = folder / "sys" / f"hidraw{number}" / "device"
    about.mkdir(parents=True)
    lines = (
        f"HID_ID=0003:{vendor}:0000{product}\nHID_NAME={name}\nHID_PHYS={port}\nHID_UNIQ={serial}\n"
    )
    (about / "uevent").write_text(lines)
    os.mkfifo(folder / f"hidraw{number}")


@pytest.fixture
def hidraw_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create two SpaceMice of one model and two other HID devices."""
    monkeypatch.setattr(spacemouse, "FOLDER", tmp_path / "sys")
    monkeypatch.setattr(spacemouse, "FILES", tmp_path)
    plug(tmp_path, 0, "0000046D", "Logitech USB Optical Mouse")
    plug(tmp_path, 1, "0000256F", COMPACT, "A17", PORTS[0])
    plug(tmp_path, 2, "00001234", "SpaceMouse of somebody else")
    plug(tmp_path, 3, "0000256F", COMPACT, "", PORTS[1])
    return tmp_path


def report(folder: Path, number: int, report: bytes) -> None:
    """Send a report from a device that is open."""
    with (folder / f"hidraw{number}").open("wb", buffering=0) as file:
        file.write(report)


def moved(device: SpaceMouse) -> dict[str, float]:
    wish = read_wish(device.read(), spacemouse.MAPPING)
    assert wish is not None
    return {axis: value for axis, value in zip(AXES, wish.motion, strict=True) if value}


def test_spacemice_are_found_by_vendor_and_name(hidraw_folder: Path) -> None:
    assert spacemouse._find() == [
        SpaceMouseInfo(hidraw_folder / "hidraw1", COMPACT, "C635", "A17", PORTS[0]),
        SpaceMouseInfo(hidraw_folder / "hidraw3", COMPACT, "C635", "", PORTS[1]),
    ]


@pytest.mark.parametrize(
    ("which", "number"),
    [(None, 1), ("A17", 1), (PORTS[0], 1), (PORTS[1], 3), ("hidraw3", 3)],
)
def test_spacemouse_is_chosen_by_path_serial_number_or_port(
    hidraw_folder: Path, which: str | None, number: int
) -> None:
    place = hidraw_folder / which if which == "hidraw3" else Path(which) if which else None
    device = open_spacemouse(place)
    assert device.name == COMPACT
    assert moved(device) == {}
    report(hidraw_folder, number, UP)
    assert moved(device) == {"z": 1.0}
    device.close()
    device.close()


def test_two_equal_spacemice_are_read_separately(hidraw_folder: Path) -> None:
    left, right = (open_spacemouse(Path(port)) for port in PORTS)
    report(hidraw_folder, 1, UP)
    report(hidraw_folder, 3, BACK)
    assert (moved(left), moved(right)) == ({"z": 1.0}, {"x": -1.0})
    left.close()
    right.close()


def test_unknown_spacemouse_is_refused_with_list_of_found_ones(hidraw_folder: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        open_spacemouse(Path("B99"))
    assert "no SpaceMouse 'B99' by path, serial number or port; found:" in str(refusal.value)
    assert f"{COMPACT} ({hidraw_folder}/hidraw1, serial A17, port {PORTS[0]})" in str(refusal.value)
    assert f"{COMPACT} ({hidraw_folder}/hidraw3, port {PORTS[1]})" in str(refusal.value)


@pytest.mark.parametrize(
    ("product", "bits", "buttons", "events"),
    [
        ("C635", [0, 12], {"left"}, ()),
        ("C62B", [0, 12, 22], {"menu", "1", "esc"}, (Event.STOP,)),
        ("C632", [14], {"3"}, (Event.SUCCESS,)),
        ("C633", [20, 21, 76, 175, 3], {"9", "10", "11", "space"}, ()),
    ],
)
def test_button_names_depend_on_spacemouse_model(
    hidraw_folder: Path, product: str, bits: list[int], buttons: set[str], events: tuple[Event, ...]
) -> None:
    plug(hidraw_folder, 4, "0000256F", "3Dconnexion SpaceMouse", "Z", product=product)
    device = open_spacemouse(Path("Z"))
    report(hidraw_folder, 4, bytes([3]) + sum(1 << bit for bit in bits).to_bytes(22, "little"))
    found = device.read()
    device.close()
    assert found.buttons == buttons
    wish = read_wish(found, spacemouse.MAPPING)
    assert wish is not None
    assert wish.events == events


_TABLES = [spacemouse._TWO_BUTTONS, *spacemouse._BUTTONS_OF.values()]
_REPORT = st.one_of(st.binary(max_size=64), st.binary(max_size=63).map(lambda body: b"\x03" + body))


@settings(deadline=None)
@given(st.sampled_from(_TABLES), st.lists(_REPORT, max_size=20))
def test_any_reports_give_motion_within_bounds(names: dict[int, str], reports: list[bytes]) -> None:
    pending = [*reports]
    device = SpaceMouse(lambda: pending.pop() if pending else None, names)
    found = device.read()
    assert all(abs(value) < 100 for value in found.axes.values())
    assert found.buttons <= set(names.values())
    wish = read_wish(found, spacemouse.MAPPING)
    assert wish is not None
    assert all(-1.0 <= value <= 1.0 for value in wish.motion)
