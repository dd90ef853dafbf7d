"""A simulated arm within a MuJoCo model: gripper, wrist sensor and controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from serl.compliance import NO_WRENCH, Axis, ControllerProfile, Wrench, WrenchRamp
from serl.geometry import Quaternion
from serl.motion import Motion, Pose, Target, within_lead
from serl.setpoint import (
    PROFILE_PERIOD_S,
    Setpoint,
    advance_setpoint,
    at_rest,
    brake_setpoint,
)
from serl.sim.physics.controller import TABLE_PARAMETERS, Impedance
from serl.sim.physics.franka import HOME_RAD, MAX_FINGER_M
from serl.sim.physics.kinematics import arm_joints, site_frame, solve_ik, to_wxyz
from serl.sim.physics.posture import ForwardKinematics, HomeMove, Posture
from serl.sim.physics.wrench_control import WrenchControl
from serl.types import Action, Array

_SLIPPERY = (1e-3, 1e-5, 1e-5)
"""Friction of pads that lose their hold: sliding, torsional, rolling."""


class Gripper:
    """Two-finger gripper: commands of the fingers, and contacts of their pads."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, prefix: str = "") -> None:
        self._model, self._data = model, data
        self._actuator = model.actuator(f"{prefix}gripper").id
        joints = [model.joint(f"{prefix}finger_{side}") for side in ("left", "right")]
        (first,), (last,) = (joint.qposadr for joint in joints)
        self._fingers = data.qpos[first : last + 1]  # (2,)
        self._pads = [model.geom(f"{prefix}pad_{side}").id for side in ("left", "right")]
        self._friction: Vector64 | None = None  # of the pads, while they are slippery

    @property
    def opening(self) -> float:
        """The mean finger position: 0 closed, 1 open."""
        left, right = self._fingers.tolist()
        return float(0.5 * (left + right) / MAX_FINGER_M)

    def reset(self, held_m: float | None = None) -> None:
        """Place the fingers for a reset: open, or closed on an object of width `held_m`."""
        self._fingers[:] = MAX_FINGER_M if held_m is None else 0.5 * held_m
        self.command(closed=held_m is not None)

    def command(self, closed: bool) -> None:
        """Command the fingers to close or to open."""
        self._data.ctrl[self._actuator] = 0.0 if closed else MAX_FINGER_M

    def slip(self, slips: bool) -> None:
        """Make the pads slippery, or give them back their friction."""
        if slips and self._friction is None:
            self._friction = self._model.geom_friction[self._pads].copy()
            self._model.geom_friction[self._pads] = _SLIPPERY
        elif not slips and self._friction is not None:
            self._model.geom_friction[self._pads] = self._friction
            self._friction = None

    def grasps(self, body: str) -> bool:
        """Return whether both pads touch the body of this name."""
        return self.touching(body) == len(self._pads)

    def touching(self, body: str) -> int:
        """Return the number of pads that touch the body of this name."""
        held = self._model.body(body).id
        geoms: np.ndarray[Any, Any] = self._data.contact.geom  # (contacts, 2)
        owners = self._model.geom_bodyid
        return len(
            {
                pad
                for pad in self._pads
                for first, second in geoms.tolist()
                if (first == pad and owners[second] == held)
                or (second == pad and owners[first] == held)
            }
        )


Vector64 = np.ndarray[Any, np.dtype[np.float64]]

# MuJoCo samples by itself every 10 ms, in the last 2 ms step of each: a reading of every step
# would cost 8 % of the physics.
SAMPLES = 10


def sensors_mjcf(prefix: str = "") -> str:
    """Return the MJCF of the wrist sensors of an arm: force, then torque."""
    return "".join(
        f'<{kind} site="{prefix}ft" name="{prefix}{kind}" nsample="{SAMPLES}"'
        ' interval="0.01 -0.003"/>'
        for kind in ("force", "torque")
    )


class Wrist:
    """Wrist sensor: mean of recent wrenches, less the weight measured at rest."""

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, prefix: str = "") -> None:
        self._data = data
        self._rotation: Vector64 = data.site_xmat[model.site(f"{prefix}ft").id].reshape(3, 3)
        # Ring buffers of both sensors: each has two cursors, the times, and a vector for each time.
        start = model.sensor_historyadr[model.sensor(f"{prefix}force").id]
        buffers = data.history[start : start + 2 * (2 + 4 * SAMPLES)].reshape(2, -1)
        self._times = buffers[0, 2 : 2 + SAMPLES]
        self._values = buffers[:, 2 + SAMPLES :].reshape(2, SAMPLES, 3)
        self._weight = np.zeros(6)

    def tare(self) -> None:
        """Set the weight at rest to the current mean over 10 ms."""
        self._weight = self._mean(0.01)

    def wrench(self, period_s: float) -> Vector64:
        """Return the mean external wrench over the last period, in the base frame.  # (6,).

        Only the last 100 ms are recorded.
        """
        return self._weight - self._mean(period_s)

    def _mean(self, period_s: float) -> Vector64:
        recent = self._times > self._data.time - period_s
        mean = recent @ self._values / np.count_nonzero(recent)  # (2, 3)
        turned: Vector64 = (mean @ self._rotation.T).ravel()
        return turned


