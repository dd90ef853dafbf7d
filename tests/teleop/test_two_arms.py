"""Operator with two SpaceMice and two arms: both arms hold when one device is lost."""

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

from .bench import SpaceMouseBench, gamepad_bench

HABITS = OperatorConfig(hold_over_s=0.25, stale_s=0.15, lost_s=0.5, stuck_s=2.0)
REST = "01 0000 0000 0000"
FORWARD, BACK, LEFT, HALF_LEFT = (
    "01 0000 a2fe 0000",
    "01 0000 5e01 0000",
    "01 a2fe 0000 0000",
    "01 3fff 0000 0000",
)


class TwoArmBench:
    """Two SpaceMice that control a pair of arms, read ten times per second."""

    def __init__(self, config: OperatorConfig = HABITS) -> None:
        self.left, self.right = SpaceMouseBench(), SpaceMouseBench()
        self.pair = Pair(FakeRobot(), FakeRobot())
        devices = self.left.device, self.right.device
        spec = self.pair.action_spec
        self.person = Operator(devices, spacemouse.MAPPING, config, spec, self.left.now_s)
        self.tick()

    def tick(self, left: str = "", right: str = "") -> Action | None:
        """Deliver reports, advance by 0.1 s and read the operator."""
        for bench, report in ((self.left, left), (self.right, right)):
            bench.wait(0.1)
            if report:
                bench.waiting.append(bytes.fromhex(report))
        return self.person()


def moved(action: Action | None) -> list[float]:
    """Return the action of an active operator: x and y of the left arm, then of the right."""
    assert action is not None
    return [round(value, 2) for value in action.tolist()]


def test_each_spacemouse_moves_its_own_arm_by_same_mapping() -> None:
    two = TwoArmBench()
    assert two.pair.action_spec.unit.split() == ["left_x", "left_y", "right_x", "right_y"]
    assert two.tick() is None
    action = two.tick(left=FORWARD, right=LEFT)
    assert moved(action) == [1.0, 0.0, 0.0, 1.0]
    assert action is not None
    assert moved(two.pair.act(action)) == [1.0, 0.0, 0.0, 1.0]
    assert moved(two.tick(left=REST, right=BACK)) == [0.0, 0.0, -1.0, 0.0]


def test_either_spacemouse_takes_over_both_arms_until_both_rest() -> None:
    two = TwoArmBench()
    assert moved(two.tick(right=FORWARD)) == [0.0, 0.0, 1.0, 0.0]
    assert moved(two.tick(left=FORWARD, right=REST)) == [1.0, 0.0, 0.0, 0.0]
    assert moved(two.tick(left=REST)) == [0.0] * 4, "the arms do not hold"
    for _ in range(3):
        action = two.tick()
    assert action is None


@pytest.mark.parametrize("dead", ["left", "right"])
def test_spacemouse_unplugged_while_pushed_holds_both_arms(dead: str) -> None:
    two = TwoArmBench()
    two.tick(left=FORWARD, right=FORWARD)
    (two.left if dead == "left" else two.right).die()
    events: tuple[Event, ...] = ()
    for _ in range(10):
        action = two.tick(left=BACK, right=BACK)  # the other device keeps reporting
        assert moved(action) == [0.0] * 4
        assert action is not None
        assert not two.pair.act(action).any()
        events += two.person.events()
    assert two.person.hands is Hands.SILENT
    assert events == (Event.LOST,)
    assert two.person.trouble == f"{dead} SpaceMouse: Input/output error (is it plugged in?)"


def test_spacemouse_silent_while_pushed_holds_both_arms() -> None:
    two = TwoArmBench()
    assert moved(two.tick(left=FORWARD, right=FORWARD)) == [1.0, 0.0, 1.0, 0.0]
    for _ in range(3):
        action = two.tick(right=FORWARD)
    assert moved(action) == [0.0] * 4
    assert two.person.hands is Hands.SILENT
    assert two.person.trouble == "left SpaceMouse fell silent"


def test_lost_spacemouse_prevents_takeover_by_other() -> None:
    two = TwoArmBench()
    two.right.die()
    assert [two.tick(left=FORWARD) for _ in range(20)] == [None] * 20
    assert two.person.events() == ()


def test_stuck_spacemouse_holds_both_arms_while_other_moves() -> None:
    two = TwoArmBench()
    for turn in range(19):
        assert any(moved(two.tick(left=FORWARD, right=(LEFT, HALF_LEFT)[turn % 2])))
    for turn in range(4):
        action = two.tick(left=FORWARD, right=(LEFT, HALF_LEFT)[turn % 2])
    assert moved(action) == [0.0] * 4
    assert two.person.trouble == "left SpaceMouse pushed the same way for 2 s"


def test_operator_of_some_axes_drives_them_on_both_arms() -> None:
    two = TwoArmBench(HABITS.model_copy(update={"drives": ("x",)}))
    action = two.tick(left=FORWARD, right=BACK)
    assert action is not None
    np.testing.assert_array_equal(action, np.array([1.0, np.nan, -1.0, np.nan], np.float32))


def test_split_wish_splits_by_arm_or_holds_if_number_of_arms_differs() -> None:
    rest, push = (0.0,) * 7, (1.0, *(0.0,) * 6)
    for hands in (True, False):
        two, one = Wish((*rest, *push), hands, ()), Wish(push, hands, ())
        assert [each.motion for each in split_wish(two, 2)] == [rest, push]
        assert split_wish(one, 1) == [one]
        still = Wish(rest, hands, ())
        assert split_wish(one, 2) == [still, still]
        assert split_wish(two, 1) == [still]


def test_stick_without_its_deadman_does_not_move_its_arm() -> None:
    left, right = gamepad_bench(), gamepad_bench()
    spec = Pair(FakeRobot(), FakeRobot()).action_spec
    person = Operator((left.device, right.device), gamepad.MAPPING, HABITS, spec, left.now_s)
    assert person() is None
    right.kernel.happen((3, 1, -32768))  # the stick drifts
    left.push()
    assert moved(person()) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("devices", "arms", "line"),
    [
        (1, 2, r"move two arms \(left_x\): give a device for each"),
        (2, 1, r"move one arm \(x\): give one device"),
    ],
)
def test_number_of_devices_must_match_number_of_arms(devices: int, arms: int, line: str) -> None:
    benches = [SpaceMouseBench() for _ in range(devices)]
    spec = Pair(FakeRobot(), FakeRobot()).action_spec if arms == 2 else FakeRobot.action_spec
    given = tuple(bench.device for bench in benches)
    with pytest.raises(BadInput, match=line):
        Operator(given, spacemouse.MAPPING, HABITS, spec, benches[0].now_s)
