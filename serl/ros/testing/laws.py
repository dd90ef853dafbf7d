"""Motion laws of controllers: what a controller does with a command, as in its source code.

A law moves a tool without joints: kinematics, singular poses, collisions and torques are not
modelled. A law of another controller is a subclass of `Law` in a file of its own, which a
`Driver` names as `my_law.py:MyLaw`.
"""

from __future__ import annotations

import importlib.util
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serl.errors import BadInput
from serl.geometry import (
    conjugate,
    from_rotation_vector,
    multiply,
    normalize,
    rotate,
    rotation_between,
)

Array = NDArray[np.float64]
Read = Callable[[str], Any]
"""Reads the present value of a parameter of the controller."""

PERIOD_S = 0.01
"""Time step of every law."""


@dataclass
class Tool:
    """A pose in the base frame: metres, and a quaternion xyzw."""

    position: Array  # (3,)
    quaternion: Array  # (4,)

    def moved(self, step: Array) -> Tool:  # (6,)
        """Return the tool after a step: metres, and a rotation vector, both in the base frame."""
        turn = multiply(from_rotation_vector(_triple(step[3:])), _quadruple(self.quaternion))
        return Tool(self.position + step[:3], np.array(normalize(turn)))

    def to(self, target: Tool) -> Array:  # (6,)
        """Return the step from here to a target."""
        turn = rotation_between(_quadruple(self.quaternion), _quadruple(target.quaternion))
        return np.concatenate([target.position - self.position, turn])


class Law(ABC):
    """Base of all laws.

    Args:
        read: reads a parameter of the controller.
        tool: the tool at the start, which is the first target.
        frame: the base frame of the driver.

    Attributes:
        publishes_command: the published pose is the commanded one, not the measured one.
        twist: the published twist, if the driver publishes one: m/s and rad/s.  # (6,)
        exerted: the last target wrench; N and Nm.  # (6,)
    """

    publishes_command = False

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        self._read, self._frame = read, frame
        self._target = tool
        self.twist: Array = np.zeros(6)
        self.exerted: Array = np.zeros(6)

    @property
    def stiffness_n_m(self) -> float | None:
        """Stiffness of the controller's spring with its present parameters; None without one."""
        return None

    @abstractmethod
    def receive(self, message: Any, publishers: int) -> None:
        """Take a message of the command topic, which has this number of publishers."""

    def exert(self, wrench: Array, publishers: int) -> None:
        """Take a target wrench; its topic has this number of publishers."""
        self.exerted = wrench

    def publishes(self, role: str) -> bool:
        """Return whether a topic, such as "pose", is published with the present parameters."""
        return True

    @abstractmethod
    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:  # wrench: (6,)
        """Return the tool `PERIOD_S` later.

        Args:
            tool: the tool.
            wrench: last measurement of the force sensor that the controller subscribes to.
            now_s: time of the node's clock.
        """


class Spring(Law):
    """CartesianController of crisp_controllers: an impedance, in an arm without inertia.

    Not modelled: use_operational_space, the null space, the torque rate.
    """

    _CYCLES = 10  # of 1 kHz

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(read, tool, frame)
        self._filtered = tool

    @property
    def stiffness_n_m(self) -> float | None:
        """The largest stiffness of the three axes."""
        return max(float(self._read(f"task.k_pos_{axis}")) for axis in "xyz")

    def receive(self, message: Any, publishers: int) -> None:
        """Take a target; a wrong frame and non-finite numbers are accepted, as in the source."""
        if publishers <= 1:
            self._target = tool_of(message.pose)

    def exert(self, wrench: Array, publishers: int) -> None:
        """Take a target wrench; with several publishers the last one stays."""
        if publishers <= 1:
            self.exerted = wrench

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        """Return the tool drawn by the clipped spring, along its own or the base's axes."""
        share = 1.0 - self._read("filter.target_pose") ** self._CYCLES  # 1 takes no target
        self._filtered = self._filtered.moved(share * self._filtered.to(self._target))
        if self._read("stop_commands"):
            return tool
        local = self._read("use_local_jacobian")
        error = tool.to(self._filtered)
        if local:
            error = _rotated(conjugate(_quadruple(tool.quaternion)), error)
        if self._read("limit_error"):
            names = ("x", "y", "z", "rx", "ry", "rz")
            clip = np.array([self._read(f"task.error_clip.{name}") for name in names])
            error = np.clip(error, -clip, clip)
        rows = [(kind, axis) for kind in ("pos", "rot") for axis in "xyz"]
        stiffness = np.array([self._read(f"task.k_{kind}_{axis}") for kind, axis in rows])
        error += self.exerted / np.maximum(stiffness, 1e-6)  # beside the clipped spring
        step = error * [self._share(*row) for row in rows]
        if local:
            step = _rotated(_quadruple(tool.quaternion), step)
        else:  # the force acts at the origin of the base, and so does the damping
            step[:3] += np.cross(step[3:], tool.position)
        return tool.moved(step)

    def _share(self, kind: str, axis: str) -> float:
        """Return the part of its error that an overdamped axis makes up for within a period."""
        stiffness = self._read(f"task.k_{kind}_{axis}")
        given = self._read(f"task.d_{kind}_{axis}")
        damping = given if given > 0.0 else 2.0 * math.sqrt(stiffness)
        return 1.0 - math.exp(-stiffness / damping * PERIOD_S) if stiffness else 0.0


