from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from serl.geometry import conjugate, from_rotation_vector, multiply, to_rotation_vector
from serl.guard.checks import (
    MessageInfo,
    MessageRefusal,
    can_stop_inside,
    check_command,
    clamp_pose,
    is_inside,
    parse_beat,
)
from serl.guard.guard import GuardConfig, GuardState
from serl.motion import Box, Pose
from serl.setpoint import Setpoint, at_rest, brake_setpoint

from ..support.guarding import DOWN, START, Loop, config, driving, numbers

NOW = MessageInfo(10.0, 1000.0, 1000.0, "base")
PILLAR = Box(low_m=(0.4, 0.05, 0.0), high_m=(0.5, 0.1, 1.0))


def refusal_reason(values: list[float], info: MessageInfo = NOW, **changes: Any) -> str:
    with pytest.raises(MessageRefusal) as refusal:
        check_command(values, info, config(**changes))
    assert len(str(refusal.value)) < 300
    return refusal.value.reason


def test_command_with_nonfinite_value_is_refused() -> None:
    for place in range(7):
        for value in (math.nan, math.inf, -math.inf):
            values = numbers(START)
            values[place] = value
            assert refusal_reason(values) == "not finite"


@pytest.mark.parametrize("values", [[], [0.0] * 6, [*numbers(START), 0.0], [0.0] * 100_000])
def test_command_with_wrong_number_of_values_is_refused(values: list[float]) -> None:
    assert refusal_reason(values) == "size"


@pytest.mark.parametrize("frame", ["", "world", "base ", "x" * 10_000])
def test_command_in_another_frame_is_refused(frame: str) -> None:
    assert refusal_reason(numbers(START), NOW._replace(frame=frame)) == "frame"


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [
        (0.0499, ""),
        (0.0501, "future"),
        (math.inf, "future"),
        (math.nan, "future"),
        (-0.149, ""),
        (-0.151, "old"),
    ],
)
def test_command_with_future_or_old_stamp_is_refused(ahead_s: float, expected: str) -> None:
    info = NOW._replace(stamp_s=NOW.wall_s + ahead_s)
    if expected:
        assert refusal_reason(numbers(START), info) == expected
    else:
        check_command(numbers(START), info, config())


@pytest.mark.parametrize(
    ("quaternion", "good"),
    [
        ((0, 0, 0, 0), False),
        ((1.011, 0, 0, 0), False),
        ((0.989, 0, 0, 0), False),
        ((1.009, 0, 0, 0), True),
        ((-1, 0, 0, 0), True),
        ((1e200, 0, 0, 0), False),
        ((1, 1, 1, 1), False),
    ],
)
def test_command_quaternion_must_have_unit_norm(quaternion: tuple[float, ...], good: bool) -> None:
    values = [0.45, 0.0, 0.2, *map(float, quaternion)]
    if good:
        target = check_command(values, NOW, config())
        assert math.hypot(*target.quaternion) == pytest.approx(1.0, abs=1e-12)
    else:
        assert refusal_reason(values) == "quaternion"


@pytest.mark.parametrize("value", [0.61, 1.0, 1e9, 1e308])
def test_command_outside_box_is_clamped_to_its_face(value: float) -> None:
    target = check_command([value, 0.0, 0.2, *DOWN], NOW, config())
    assert target.position == pytest.approx((0.6, 0.0, 0.2), abs=1e-3)
    assert is_inside(target, config())


def test_command_in_keep_out_box_is_refused() -> None:
    assert refusal_reason([0.45, 0.07, 0.2, *DOWN], keep_out=(PILLAR,)) == "keep-out"
    check_command([0.45, 0.11, 0.2, *DOWN], NOW, config(keep_out=(PILLAR,)))


@given(turn=st.tuples(*[st.floats(-3, 3)] * 3), sign=st.sampled_from([1.0, -1.0]))
def test_clamp_pose_limits_rotation_about_reference(
    turn: tuple[float, float, float], sign: float
) -> None:
    x, y, z, w = multiply(from_rotation_vector(turn), DOWN)
    target = clamp_pose(Pose(START.position, (sign * x, sign * y, sign * z, sign * w)), config())
    left = to_rotation_vector(multiply(target.quaternion, conjugate(DOWN)))
    assert math.hypot(*left) <= 0.6
    assert is_inside(target, config())


@settings(deadline=None)
@given(
    place=st.tuples(st.floats(0.3, 0.6), st.floats(-0.2, 0.2), st.floats(0.05, 0.4)),
    direction=st.tuples(*[st.floats(-1, 1)] * 3),
    speed=st.floats(0.0, 0.15),
)
def test_can_stop_inside_agrees_with_simulated_braking(
    place: tuple[float, float, float], direction: tuple[float, float, float], speed: float
) -> None:
    settings = config(keep_out=(PILLAR,))
    size = math.hypot(*direction) or 1.0
    x, y, z = (speed * value / size for value in direction)
    state = Setpoint(Pose(place, DOWN), velocity=(x, y, z))
    path, first = [state], state
    while not at_rest(state):
        state = brake_setpoint(state, settings.motion.limits, 0.01)
        path.append(state)
    inside = all(is_inside(each.pose, settings) for each in path)
    assert can_stop_inside(first, settings) == inside


def test_guard_stops_before_keep_out_box_on_path() -> None:
    loop = driving(target=Pose((0.45, 0.15, 0.2), DOWN), keep_out=(PILLAR,))
    loop.tick(500)  # `Loop.tick` checks every setpoint
    assert 0.03 < loop.fake.pose.position[1] < 0.05
    loop.target = Pose((0.52, 0.0, 0.2), DOWN)
    loop.tick(300)
    loop.target = Pose((0.52, 0.15, 0.2), DOWN)
    loop.tick(500)
    assert loop.fake.pose.position[1] == pytest.approx(0.15, abs=1e-3)


