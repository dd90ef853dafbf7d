"""The simulated arm: a Franka under Cartesian impedance control, in process and in lock-step."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

import mujoco
import numpy as np

from serl.aim import Aim
from serl.errors import BadInput, SerlError
from serl.reading import reading_parts, reading_spec
from serl.rotations import Quaternion
from serl.safety import Pose, pose_from, within_lead
from serl.setpoint import (
    PROFILE_PERIOD_S,
    Setpoint,
    advance_setpoint,
    at_rest,
    brake_setpoint,
)
from serl.sim.cameras import Cameras
from serl.sim.disturbance import Disturbance
from serl.sim.franka import HOME_RAD
from serl.sim.gripper import Gripper
from serl.sim.impedance import Impedance
from serl.sim.kinematics import body_frame, site_frame, solve_ik, to_wxyz
from serl.sim.poses import placement, show
from serl.sim.posture import JointMove, Posture
from serl.sim.randomize import Randomizer
from serl.sim.scene import PHYSICS_DT_S, build_model
from serl.sim.thrust import Thrust
from serl.sim.wrist import Wrist
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Scene, TaskConfig
from serl.types import Action, Array, Image, Observation

_JOINTS = 7
_STEPS_PER_TICK = round(PROFILE_PERIOD_S / PHYSICS_DT_S)
_SITE = int(mujoco.mjtObj.mjOBJ_SITE)
_SETTLE_S = 0.1
_FILTER_S = 0.05
_HOME = np.array(HOME_RAD)

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class SimArm:
    """A Franka in MuJoCo with a task's scene; implements `serl.robot.SimulatedRobot`.

    A reading carries `tcp_pose`, `tcp_twist` and `wrench` in the base frame, `gripper` (opening,
    0 to 1), `q`, `dq`, `target_pose` (what was commanded last) and `<name>_pose` of each tracked
    body. The wrench is what the surroundings exert on the tool, the mean over the last `advance`
    (or over its last 100 ms) less its value after the reset. Its stamp "robot" is simulated time.
    Images are those of the task's `all_views`, each stamped by its name.

    A node that stands for a driver uses it as a `serl.robot.ServedRobot`.

    Attributes:
        stop_reason: why the arm was stopped first; None while motion is allowed.
        impedance: gains and clips of its controller.
    """

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        self.model = build_model(scene, config.randomize)
        self.data = mujoco.MjData(self.model)
        self.stop_reason: str | None = None
        self.impedance = Impedance(self.model)
        self._scene, self._motion = scene, config.motion
        self._bodies = {name: body_frame(self.model, self.data, name) for name in scene.tracked}
        self._gripper = Gripper(self.model, self.data)
        self._wrist = Wrist(self.model, self.data)
        self._site, self._hand = self.model.site("tcp").id, self.model.body("hand").id
        self._tcp = site_frame(self.model, self.data, self._site)
        self._twist = np.zeros(6)  # angular, then linear
        self._posture = Posture(self.model, self.data, self._site)
        self._home: JointMove | None = None
        self._observation_spec = reading_spec(_JOINTS, scene.tracked, config)
        varied = config.randomize != "none"
        self._world = Randomizer(self.model, scene, config, self.impedance) if varied else None
        views = config.all_views
        self._cameras = Cameras(self.model, self.data, views, config.renderer, self._through_lens)
        self._images: dict[str, Image] | None = None  # of this instant, once somebody looked
        self._numbers_then: tuple[list[float], float] | None = None
        self._parts = reading_parts(self._observation_spec)
        self._action_spec = config.motion.action_spec
        self._aim = Aim(config.motion)
        # Views, for looking an array up takes longer than reading it.
        data = self.data
        self._q, self._dq = data.qpos[:_JOINTS], data.qvel[:_JOINTS]
        self._warnings = data.warning.number
        first = self.model.actuator("spring0").id
        self._position_target = data.ctrl[first : first + 3]
        self._rotation_target = data.mocap_quat[self.model.body("rotation_target").mocapid[0]]
        self._commanded: Quaternion | None = None
        wrench = config.motion.action_mode == "wrench"
        self._thrust = Thrust(self.model, data, config.motion) if wrench else None
        self.reset(0)

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes and units of a reading."""
        return self._observation_spec

    @property
    def action_spec(self) -> ArraySpec:
        """As the task's motion says."""
        return self._action_spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let go of the cameras."""
        self._cameras.close()

    def reset(self, seed: int) -> Observation:
        """Place arm and scene as the scene draws it from `seed`, at rest.

        The gripper is open unless the scene lets it hold something.
        """
        drawn = self._scene.place(np.random.default_rng(seed))
        model, data = self.model, self.data
        self._seed = seed
        if self._world is not None:
            self._world.draw(seed)
        mujoco.mj_resetData(model, data)
        for name, pose in drawn.bodies.items():
            self._place(model.body(name), pose_from(pose))
        data.qpos[:_JOINTS] = HOME_RAD
        self._gripper.reset(drawn.held_m)
        world = self._world
        start = pose_from(world.start(drawn, self._motion) if world else drawn.tcp)
        self._aim.begin(start, drawn.held_m is not None)
        solve_ik(model, data, self._site, _HOME, start)
        self._setpoint = Setpoint(start)
        self._commanded = None
        self._command(start)
        if self._thrust:
            self._thrust.begin(start)
        self.stop_reason, self._braking, self._home = None, False, None
        self._posture.target_rad = _HOME
        self._images, self._numbers_then = None, None
        self._before = start
        mujoco.mj_forward(model, data)
        self._posture.hold()
        mujoco.mj_step(model, data, round(_SETTLE_S / PHYSICS_DT_S))
        self._wrist.tare()
        self._period_s = PROFILE_PERIOD_S
        return self.observe()

    def observe(self) -> Observation:
        """The reading now.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        values = np.array(self._sensed(), np.float32)
        state = {name: values[part] for name, part in self._parts.items()}
        if self._images is None:
            self._shoot()
        stamps = {"robot": self._time_s, **dict.fromkeys(self._images or {}, self._shot_s)}
        return Observation(state=state, images=self._images or {}, stamps=stamps)

    def measure(self) -> dict[str, list[float]]:
        """The state of a reading by name, in full precision; raises as `observe`."""
        numbers = self._sensed()
        return {name: numbers[part] for name, part in self._parts.items()}

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """What the cameras of the task's views see now, by camera and size."""
        return self._cameras.pictures()

    def act(self, action: Action) -> Action:
        """Move the target by `action`; returns what was executed: zeros while stopped or homing.

        Where an action is a wrench, it is exerted until the next one, at most for `timeout_s`.
        """
        self._aim.check(action)
        if self.stop_reason is not None or self._home is not None:
            return np.zeros_like(action)
        if self._thrust:
            self._thrust.push(action, self.data.time)
            return action.copy()
        closed, self._before = self._aim.closed, self._aim.target
        executed = self._aim.move(action, self._tcp.pose, self.data.time)
        if self._aim.closed != closed and self._world is None:  # else it comes late
            self.grip(not closed)
        return executed

    def advance(self, dt_s: float) -> None:
        """Let `dt_s`, a multiple of 10 ms, pass."""
        ticks = round(dt_s / PROFILE_PERIOD_S) if math.isfinite(dt_s) else 0
        if ticks < 1 or abs(ticks * PROFILE_PERIOD_S - dt_s) > 1e-9:
            raise BadInput(f"dt_s {dt_s}: expected a positive multiple of {PROFILE_PERIOD_S}")
        model, data = self.model, self.data
        self._period_s = dt_s
        self._posture.hold()
        if self._world is not None:
            self._advance_disturbed(ticks, self._world.disturbance)
            return
        self._images = None
        for _ in range(ticks):
            self._drive(self._aim.target)
            mujoco.mj_step(model, data, _STEPS_PER_TICK)

    def aim(self, target: Pose, closed: bool) -> None:
        """Go to a target, as `act` does with the one that it makes; ignored while stopped."""
        if self.stop_reason is None:
            self._aim.target = target
            if closed != self._aim.closed:
                self.grip(closed)

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        self._aim.closed = closed
        self._gripper.command(closed)

    def follow(self, setpoint: Pose) -> None:
        """Let 10 ms pass with the controller at a setpoint that somebody else has limited.

        The wrench is filtered then, as an arm's own estimate is: fingers that close on something
        are felt as 60 N for 10 ms.
        """
        self._aim.target, self._setpoint = setpoint, Setpoint(setpoint)
        self._period_s = _FILTER_S
        self._images, self._numbers_then = None, None
        self._posture.hold()
        self._command(setpoint)
        mujoco.mj_step(self.model, self.data, _STEPS_PER_TICK)

    def home(self) -> None:
        """Begin to move all joints to the home posture, whatever the box; actions wait for it."""
        if self.stop_reason is None:
            self._home = JointMove(self.model, self.data, self._site)

    @property
    def is_home(self) -> bool:
        """The joints are as near to the home posture as those of an arm get, and at rest."""
        near = np.abs(self._q - _HOME).max() < 0.02 and np.abs(self._dq).max() < 0.02
        return self._home is None and bool(near)

    def stop(self, reason: str) -> None:
        """Brake at once, then hold the measured pose until `recover`."""
        if self.stop_reason is None:
            self.stop_reason = reason
            self._braking, self._home = True, None
            if self._thrust:
                self._thrust.rest()

    def recover(self) -> None:
        """Allow motion again, from where the arm is."""
        if self.stop_reason is not None:
            self.stop_reason = None
            self._aim.target = self._tcp.pose

    def truth(self) -> dict[str, Array]:
        """Pose and twist of the tool, poses of its target and the tracked bodies, time, opening.

        `<name>_grasped` is 1 while both pads touch the body.
        """
        truth = {
            "time_s": np.array([self._time_s], np.float32),
            "tcp_pose": _array(self._tcp.pose),
            "tcp_twist": np.array(self._twist_now(), np.float32),
            "target_pose": _array(self._aim.target),
            "gripper": np.array([self._gripper.opening], np.float32),
        }
        for name, body in self._bodies.items():
            truth[f"{name}_pose"] = _array(body.pose)
            truth[f"{name}_grasped"] = np.array([self._gripper.grasps(name)], np.float32)
        return truth

    def placement(self) -> Vector64:
        """Where everything is, to be shown by another arm in an equal scene: joints, mocaps, seed.

        May be called from any thread, and costs microseconds.
        """
        return np.append(placement(self.data), float(self._seed))

    def show(self, where: Vector64) -> None:
        """Put everything where another arm had it, for pictures; raises `BadInput` if none fits."""
        drawn = where[-1] if where.size else math.nan
        if self._world is not None and math.isfinite(drawn) and self._world.seed != int(drawn):
            self._world.draw(int(drawn))
            mujoco.mj_resetData(self.model, self.data)  # or what never moves would stay put
        show(self.model, self.data, where[:-1])

    @property
    def target(self) -> tuple[Pose, bool]:
        """Where the arm is to go, and whether its gripper is to be closed."""
        return self._aim.target, self._aim.closed

    @property
    def _time_s(self) -> float:
        """Simulated time since the reset."""
        return float(self.data.time) - _SETTLE_S

    def _numbers(self) -> list[float]:
        """All numbers of a reading, in the order of its spec."""
        if any(self._warnings.tolist()):
            names = [mujoco.mjtWarning(i).name for i in np.flatnonzero(self._warnings).tolist()]
            raise SerlError(f"the simulation became unstable ({', '.join(names)}): reset it")
        numbers = [*_numbers(self._tcp.pose), *self._twist_now()]
        period_s, world = self._period_s, self._world
        period_s = world.disturbance.wrench_period_s(period_s) if world else period_s
        numbers += self._wrist.wrench(period_s).tolist()
        numbers += self._gripper.opening, *self._q.tolist(), *self._dq.tolist()
        numbers += _numbers(self._aim.target)
        for body in self._bodies.values():
            numbers += _numbers(body.pose)
        return numbers

    def _sensed(self) -> list[float]:
        """The numbers of a reading as the sensors give them now, or gave them lately."""
        if self._world is None:
            return self._numbers()
        numbers, time_s = self._numbers_then or (self._numbers(), self.data.time)
        return self._world.disturbance.sensed(list(numbers), self._parts, time_s)

    def _advance_disturbed(self, ticks: int, disturbance: Disturbance) -> None:
        """As usual, but what is commanded, measured and seen comes late, and something pushes."""
        model, data = self.model, self.data
        lags = disturbance.lags(data.time, ticks)
        data.xfrc_applied[self._hand, :3] = disturbance.push_n(data.time)
        for tick in range(ticks):
            late = tick < lags.action
            self._drive(self._before if late else self._aim.target)
            if tick == lags.action:
                self._gripper.command(self._aim.closed)
            last = tick == ticks - 1
            mujoco.mj_step(model, data, _STEPS_PER_TICK - (lags.state if last else 0))
            if last:
                self._numbers_then = self._numbers(), data.time
                mujoco.mj_step(model, data, lags.state)
            if lags.image is not None and tick == ticks - 1 - lags.image:
                self._shoot()
        self._before = self._aim.target

    def _shoot(self) -> None:
        self._images, self._shot_s = self._cameras.shoot(), self._time_s

    def _through_lens(self, camera: str, picture: Image) -> Image:
        world = self._world
        return world.picture(camera, picture, self.data.time) if world else picture

    def _twist_now(self) -> list[float]:
        """Of the tool: linear before angular, in the base frame."""
        mujoco.mj_objectVelocity(self.model, self.data, _SITE, self._site, self._twist, 0)
        twist = self._twist.tolist()
        return [*twist[3:], *twist[:3]]

    def _exert(self, thrust: Thrust) -> None:
        """What is driven by force moves far within a period: the posture is held anew."""
        self._posture.hold()
        thrust.tick(self._tcp.pose, self._twist_now(), self.data.time)
        self._aim.target = self._tcp.pose

    def _drive(self, target: Pose) -> None:
        """What 10 ms ask of the arm."""
        if self._thrust:
            self._exert(self._thrust)
        else:
            self._advance_setpoint(target)

    def _advance_setpoint(self, target: Pose) -> None:
        limits = self._motion.limits
        if self._braking:  # also after a recover: what was begun as a stop ends at rest
            self._setpoint = brake_setpoint(self._setpoint, limits, PROFILE_PERIOD_S)
            if at_rest(self._setpoint):
                self._braking = False
                if self.stop_reason is not None:
                    self._aim.target = self._tcp.pose
        elif self._home is not None:
            pose, self._posture.target_rad = self._home.advance()
            self._aim.target, self._setpoint = pose, Setpoint(pose)
            self._posture.hold()
            if self._home.done:
                self._home = None
        else:
            goal = within_lead(target, self._tcp.pose, limits)
            self._setpoint = advance_setpoint(self._setpoint, goal, limits, PROFILE_PERIOD_S)
        self._command(self._setpoint.pose)

    def _place(self, body: Any, pose: Pose) -> None:
        mocap = self.model.body_mocapid[body.id]
        if mocap >= 0:
            self.data.mocap_pos[mocap] = pose.position
            self.data.mocap_quat[mocap] = to_wxyz(pose.quaternion)
        else:
            address = self.model.jnt_qposadr[body.jntadr[0]]
            self.data.qpos[address : address + 7] = (*pose.position, *to_wxyz(pose.quaternion))

    def _command(self, pose: Pose) -> None:
        target = self._position_target
        target[0], target[1], target[2] = pose.position
        if pose.quaternion is not self._commanded:
            self._commanded = pose.quaternion
            self._rotation_target[:] = to_wxyz(pose.quaternion)


def _numbers(pose: Pose) -> tuple[float, ...]:
    return (*pose.position, *pose.quaternion)


def _array(pose: Pose) -> Array:
    return np.array(_numbers(pose), np.float32)


sim = SimArm
