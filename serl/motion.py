"""Motion of an arm: the meaning of actions, their limits, and the target pose they move."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from serl.errors import BadInput
from serl.geometry import (
    Quaternion,
    Vector,
    add,
    conjugate,
    from_rotation_vector,
    is_in_box,
    multiply,
    nearest_point,
    nearest_rotation,
    normalize,
    rotate,
    rotation_between,
    subtract,
)
from serl.specs import ArraySpec
from serl.types import Action, FrozenModel

Axis = Literal["x", "y", "z", "roll", "pitch", "yaw"]
_INDEX: dict[Axis, int] = {"x": 0, "y": 1, "z": 2, "roll": 3, "pitch": 4, "yaw": 5}


FARTHEST_RAD = 4.0 * math.pi
"""Bound on joint angles: no supported joint turns further, so larger values are not radians."""


_LONGEST_STOP_S = 0.15
"""Longest stop from top speed: an arm rests 0.25 s after a fault, which is noticed in 0.1 s."""


class Limits(FrozenModel):
    """The single table of motion limits; a value above its hard maximum is rejected.

    The stopping profile is faster than the driving profile: a stop from 0.15 m/s takes less than
    80 ms. Settings that make a stop from top speed longer than 0.15 s are rejected. Rotational
    values correspond to translational ones at 1 rad/s to 0.2 m/s.

    Attributes:
        speed_m_s: top speed of the setpoint.
        angular_speed_rad_s: top angular speed of the setpoint.
        lead_m: largest distance of the setpoint from the measured pose while driving.
        lead_rad: largest rotation of the setpoint from the measured pose while driving.
        acceleration_m_s2: largest acceleration while driving.
        jerk_m_s3: largest jerk while driving.
        angular_acceleration_rad_s2: largest angular acceleration while driving.
        angular_jerk_rad_s3: largest angular jerk while driving.
        stop_acceleration_m_s2: largest acceleration of a stop.
        stop_jerk_m_s3: largest jerk of a stop.
        stop_angular_acceleration_rad_s2: largest angular acceleration of a stop.
        stop_angular_jerk_rad_s3: largest angular jerk of a stop.
        slow_force_n: measured force from which the guard slows all motion to 5 cm/s.
        stop_force_n: measured force from which the guard makes a protective stop.
        stop_torque_nm: measured torque from which the guard makes a protective stop.
        yield_m: total distance that an arm in a protective stop gives way to pushes, from the
            position where it came to rest.
    """

    speed_m_s: float = Field(0.15, gt=0, le=0.25)
    angular_speed_rad_s: float = Field(1.0, gt=0, le=1.0)
    lead_m: float = Field(0.010, gt=0, le=0.020)
    lead_rad: float = Field(0.05, gt=0, le=0.05)
    acceleration_m_s2: float = Field(1.0, gt=0, le=2.0)
    jerk_m_s3: float = Field(20.0, gt=0, le=50.0)
    angular_acceleration_rad_s2: float = Field(5.0, gt=0, le=10.0)
    angular_jerk_rad_s3: float = Field(100.0, gt=0, le=250.0)
    stop_acceleration_m_s2: float = Field(4.0, gt=0, le=4.0)
    stop_jerk_m_s3: float = Field(150.0, gt=0, le=150.0)
    stop_angular_acceleration_rad_s2: float = Field(20.0, gt=0, le=20.0)
    stop_angular_jerk_rad_s3: float = Field(750.0, gt=0, le=750.0)
    slow_force_n: float = Field(15.0, gt=0, le=15.0)
    stop_force_n: float = Field(30.0, gt=0, le=30.0)
    stop_torque_nm: float = Field(5.0, gt=0, le=5.0)
    yield_m: float = Field(0.03, ge=0, le=0.05)

    @model_validator(mode="after")
    def _check(self) -> Self:
        rows = (("", self.speed_m_s, "m_s"), ("angular_", self.angular_speed_rad_s, "rad_s"))
        for kind, speed, unit in rows:
            peak, jerk = (
                getattr(self, f"stop_{kind}acceleration_{unit}2"),
                getattr(self, f"stop_{kind}jerk_{unit}3"),
            )
            reached = min(peak, math.sqrt(jerk * speed))
            if (stop_s := speed / reached + reached / jerk) > _LONGEST_STOP_S:
                raise ValueError(
                    f"stop_{kind}acceleration_{unit}2 {peak:g}, stop_{kind}jerk_{unit}3 {jerk:g}: "
                    f"a stop from top speed takes {stop_s:.2f} s, at most {_LONGEST_STOP_S:g} s "
                    "are allowed"
                )
        return self

    @property
    def yield_rad(self) -> float:
        """The total rotation by which an arm in a protective stop gives way, rad."""
        return self.yield_m / 0.2


class WrenchLimits(FrozenModel):
    """Scales and limits of actions that are wrenches.

    Separate from `Limits`: wrenches bypass the setpoint and its limits, and dynamic tasks need
    higher speeds. The wrench and the speed bound the effect of a collision.

    Attributes:
        force_n: force of an action of 1, along x and z of the base.
        torque_nm: torque of an action of 1, about y of the base.
        speed_m_s: an axis faster than this is braked until it is slower.
        angular_speed_rad_s: a rotation faster than this is braked until it is slower.
        damping_n_s_m: damping of the driven axes, instead of the controller's.
        damping_nm_s: damping of the rotation.
        timeout_s: an arm that receives no action for this long brakes and holds, as it does at an
            action of zeros.
    """

    force_n: float = Field(13.0, gt=0, le=20.0)
    torque_nm: float = Field(3.5, gt=0, le=4.0)
    speed_m_s: float = Field(0.8, gt=0, le=1.0)
    angular_speed_rad_s: float = Field(4.0, gt=0, le=6.0)
    damping_n_s_m: float = Field(5.0, ge=1.0, le=1000.0)
    damping_nm_s: float = Field(0.2, ge=0.05, le=100.0)
    timeout_s: float = Field(0.1, gt=0, le=0.1)


WRENCH_AXES: tuple[Axis, ...] = ("x", "z", "pitch")
"""Axes of actions that are wrenches: two forces and a torque."""


class Motion(FrozenModel):
    """The meaning of actions: axes, scales, frame and limits.

    Attributes:
        action_mode: "pose": an action moves the target pose of the tool; "wrench": it is a force
            along x and z of the base and a torque about its y, with the other axes held as at the
            start.
        wrench: scales and limits of wrench actions.
        axes: the axes that an action moves, in the order of its entries.
        translation_m: metres that an action of 1 moves the target.
        rotation_rad: radians that an action of 1 turns the target.
        frame: the frame of translation and rotation: the base, or the target pose of the tool.
        box_low_m: lowest corner of the box of allowed target positions, in the base frame.
        box_high_m: highest corner of that box.
        max_rotation_rad: largest rotation of the target from the orientation at the start.
        gripper: whether the last entry of an action commands the gripper.
        gripper_interval_s: minimum time between two switches of the gripper.
        limits: speeds, leads, accelerations and forces.
    """

    action_mode: Literal["pose", "wrench"] = "pose"
    wrench: WrenchLimits = WrenchLimits()
    axes: tuple[Axis, ...]
    translation_m: float = Field(gt=0, le=1)
    rotation_rad: float = Field(0.1, gt=0, le=math.pi)
    frame: Literal["base", "tool"] = "base"
    box_low_m: Vector
    box_high_m: Vector
    max_rotation_rad: float = Field(math.pi, gt=0, le=math.pi)
    gripper: bool = False
    gripper_interval_s: float = Field(0.5, ge=0.3, le=0.6)
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not all(low < high for low, high in zip(self.box_low_m, self.box_high_m, strict=True)):
            raise ValueError(
                f"box_low_m {self.box_low_m} must be below box_high_m {self.box_high_m}"
            )
        if len(set(self.axes)) != len(self.axes):
            raise ValueError(f"axes {self.axes} must differ from each other")
        if self.action_mode == "wrench" and (self.axes != WRENCH_AXES or self.gripper):
            raise ValueError(f"action_mode wrench: axes must be {WRENCH_AXES}, without a gripper")
        return self

    @property
    def meaning(self) -> str:
        """The scale and frame of an action of 1 as text; recorded data may differ in them."""
        if self.action_mode == "wrench":
            return f"{self.wrench.force_n:g} N, {self.wrench.torque_nm:g} Nm, base frame"
        return f"{self.translation_m:g} m, {self.rotation_rad:g} rad, {self.frame} frame"

    @property
    def action_spec(self) -> ArraySpec:
        """Spec of an action: float32 in [-1, 1], one entry per axis, and one for the gripper."""
        unit = " ".join((*self.axes, *(("gripper",) if self.gripper else ())))
        return ArraySpec(shape=(len(self.axes) + self.gripper,), low=-1.0, high=1.0, unit=unit)


class Pose(NamedTuple):
    """Position (m) and orientation (quaternion xyzw) in the base frame."""

    position: Vector
    quaternion: Quaternion


def pose_from(values: Iterable[float]) -> Pose:
    """Return the pose of x y z and a quaternion xyzw; raise `BadInput` unless finite, of norm 1."""
    x, y, z, *quaternion = (float(value) for value in values)
    if not math.isfinite(x + y + z):
        raise BadInput(f"position {[x, y, z]}: expected three finite numbers")
    return Pose((x, y, z), normalize(quaternion))


def check_targets(name: str, motion: Motion) -> None:
    """Raise `BadInput`, with `name` in its message, if actions are wrenches instead of targets."""
    if motion.action_mode == "wrench":
        raise BadInput(f"{name}: wrenches are exerted in this process only, not over topics")


def check_action(action: Action, spec: ArraySpec) -> None:
    """Raise `BadInput` unless `action` has the shape of `spec` and is finite and in [-1, 1]."""
    if not isinstance(action, np.ndarray) or action.shape != spec.shape:
        found = getattr(action, "shape", type(action).__name__)
        raise BadInput(f"action: expected shape {spec.shape} ({spec.unit}), got {found}")
    # This comparison rejects NaN as well.
    if not all(-1.0 <= value <= 1.0 for value in action.tolist()):
        raise BadInput(f"action {action.tolist()}: expected finite numbers in [-1, 1]")


def next_target(
    previous: Pose, action: Sequence[float], measured: Pose, start: Pose, motion: Motion
) -> tuple[Pose, tuple[float, ...]]:
    """Move the target by an action, within the box and not far ahead of the measured pose.

    The target may be ahead by one full action more than the setpoint (see `within_lead`), so that
    the arm can keep moving from one action to the next. The box takes precedence over the lead: an
    arm pushed out of its box is led back in.

    Args:
        previous: the target before the action.
        action: one entry per axis, in [-1, 1]; a gripper entry is ignored.
        measured: measured pose of the tool.
        start: pose of the tool at the start of the episode; rotations are limited about it.
        motion: meaning and limits of the action.

    Returns:
        The new target, and the executed action: the actual movement of the target, in the scale of
        an action and clipped to [-1, 1], one entry per axis.
    """
    indices = [_INDEX[axis] for axis in motion.axes]
    command = [0.0] * 6
    for index, value in zip(indices, action, strict=False):
        command[index] = value * (motion.translation_m if index < 3 else motion.rotation_rad)
    shift, turn = _in_base(command, previous.quaternion, motion)
    goal = Pose(add(previous.position, shift), _turn(previous.quaternion, turn))
    target = _limit(goal, measured, start, motion)
    if target is goal:
        return target, tuple(action[: len(indices)])
    shift = subtract(target.position, previous.position)
    turn = rotation_between(previous.quaternion, target.quaternion)
    shift, turn = (to_action_frame(v, previous.quaternion, motion) for v in (shift, turn))
    moved = [*(s / motion.translation_m for s in shift), *(t / motion.rotation_rad for t in turn)]
    return target, tuple(min(1.0, max(-1.0, moved[index])) for index in indices)


def next_gripper(
    closed: bool, requested: float, since_switch_s: float, motion: Motion
) -> tuple[bool, float]:
    """Decide whether the gripper is to be closed: below -0.5 closes, above 0.5 opens.

    A switch before `gripper_interval_s` has passed is rejected, not delayed.

    Returns:
        Whether the gripper is to be closed, and the executed entry of the action: the requested
        one, clamped, if its switch was rejected, to [-0.5, 0.5], which keeps the gripper's state.
    """
    closes = requested < -0.5 if abs(requested) > 0.5 else closed
    if closes != closed and since_switch_s < motion.gripper_interval_s - 1e-9:
        return closed, min(0.5, max(-0.5, requested))
    return closes, requested


def within_lead(target: Pose, measured: Pose, limits: Limits) -> Pose:
    """Return the target, limited to the allowed lead ahead of the measured pose.

    This bounds the force of a spring-like controller: stiffness times lead.
    """
    position = nearest_point(target.position, measured.position, limits.lead_m)
    quaternion = nearest_rotation(target.quaternion, measured.quaternion, limits.lead_rad)
    if position is target.position and quaternion is target.quaternion:
        return target
    return Pose(position, quaternion)


def _in_base(command: list[float], tool: Quaternion, motion: Motion) -> tuple[Vector, Vector]:
    """Return translation and rotation vector in the base frame; a frame only rotates them."""
    shift: Vector = (command[0], command[1], command[2])
    turn: Vector = (command[3], command[4], command[5])
    if motion.frame == "tool":
        return rotate(tool, shift), rotate(tool, turn)
    return shift, turn


def to_action_frame(v: Vector, target: Quaternion, motion: Motion) -> Vector:
    """Turn a vector of the base frame into the frame of actions, given the target's orientation."""
    return rotate(conjugate(target), v) if motion.frame == "tool" else v