class ForwardDynamics(Law):
    """CartesianMotionController of FZI: a mass of 1 kg that is drawn to its target."""

    publishes_command = True
    _INTERNAL_S = 0.02
    _FARTHEST = 1.0  # m, and rad

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(read, tool, frame)
        self._iterations = read("solver.iterations")  # read once, in on_configure
        self._last: Array = np.zeros(6)

    def publishes(self, role: str) -> bool:
        """Return whether the controller publishes its state feedback."""
        return role not in ("pose", "twist") or bool(self._read("solver.publish_state_feedback"))

    def receive(self, message: Any, publishers: int) -> None:
        """Take a target in the base frame without NaN."""
        target = tool_of(message.pose)
        numbers = [*target.position, *target.quaternion]
        if message.header.frame_id == self._frame and not np.isnan(numbers).any():
            self._target = target

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        """Return the tool after the solver's iterations."""
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


class ComplianceController(ForwardDynamics):
    """CartesianComplianceController of FZI: its mass is drawn by a spring and by a sensor."""

    publishes_command = False  # another node publishes the pose

    @property
    def stiffness_n_m(self) -> float | None:
        """The largest stiffness of the three axes."""
        return max(float(self._read(f"stiffness.trans_{axis}")) for axis in "xyz")

    def publishes(self, role: str) -> bool:
        """Return True: the pose is published by another node."""
        return True

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        """Return the tool drawn by its spring, the sensor and the target wrench as well.

        The links of sensor and stiffness, `ft_sensor_ref_link` and `compliance_ref_link`, are the
        tool: both have its axes.
        """
        self._turn, own = _quadruple(tool.quaternion), self.exerted
        if self._read("hand_frame_control"):
            own = _rotated(self._turn, own)
        return super().step(tool, _rotated(self._turn, wrench) + own, now_s)

    def _force(self, error: Array, wrench: Array, names: list[str]) -> Array:
        stiffness = np.array([self._read(f"stiffness.{name}") for name in names])
        return _rotated(self._turn, stiffness * _rotated(conjugate(self._turn), error)) + wrench


class Servo(Law):
    """MoveIt Servo with the command type TWIST, which the operator has set."""

    _PREFIX = "moveit_servo"
    _COEFFICIENT = 1.5  # of the default smoothing, a Butterworth filter

    def __init__(self, read: Read, tool: Tool, frame: str) -> None:
        super().__init__(lambda name: read(f"{self._PREFIX}.{name}"), tool, frame)
        self._timeout_s = self._read("incoming_command_timeout")  # copied once, by the node
        self._command: tuple[float, Array] | None = None
        self._last_target: Array = np.zeros(6)

    def receive(self, message: Any, publishers: int) -> None:
        """Take a finite velocity in the base frame; anything else halts the arm."""
        twist, stamp = message.twist, message.header.stamp
        rows = [[each.x, each.y, each.z] for each in (twist.linear, twist.angular)]
        velocity = np.array(rows).reshape(6)
        if message.header.frame_id != self._frame or not np.isfinite(velocity).all():
            self._command = None
        else:
            self._command = stamp.sec + 1e-9 * stamp.nanosec, velocity

    def step(self, tool: Tool, wrench: Array, now_s: float) -> Tool:
        """Return the tool moved by the filtered command; a command with an old stamp is zero."""
        target = np.zeros(6)
        if self._command is not None and now_s - self._command[0] < self._timeout_s:
            target = self._scaled(self._command[1])
        filtered = target + self._last_target + (self._COEFFICIENT - 1.0) * self.twist
        self.twist, self._last_target = filtered / (1.0 + self._COEFFICIENT), target
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
    "compliance": ComplianceController,
    "servo": Servo,
}
"""The laws of serl, by the name that a `Driver` has for them."""


