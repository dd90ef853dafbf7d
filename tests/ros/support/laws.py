"""Motion laws of the controllers that the fake arms stand for: what each does with a message.

They follow the sources that `data` cites, line by line where a target becomes motion, for a tool
without joints: kinematics, singular poses, collisions and torques are not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Read = Callable[[str], Any]
"""Reads a parameter of the controller as it is now."""

PERIOD_S = 0.01


@dataclass
class Tool:
    """A pose in the base frame: metres, and a quaternion xyzw."""

    place: Array  # (3,)
    turn: Array  # (4,)

    def moved(self, step: Array) -> Tool:  # (6,)
        """The tool after a step: metres, and a rotation vector, both in the base frame."""
        return Tool(self.place + step[:3], _multiply(_quaternion(step[3:]), self.turn))

    def to(self, target: Tool) -> Array:  # (6,)
        """The step that leads from here to a target."""
        turn = _multiply(target.turn, self.turn * [-1.0, -1.0, -1.0, 1.0])
        return np.concatenate([target.place - self.place, _rotation_vector(turn)])


class Law:
    """How a controller moves its tool.

    Attributes:
        shows_command: the pose that it publishes is the one that it commands, not the measured one.
        twist: that it publishes: m/s and rad/s, if it publishes any.
    """

    shows_command = False

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        self._read, self._frame = read, frame
        self._target = tool
        self.twist: Array = np.zeros(6)

    def hear(self, message: Any, publishers: int) -> None:
        """Take a message of its command topic, which so many nodes publish."""
        raise NotImplementedError

    def publishes(self, role: str) -> bool:
        """Whether it publishes its pose, or another of its topics, as its parameters are now."""
        return True

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:  # wrench: (6,)
        """Where the controller sends a tool within `PERIOD_S`; `now_s` is the node's clock."""
        raise NotImplementedError


class Spring(Law):
    """CartesianController of crisp_controllers: an impedance, in an arm without inertia.

    Not modelled: use_operational_space, the null space, the torque rate.
    """

    _CYCLES = 10  # of 1 kHz

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(read, tool, frame)
        self._filtered = tool

    def hear(self, message: Any, publishers: int) -> None:
        if publishers <= 1:  # neither the frame nor what is not finite is refused
            self._target = _tool_of(message.pose)

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        share = 1.0 - self._read("filter.target_pose") ** self._CYCLES  # 1 takes no target
        self._filtered = self._filtered.moved(share * self._filtered.to(self._target))
        if self._read("stop_commands"):
            return tool
        local = self._read("use_local_jacobian")
        error = tool.to(self._filtered)
        axes = _matrix(tool.turn) if local else np.eye(3)
        error = np.concatenate([axes.T @ error[:3], axes.T @ error[3:]])
        if self._read("limit_error"):
            names = ("x", "y", "z", "rx", "ry", "rz")
            clip = np.array([self._read(f"task.error_clip.{name}") for name in names])
            error = np.clip(error, -clip, clip)
        step = error * [self._share(kind, axis) for kind in ("pos", "rot") for axis in "xyz"]
        step = np.concatenate([axes @ step[:3], axes @ step[3:]])
        if not local:  # the force acts at the origin of the base, and so does the damping
            step[:3] += np.cross(step[3:], tool.place)
        return tool.moved(step)

    def _share(self, kind: str, axis: str) -> float:
        """Of its error that an overdamped axis makes up for within a period."""
        stiffness = self._read(f"task.k_{kind}_{axis}")
        given = self._read(f"task.d_{kind}_{axis}")
        damping = given if given > 0.0 else 2.0 * math.sqrt(stiffness)
        return 1.0 - math.exp(-stiffness / damping * PERIOD_S) if stiffness else 0.0


class ForwardDynamics(Law):
    """CartesianMotionController of FZI: a mass of 1 kg that is drawn to its target."""

    shows_command = True
    _INTERNAL_S = 0.02
    _FARTHEST = 1.0  # m, and rad

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(read, tool, frame)
        self._iterations = read("solver.iterations")  # read once, in on_configure
        self._last: Array = np.zeros(6)

    def publishes(self, role: str) -> bool:
        return role not in ("pose", "twist") or bool(self._read("solver.publish_state_feedback"))

    def hear(self, message: Any, publishers: int) -> None:
        target = _tool_of(message.pose)
        if message.header.frame_id == self._frame and not _has_nan(target):
            self._target = target

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        names = [f"{kind}_{axis}" for kind in ("trans", "rot") for axis in "xyz"]
        p = np.array([self._read(f"pd_gains.{name}.p") for name in names])
        d = np.array([self._read(f"pd_gains.{name}.d") for name in names])
        for _ in range(self._iterations):
            force = self._force(_clamped(tool.to(self._target), self._FARTHEST), wrench, names)
            drawn = p * force + d * (force - self._last) / self._INTERNAL_S
            self._last = force
            tool = tool.moved(self.twist * self._INTERNAL_S)
            pull = self._read("solver.error_scale") * drawn
            self.twist = 0.9 * (self.twist + pull * self._INTERNAL_S)
        return tool

    def _force(self, error: Array, wrench: Array, names: list[str]) -> Array:
        return error


