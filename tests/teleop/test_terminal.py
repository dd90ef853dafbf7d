"""Terminal as a keyboard: key timing, escape sequences and terminal mode."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import keyboard
from serl.teleop.device import DeviceLost
from serl.teleop.mapping import AXES, Wish, read_wish
from serl.teleop.terminal import HANDS_S, MOTION_S, TerminalKeyboard, _split
from serl.testing import DeviceSuite

from .bench import Clock


class TerminalBench(Clock):
    """Bench of a pseudo-terminal; each push types w."""

    def __init__(self) -> None:
        super().__init__()
        self.far, self.near = pty.openpty()
        self.device = TerminalKeyboard(self.near, now_s=self.now_s)
        self.mapping = keyboard.MAPPING

    def type(self, typed: bytes) -> None:
        os.write(self.far, typed)

    def push(self) -> None:
        self.type(b"w")

    def release(self) -> None:
        self.wait(HANDS_S + 0.01)

    def die(self) -> None:
        os.close(self.far)

    def wish(self) -> Wish:
        wish = read_wish(self.device.read(), self.mapping)
        assert wish is not None
        return wish

    def motion(self) -> dict[str, float]:
        return {axis: value for axis, value in zip(AXES, self.wish().motion, strict=True) if value}


class TestTerminal(DeviceSuite):
    def make(self) -> TerminalBench:
        return TerminalBench()


@pytest.fixture
def bench() -> Iterator[TerminalBench]:
    bench = TerminalBench()
    yield bench
    bench.device.close()


def test_terminal_key_moves_briefly_and_keeps_control_until_repeat_delay(
    bench: TerminalBench,
) -> None:
    bench.push()
    assert bench.motion() == {"x": 1.0}
    bench.wait(MOTION_S + 0.01)
    wish = bench.wish()
    assert wish.hands
    assert not any(wish.motion)
    bench.push()  # the first repetition
    assert bench.motion() == {"x": 1.0}
    bench.release()
    assert not bench.wish().hands


def test_space_takes_over_and_holds_robot(bench: TerminalBench) -> None:
    bench.type(b" ")
    wish = bench.wish()
    assert wish.hands
    assert not any(wish.motion)


@pytest.mark.parametrize(
    ("typed", "motion"),
    [
        (b"\x1b[A", {"x": 1.0}),
        (b"\x1b[C\x1b[5~", {"y": -1.0, "z": 1.0}),
        (b"W", {"x": 1.0}),
        (b"wa", {"x": 1.0, "y": 1.0}),
        (b"\x1b[1;5P\xc3\xa4?", {}),
    ],
)
def test_arrows_and_letters_map_to_motion(
    bench: TerminalBench, typed: bytes, motion: dict[str, float]
) -> None:
    bench.type(typed)
    assert bench.motion() == motion


@pytest.mark.parametrize("typed", [b"\x1b", b"\x1bw", b"\x1b\x1b[A", b"\x1b["])
def test_escape_stops_unless_it_begins_sequence(bench: TerminalBench, typed: bytes) -> None:
    bench.type(typed)
    assert bench.wish().events == (Event.STOP,)


def test_held_label_key_is_one_label(bench: TerminalBench) -> None:
    bench.type(b"\r\r")
    assert bench.wish().events == (Event.SUCCESS,)
    bench.wait(0.5)
    bench.type(b"\r")
    assert bench.wish().events == ()
    bench.release()
    bench.type(b"\x7f")
    assert bench.wish().events == (Event.FAILURE,)


def test_terminal_mode_is_set_again_after_change_and_restored_at_close() -> None:
    bench = TerminalBench()
    assert not _is_line_mode(bench.near)
    mode = termios.tcgetattr(bench.near)
    mode[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(bench.near, termios.TCSANOW, mode)
    bench.device.read()
    bench.push()
    assert bench.motion() == {"x": 1.0}
    bench.device.close()
    bench.device.close()
    assert _is_line_mode(bench.near)


def test_ctrl_c_remains_interrupt(bench: TerminalBench) -> None:
    assert termios.tcgetattr(bench.near)[3] & termios.ISIG


def test_hung_up_terminal_is_lost_device(bench: TerminalBench) -> None:
    bench.die()
    with pytest.raises(DeviceLost, match="this terminal"):
        bench.device.read()


def test_file_is_refused_as_terminal() -> None:
    with open(os.devnull) as file, pytest.raises(BadInput, match="is no terminal"):
        TerminalKeyboard(file.fileno())


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_split_into_known_keys(typed: bytes) -> None:
    assert set(_split(typed)) <= set(keyboard.NAMES.keys.values())


def _is_line_mode(descriptor: int) -> bool:
    return bool(termios.tcgetattr(descriptor)[3] & termios.ICANON)