def load_law(name: str) -> type[Law]:
    """Return a law by its name in `LAWS`, or as `FILE.py:CLASS`.

    Raises:
        BadInput: there is no such law.
    """
    if name in LAWS:
        return LAWS[name]
    file, separator, kind = name.rpartition(":")
    if not separator or not Path(file).is_file():
        known = ", ".join(LAWS)
        raise BadInput(f"law {name!r}: expected one of {known}, or FILE.py:CLASS of a file")
    spec = importlib.util.spec_from_file_location(f"law_{Path(file).stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    law = getattr(module, kind, None)
    if not (isinstance(law, type) and issubclass(law, Law)):
        raise BadInput(f"law {name!r}: expected {kind} to be a subclass of Law")
    if missing := ", ".join(sorted(law.__abstractmethods__)):
        raise BadInput(f"law {name!r}: {kind} does not define {missing}")
    return law


class LawRunner:
    """A controller's law in this process, without ROS and in a time of its own.

    Args:
        parameters: the controller's parameters, which may be changed later.
        frame: base frame of the driver.

    Attributes:
        tool: the tool, which starts at `start`.
    """

    def __init__(self, law: type[Law], parameters: dict[str, Any], frame: str) -> None:
        self.start = self.tool = Tool(np.array([0.4, 0.0, 0.3]), np.array([1.0, 0.0, 0.0, 0.0]))
        self.parameters, self.frame, self.now_s = parameters, frame, 100.0
        self.law = law(self.parameters.__getitem__, self.start, frame)

    def go_to(self, step: Array, frame: str | None = None, publishers: int = 1) -> None:
        """Command the pose that is a step away from the start."""
        target = self.start.moved(step)
        position = SimpleNamespace(**dict(zip("xyz", target.position, strict=True)))
        turn = SimpleNamespace(**dict(zip("xyzw", target.quaternion, strict=True)))
        pose = SimpleNamespace(position=position, orientation=turn)
        self._send(SimpleNamespace(pose=pose), frame, publishers)

    def go_at(self, velocity: Array, frame: str | None = None, age_s: float = 0.0) -> None:
        """Command a velocity in m/s and rad/s, with a stamp of this age."""
        linear, angular = (
            SimpleNamespace(**dict(zip("xyz", each, strict=True)))
            for each in velocity.reshape(2, 3)
        )
        twist = SimpleNamespace(linear=linear, angular=angular)
        self._send(SimpleNamespace(twist=twist), frame, 1, age_s)

    def run(self, seconds: float, wrench: Array | None = None) -> Array:  # -> (6,)
        """Let time pass; return the step from the start to the tool."""
        for _ in range(round(seconds / PERIOD_S)):
            self.now_s += PERIOD_S
            force = np.zeros(6) if wrench is None else wrench
            self.tool = self.law.step(self.tool, force, self.now_s)
        return self.start.to(self.tool)

    def _send(self, message: Any, frame: str | None, publishers: int, age_s: float = 0.0) -> None:
        stamp_s = self.now_s - age_s
        stamp = SimpleNamespace(sec=int(stamp_s), nanosec=round(1e9 * (stamp_s % 1.0)))
        frame_id = self.frame if frame is None else frame
        message.header = SimpleNamespace(frame_id=frame_id, stamp=stamp)
        self.law.receive(message, publishers)


def tool_of(pose: Any) -> Tool:
    """Return the pose of a message."""
    p, q = pose.position, pose.orientation
    return Tool(np.array([p.x, p.y, p.z]), np.array([q.x, q.y, q.z, q.w]))


def _clamped(error: Array, farthest: float) -> Array:
    """Return the error with both its parts no longer than `farthest`."""
    parts = [error[:3], error[3:]]
    return np.concatenate(
        [part / max(1.0, float(np.linalg.norm(part)) / farthest) for part in parts]
    )


def _rotated(q: tuple[float, float, float, float], vectors: Array) -> Array:  # (6,)
    """Return two vectors in a row, both rotated."""
    return np.array([*rotate(q, _triple(vectors[:3])), *rotate(q, _triple(vectors[3:]))])


def _triple(values: Array) -> tuple[float, float, float]:
    x, y, z = map(float, values)
    return x, y, z


def _quadruple(values: Array) -> tuple[float, float, float, float]:
    x, y, z, w = map(float, values)
    return x, y, z, w