class Compliance(ForwardDynamics):
    """CartesianComplianceController of FZI: its mass is drawn by a spring and by a sensor."""

    shows_command = False  # another node publishes the pose

    def publishes(self, role: str) -> bool:
        return True

    def _force(self, error: Array, wrench: Array, names: list[str]) -> Array:
        return np.array([self._read(f"stiffness.{name}") for name in names]) * error + wrench


class Servo(Law):
    """MoveIt Servo, whose command type a person has set to TWIST."""

    _PREFIX = "moveit_servo"
    _COEFFICIENT = 1.5  # of the default smoothing, a Butterworth filter

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(lambda name: read(f"{self._PREFIX}.{name}"), tool, frame)
        self._timeout_s = self._read("incoming_command_timeout")  # copied once, by the node
        self._heard: tuple[float, Array] | None = None
        self._wanted: Array = np.zeros(6)

    def hear(self, message: Any, publishers: int) -> None:
        twist, stamp = message.twist, message.header.stamp
        rows = [[each.x, each.y, each.z] for each in (twist.linear, twist.angular)]
        velocity = np.array(rows).reshape(6)
        if message.header.frame_id != self._frame or not np.isfinite(velocity).all():
            self._heard = None
        else:
            self._heard = stamp.sec + 1e-9 * stamp.nanosec, velocity

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        wanted = np.zeros(6)
        if self._heard is not None and now_s - self._heard[0] < self._timeout_s:
            wanted = self._scaled(self._heard[1])
        filtered = wanted + self._wanted + (self._COEFFICIENT - 1.0) * self.twist
        self.twist, self._wanted = filtered / (1.0 + self._COEFFICIENT), wanted
        return tool.moved(self.twist * PERIOD_S)

    def _scaled(self, velocity: Array) -> Array:
        scales = [self._read("scale.linear"), self._read("scale.rotational")]
        parts = [velocity[:3], velocity[3:]]
        if self._read("command_in_type") == "unitless":
            parts = [scale * part for scale, part in zip(scales, parts, strict=True)]
        else:
            parts = [
                part / max(1.0, float(np.linalg.norm(part)) / scale) if scale > 0.0 else part
                for scale, part in zip(scales, parts, strict=True)
            ]
        override = self._read("override_velocity_scaling_factor")
        return np.concatenate(parts) * (override if override >= 0.01 else 1.0)


LAWS: dict[str, type[Law]] = {
    "spring": Spring,
    "motion": ForwardDynamics,
    "compliance": Compliance,
    "servo": Servo,
}
"""By the name that a file of `data` has for the controller's law."""


def _tool_of(pose: Any) -> Tool:
    place, turn = pose.position, pose.orientation
    return Tool(np.array([place.x, place.y, place.z]), np.array([turn.x, turn.y, turn.z, turn.w]))


def _has_nan(tool: Tool) -> bool:
    return bool(np.isnan(tool.place).any() or np.isnan(tool.turn).any())


def _clamped(error: Array, farthest: float) -> Array:
    """The error, with both its parts no longer than that."""
    parts = [error[:3], error[3:]]
    return np.concatenate(
        [part / max(1.0, float(np.linalg.norm(part)) / farthest) for part in parts]
    )


def _quaternion(rotation: Array) -> Array:  # (3,) -> (4,)
    angle = float(np.linalg.norm(rotation))
    axis = rotation / angle if angle > 0.0 else rotation
    return np.append(math.sin(0.5 * angle) * axis, math.cos(0.5 * angle))


def _rotation_vector(turn: Array) -> Array:  # (4,) -> (3,)
    turn = turn if turn[3] >= 0.0 else -turn
    size = float(np.linalg.norm(turn[:3]))
    return turn[:3] * (2.0 * math.atan2(size, turn[3]) / size if size > 1e-12 else 2.0)


def _multiply(a: Array, b: Array) -> Array:
    vector = a[3] * b[:3] + b[3] * a[:3] + np.cross(a[:3], b[:3])
    product = np.append(vector, a[3] * b[3] - float(a[:3] @ b[:3]))
    return product / float(np.linalg.norm(product))


def _matrix(turn: Array) -> Array:  # (4,) -> (3, 3)
    x, y, z, w = turn
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
