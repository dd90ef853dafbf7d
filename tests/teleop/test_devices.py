from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.device import Device, DeviceLost
from serl.teleop.mapping import AXES, MappingConfig, Wish, read_wish
from serl.testing import DeviceSuite

from .bench import Change, InputBench, SpaceMouseBench, gamepad_bench, keyboard_bench


class TestKeyboard(DeviceSuite):
    def make(self) -> InputBench:
        return keyboard_bench()


class TestGamepad(DeviceSuite):
    def make(self) -> InputBench:
        return gamepad_bench()


class TestSpaceMouse(DeviceSuite):
    def make(self) -> SpaceMouseBench:
        return SpaceMouseBench()


class TestWirelessSpaceMouse(DeviceSuite):
    def make(self) -> SpaceMouseBench:
        return SpaceMouseBench(battery=True)


def wish_of(device: Device, mapping: MappingConfig) -> Wish:
    report = device.read()
    assert report is not None
    wish = read_wish(report, mapping)
    assert wish is not None
    return wish


def moved(wish: Wish) -> dict[str, float]:
    pairs = zip(AXES, wish.motion, strict=True)
    return {axis: round(value, 3) for axis, value in pairs if value}


@pytest.mark.parametrize(
    ("keys", "motion"),
    [
        ((17,), {"x": 1.0}),
        ((31,), {"x": -1.0}),
        ((30, 19), {"y": 1.0, "z": 1.0}),
        ((17, 31), {}),
        ((46,), {"gripper": -1.0}),
        ((57,), {}),
    ],
)
def test_keyboard_keys_map_to_motion(keys: tuple[int, ...], motion: dict[str, float]) -> None:
    bench = keyboard_bench()
    bench.kernel.happen(*((1, key, 1) for key in keys))
    wish = wish_of(bench.device, keyboard.MAPPING)
    assert moved(wish) == motion
    assert wish.hands == (bool(motion) or keys == (57,))


def test_short_key_press_is_reported_once() -> None:
    bench = keyboard_bench()
    bench.kernel.happen((1, 28, 1))
    bench.kernel.happen((1, 28, 2))
    bench.kernel.happen((1, 28, 0))
    assert wish_of(bench.device, keyboard.MAPPING).events == (Event.SUCCESS,)
    assert wish_of(bench.device, keyboard.MAPPING).events == ()


def test_events_between_two_reads_are_reported_in_order() -> None:
    bench = keyboard_bench()
    for key in (14, 45, 1):
        bench.kernel.happen((1, key, 1), (1, key, 0))
    events = wish_of(bench.device, keyboard.MAPPING).events
    assert events == (Event.FAILURE, Event.DISCARD, Event.STOP)


def test_keyboard_state_is_queried_after_dropped_events() -> None:
    bench = keyboard_bench()
    bench.kernel.happen((1, 17, 1))
    assert wish_of(bench.device, keyboard.MAPPING).hands
    bench.kernel.happen((0, 3, 0), (1, 30, 1))  # the kernel dropped events, a release among them
    bench.kernel.down = {32}
    wish = wish_of(bench.device, keyboard.MAPPING)
    assert moved(wish) == {"y": -1.0}


def test_key_down_at_start_is_reported() -> None:
    bench = keyboard_bench()
    bench.kernel.down = {17}
    bench.__post_init__()
    assert wish_of(bench.device, keyboard.MAPPING).hands


def test_gamepad_sticks_and_triggers_map_to_motion() -> None:
    bench = gamepad_bench()
    bench.kernel.happen((3, 1, -32768), (3, 0, 32767), (3, 5, 1023))
    wish = wish_of(bench.device, gamepad.MAPPING)
    assert moved(wish) == {"x": 1.0, "y": -1.0, "gripper": 1.0}
    assert not wish.hands, "the stick drives without the deadman"


@pytest.mark.parametrize(("value", "moves"), [(0, 0.0), (3000, 0.0), (32767, 1.0), (18022, 0.5)])
def test_stick_motion_starts_from_zero_at_edge_of_dead_zone(value: int, moves: float) -> None:
    bench = gamepad_bench()
    bench.kernel.happen((3, 3, value))
    wish = wish_of(bench.device, gamepad.MAPPING)
    assert -wish.motion[AXES.index("yaw")] == pytest.approx(moves, abs=1e-3)


