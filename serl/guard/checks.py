"""Checks of messages and setpoints for the guard: pure functions, in the order of their use.

Schema and frame, finite numbers, age, quaternion, box and rotation, keep-out boxes. Speed,
acceleration, jerk and lead are bounded in `serl.setpoint` and `serl.motion`, which simulated arms
use as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from serl.errors import BadInput
from serl.geometry import Vector, is_in_box, nearest_rotation, normalize, rotation_between
from serl.guard.config import GuardConfig, GuardState
from serl.motion import Box, Limits, Pose
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, at_rest, brake_setpoint

LED_BACK_M, LED_BACK_RAD = 0.1, 0.35
"""Largest distance and rotation outside the box from which the guard leads a tool back."""

_INSET_M = 5e-4
"""Distance of targets from the faces of the box, so that a profile that ends there stays inside."""
_INSET_RAD = 2e-3

_BEAT = re.compile(
    r"([A-Za-z0-9_.-]{1,64}) (policy|teleop|reset|joints|hold) ([0-9]{1,18})(?: ([0-9]{1,6}))?",
    re.ASCII,
)


class MessageRefusal(BadInput):
    """The error for a message that the guard rejects.

    Attributes:
        reason: short category by which refusals are counted.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class MessageInfo(NamedTuple):
    """Arrival times, stamp and frame of a received message.

    Attributes:
        now_s: monotonic time of the message's arrival.
        stamp_s: stamp of the message, by the sender's ROS clock.
        wall_s: this process's ROS clock at the message's arrival.
        frame: frame_id of the message's header.
    """

    now_s: float
    stamp_s: float
    wall_s: float
    frame: str


class Beat(NamedTuple):
    """A heartbeat: lease of the active controller, mode, sequence number, age of operator input."""

    lease: str
    mode: GuardState
    number: int
    silent_s: float


def parse_beat(text: str) -> Beat:
    """Parse a heartbeat "<lease> <mode> <count> <silence in ms>"; the silence is optional.

    Raises:
        MessageRefusal: the text has another form.
    """
    found = _BEAT.fullmatch(text[:128])
    if found is None:
        raise MessageRefusal(
            "heartbeat", f"heartbeat {text[:128]!r}: expected '<lease> <mode> <count>'"
        )
    lease, mode, number, silent_ms = found.groups()
    return Beat(lease, GuardState(mode), int(number), 1e-3 * int(silent_ms or 0))


def check_numbers(values: Sequence[float], size: int, subject: str) -> None:
    """Raise `MessageRefusal` unless there are exactly `size` numbers, all finite."""
    if len(values) != size:
        raise MessageRefusal("size", f"{subject}: {len(values)} numbers, expected {size}")
    if not all(map(math.isfinite, values)):
        raise MessageRefusal("not finite", f"{subject} is not finite")


def check_stamp(info: MessageInfo, subject: str, ahead_s: float, behind_s: float) -> None:
    """Refuse a stamp from the future or too old; deadlines do not depend on stamps."""
    if not info.stamp_s - info.wall_s <= ahead_s:
        raise MessageRefusal("future", f"{subject} is from the future")
    if not info.wall_s - info.stamp_s <= behind_s:
        raise MessageRefusal("old", f"{subject} is old")


def check_frame(info: MessageInfo, subject: str, frame: str) -> None:
    """Raise `MessageRefusal` unless the message is in the frame `frame`."""
    if info.frame != frame:
        raise MessageRefusal(
            "frame", f"{subject} is in the frame {info.frame[:64]!r}, expected {frame!r}"
        )


def check_pose(values: Sequence[float], subject: str) -> Pose:
    """Return seven numbers, x y z and a quaternion xyzw, as a pose; refuse invalid ones."""
    check_numbers(values, 7, subject)
    x, y, z, *quaternion = values
    try:
        return Pose((x, y, z), normalize(quaternion))
    except BadInput as error:
        raise MessageRefusal("quaternion", f"{subject}: {error}") from None


def check_command(values: Sequence[float], info: MessageInfo, config: GuardConfig) -> Pose:
    """Return the target of a command, clamped to the box and to the largest rotation.

    Raises:
        MessageRefusal: the command is rejected, with the reason.
    """
    check_frame(info, "command", config.frame)
    check_numbers(values, 7, "command")
    check_stamp(info, "command", config.ahead_s, config.command_s)
    target = clamp_pose(check_pose(values, "command"), config)
    if _in_keep_out(target.position, config, 0.0):
        raise MessageRefusal("keep-out", "command is in a keep-out box")
    return target


def check_opening(values: Sequence[float], info: MessageInfo, config: GuardConfig) -> float:
    """Return the commanded opening of a gripper: 1 open, 0 close.

    Raises:
        MessageRefusal: the command is rejected, with the reason.
    """
    check_numbers(values, 1, "gripper")
    if not 0.0 <= values[0] <= 1.0:
        raise MessageRefusal("range", "gripper: expected 0 to 1")
    check_stamp(info, "gripper", config.ahead_s, config.command_s)
    return 1.0 if values[0] >= 0.5 else 0.0


def clamp_pose(pose: Pose, config: GuardConfig) -> Pose:
    """Return `pose` clamped to the box and to the largest rotation."""
    motion = config.motion
    x, y, z = (
        min(high - _INSET_M, max(low + _INSET_M, value))
        for low, value, high in zip(motion.box_low_m, pose.position, motion.box_high_m, strict=True)
    )
    largest = motion.max_rotation_rad
    if largest < math.pi:
        largest = max(0.5 * largest, largest - _INSET_RAD)
    return Pose((x, y, z), nearest_rotation(pose.quaternion, config.reference, largest))


