"""A gamepad by pygame, played by what looks like its joystick; no package is needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import gamepad
from serl.teleop.device import DeviceLost
from serl.teleop.gamepad import BUTTONS, PygamePad, open_pygame_pad
from serl.teleop.mapping import Wish, read_wish
from serl.testing import DeviceSuite

from .bench import Clock


class Joystick:
    """As pygame's, of an Xbox pad."""

    def __init__(self) -> None:
        self.axes, self.down, self.there = [0.0] * 6, set[int](), True

    def get_name(self) -> str:
        return "pad"

    def get_init(self) -> bool:
        return self.there

    def get_numaxes(self) -> int:
        return len(self.axes)

    def get_axis(self, number: int) -> float:
        return self.axes[number]

    def get_numbuttons(self) -> int:
        return 11

    def get_button(self, number: int) -> bool:
        return number in self.down

    def quit(self) -> None:
        self.there = False


class PadBench(Clock):
    """The right shoulder and the left stick."""

    def __init__(self) -> None:
        super().__init__()
        self.joystick, self.mapping = Joystick(), gamepad.MAPPING
        self.removed = False
        self.device = PygamePad(self.joystick, lambda: self.removed, self.now_s)

    def push(self) -> None:
        self.joystick.down.add(BUTTONS.index("right_shoulder"))
        self.joystick.axes[1] = -1.0

    def let_go(self) -> None:
        self.joystick.down.clear()
        self.joystick.axes[1] = 0.0

    def die(self) -> None:
        self.let_go()  # SDL centres what was pulled out
        self.removed = True


class TestPygamePad(DeviceSuite):
    def make(self) -> PadBench:
        return PadBench()


def wish(bench: PadBench) -> Wish:
    found = read_wish(bench.device.read(), bench.mapping)
    assert found is not None
    return found


def test_a_trigger_that_was_never_moved_is_at_rest() -> None:
    bench = PadBench()
    assert wish(bench).motion[6] == 0.0
    bench.joystick.axes[5] = -1.0  # let go of again
    assert wish(bench).motion[6] == 0.0
    bench.joystick.axes[5] = 1.0
    assert wish(bench).motion[6] == 1.0


def test_buttons_say_what_they_say_by_evdev() -> None:
    bench = PadBench()
    wish(bench)
    bench.joystick.down.add(BUTTONS.index("south"))
    assert wish(bench).events == (Event.SUCCESS,)
    bench.die()
    with pytest.raises(DeviceLost, match="gamepad pad: was unplugged"):
        bench.device.read()


def test_without_both_packages_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.setattr(gamepad, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"needs the package evdev: .* or pygame"):
        gamepad.open_gamepad()


def test_without_a_pad_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stick = SimpleNamespace(init=lambda: None, get_count=lambda: 0)
    pygame = SimpleNamespace(init=lambda: None, joystick=stick)
    monkeypatch.setitem(sys.modules, "pygame", pygame)
    with pytest.raises(BadInput, match="no gamepad found by pygame"):
        open_pygame_pad()