JOINTS = 7
_SITE = int(mujoco.mjtObj.mjOBJ_SITE)
_HOME = np.array(HOME_RAD)


class FrankaArm:
    """An arm of a model that the caller steps.

    Args:
        model: model of the whole scene.
        data: state of the model.
        motion: meaning of an action.
        prefix: prefix of the names of all elements of the arm.
        wrench: wrench that the tool exerts while actions move it, in its own frame.

    Attributes:
        prefix: prefix of the names, as given.
        stop_reason: reason of the first stop; None while motion is allowed.
        impedance: gains and clips of the arm's controller.
        hand: number of the body of the hand.
        is_late: commands reach the arm with a lag that the caller controls (`drive`,
            `apply_gripper`).
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        motion: Motion,
        prefix: str = "",
        wrench: Wrench = NO_WRENCH,
    ) -> None:
        self._model, self._data, self._motion = model, data, motion
        self.prefix = prefix
        self.stop_reason: str | None = None
        self.impedance = Impedance(model, prefix)
        self.gripper = Gripper(model, data, prefix)
        self.hand = model.body(f"{prefix}hand").id
        self.is_late = False
        self._wrist = Wrist(model, data, prefix)
        self._site, self._joints = model.site(f"{prefix}tcp").id, arm_joints(model, prefix)
        self._tcp = site_frame(model, data, self._site)
        self._twist = np.zeros(6)  # angular, then linear
        self._posture = Posture(model, data, self._site, self._joints)
        self._kinematics: ForwardKinematics | None = None  # made when joints are moved
        self._home: HomeMove | None = None
        self._target = Target(motion)
        # Views, because looking an array up takes longer than reading it.
        self._q, self._dq = data.qpos[self._joints], data.qvel[self._joints]
        first = model.actuator(f"{prefix}spring0").id
        self._position_target = data.ctrl[first : first + 3]
        self._exerted = data.ctrl[first + 6 : first + 12]
        self._ramp = WrenchRamp(wrench) if any(wrench) else None
        mocap = model.body(f"{prefix}rotation_target").mocapid[0]
        self._rotation_target = data.mocap_quat[mocap]
        self._commanded: Quaternion | None = None
        self._wrench_control: WrenchControl | None = None

    def begin(self, start: Pose, held_m: float | None) -> None:
        """Place the tool at `start`, open or closed on an object of width `held_m`."""
        self._q[:] = HOME_RAD
        self.gripper.reset(held_m)
        self._target.begin(start, held_m is not None)
        solve_ik(self._model, self._data, self._site, _HOME, start, self._joints)
        self._setpoint = Setpoint(start)
        self._commanded = None
        self._command(start)
        if self._motion.action_mode == "wrench":
            # Only now: the gains of the first world have been sampled.
            self._wrench_control = self._wrench_control or WrenchControl(
                self._model, self._data, self._motion, self.prefix
            )
            self._wrench_control.begin(start)
        self.stop_reason, self._braking, self._home = None, False, None
        if self._ramp:
            self.exert(self._ramp.advance(False))
        self._posture.target_rad = _HOME
        self._before = start

    def settle(self) -> None:
        """Tare the wrist sensor, once the arm has come to rest after `begin`."""
        self._wrist.tare()

    def act(self, action: Action) -> Action:
        """Move the target by a checked action; return the executed one.

        While stopped or homing, nothing is executed: the result is zeros. A wrench is
        exerted until the next one, at most for `timeout_s`.
        """
        if self.stop_reason is not None or self._home is not None:
            return np.zeros_like(action)
        if self._wrench_control:
            self._wrench_control.push(action)
            return action.copy()
        closed, self._before = self._target.closed, self._target.target
        executed = self._target.move(action, self._tcp.pose, self._data.time)
        if self._target.closed != closed and not self.is_late:
            self.grip(not closed)
        return executed

    def aim(self, target: Pose, closed: bool) -> None:
        """Set the target pose and the gripper command directly; ignored while stopped."""
        if self.stop_reason is None:
            self._target.target = target
            if closed != self._target.closed:
                self.grip(closed)

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        self._target.closed = closed
        self.gripper.command(closed)

    def follow(self, setpoint: Pose) -> None:
        """Set the controller to a setpoint that the caller has limited already."""
        self._target.target, self._setpoint = setpoint, Setpoint(setpoint)
        self._posture.hold()
        self._command(setpoint)

    def follow_joints(self, joints: Sequence[float]) -> None:
        """Set the controller to joint angles that the caller has limited already."""
        self._posture.target_rad = np.array(joints)
        self.follow(self._reach.tool(joints))

    def exert(self, wrench: Sequence[float]) -> None:
        """Exert a wrench with the tool until the next one, in its own frame: N and Nm."""
        self._exerted[:] = wrench

    def most_wrench(self) -> dict[Axis, float]:
        """Return the largest wrench that may be exerted; see `ControllerProfile.most_wrench`."""
        if self._motion.action_mode == "wrench":
            return {}
        limits = self._motion.limits
        return ControllerProfile(
            node="arm",
            parameters={**self.impedance.parameters()},
            table_parameters=TABLE_PARAMETERS,
        ).most_wrench(limits.lead_m, limits.lead_rad)

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target to an orientation; see `serl.motion.Target`."""
        self._target.turn_to(orientation)

    def home(self) -> None:
        """Start moving all joints home, regardless of the box; actions are ignored meanwhile."""
        if self.stop_reason is None:
            self._home = HomeMove(self._reach, self._q)

    @property
    def is_home(self) -> bool:
        """Whether the joints are at rest at the home posture, within an arm's tolerance."""
        near = np.abs(self._q - _HOME).max() < 0.02 and np.abs(self._dq).max() < 0.02
        return self._home is None and bool(near)

    def stop(self, reason: str) -> None:
        """Brake immediately, then hold the measured pose until `recover`."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self._braking, self._home = True, None
            if self._wrench_control:
                self._wrench_control.rest()

    def recover(self) -> None:
        """Allow motion again, from the current pose of the arm."""
        if self.stop_reason is not None:
            self.stop_reason = None
            self._target.target = self._tcp.pose

    @property
    def target(self) -> tuple[Pose, bool]:
        """The target pose of the tool, and whether the gripper is commanded to close."""
        return self._target.target, self._target.closed

    def hold(self) -> None:
        """Set the posture's torque, once per control period."""
        self._posture.hold()

    def drive(self, late: bool = False) -> None:
        """Set the controls for the next 10 ms; `late` uses the target of the previous period."""
        if self._wrench_control:
            self._exert(self._wrench_control, late)
        else:
            self._advance_setpoint(self._before if late else self._target.target)
            if self._ramp:
                moves = self.stop_reason is None and not self._braking and self._home is None
                self.exert(self._ramp.advance(moves))

    def apply_gripper(self) -> None:
        """Execute the gripper command of a late arm, which has arrived."""
        self.gripper.command(self._target.closed)

    def end_period(self) -> None:
        """End a control period of a late arm."""
        self._before = self._target.target

    def numbers(self, period_s: float) -> list[float]:
        """Return all numbers of a reading, the wrench as its mean over `period_s`."""
        numbers = [*flat(self._tcp.pose), *self._twist_now()]
        numbers += self._wrist.wrench(period_s).tolist()
        numbers += self.gripper.opening, *self._q.tolist(), *self._dq.tolist()
        numbers += flat(self._target.target)
        return numbers

    def truth(self) -> dict[str, Array]:
        """Return the pose and twist of the tool, its target pose, and the opening."""
        return {
            "tcp_pose": pose_array(self._tcp.pose),
            "tcp_twist": np.array(self._twist_now(), np.float32),
            "target_pose": pose_array(self._target.target),
            "gripper": np.array([self.gripper.opening], np.float32),
        }

    @property
    def _reach(self) -> ForwardKinematics:
        self._kinematics = self._kinematics or ForwardKinematics(
            self._model, self._site, self._joints
        )
        return self._kinematics

    def _twist_now(self) -> list[float]:
        """Return the twist of the tool: linear before angular, in the base frame."""
        mujoco.mj_objectVelocity(self._model, self._data, _SITE, self._site, self._twist, 0)
        twist = self._twist.tolist()
        return [*twist[3:], *twist[:3]]

    def _exert(self, control: WrenchControl, late: bool) -> None:
        """Apply a wrench for 10 ms.

        The posture's torque is recomputed, because the arm moves far within a control period.
        """
        self._posture.hold()
        control.tick(self._tcp.pose, self._twist_now(), self._data.time, late)
        self._target.target = self._tcp.pose

    def _advance_setpoint(self, target: Pose) -> None:
        limits = self._motion.limits
        if self._braking:  # also after a recover: a stop, once begun, ends at rest
            self._setpoint = brake_setpoint(self._setpoint, limits, PROFILE_PERIOD_S)
            if at_rest(self._setpoint):
                self._braking = False
                if self.stop_reason is not None:
                    self._target.target = self._tcp.pose
        elif self._home is not None:
            pose, self._posture.target_rad = self._home.advance()
            self._target.target, self._setpoint = pose, Setpoint(pose)
            self._posture.hold()
            if self._home.done:
                self._home = None
        else:
            goal = within_lead(target, self._tcp.pose, limits)
            self._setpoint = advance_setpoint(self._setpoint, goal, limits, PROFILE_PERIOD_S)
        self._command(self._setpoint.pose)

    def _command(self, pose: Pose) -> None:
        target = self._position_target
        target[0], target[1], target[2] = pose.position
        if pose.quaternion is not self._commanded:
            self._commanded = pose.quaternion
            self._rotation_target[:] = to_wxyz(pose.quaternion)


def flat(pose: Pose) -> tuple[float, ...]:
    """Return a pose as seven numbers: position, quaternion xyzw."""
    return (*pose.position, *pose.quaternion)


def pose_array(pose: Pose) -> Array:
    """Return a pose as an array, as in readings.  # (7,) float32."""
    return np.array(flat(pose), np.float32)