def return_from_outside(ticks: int, **changes: Any) -> Loop:
    """Arm the guard with the arm outside its box and reset towards the start pose."""
    loop = driving(**changes)
    loop.mode = "hold"
    loop.tick(60)
    loop.guard.disarm()
    loop.tick(30)  # until the guard publishes no setpoint and the arm holds
    loop.fake.pose = Pose((0.65, 0.0, 0.2), DOWN)
    loop.tick(60)
    assert loop.guard.measured.pose == loop.fake.pose
    loop.guard.arm(loop.now_s)
    loop.setpoint = None  # a new motion profile begins
    loop.mode, loop.target = "reset", START
    loop.tick(ticks)
    return loop


def test_guard_returns_arm_from_outside_box() -> None:
    assert return_from_outside(500).fake.pose.position == pytest.approx(START.position, abs=1e-3)


def test_guard_returning_arm_stops_before_keep_out_box() -> None:
    post = Box(low_m=(0.55, -0.2, 0.0), high_m=(0.62, 0.2, 0.5))
    loop = return_from_outside(500, keep_out=(post,))  # `Loop.tick` checks every setpoint
    assert loop.fake.pose.position[0] > 0.62
    assert loop.guard.state == "reset"
    assert loop.setpoint is not None
    assert at_rest(loop.setpoint)


def test_guard_returns_arm_from_inside_keep_out_box() -> None:
    around = Box(low_m=(0.63, -0.1, 0.1), high_m=(0.7, 0.1, 0.3))
    loop = return_from_outside(500, keep_out=(around,))
    assert loop.fake.pose.position == pytest.approx(START.position, abs=1e-3)


def test_guard_leads_arm_out_of_keep_out_box_by_its_nearest_face_only() -> None:
    post = Box(low_m=(0.56, -0.1, 0.1), high_m=(0.66, 0.1, 0.3))  # the start is on its other side
    loop = return_from_outside(500, keep_out=(post,))
    assert loop.fake.pose.position[0] > 0.649
    assert loop.guard.state == "reset"


def test_held_arm_outside_box_keeps_its_pose() -> None:
    loop = return_from_outside(50)
    loop.mode = None
    loop.ticks_until(GuardState.HOLD)
    loop.tick(30)
    place = loop.fake.pose.position
    assert 0.61 < place[0] < 0.65
    loop.tick(300)
    assert loop.guard.state is GuardState.HOLD
    assert loop.fake.pose.position == pytest.approx(place, abs=1e-3)


@pytest.mark.parametrize(
    ("text", "beat"),
    [
        ("a policy 0", ("a", "policy", 0, 0.0)),
        ("run_1.actor-0 teleop 18", ("run_1.actor-0", "teleop", 18, 0.0)),
        ("a teleop 18 250", ("a", "teleop", 18, 0.25)),
        ("a reset 999999999999999999", ("a", "reset", 10**18 - 1, 0.0)),
    ],
)
def test_parse_beat_reads_valid_heartbeats(text: str, beat: tuple[str, str, int, float]) -> None:
    assert tuple(parse_beat(text)) == beat


@given(text=st.text(max_size=200))
def test_parse_beat_refuses_or_round_trips_any_text(text: str) -> None:
    try:
        beat = parse_beat(text)
    except MessageRefusal:
        return
    lease, mode, *numbers = text.split(" ")
    assert (lease, mode) == (beat.lease, beat.mode)
    assert [int(number) for number in numbers] in (
        [beat.number],
        [beat.number, 1e3 * beat.silent_s],
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"joint_low_rad": (3.0,) * 7}, "joint_low_rad"),
        ({"joint_high_rad": (2.8,) * 6}, "one for one"),
        ({"joint_low_rad": (), "joint_high_rad": ()}, "joint_low_rad"),
        ({"joint_low_rad": (math.nan,) * 7}, "joint_low_rad"),
        ({"joint_low_rad": (-166,) * 7, "joint_high_rad": (166,) * 7}, "expected radians"),
        ({"joint_margin_rad": 2.0}, "joint_margin_rad"),
        ({"joint_names": ("a",)}, "joint_names"),
        ({"joint_names": ("a",) * 7}, "joint_names"),
        ({"reference": (0.0, 0.0, 0.0, 0.0)}, "reference"),
        ({"frame": ""}, "frame"),
        ({"heartbeat_s": 0.101}, "heartbeat_s"),
        ({"command_s": 0.301}, "command_s"),
        ({"state_s": 0.2}, "state_s"),
        ({"following_m": 0.06}, "following_m"),
        ({"slow_speed_m_s": 0.06}, "slow_speed_m_s"),
        ({"keep_out": ({"low_m": (0, 0, 0), "high_m": (1, 0, 1)},)}, "low_m"),
        ({"keep_out": ({"low_m": (0, 0, 0), "high_m": (1, 0.0029, 1)},)}, "by 0.003 m"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_guard_config_refuses_invalid_values(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        config(**changes)


def test_guard_config_requires_joint_limits_and_reference() -> None:
    with pytest.raises(ValidationError, match="joint_low_rad"):
        GuardConfig(motion=config().motion, reference=DOWN)  # type: ignore[call-arg]


def test_guard_config_digest_differs_between_limits() -> None:
    assert config().digest == config().digest
    assert config(lease_s=2.0).digest != config().digest
    assert config(motion={"translation_m": 0.01}).digest != config().digest
