"""A person with a SpaceMouse in each hand: two arms, one owner, and both hold when either dies."""

from __future__ import annotations

import numpy as np
import pytest

from serl.bimanual import Pair
from serl.errors import BadInput
from serl.intervention import Event
from serl.teleop import gamepad, spacemouse
from serl.teleop.mapping import Wish, split_wish
from serl.teleop.operator import Hands, Operator, OperatorConfig
from serl.testing import FakeRobot
from serl.types import Action

from .bench import InputBench, SpaceMouseBench, gamepad_bench

HABITS = OperatorConfig(hold_over_s=0.25, stale_s=0.15, lost_s=0.5, stuck_s=2.0)
REST = "01 0000 0000 0000"
FORWARD, BACK, LEFT, HALF_LEFT = (
    "01 0000 a2fe 0000",
    "01 0000 5e01 0000",
    "01 a2fe 0000 0000",
    "01 3fff 0000 0000",
)


class Two:
    """Two SpaceMice before a pair of arms; ten looks a second."""

    def __init__(self, config: OperatorConfig = HABITS) -> None:
        self.left, self.right = SpaceMouseBench(), SpaceMouseBench()
        self.pair = Pair(FakeRobot(), FakeRobot())
        devices = self.left.device, self.right.device
        spec = self.pair.action_spec
        self.person = Operator(devices, spacemouse.MAPPING, config, spec, self.left.now_s)
        self.tick()

    def tick(self, left: str = "", right: str = "") -> Action | None:
        """Reports come, and somebody looks."""
        for bench, report in ((self.left, left), (self.right, right)):
            bench.wait(0.1)
            if report:
                bench.waiting.append(bytes.fromhex(report))
        return self.person()


def moved(action: Action | None) -> list[float]:
    """Of somebody who drives: x and y of the left arm, then of the right one."""
    assert action is not None
    return [round(value, 2) for value in action.tolist()]


def test_each_hand_moves_its_own_arm_by_the_same_mapping() -> None:
    two = Two()
    assert two.pair.action_spec.unit.split() == ["left_x", "left_y", "right_x", "right_y"]
    assert two.tick() is None
    action = two.tick(left=FORWARD, right=LEFT)
    assert moved(action) == [1.0, 0.0, 0.0, 1.0]
    assert action is not None
    assert moved(two.pair.act(action)) == [1.0, 0.0, 0.0, 1.0]
    assert moved(two.tick(left=REST, right=BACK)) == [0.0, 0.0, -1.0, 0.0]


def test_either_hand_takes_over_both_arms_and_both_have_to_let_go() -> None:
    two = Two()
    assert moved(two.tick(right=FORWARD)) == [0.0, 0.0, 1.0, 0.0]
    assert moved(two.tick(left=FORWARD, right=REST)) == [1.0, 0.0, 0.0, 0.0]
    assert moved(two.tick(left=REST)) == [0.0] * 4, "it holds"
    for _ in range(3):
        action = two.tick()
    assert action is None


@pytest.mark.parametrize("dead", ["left", "right"])
def test_one_that_is_unplugged_while_pushing_holds_both_arms(dead: str) -> None:
    two = Two()
    two.tick(left=FORWARD, right=FORWARD)
    (two.left if dead == "left" else two.right).die()
    said: tuple[Event, ...] = ()
    for _ in range(10):
        action = two.tick(left=BACK, right=BACK)  # the other one goes on
        assert moved(action) == [0.0] * 4
        assert action is not None
        assert not two.pair.act(action).any()
        said += two.person.events()
    assert two.person.hands is Hands.SILENT
    assert said == (Event.LOST,)
    assert two.person.trouble == f"{dead} SpaceMouse: Input/output error (is it plugged in?)"


def test_one_whose_reports_end_while_pushing_holds_both_arms() -> None:
    two = Two()
    assert moved(two.tick(left=FORWARD, right=FORWARD)) == [1.0, 0.0, 1.0, 0.0]
    for _ in range(3):
        action = two.tick(right=FORWARD)
    assert moved(action) == [0.0] * 4
    assert two.person.hands is Hands.SILENT
    assert two.person.trouble == "left SpaceMouse fell silent"


def test_one_that_was_dead_before_anybody_drove_lets_nobody_take_over() -> None:
    two = Two()
    two.right.die()
    assert [two.tick(left=FORWARD) for _ in range(20)] == [None] * 20
    assert two.person.events() == ()


def test_one_that_is_stuck_holds_both_while_the_other_moves() -> None:
    two = Two()
    for turn in range(19):
        assert any(moved(two.tick(left=FORWARD, right=(LEFT, HALF_LEFT)[turn % 2])))
    for turn in range(4):
        action = two.tick(left=FORWARD, right=(LEFT, HALF_LEFT)[turn % 2])
    assert moved(action) == [0.0] * 4
    assert two.person.trouble == "left SpaceMouse pushed the same way for 2 s"


def test_hands_that_take_some_axes_take_them_of_both_arms() -> None:
    two = Two(HABITS.model_copy(update={"drives": ("x",)}))
    action = two.tick(left=FORWARD, right=BACK)
    assert action is not None
    np.testing.assert_array_equal(action, np.array([1.0, np.nan, -1.0, np.nan], np.float32))


def test_input_for_two_arms_is_split_and_moves_nothing_if_made_for_one() -> None:
    rest, push = (0.0,) * 7, (1.0, *(0.0,) * 6)
    for hands in (True, False):
        two, one = Wish((*rest, *push), hands, ()), Wish(push, hands, ())
        assert [each.motion for each in split_wish(two, 2)] == [rest, push]
        assert split_wish(one, 1) == [one]
        still = Wish(rest, hands, ())
        assert split_wish(one, 2) == [still, still]
        assert split_wish(two, 1) == [still]


def test_a_stick_whose_deadman_is_not_held_moves_its_arm_by_nothing() -> None:
    left, right = gamepad_bench(), gamepad_bench()
    spec = Pair(FakeRobot(), FakeRobot()).action_spec
    person = Operator((left.device, right.device), gamepad.MAPPING, HABITS, spec, left.now_s)
    assert person() is None
    right.kernel.happen((3, 1, -32768))  # it drifts
    _push(left)
    assert moved(person()) == [1.0, 0.0, 0.0, 0.0]


def _push(bench: InputBench) -> None:
    bench.push()


@pytest.mark.parametrize(
    ("devices", "arms", "line"),
    [
        (1, 2, r"move two arms \(left_x\): give a device for each"),
        (2, 1, r"move one arm \(x\): give one device"),
    ],
)
def test_there_is_a_device_for_each_arm(devices: int, arms: int, line: str) -> None:
    benches = [SpaceMouseBench() for _ in range(devices)]
    spec = Pair(FakeRobot(), FakeRobot()).action_spec if arms == 2 else FakeRobot.action_spec
    given = tuple(bench.device for bench in benches)
    with pytest.raises(BadInput, match=line):
        Operator(given, spacemouse.MAPPING, HABITS, spec, benches[0].now_s)
