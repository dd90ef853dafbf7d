"""What the guard asks of a message, and of a setpoint: pure functions, from the first on in order.

Schema and frame, finite, age, quaternion, box and rotation, keep-out boxes. Speed, acceleration,
jerk and lead are those of `serl.setpoint` and `serl.motion`, which simulated arms use as well.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from serl.errors import BadInput
from serl.geometry import Vector, between, is_between, nearest_rotation, normalized
from serl.guard.config import GuardConfig, GuardState
from serl.motion import Limits, Pose
from serl.setpoint import PROFILE_PERIOD_S, Setpoint, at_rest, brake_setpoint

LED_BACK_M, LED_BACK_RAD = 0.1, 0.35
"""The guard leads a tool back into its box that is outside by no more."""

_INSET_M = 5e-4
"""Targets stay this far inside the box, so that a profile that ends there does not leave it."""
_INSET_RAD = 2e-3

_BEAT = re.compile(
    r"([A-Za-z0-9_.-]{1,64}) (policy|teleop|reset|hold) ([0-9]{1,18})(?: ([0-9]{1,6}))?", re.ASCII
)


class Refused(BadInput):
    """A message that is not heeded.

    Attributes:
        reason: one of few words that refusals are counted by.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Heard(NamedTuple):
    """How a message came.

    Attributes:
        now_s: monotonic time of its arrival.
        stamp_s: its stamp, by the sender's ROS clock.
        wall_s: this process's ROS clock at its arrival.
        frame: frame_id of its header.
    """

    now_s: float
    stamp_s: float
    wall_s: float
    frame: str


class Beat(NamedTuple):
    """A heartbeat: who drives, what is asked for, the number of the beat, a person's silence."""

    lease: str
    mode: GuardState
    number: int
    silent_s: float


def parse_beat(text: str) -> Beat:
    """The heartbeat "<lease> <mode> <count> <silence in ms>", the last one optional."""
    found = _BEAT.fullmatch(text[:128])
    if found is None:
        raise Refused("heartbeat", f"heartbeat {text[:128]!r}: expected '<lease> <mode> <count>'")
    lease, mode, number, silent_ms = found.groups()
    return Beat(lease, GuardState(mode), int(number), 1e-3 * int(silent_ms or 0))


def check_numbers(values: Sequence[float], size: int, what: str) -> None:
    """Refuse what has not `size` numbers, all finite."""
    if len(values) != size:
        raise Refused("size", f"{what}: {len(values)} numbers, expected {size}")
    if not all(map(math.isfinite, values)):
        raise Refused("not finite", f"{what} is not finite")


def check_stamp(heard: Heard, what: str, ahead_s: float, behind_s: float) -> None:
    """Refuse stamps that are from the future, or old. Deadlines do not depend on them."""
    if not heard.stamp_s - heard.wall_s <= ahead_s:
        raise Refused("future", f"{what} is from the future")
    if not heard.wall_s - heard.stamp_s <= behind_s:
        raise Refused("old", f"{what} is old")


def check_frame(heard: Heard, what: str, frame: str) -> None:
    """Refuse what is not in the base frame."""
    if heard.frame != frame:
        raise Refused("frame", f"{what} is in the frame {heard.frame[:64]!r}, expected {frame!r}")


def check_pose(values: Sequence[float], what: str) -> Pose:
    """Seven numbers, x y z and a quaternion xyzw, as a pose."""
    check_numbers(values, 7, what)
    x, y, z, *quaternion = values
    try:
        return Pose((x, y, z), normalized(quaternion))
    except BadInput as error:
        raise Refused("quaternion", f"{what}: {error}") from None


def check_command(values: Sequence[float], heard: Heard, config: GuardConfig) -> Pose:
    """The target that a command asks for, within the box and the largest rotation.

    Raises:
        Refused: it is refused, with the reason.
    """
    check_frame(heard, "command", config.frame)
    check_numbers(values, 7, "command")
    check_stamp(heard, "command", config.ahead_s, config.command_s)
    target = bounded(check_pose(values, "command"), config)
    if _in_keep_out(target.position, config, 0.0):
        raise Refused("keep-out", "command is in a keep-out box")
    return target