def is_inside(
    pose: Pose, config: GuardConfig, reach_m: float = 0.0, reach_rad: float = 0.0
) -> bool:
    """Return whether every pose within reach of `pose` is allowed for the tool.

    Allowed poses are inside the box, within the largest rotation and outside all keep-out boxes.
    """
    motion = config.motion
    for low, value, high in zip(motion.box_low_m, pose.position, motion.box_high_m, strict=True):
        if not low + reach_m <= value <= high - reach_m:
            return False
    allowed = motion.max_rotation_rad
    if allowed < math.pi:
        cosine = abs(sum(a * b for a, b in zip(pose.quaternion, config.reference, strict=True)))
        if reach_rad > allowed or cosine < math.cos(0.5 * (allowed - reach_rad)) - 1e-12:
            return False
    return not _in_keep_out(pose.position, config, reach_m)


def far_outside(pose: Pose, config: GuardConfig) -> str:
    """Describe a tool that is too far outside its limits to be led back; empty if it is not."""
    motion = config.motion
    rows = zip("xyz", motion.box_low_m, pose.position, motion.box_high_m, strict=True)
    far = [
        f"{axis} is {value:.3f} m, motion.box from {low:g} to {high:g} m"
        for axis, low, value, high in rows
        if not low - LED_BACK_M <= value <= high + LED_BACK_M
    ]
    if far:
        return f"pose: the tool is outside the box ({'; '.join(far)})"
    turned = math.hypot(*rotation_between(config.reference, pose.quaternion))
    if turned > motion.max_rotation_rad + LED_BACK_RAD:
        return (
            f"pose: the tool is turned by {turned:.2f} rad from the reference, "
            f"motion.max_rotation_rad allows {motion.max_rotation_rad:.2f}"
        )
    return ""


def can_stop_inside(state: Setpoint, config: GuardConfig) -> bool:
    """Return whether a stop that begins now stays within the poses that the tool may take."""
    reach_m, reach_rad = _reach(state, config.motion.limits)
    if is_inside(state.pose, config, reach_m, reach_rad):
        return True
    return all(is_inside(pose, config) for pose in _stop(state, config.motion.limits))


def is_allowed(after: Setpoint, before: Pose, config: GuardConfig) -> bool:
    """Return whether a setpoint is allowed: a stop from it stays inside and out of keep-out boxes.

    A setpoint outside the box may be led back, but not around obstacles: a keep-out box on the way
    ends the motion, and one in a keep-out box only leaves it, by the nearest face. The setpoint
    gets no farther outside than `far_outside` allows.

    Args:
        after: the setpoint.
        before: pose of the preceding setpoint.
        config: configuration of the guard.
    """
    if can_stop_inside(after, config):
        return True
    if is_inside(before, config) or far_outside(after.pose, config):
        return False
    return all(
        _depth_m(pose.position, box) <= _depth_m(before.position, box)
        for pose in _stop(after, config.motion.limits)
        for box in config.keep_out
    )


def is_kept_out(pose: Pose, config: GuardConfig) -> bool:
    """Return whether the position of `pose` is in a keep-out box."""
    return _in_keep_out(pose.position, config, 0.0)


def is_apart(a: Pose, b: Pose, most_m: float, most_rad: float) -> bool:
    """Return whether two poses differ by more than `most_m` or by more than `most_rad`."""
    cosine = abs(sum(x * y for x, y in zip(a.quaternion, b.quaternion, strict=True)))
    return math.dist(a.position, b.position) > most_m or cosine < math.cos(0.5 * most_rad)


def _stop(state: Setpoint, limits: Limits) -> Iterator[Pose]:
    """Yield the poses of a stop that begins now, from the present pose to the final one."""
    yield state.pose
    while not at_rest(state):
        state = brake_setpoint(state, limits, PROFILE_PERIOD_S)
        yield state.pose


def _reach(state: Setpoint, limits: Limits) -> tuple[float, float]:
    """Return upper bounds of a stop's travel (m, rad): constant speed for its duration, plus 1 mm.

    The margin of the rotation is 5 mrad.
    """
    speed, spin = math.hypot(*state.velocity), math.hypot(*state.angular_velocity)
    ramp_s = limits.stop_acceleration_m_s2 / limits.stop_jerk_m_s3 + 4.0 * PROFILE_PERIOD_S
    turn_s = (
        limits.stop_angular_acceleration_rad_s2 / limits.stop_angular_jerk_rad_s3
        + 4.0 * PROFILE_PERIOD_S
    )
    return (
        1e-3 + speed * (speed / limits.stop_acceleration_m_s2 + ramp_s),
        5e-3 + spin * (spin / limits.stop_angular_acceleration_rad_s2 + turn_s),
    )


def _depth_m(point: Vector, box: Box) -> float:
    """Return the distance of a point in a box from the nearest face; 0 outside."""
    rows = zip(box.low_m, point, box.high_m, strict=True)
    return max(0.0, min(min(value - low, high - value) for low, value, high in rows))


def _in_keep_out(point: Vector, config: GuardConfig, reach_m: float) -> bool:
    return any(is_in_box(point, box.low_m, box.high_m, reach_m) for box in config.keep_out)
