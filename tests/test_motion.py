import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serl.errors import BadInput
from serl.geometry import (
    Quaternion,
    conjugate,
    from_rotation_vector,
    multiply,
    rotate,
    rotation_between,
    subtract,
    to_rotation_vector,
)
from serl.motion import (
    Box,
    Limits,
    Motion,
    Pose,
    Target,
    next_gripper,
    next_target,
    pose_from,
    within_lead,
)

DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
START = Pose((0.45, 0.0, 0.2), DOWN)
SLACK = 1.0 + 1e-9
STILL = (0.0,) * 6


def motion(**changes: Any) -> Motion:
    values: dict[str, Any] = {
        "axes": ("x", "y", "z", "roll", "pitch", "yaw"),
        "translation_m": 0.02,
        "rotation_rad": 0.1,
        "box_low_m": (0.3, -0.2, 0.02),
        "box_high_m": (0.6, 0.2, 0.4),
        "max_rotation_rad": 0.5,
    }
    return Motion(**(values | changes))


def angle(a: Quaternion, b: Quaternion) -> float:
    return math.hypot(*rotation_between(a, b))


def in_actions(previous: Pose, target: Pose, bounds: Motion) -> list[float]:
    """Return the motion of the target in the scale and frame of an action with six axes."""
    shift = subtract(target.position, previous.position)
    turn = to_rotation_vector(multiply(target.quaternion, conjugate(previous.quaternion)))
    if bounds.frame == "tool":
        back = conjugate(previous.quaternion)
        shift, turn = rotate(back, shift), rotate(back, turn)
    return [*(s / bounds.translation_m for s in shift), *(t / bounds.rotation_rad for t in turn)]


@pytest.mark.parametrize("name", sorted(Limits.model_fields))
def test_limits_refuse_values_above_the_hard_maximum(name: str) -> None:
    hard = {
        "speed_m_s": 0.25,
        "lead_m": 0.02,
        "acceleration_m_s2": 2.0,
        "jerk_m_s3": 50.0,
        "angular_acceleration_rad_s2": 10.0,
        "angular_jerk_rad_s3": 250.0,
        "yield_m": 0.05,
    }
    highest = hard.get(name, Limits.model_fields[name].default)
    assert getattr(Limits(**{name: highest}), name) == highest
    with pytest.raises(ValidationError, match=name):
        Limits(**{name: highest * 1.001})


