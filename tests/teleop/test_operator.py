"""A person at a device takes over, hands back by rule, and holds the robot when out of hearing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.intervention import Event, Teleop, arbitrate
from serl.loop import EpisodeKey, RecordCallback, run
from serl.policy import ZeroPolicy
from serl.specs import ArraySpec
from serl.teleop.operator import Hands, Operator
from serl.testing import FakeRobot, FakeTask, TeleopSuite
from serl.types import ActionSource, Record, Step

from .pad import BY_MOTION, HABITS, MAPPING, SPEC, Bench, Pad, moved


class TestOperator(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        bench = Bench()
        bench.pad.hold()
        bench.pad.axes["x"] = 5.0
        bench.pad.hit("yes")
        return bench.person, SPEC


def driving(**axes: float) -> Bench:
    """A person who drives, with the axes of the pad there."""
    bench = Bench()
    bench.pad.axes.update(axes)
    bench.pad.hold()
    assert bench.tick() is not None
    return bench


def silenced(looks: int = 0, **axes: float) -> Bench:
    """A person who drives, and whose pad fell silent so many looks ago."""
    bench = driving(**axes)
    bench.pad.alive = False
    if looks:
        bench.tick(looks)
    return bench


def test_hands_are_on_while_the_deadman_is_held_and_a_little_longer() -> None:
    bench = Bench()
    bench.pad.axes["x"] = 0.5
    assert bench.tick() is None
    bench.pad.hold()
    assert moved(bench.tick()) == [0.5, 0.0]
    bench.pad.hold(False)
    assert moved(bench.tick()) == [0.0, 0.0], "it holds"
    assert [bench.tick() is None for _ in range(4)] == [False, True, True, True]


def test_motion_alone_takes_over_where_the_table_says_so() -> None:
    bench = Bench(BY_MOTION)
    bench.pad.axes["x"] = 0.05
    assert bench.tick() is None
    bench.pad.axes["x"] = 0.2
    assert moved(bench.tick()) == [0.2, 0.0]
    bench.pad.axes["x"] = 0.0
    assert moved(bench.tick()) == [0.0, 0.0]
    assert bench.tick(3) is None


def test_axes_are_ordered_scaled_and_turned_as_the_task_asks() -> None:
    bench = Bench()
    bench.pad.axes["y"] = 0.8
    bench.pad.hold()
    assert moved(bench.tick()) == [0.0, -0.4]


def test_a_button_that_is_stuck_takes_over_nothing_until_it_was_off() -> None:
    pad = Pad()
    pad.buttons.hold(frozenset({"hold"}))  # before anybody looked
    person = Operator(pad, MAPPING, HABITS, SPEC, pad.now_s)
    assert [person() for _ in range(3)] == [None] * 3
    pad.hold(False)
    assert person() is None
    pad.hold()
    assert person() is not None


def test_a_deadman_that_was_seen_going_down_is_believed_at_once() -> None:
    pad = Pad()
    pad.buttons.hold(frozenset())
    person = Operator(pad, MAPPING, HABITS, SPEC, pad.now_s)
    pad.hold()  # nobody looked in between
    assert person() is not None


@pytest.mark.parametrize("lost", [False, True])
def test_silence_in_a_hand_holds_the_robot_and_cuts_the_episode(lost: bool) -> None:
    bench = driving(x=1.0)
    bench.pad.alive, bench.pad.lost = False, lost
    bench.tick(2)  # now its last word is stale
    said = [bench.person.events()]
    for _ in range(9):
        action = bench.tick()
        assert action is not None
        assert not action.any()
        said.append(bench.person.events())
    assert bench.person.hands is Hands.SILENT
    assert sum(said, ()) == (Event.LOST,)


def test_silence_in_a_hand_is_known_before_the_next_look() -> None:
    bench = Bench()
    assert bench.person.silence_s == 0.0, "nobody drives"
    bench.pad.hold()
    bench.tick()
    bench.pad.alive = False
    bench.pad.time_s += 1.1 * HABITS.stale_s
    assert bench.person.silence_s == pytest.approx(1.1 * HABITS.stale_s)
    assert bench.person.hands is Hands.ON, "nobody has looked yet"
    bench.tick()
    bench.pad.alive = True
    assert bench.person.silence_s == math.inf, "the robot holds until somebody looks"
    bench.tick()
    assert bench.person.silence_s == 0.0
    bench.pad.hold(False)
    bench.tick(3)
    bench.pad.alive = False
    bench.pad.time_s += 1.0
    assert bench.person.silence_s == 0.0, "hands are off"


def test_a_hiccup_shorter_than_that_goes_on_with_the_hands_still_on() -> None:
    bench = silenced(x=1.0)
    assert moved(bench.tick(3)) == [0.0, 0.0]
    bench.pad.alive = True
    assert any(moved(bench.tick()))
    assert bench.person.events() == ()


def test_a_device_that_comes_back_with_hands_off_does_not_hand_back() -> None:
    bench = silenced(3)
    bench.pad.alive = True
    bench.pad.hold(False)
    for _ in range(20):
        assert bench.tick() is not None
        assert bench.person.hands is Hands.SILENT
    bench.pad.hold()
    assert bench.tick() is not None
    bench.pad.hold(False)
    assert bench.tick(3) is None, "who takes over once more and lets go hands back"


def test_after_a_loss_a_button_that_stayed_down_is_not_believed() -> None:
    bench = silenced(10, x=1.0)
    bench.pad.alive = True
    assert moved(bench.tick(3)) == [0.0, 0.0]
    bench.pad.hold(False)
    bench.tick()
    bench.pad.hold()
    assert any(moved(bench.tick()))


def test_a_silence_lasts_over_short_episodes() -> None:
    bench = silenced()
    for _ in range(3):
        bench.tick(3)
        bench.person.begin()
    bench.tick(1)
    assert bench.person.events() == (Event.LOST,)


def test_a_new_episode_does_not_hand_back_either() -> None:
    bench = silenced(10)
    assert bench.person.events() == (Event.LOST,)
    bench.person.begin()
    assert bench.tick() is not None
    bench.tick(10)
    assert bench.person.events() == (Event.LOST,), "it is cut as well"


def test_another_person_may_release_it() -> None:
    bench = silenced(10)
    bench.person.release()
    assert bench.tick() is None
    bench.pad.alive = True
    assert bench.tick() is None, "the button is still down"


def test_silence_while_hands_are_off_changes_nothing() -> None:
    bench = Bench()
    bench.pad.alive = False
    assert bench.tick(20) is None
    assert bench.person.events() == ()


def test_what_was_said_before_the_silence_counts() -> None:
    bench = Bench()
    bench.pad.alive = False
    bench.pad.hit("yes")
    bench.tick(5)
    assert bench.person.events() == (Event.SUCCESS,)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_is_none_is_silence(value: float) -> None:
    bench = driving()
    bench.pad.axes["y"] = value
    bench.pad.axes["x"] = 1.0
    assert moved(bench.tick(3)) == [0.0, 0.0]
    assert bench.person.hands is Hands.SILENT


def test_a_stamp_from_the_future_is_none() -> None:
    bench = silenced()
    bench.pad._beat_s += 100.0
    bench.tick()
    assert bench.person.hands is Hands.SILENT


def test_an_axis_that_nobody_can_move_is_refused() -> None:
    strange = ArraySpec(shape=(2,), low=-1, high=1, unit="x elbow")
    with pytest.raises(BadInput, match="no axis 'elbow'"):
        Operator(Pad(), MAPPING, HABITS, strange)


def test_a_lost_device_ends_a_real_episode_and_the_robot_is_stopped() -> None:
    bench, robot, task = Bench(), FakeRobot(), FakeTask()
    robot.reset(1)
    records: list[Record] = []

    def advance(dt_s: float) -> None:
        robot.advance(dt_s)
        bench.pad.time_s += dt_s
        if len(records) == 3:
            bench.pad.axes["x"] = 1.0
            bench.pad.hold()
        if len(records) == 6:
            bench.pad.alive = False

    result = run(
        robot,
        task,
        ZeroPolicy(SPEC),
        VirtualClock(advance, task.config.rate_hz),
        EpisodeKey("run", "actor", 1, 0),
        [RecordCallback(records.append)],
        teleop=bench.person,
    )
    assert result.reason == robot.stop_reason == "device lost"
    steps = [record for record in records if isinstance(record, Step)]
    sources = [step.source for step in steps]
    first = sources.index(ActionSource.HUMAN)
    assert set(sources[first:]) == {ActionSource.HUMAN}, "it never went back to the policy"
    assert steps[-1].truncated
    assert not np.any([step.action for step in steps[-4:]])


def test_hands_take_over_some_axes_and_the_policy_keeps_the_others() -> None:
    bench = Bench(config=HABITS.model_copy(update={"drives": ("x",)}))
    bench.pad.axes.update(x=0.5, y=1.0)
    bench.pad.hold()
    action = bench.tick()
    assert action is not None
    assert action[0] == 0.5
    assert np.isnan(action[1])
    proposed = np.array([-1.0, 0.25], np.float32)
    chosen, source = arbitrate(proposed, ActionSource.POLICY, action)
    assert chosen.tolist() == [0.5, 0.25]
    assert source is ActionSource.HUMAN
    bench.pad.alive = False
    assert moved(bench.tick(3)) == [0.0, 0.0], "who is out of hearing holds all of it"


def test_hands_that_could_move_nothing_are_refused() -> None:
    with pytest.raises(BadInput, match=r"drives \('yaw',\): the actions move x, y"):
        Bench(config=HABITS.model_copy(update={"drives": ("yaw",)}))


def test_an_axis_that_moves_a_little_is_a_hand_and_one_that_never_does_is_stuck() -> None:
    bench = Bench(config=HABITS.model_copy(update={"stuck_s": 1.0}))
    bench.pad.hold()
    assert moved(bench.tick(30)) == [0.0, 0.0], "to hold still is no push"
    assert bench.person.hands is Hands.ON
    bench.pad.axes["x"] = 0.5
    assert moved(bench.tick(9)) == [0.5, 0.0]
    bench.pad.axes["x"] = 0.55
    assert moved(bench.tick(5)) == [0.55, 0.0]
    bench.pad.axes["x"] = 0.555  # no stick is quite still
    assert moved(bench.tick(5))[0] != 0.0
    assert moved(bench.tick(3)) == [0.0, 0.0]
    assert bench.person.trouble == "pad pushed the same way for 1 s"