def _turn(q: Quaternion, turn: Vector) -> Quaternion:
    return multiply(from_rotation_vector(turn), q) if any(turn) else q


def _limit(target: Pose, measured: Pose, start: Pose, motion: Motion) -> Pose:
    """Return `target`, limited by the box, the leads and the largest rotation.

    The box applies first, then the lead, then the box again for an arm outside of it.
    """
    low, high, limits = motion.box_low_m, motion.box_high_m, motion.limits
    position = _clamp(target.position, low, high)
    position = nearest_point(position, measured.position, limits.lead_m + motion.translation_m)
    position = _clamp(position, low, high)
    quaternion = nearest_rotation(target.quaternion, start.quaternion, motion.max_rotation_rad)
    lead_rad = limits.lead_rad + motion.rotation_rad
    quaternion = nearest_rotation(quaternion, measured.quaternion, lead_rad)
    if position is target.position and quaternion is target.quaternion:
        return target
    return Pose(position, quaternion)


def _clamp(v: Vector, low: Vector, high: Vector) -> Vector:
    x, y, z = v
    if low[0] <= x <= high[0] and low[1] <= y <= high[1] and low[2] <= z <= high[2]:
        return v
    x, y, z = (min(high[i], max(low[i], v[i])) for i in range(3))
    return x, y, z


