"""Operator at a device: takeover, hand-back, and hold when the device is silent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from serl.clock import VirtualClock
from serl.errors import BadInput
from serl.geometry import from_rotation_vector, multiply, rotation_between
from serl.intervention import Event, Teleop, arbitrate
from serl.loop import EpisodeKey, RecordCallback, run
from serl.motion import Motion, Pose, Target
from serl.policy import ZeroPolicy
from serl.specs import ArraySpec
from serl.teleop.device import DeviceLost
from serl.teleop.mapping import Axis
from serl.teleop.operator import Hands, Operator
from serl.testing import FakeRobot, FakeTask, TeleopSuite
from serl.types import ActionSource, Observation, Record, Step

from .pad import BY_MOTION, HABITS, MAPPING, SPEC, Bench, Pad, moved


class TestOperator(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        bench = Bench()
        bench.pad.hold()
        bench.pad.axes["x"] = 5.0
        bench.pad.hit("yes")
        return bench.person, SPEC


def driving(**axes: float) -> Bench:
    """Return the bench of an operator who drives with these axes."""
    bench = Bench()
    bench.pad.axes.update(axes)
    bench.pad.hold()
    assert bench.tick() is not None
    return bench


def silenced(looks: int = 0, **axes: float) -> Bench:
    """Return the bench of a driving operator whose pad has been silent for `looks` reads."""
    bench = driving(**axes)
    bench.pad.alive = False
    if looks:
        bench.tick(looks)
    return bench


def test_motion_alone_takes_over_if_mapping_has_threshold() -> None:
    bench = Bench(BY_MOTION)
    bench.pad.axes["x"] = 0.05
    assert bench.tick() is None
    bench.pad.axes["x"] = 0.2
    assert moved(bench.tick()) == [0.2, 0.0]
    bench.pad.axes["x"] = 0.0
    assert moved(bench.tick()) == [0.0, 0.0]
    assert bench.tick(3) is None


def test_axes_are_ordered_and_scaled_by_mapping() -> None:
    bench = Bench()
    bench.pad.axes["y"] = 0.8
    bench.pad.hold()
    assert moved(bench.tick()) == [0.0, -0.4]


def test_deadman_held_at_start_takes_over_only_after_release() -> None:
    pad = Pad()
    pad.buttons.hold(frozenset({"hold"}))  # before the first read
    person = Operator(pad, MAPPING, HABITS, SPEC, pad.now_s)
    assert [person() for _ in range(3)] == [None] * 3
    pad.hold(False)
    assert person() is None
    pad.hold()
    assert person() is not None


def test_deadman_pressed_before_first_read_takes_over_at_once() -> None:
    pad = Pad()
    pad.buttons.hold(frozenset())
    person = Operator(pad, MAPPING, HABITS, SPEC, pad.now_s)
    pad.hold()  # before the first read
    assert person() is not None


def test_motion_is_along_axes_of_base_where_actions_are_in_tool_frame() -> None:
    motion = Motion(
        axes=("x", "y", "z", "roll", "pitch", "yaw"),
        translation_m=0.01,
        box_low_m=(-1.0, -1.0, -1.0),
        box_high_m=(1.0, 1.0, 1.0),
        frame="tool",
    )
    names: tuple[Axis, ...] = ("x", "y", "z", "roll", "pitch", "yaw")
    mapping = MAPPING.model_copy(update={"axes": {name: (name, 1.0) for name in names}})
    down = multiply(from_rotation_vector((0.0, 0.5, 0.0)), (1.0, 0.0, 0.0, 0.0))
    tool, target, pad = Pose((0.5, 0.0, 0.2), down), Target(motion), Pad()
    target.begin(tool, closed=False)
    pad.axes = {"z": 1.0, "yaw": 0.5}
    person = Operator(pad, mapping, HABITS, motion.action_spec, pad.now_s, in_tool_frame=True)
    person()
    pad.hold()
    pose = np.array([*target.target.position, *target.target.quaternion], np.float32)
    person.on_reading(Observation({"target_pose": pose}))
    action = person()
    assert action is not None
    assert np.abs(action).max() <= 1.0
    target.move(action, tool, 0.0)
    x, y, z = np.subtract(target.target.position, tool.position)
    assert z == pytest.approx(0.01, abs=1e-5), "up, although the tool points down"
    assert abs(x) + abs(y) < 1e-5
    turn = rotation_between(tool.quaternion, target.target.quaternion)
    assert turn == pytest.approx((0.0, 0.0, 0.05), abs=1e-5)
    person.on_reading(Observation({"tcp_pose": pose}))  # such as that of a car
    assert moved(person())[2] == 1.0, "along its own axes"


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (None, "pad fell silent"),
        (DeviceLost("pad: gone"), "pad: gone"),
        (OSError("I/O"), "pad.py: read: OSError: I/O (is it plugged in?)"),
        (ValueError("odd\nbytes"), "pad.py: read: ValueError: odd bytes"),
        (BadInput("odd"), "pad.py: read: BadInput: odd"),
    ],
)
def test_silence_while_driving_holds_robot_and_reports_lost_device(
    error: Exception | None, trouble: str
) -> None:
    bench = driving(x=1.0)
    bench.pad.alive, bench.pad.error = False, error
    bench.tick(2)  # now its last report is stale
    events = [bench.person.events()]
    for _ in range(9):
        action = bench.tick()
        assert action is not None
        assert not action.any()
        events.append(bench.person.events())
    assert bench.person.hands is Hands.SILENT
    assert bench.person.trouble.endswith(trouble)
    assert sum(events, ()) == (Event.LOST,)


def test_failing_device_without_a_file_is_reported_by_its_name() -> None:
    bench = driving(x=1.0)
    bench.pad.__class__ = type("Typed", (type(bench.pad),), {"__module__": "typed by hand"})
    bench.pad.error = ValueError("odd")
    bench.tick()
    assert bench.person.trouble == "device pad: read: ValueError: odd"


def test_silence_while_driving_is_known_before_next_read() -> None:
    bench = Bench()
    assert bench.person.silence_s == 0.0, "silence counts although no operator drives"
    bench.pad.hold()
    bench.tick()
    bench.pad.alive = False
    bench.pad.time_s += 1.1 * HABITS.stale_s
    assert bench.person.silence_s == pytest.approx(1.1 * HABITS.stale_s)
    assert bench.person.hands is Hands.ON, "changed before the next read"
    bench.tick()
    bench.pad.alive = True
    assert bench.person.silence_s == math.inf, "silence ended before the next read"
    bench.tick()
    assert bench.person.silence_s == 0.0
    bench.pad.hold(False)
    bench.tick(3)
    bench.pad.alive = False
    bench.pad.time_s += 1.0
    assert bench.person.silence_s == 0.0, "silence counts although hands are off"


def test_short_silence_keeps_operator_in_control() -> None:
    bench = silenced(x=1.0)
    assert moved(bench.tick(3)) == [0.0, 0.0]
    bench.pad.alive = True
    assert any(moved(bench.tick()))
    assert bench.person.events() == ()


def test_device_back_with_hands_off_keeps_holding_until_new_press() -> None:
    bench = silenced(3)
    bench.pad.alive = True
    bench.pad.hold(False)
    for _ in range(20):
        assert bench.tick() is not None
        assert bench.person.hands is Hands.SILENT
    bench.pad.hold()
    assert bench.tick() is not None
    bench.pad.hold(False)
    assert bench.tick(3) is None, "a new takeover and release did not hand back"


def test_deadman_held_during_device_loss_drives_only_after_new_press() -> None:
    bench = silenced(10, x=1.0)
    bench.pad.alive = True
    assert moved(bench.tick(3)) == [0.0, 0.0]
    bench.pad.hold(False)
    bench.tick()
    bench.pad.hold()
    assert any(moved(bench.tick()))


def test_silence_is_counted_across_short_episodes() -> None:
    bench = silenced()
    for _ in range(3):
        bench.tick(3)
        bench.person.begin()
    bench.tick(1)
    assert bench.person.events() == (Event.LOST,)


def test_new_episode_keeps_holding_for_silent_operator() -> None:
    bench = silenced(10)
    assert bench.person.events() == (Event.LOST,)
    bench.person.begin()
    assert bench.tick() is not None
    bench.tick(10)
    assert bench.person.events() == (Event.LOST,), "the new episode is not ended"


def test_silent_operator_can_be_released_and_needs_new_press() -> None:
    bench = silenced(10)
    bench.person.release()
    assert bench.tick() is None
    bench.pad.alive = True
    assert bench.tick() is None, "took over although the button was not released"


def test_silence_while_hands_are_off_is_ignored() -> None:
    bench = Bench()
    bench.pad.alive = False
    assert bench.tick(20) is None
    assert bench.person.events() == ()


def test_event_before_silence_counts() -> None:
    bench = Bench()
    bench.pad.alive = False
    bench.pad.hit("yes")
    bench.tick(5)
    assert bench.person.events() == (Event.SUCCESS,)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_axis_counts_as_silence(value: float) -> None:
    bench = driving()
    bench.pad.axes["y"] = value
    bench.pad.axes["x"] = 1.0
    assert moved(bench.tick(3)) == [0.0, 0.0]
    assert bench.person.hands is Hands.SILENT


def test_stamp_from_future_counts_as_silence() -> None:
    bench = silenced()
    bench.pad._beat_s += 100.0
    bench.tick()
    assert bench.person.hands is Hands.SILENT


def test_action_axis_without_mapping_is_refused() -> None:
    strange = ArraySpec(shape=(2,), low=-1, high=1, unit="x elbow")
    with pytest.raises(BadInput, match="no axis 'elbow'"):
        Operator(Pad(), MAPPING, HABITS, strange)


def test_lost_device_ends_episode_and_stops_robot() -> None:
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
    assert set(sources[first:]) == {ActionSource.HUMAN}, "control returned to the policy"
    assert steps[-1].truncated
    assert not np.any([step.action for step in steps[-4:]])


def test_operator_of_some_axes_leaves_others_to_policy() -> None:
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
    assert moved(bench.tick(3)) == [0.0, 0.0], "a silent operator does not hold all axes"


def test_operator_of_unknown_axes_is_refused() -> None:
    with pytest.raises(BadInput, match=r"drives \('yaw',\): the actions move x, y"):
        Bench(config=HABITS.model_copy(update={"drives": ("yaw",)}))


def test_axis_without_change_is_reported_as_stuck() -> None:
    bench = Bench(config=HABITS.model_copy(update={"stuck_s": 1.0}))
    bench.pad.hold()
    assert moved(bench.tick(30)) == [0.0, 0.0], "holding still counts as pushing"
    assert bench.person.hands is Hands.ON
    bench.pad.axes["x"] = 0.5
    assert moved(bench.tick(9)) == [0.5, 0.0]
    bench.pad.axes["x"] = 0.55
    assert moved(bench.tick(5)) == [0.55, 0.0]
    bench.pad.axes["x"] = 0.555  # within the noise of a stick
    assert moved(bench.tick(5))[0] != 0.0
    assert moved(bench.tick(3)) == [0.0, 0.0]
    assert bench.person.trouble == "pad pushed the same way for 1 s"


def test_stop_counts_also_while_an_axis_reports_no_number() -> None:
    bench = Bench()
    bench.pad.axes["x"] = math.nan
    bench.pad.hit("stop")
    assert bench.tick() is None
    assert bench.person.events() == (Event.STOP,)