def check_opening(values: Sequence[float], heard: Heard, config: GuardConfig) -> float:
    """What a gripper is to do: 1 open, 0 close.

    Raises:
        Refused: the command is refused, with the reason.
    """
    check_numbers(values, 1, "gripper")
    if not 0.0 <= values[0] <= 1.0:
        raise Refused("range", "gripper: expected 0 to 1")
    check_stamp(heard, "gripper", config.ahead_s, config.command_s)
    return 1.0 if values[0] >= 0.5 else 0.0


def bounded(pose: Pose, config: GuardConfig) -> Pose:
    """`pose`, or what the box and the largest rotation leave of it."""
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
    """Whether all that is within reach of a pose is where the tool may be."""
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
    """How a tool is farther from where it may be than the guard would lead it back from."""
    motion = config.motion
    rows = zip("xyz", motion.box_low_m, pose.position, motion.box_high_m, strict=True)
    far = [
        f"{axis} is {value:.3f} m, motion.box from {low:g} to {high:g} m"
        for axis, low, value, high in rows
        if not low - LED_BACK_M <= value <= high + LED_BACK_M
    ]
    if far:
        return f"pose: the tool is outside the box ({'; '.join(far)})"
    turned = math.hypot(*between(config.reference, pose.quaternion))
    if turned > motion.max_rotation_rad + LED_BACK_RAD:
        return (
            f"pose: the tool is turned by {turned:.2f} rad from the reference, "
            f"motion.max_rotation_rad allows {motion.max_rotation_rad:.2f}"
        )
    return ""


def can_stop_inside(state: Setpoint, config: GuardConfig) -> bool:
    """Whether a stop that begins now ends without leaving where the tool may be."""
    reach_m, reach_rad = _reach(state, config.motion.limits)
    if is_inside(state.pose, config, reach_m, reach_rad):
        return True
    return all(is_inside(pose, config) for pose in _stop(state, config.motion.limits))


def can_stop_clear(state: Setpoint, config: GuardConfig) -> bool:
    """Whether a stop that begins now ends without entering a box to keep out of."""
    return not any(is_kept_out(pose, config) for pose in _stop(state, config.motion.limits))


def may_be(after: Setpoint, before: Pose, config: GuardConfig) -> bool:
    """Whether a setpoint is allowed: a stop from it ends inside, and enters no keep-out box.

    A setpoint that is outside the box is led back, but around nothing: a keep-out box on the way
    ends that. It gets no farther outside than the guard takes an arm from.

    Args:
        after: the setpoint.
        before: pose of the one before it.
        config: of the guard.
    """
    if can_stop_inside(after, config):
        return True
    led_back = not is_inside(before, config) and not far_outside(after.pose, config)
    return led_back and (is_kept_out(before, config) or can_stop_clear(after, config))


def is_kept_out(pose: Pose, config: GuardConfig) -> bool:
    """Whether it is in a box to keep out of."""
    return _in_keep_out(pose.position, config, 0.0)


def is_apart(a: Pose, b: Pose, most_m: float, most_rad: float) -> bool:
    """Whether two poses differ by more than so much."""
    cosine = abs(sum(x * y for x, y in zip(a.quaternion, b.quaternion, strict=True)))
    return math.dist(a.position, b.position) > most_m or cosine < math.cos(0.5 * most_rad)


def _stop(state: Setpoint, limits: Limits) -> Iterator[Pose]:
    """Where a stop that begins now leads through, and ends."""
    yield state.pose
    while not at_rest(state):
        state = brake_setpoint(state, limits, PROFILE_PERIOD_S)
        yield state.pose


def _reach(state: Setpoint, limits: Limits) -> tuple[float, float]:
    """More than a stop travels: at constant speed for as long as it takes, and a bit."""
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


def _in_keep_out(point: Vector, config: GuardConfig, reach_m: float) -> bool:
    return any(is_between(point, box.low_m, box.high_m, reach_m) for box in config.keep_out)