_THINNEST_M = 0.003
"""Least side of a box: more than a setpoint moves in 10 ms, so that none passes through a box."""


class Box(FrozenModel):
    """A box in the base frame that the tool must not enter."""

    low_m: Vector
    high_m: Vector

    @model_validator(mode="after")
    def _check(self) -> Self:
        sides_m = [high - low for low, high in zip(self.low_m, self.high_m, strict=True)]
        if not min(sides_m) > _THINNEST_M - 1e-9:
            raise ValueError(
                f"low_m {self.low_m} must be below high_m {self.high_m}, by {_THINNEST_M:g} m at "
                "least"
            )
        return self


_ORIGIN = Pose((0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))


class Target:
    """The target of one arm, simulated or real, moved by actions within the limits of `Motion`.

    Args:
        motion: meaning and limits of actions.
        keep_out: boxes that the target does not enter, as a guard would keep the tool out.

    Attributes:
        motion: meaning and limits of actions, as given.
        target: target pose of the tool, in the base frame.
        closed: whether the gripper is to be closed.
        gripped: whether an action of the episode has commanded the gripper; until then `closed` is
            its state at the start, which may be half open with a load.
    """

    def __init__(self, motion: Motion, keep_out: Sequence[Box] = ()) -> None:
        self.motion, self._spec = motion, motion.action_spec
        self._keep_out = keep_out
        self.begin(_ORIGIN, False)

    def begin(self, start: Pose, closed: bool) -> None:
        """Begin an episode at `start`; rotations of the tool are limited about it."""
        self._start = self.target = start
        self.closed, self._switched_s = closed, -math.inf
        self.gripped = False
        self._orientation: Quaternion | None = None

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target to an orientation during the next actions, until an action rotates it.

        It turns about all axes, also those that actions lack, as fast as the lead allows.
        """
        self._orientation = orientation
        self._start = self._start._replace(quaternion=orientation)

    def check(self, action: Action) -> None:
        """Raise `BadInput` unless the action has the right shape and is finite and in [-1, 1]."""
        check_action(action, self._spec)

    def move(self, action: Action, measured: Pose, now_s: float) -> Action:
        """Move the target by a checked action; return the executed action.

        Args:
            action: one entry per axis, and one for the gripper.
            measured: measured pose of the tool.
            now_s: time in seconds; in simulation, simulated time.
        """
        motion, values = self.motion, action.tolist()
        if self._orientation is not None:
            self._turn(values, measured)
        target, executed = next_target(self.target, values, measured, self._start, motion)
        if any(is_in_box(target.position, box.low_m, box.high_m) for box in self._keep_out):
            executed = (0.0,) * len(motion.axes)
        else:
            self.target = target
        if motion.gripper:
            since_s = now_s - self._switched_s
            closed, done = next_gripper(self.closed, values[-1], since_s, motion)
            if closed != self.closed:
                self.closed, self._switched_s = closed, now_s
            self.gripped |= abs(done) > 0.5
            executed = (*executed, done)
        return np.array(executed, np.float32)

    def _turn(self, action: Sequence[float], measured: Pose) -> None:
        """Turn the target towards the orientation of `turn_to`, unless the action turns it."""
        assert self._orientation is not None
        motion = self.motion
        if any(v for axis, v in zip(motion.axes, action, strict=False) if _INDEX[axis] > 2):
            self._orientation = None
            return
        lead_rad = motion.limits.lead_rad + motion.rotation_rad
        turned = nearest_rotation(self._orientation, measured.quaternion, lead_rad)
        self.target = self.target._replace(quaternion=turned)
