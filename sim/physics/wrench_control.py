"""Control by wrenches: forces along x and z of the base frame, and a torque about its y.

The arm's springs hold the other axes. A driven axis is a motor with little damping; outside its
range it is a spring again, and above its speed limit the controller's damper brakes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mujoco

from serl.errors import BadInput
from serl.geometry import conjugate, multiply, rotate
from serl.motion import Motion, Pose
from serl.sim.physics.kinematics import to_wxyz
from serl.types import Action

_STILL = 0.05  # m/s and rad/s: below this, a braking axis is held
_LEVEL = 0.999


class WrenchControl:
    """Force control of three axes of an arm, with a watchdog on its commands.

    Args:
        model: model of the arm; the actuators of the three axes are changed.
        data: state of the model.
        motion: meaning and limits of an action.
        prefix: prefix of the arm's names.
    """

    def __init__(
        self, model: mujoco.MjModel, data: mujoco.MjData, motion: Motion, prefix: str = ""
    ) -> None:
        self._wrench = wrench = motion.wrench
        low, high, widest = motion.box_low_m, motion.box_high_m, motion.max_rotation_rad
        force, speed, damping = wrench.force_n, wrench.speed_m_s, wrench.damping_n_s_m
        spring = model.actuator(f"{prefix}spring0").id
        self._x = _Axis(model, data, spring, (low[0], high[0]), force, speed, damping)
        self._z = _Axis(model, data, spring + 2, (low[2], high[2]), force, speed, damping)
        self._pitch = _Axis(
            model,
            data,
            spring + 4,
            (-widest, widest),
            wrench.torque_nm,
            wrench.angular_speed_rad_s,
            wrench.damping_nm_s,
        )
        self._target = data.mocap_quat[model.body(f"{prefix}rotation_target").mocapid[0]]

    def begin(self, start: Pose) -> None:
        """Hold the pose `start`; the axes without force control keep it.

        Raises:
            BadInput: the tool's y is not parallel to the base's.
        """
        along = rotate(start.quaternion, (0.0, 1.0, 0.0))[1]
        if abs(along) < _LEVEL:
            raise BadInput(
                "action_mode wrench: expected a start with the tool's y along the base's"
            )
        self._start, self._sign = start, math.copysign(1.0, along)
        self._requested: tuple[float, ...] = (0.0, 0.0, 0.0)
        self._requested_s = -math.inf
        self._pending: tuple[float, ...] | None = None
        self._x.begin(start.position[0])
        self._z.begin(start.position[2])
        self._pitch.begin(0.0)

    def push(self, action: Action) -> None:
        """Exert `action` from its arrival until the watchdog times out; zeros brake and hold."""
        self._pending = tuple(action.tolist())

    def rest(self) -> None:
        """Brake and hold until the next `push`."""
        self._pending, self._requested_s = None, -math.inf

    def tick(self, pose: Pose, twist: Sequence[float], now_s: float, late: bool = False) -> None:
        """Set the controls for the next 10 ms.

        Args:
            pose: pose of the tool.
            twist: twist of the tool, linear before angular, in the base frame.
            now_s: simulated time.
            late: the last action pushed has not arrived yet.
        """
        if self._pending is not None and not late:
            self._requested, self._pending = self._pending, None
            self._requested_s = now_s if any(self._requested) else -math.inf
        driven = now_s - self._requested_s < self._wrench.timeout_s - 1e-9
        fx, fz, torque = self._requested if driven else (None, None, None)
        pitch = self._pitch_of(pose)
        self._x.drive(fx, pose.position[0], twist[0])
        self._z.drive(fz, pose.position[2], twist[2])
        goal = self._pitch.drive(torque, pitch, twist[4], self._sign)
        half = 0.5 * (pitch if goal is None else goal)
        turn = (0.0, math.sin(half), 0.0, math.cos(half))
        self._target[:] = to_wxyz(multiply(turn, self._start.quaternion))

    def _pitch_of(self, pose: Pose) -> float:
        """Return the rotation about the base's y since the start, rad."""
        _, y, _, w = multiply(pose.quaternion, conjugate(self._start.quaternion))
        return math.remainder(2.0 * math.atan2(y, w), 2.0 * math.pi)


class _Axis:
    """One axis: a spring that holds it, a motor with little damping, or a damper alone."""

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        spring: int,
        range_: tuple[float, float],
        scale: float,
        top_speed: float,
        damping: float,
    ) -> None:
        self._gain, self._bias = model.actuator_gainprm[spring], model.actuator_biasprm[spring]
        self._damper = model.actuator_biasprm[spring + 6]
        self._control = data.ctrl[spring : spring + 1]
        self._spring = float(self._gain[0]), float(self._bias[1])
        self._braking, self._free = float(self._damper[2]), -damping
        self._written = self._spring[1], self._braking
        self._low, self._high = range_
        self._scale, self._top_speed = scale, top_speed
        self._held: float | None = None

    def begin(self, goal: float) -> None:
        """Become a spring to `goal`, with the controller's current stiffness and damping."""
        found = float(self._bias[1]), float(self._damper[2])
        if found != self._written:
            by_position = self._spring[0] != 0.0
            self._spring, self._braking = (-found[0] if by_position else 0.0, found[0]), found[1]
        self.hold(goal)

    def hold(self, goal: float) -> None:
        """Become a spring to `goal`."""
        self._held = goal
        self._set_law(self._spring, goal, self._braking)

    def drive(
        self, request: float | None, value: float, speed: float, sign: float = 1.0
    ) -> float | None:
        """Set the axis to a request from -1 to 1, within its limits; None brakes and holds.

        Returns:
            The position held, or None while the axis is not held.
        """
        inside = min(self._high, max(self._low, value))
        outward = (request or 0.0) * (value - inside) >= 0.0
        if inside != value and (request is None or outward):
            self.hold(inside)
        elif request is None:
            if self._held is None and abs(speed) > _STILL:
                self._set_law((1.0, 0.0), 0.0, self._braking)
            else:
                self.hold(value if self._held is None else self._held)
        else:
            self._held = None
            fast = abs(speed) > self._top_speed
            force = 0.0 if fast else sign * request * self._scale
            self._set_law((1.0, 0.0), force, self._braking if fast else self._free)
        return self._held

    def _set_law(self, law: tuple[float, float], control: float, damper: float) -> None:
        self._gain[0], self._bias[1] = law
        self._control[0], self._damper[2] = control, damper
        self._written = law[1], damper