def test_gamepad_with_range_from_zero_rests_at_center() -> None:
    bench = gamepad_bench()
    bench.kernel.ranges[1] = (0, 255)
    bench.kernel.values[1] = 128
    bench.__post_init__()
    assert moved(wish_of(bench.device, gamepad.MAPPING)) == {}
    bench.kernel.happen((3, 1, 0))
    assert moved(wish_of(bench.device, gamepad.MAPPING)) == {"x": 1.0}


def test_wired_spacemouse_reports_translation_and_rotation_separately() -> None:
    bench = SpaceMouseBench()
    bench.waiting += [bytes.fromhex("01 5e01 0000 a2fe"), bytes.fromhex("02 0000 0000 a2fe")]
    wish = wish_of(bench.device, spacemouse.MAPPING)
    assert moved(wish) == {"y": -1.0, "z": 1.0, "yaw": 1.0}


def test_wireless_spacemouse_reports_translation_and_rotation_together() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("01 0000 a2fe 0000 0000 0000 5e01"))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {"x": 1.0, "yaw": -1.0}


def test_spacemouse_buttons_close_and_open_gripper() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("03 01 00"))
    wish = wish_of(bench.device, spacemouse.MAPPING)
    assert (moved(wish), wish.hands) == ({"gripper": -1.0}, True)
    bench.waiting.append(bytes.fromhex("03 02 00"))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {"gripper": 1.0}


@pytest.mark.parametrize("report", ["", "01", "01 00", "02 0000", "17 0102", "03", "ff" * 64])
def test_spacemouse_ignores_unknown_reports(report: str) -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex(report))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {}


def test_motion_of_device_beyond_its_range_is_clipped_to_one() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("01 0080 ff7f 0000"))
    motion = wish_of(bench.device, spacemouse.MAPPING).motion
    assert motion[:3] == (-1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "open_device", [keyboard.open_keyboard, gamepad.open_gamepad, spacemouse.open_spacemouse]
)
def test_opening_missing_device_names_its_path(open_device: object, tmp_path: Path) -> None:
    assert callable(open_device)
    with pytest.raises(BadInput, match="nothing_here"):
        open_device(tmp_path / "nothing_here")


UINPUT = Path("/dev/uinput")


@pytest.fixture
def uinput_keyboard() -> Iterator[SimpleNamespace]:
    """Create a virtual keyboard in the kernel with uinput."""
    if not os.access(UINPUT, os.W_OK):
        pytest.skip(f"NO REAL INPUT DEVICE TESTED: {UINPUT} is missing or may not be written")
    import evdev

    made = evdev.UInput({1: list(keyboard.NAMES.keys)}, name="serl test keyboard")
    yield SimpleNamespace(input=made, path=Path(str(made.device.path)))
    made.close()


def test_uinput_keyboard_is_read_and_then_lost(uinput_keyboard: SimpleNamespace) -> None:
    device = keyboard.open_keyboard(uinput_keyboard.path)
    assert not wish_of(device, keyboard.MAPPING).hands
    uinput_keyboard.input.write(1, 17, 1)
    uinput_keyboard.input.syn()
    assert moved(wish_of(device, keyboard.MAPPING)) == {"x": 1.0}
    uinput_keyboard.input.close()
    with pytest.raises(DeviceLost, match=os.strerror(errno.ENODEV)):
        device.read()


_CODE = st.one_of(st.sampled_from([0, 1, 2, 3, 5, 17, 304, 311]), st.integers(0, 2**16 - 1))
_VALUE = st.one_of(st.sampled_from([0, 1, 2]), st.integers(-(2**31), 2**31 - 1))
_EVENT = st.tuples(st.sampled_from([0, 1, 2, 3, 4]), _CODE, _VALUE)


@pytest.mark.parametrize("make", [keyboard_bench, gamepad_bench])
@settings(max_examples=150, deadline=None)
@given(reports=st.lists(st.lists(_EVENT, max_size=8), max_size=8))
def test_any_kernel_events_give_motion_within_bounds(
    make: Callable[[], InputBench], reports: list[list[tuple[int, int, int]]]
) -> None:
    bench = make()
    for events in reports:
        bench.kernel.waiting.append([Change(*event) for event in events])
    wish = wish_of(bench.device, bench.mapping)
    assert all(-1.0 <= value <= 1.0 for value in wish.motion)
