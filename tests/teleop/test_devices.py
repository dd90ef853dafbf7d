from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import gamepad, keyboard, spacemouse
from serl.teleop.device import Device, DeviceLost
from serl.teleop.mapping import AXES, MappingConfig, Wish, read_wish
from serl.testing import DeviceSuite

from .bench import InputBench, SpaceMouseBench, gamepad_bench, keyboard_bench


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
def test_keys_move(keys: tuple[int, ...], motion: dict[str, float]) -> None:
    bench = keyboard_bench()
    bench.kernel.happen(*((1, key, 1) for key in keys))
    wish = wish_of(bench.device, keyboard.MAPPING)
    assert moved(wish) == motion
    assert wish.hands == (bool(motion) or keys == (57,))


def test_a_key_that_was_hit_for_a_moment_is_told_once() -> None:
    bench = keyboard_bench()
    bench.kernel.happen((1, 28, 1))
    bench.kernel.happen((1, 28, 2))
    bench.kernel.happen((1, 28, 0))
    assert wish_of(bench.device, keyboard.MAPPING).events == (Event.SUCCESS,)
    assert wish_of(bench.device, keyboard.MAPPING).events == ()


def test_all_that_was_said_between_two_looks_is_told_in_order() -> None:
    bench = keyboard_bench()
    for key in (14, 45, 1):
        bench.kernel.happen((1, key, 1), (1, key, 0))
    said = wish_of(bench.device, keyboard.MAPPING).events
    assert said == (Event.FAILURE, Event.DISCARD, Event.STOP)


def test_after_lost_events_the_state_is_asked_for() -> None:
    bench = keyboard_bench()
    bench.kernel.happen((1, 17, 1))
    assert wish_of(bench.device, keyboard.MAPPING).hands
    bench.kernel.happen((0, 3, 0), (1, 30, 1))  # the kernel dropped events, a release among them
    bench.kernel.down = {32}
    wish = wish_of(bench.device, keyboard.MAPPING)
    assert moved(wish) == {"y": -1.0}


def test_a_key_that_is_down_at_the_start_is_known() -> None:
    bench = keyboard_bench()
    bench.kernel.down = {17}
    bench.__post_init__()
    assert wish_of(bench.device, keyboard.MAPPING).hands


def test_sticks_and_triggers_move() -> None:
    bench = gamepad_bench()
    bench.kernel.happen((3, 1, -32768), (3, 0, 32767), (3, 5, 1023))
    wish = wish_of(bench.device, gamepad.MAPPING)
    assert moved(wish) == {"x": 1.0, "y": -1.0, "gripper": 1.0}
    assert not wish.hands, "without its deadman a stick moves nothing"


@pytest.mark.parametrize(("value", "moves"), [(0, 0.0), (3000, 0.0), (32767, 1.0), (18022, 0.5)])
def test_the_dead_zone_is_rest_and_motion_begins_gently_beyond(value: int, moves: float) -> None:
    bench = gamepad_bench()
    bench.kernel.happen((3, 3, value))
    wish = wish_of(bench.device, gamepad.MAPPING)
    assert -wish.motion[AXES.index("yaw")] == pytest.approx(moves, abs=1e-3)


def test_a_pad_that_counts_from_zero_rests_in_its_middle() -> None:
    bench = gamepad_bench()
    bench.kernel.ranges[1] = (0, 255)
    bench.kernel.values[1] = 128
    bench.__post_init__()
    assert moved(wish_of(bench.device, gamepad.MAPPING)) == {}
    bench.kernel.happen((3, 1, 0))
    assert moved(wish_of(bench.device, gamepad.MAPPING)) == {"x": 1.0}


def test_a_wired_spacemouse_reports_translation_and_rotation_apart() -> None:
    bench = SpaceMouseBench()
    bench.waiting += [bytes.fromhex("01 5e01 0000 a2fe"), bytes.fromhex("02 0000 0000 a2fe")]
    wish = wish_of(bench.device, spacemouse.MAPPING)
    assert moved(wish) == {"y": -1.0, "z": 1.0, "yaw": 1.0}


def test_a_wireless_spacemouse_reports_both_at_once() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("01 0000 a2fe 0000 0000 0000 5e01"))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {"x": 1.0, "yaw": -1.0}


def test_its_buttons_close_and_open_the_gripper() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("03 01 00"))
    wish = wish_of(bench.device, spacemouse.MAPPING)
    assert (moved(wish), wish.hands) == ({"gripper": -1.0}, True)
    bench.waiting.append(bytes.fromhex("03 02 00"))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {"gripper": 1.0}


@pytest.mark.parametrize("report", ["", "01", "01 00", "02 0000", "17 0102", "03", "ff" * 64])
def test_other_reports_are_ignored(report: str) -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex(report))
    assert moved(wish_of(bench.device, spacemouse.MAPPING)) == {}


def test_a_device_beyond_its_range_is_kept_within_one() -> None:
    bench = SpaceMouseBench()
    bench.waiting.append(bytes.fromhex("01 0080 ff7f 0000"))
    motion = wish_of(bench.device, spacemouse.MAPPING).motion
    assert motion[:3] == (-1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "opened", [keyboard.open_keyboard, gamepad.open_gamepad, spacemouse.open_spacemouse]
)
def test_a_device_that_is_not_there_is_one_clear_line(opened: object, tmp_path: Path) -> None:
    assert callable(opened)
    with pytest.raises(BadInput, match="nothing_here"):
        opened(tmp_path / "nothing_here")


UINPUT = Path("/dev/uinput")


@pytest.fixture
def virtual() -> Iterator[SimpleNamespace]:
    """A keyboard of the kernel, made by uinput."""
    if not os.access(UINPUT, os.W_OK):
        pytest.skip(f"NO REAL INPUT DEVICE TESTED: {UINPUT} is missing or may not be written")
    import evdev

    made = evdev.UInput({1: list(keyboard.NAMES.keys)}, name="serl test keyboard")
    yield SimpleNamespace(input=made, path=Path(str(made.device.path)))
    made.close()


def test_a_real_keyboard_of_the_kernel_is_read_and_lost(virtual: SimpleNamespace) -> None:
    device = keyboard.open_keyboard(virtual.path)
    assert not wish_of(device, keyboard.MAPPING).hands
    virtual.input.write(1, 17, 1)
    virtual.input.syn()
    assert moved(wish_of(device, keyboard.MAPPING)) == {"x": 1.0}
    virtual.input.close()
    with pytest.raises(DeviceLost, match=os.strerror(errno.ENODEV)):
        device.read()