@pytest.mark.parametrize(
    "changes",
    [
        {"box_low_m": (0.3, 0.3, 0.02)},
        {"box_low_m": (0.3, -0.2, math.nan)},
        {"axes": ("x", "x")},
        {"axes": ("w",)},
        {"gripper_interval_s": 0.2},
        {"unknown": 1},
    ],
)
def test_motion_refuses_invalid_settings(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        motion(**changes)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stop_acceleration_m_s2": 0.5}, "stop_acceleration_m_s2 0.5, .* takes 0.30 s"),
        ({"stop_jerk_m_s3": 10.0}, "stop_jerk_m_s3 10: .* takes 0.24 s"),
        ({"stop_angular_acceleration_rad_s2": 5.0}, "stop_angular_acceleration_rad_s2 5"),
        ({"stop_angular_jerk_rad_s3": 1e-9}, "stop_angular_jerk_rad_s3 1e-09"),
    ],
)
def test_limits_refuse_long_stops(changes: dict[str, float], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        Limits(**changes)
    assert Limits(stop_acceleration_m_s2=0.5, speed_m_s=0.05)


def test_motion_needs_a_box() -> None:
    with pytest.raises(ValidationError, match="box_low_m"):
        Motion(axes=("x",), translation_m=0.01, box_high_m=(1, 1, 1))  # type: ignore[call-arg]


def test_action_spec_counts_axes_and_gripper() -> None:
    assert motion(axes=("x", "yaw"), gripper=True).action_spec.shape == (3,)
    assert motion(axes=("x", "yaw")).action_spec.shape == (2,)


def test_executed_action_equals_the_request_within_limits() -> None:
    request = (0.3, -0.2, 0.1, 0.1, 0.2, -0.3)
    target, executed = next_target(START, request, START, START, motion())
    assert executed == request
    assert target.position == pytest.approx((0.456, -0.004, 0.202))


def test_executed_action_is_limited_by_box_and_lead() -> None:
    wide = motion(limits=Limits(lead_m=0.02))
    edge = Pose((0.595, 0.0, 0.2), DOWN)
    target, executed = next_target(edge, (1.0, 0, 0, 0, 0, 0), edge, edge, wide)
    assert target.position[0] == 0.6
    assert executed[0] == pytest.approx(0.25)
    ahead = Pose((0.478, 0.0, 0.2), DOWN)  # 28 of 30 mm ahead of the tool: the lead and an action
    _, executed = next_target(ahead, (1.0, 0, 0, 0, 0, 0), START, START, motion())
    assert executed[0] == pytest.approx(0.1)


def test_tool_frame_action_is_rotated_into_base_frame() -> None:
    tool = motion(frame="tool")
    target, executed = next_target(START, (0.2, 0.2, 0.2, 0, 0, 0.2), START, START, tool)
    # The tool points down: its y and z are the base's, reversed.
    assert target.position == pytest.approx((0.454, -0.004, 0.196))
    turned = to_rotation_vector(multiply(target.quaternion, conjugate(DOWN)))
    assert turned == pytest.approx((0.0, 0.0, -0.02))
    assert executed == pytest.approx((0.2, 0.2, 0.2, 0, 0, 0.2), abs=1e-9)


@settings(deadline=None)
@given(
    actions=st.lists(st.tuples(*[st.floats(-1, 1)] * 6), min_size=1, max_size=30),
    lag=st.floats(0, 1),
    frame=st.sampled_from(["base", "tool"]),
)
@example(
    actions=[STILL, STILL, (0, 0, 0, 1, 0, 0), (0, 0, 0, 1, 0, 1), (0, 0, 0, -1, 0, 1)],
    lag=0.0,
    frame="base",
)
@example(
    actions=[(1, 0, 0.8, 0, 0, 0), (0.25, 0, 0, 0, 0, 0), (-1, 0, 1, 0, 0, 0)],
    lag=0.0,
    frame="base",
)
def test_box_lead_and_rotation_are_never_exceeded(
    actions: list[tuple[float, ...]], lag: float, frame: str
) -> None:
    bounds = motion(frame=frame)
    target, measured = START, START
    for action in actions:
        previous = target
        target, executed = next_target(target, action, measured, START, bounds)
        low_high = zip(bounds.box_low_m, target.position, bounds.box_high_m, strict=True)
        assert all(low <= value <= high for low, value, high in low_high)
        assert math.dist(target.position, measured.position) <= 0.030 * SLACK
        assert angle(target.quaternion, measured.quaternion) <= 0.15 * SLACK
        goal = within_lead(target, measured, bounds.limits)
        assert math.dist(goal.position, measured.position) <= 0.010 * SLACK
        assert angle(goal.quaternion, measured.quaternion) <= 0.05 * SLACK
        assert angle(target.quaternion, START.quaternion) <= 0.5 * SLACK
        moved = in_actions(previous, target, bounds)
        assert executed == pytest.approx(np.clip(moved, -1.0, 1.0), abs=1e-9)
        # Replaying the executed action gives the same target, unless the lead limit moved the
        # target by more than one action, which no action in [-1, 1] can do.
        if np.abs(moved).max() <= 1.0 + 1e-9:
            replayed, again = next_target(previous, executed, measured, START, bounds)
            assert again == pytest.approx(executed, abs=1e-6)
            assert math.dist(replayed.position, target.position) < 1e-9
            assert angle(replayed.quaternion, target.quaternion) < 1e-7
        x, y, z = (
            m + lag * (t - m) for m, t in zip(measured.position, target.position, strict=True)
        )
        half = to_rotation_vector(multiply(target.quaternion, conjugate(measured.quaternion)))
        turn = from_rotation_vector((lag * half[0], lag * half[1], lag * half[2]))
        measured = Pose((x, y, z), multiply(turn, measured.quaternion))


def test_target_of_arm_outside_box_is_clipped_to_box() -> None:
    outside = Pose((0.65, 0.0, 0.2), DOWN)
    target, _ = next_target(outside, (0.0,) * 6, outside, START, motion())
    assert target.position == (0.6, 0.0, 0.2)


@pytest.mark.parametrize(
    ("closed", "requested", "since_s", "expected"),
    [
        (False, -0.51, 9.0, (True, -0.51)),
        (True, 0.51, 9.0, (False, 0.51)),
        (False, -0.5, 9.0, (False, -0.5)),
        (True, 0.5, 9.0, (True, 0.5)),
        (False, -1.0, 0.4, (False, -0.5)),
        (True, 1.0, 0.4, (True, 0.5)),
        (True, -1.0, 0.0, (True, -1.0)),
        (False, -1.0, 0.5, (True, -1.0)),
    ],
)
def test_gripper_switches_by_threshold_and_interval(
    closed: bool, requested: float, since_s: float, expected: tuple[bool, float]
) -> None:
    assert next_gripper(closed, requested, since_s, motion(gripper=True)) == expected


def test_pose_from_normalizes_quaternion_and_refuses_infinity() -> None:
    assert pose_from((1, 2, 3, 0, 0, 0, 1.005)).quaternion == (0, 0, 0, 1)
    with pytest.raises(BadInput, match="position"):
        pose_from((1, math.inf, 3, 0, 0, 0, 1))


PLANE = Motion(
    axes=("x", "y"),
    translation_m=0.01,
    box_low_m=(0.0, -1.0, -1.0),
    box_high_m=(1.0, 1.0, 1.0),
    gripper=True,
    gripper_interval_s=0.5,
)
HERE = Pose((0.5, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def target(closed: bool = False) -> Target:
    made = Target(PLANE)
    made.begin(HERE, closed)
    return made


def moved(made: Target, *values: float, now_s: float = 0.0) -> list[float]:
    action = np.array(values, np.float32)
    made.check(action)
    executed: list[float] = made.move(action, HERE, now_s).tolist()
    return executed


def test_repeated_actions_are_limited_by_lead_and_reported() -> None:
    made = target()
    reach_m = PLANE.limits.lead_m + PLANE.translation_m
    executed = [moved(made, 1, 0, 0)[0] for _ in range(3)]
    assert executed == pytest.approx([1.0, 1.0, 0.0], abs=1e-6)
    assert made.target.position[0] == pytest.approx(0.5 + reach_m)


def test_target_stays_out_of_keep_out_box() -> None:
    post = Box(low_m=(0.515, -0.02, -1.0), high_m=(0.6, 0.02, 1.0))
    made = Target(PLANE, (post,))
    made.begin(HERE, False)
    executed = [moved(made, 1, 0, -1) for _ in range(2)]
    assert executed == [[1.0, 0.0, -1.0], [0.0, 0.0, -1.0]], (
        "motion that was not executed is reported"
    )
    assert made.target.position == pytest.approx((0.51, 0.0, 0.0))
    assert moved(made, 0, 1, 0)[1] == 1.0


def test_gripper_switches_once_per_interval_and_restarts_each_episode() -> None:
    made = target()
    assert moved(made, 0, 0, -1, now_s=10.0)[2] == -1.0
    assert made.closed
    assert moved(made, 0, 0, 1, now_s=10.4)[2] == 0.5
    assert made.closed, "the gripper opened before its interval had passed"
    moved(made, 0, 0, 1, now_s=10.5)
    assert not made.closed
    made.begin(HERE, True)
    moved(made, 0, 0, 1, now_s=10.6)
    assert not made.closed, "a switch of the last episode delays the first one"


def test_small_gripper_action_sends_no_gripper_command() -> None:
    made = target(closed=True)
    for requested in (0, 0.5, -0.5):
        moved(made, 1, 0, requested)
        assert made.closed
        assert not made.gripped
    moved(made, 0, 0, -1)
    assert made.gripped, "no command although the gripper was asked to close"
    moved(made, 0, 0, 0)
    assert made.gripped
    made.begin(HERE, True)
    assert not made.gripped, "a command of the last episode remained"
    moved(made, 0, 0, 1, now_s=10.0)
    made.begin(HERE, False)
    assert not made.gripped
    moved(made, 0, 0, -1, now_s=20.0)
    moved(made, 0, 0, 1, now_s=20.1)
    assert made.closed, "the gripper opened again before its interval had passed"
    assert made.gripped


@pytest.mark.parametrize("values", [(math.nan, 0, 0), (-math.inf, 0, 0), (1.01, 0, 0), (0, 0)])
def test_invalid_action_is_refused_before_target_moves(values: tuple[float, ...]) -> None:
    made = target()
    with pytest.raises(BadInput, match="action"):
        moved(made, *values)
    assert made.target == HERE
