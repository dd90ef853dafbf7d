"""The simulated arm: a Franka under Cartesian impedance control, in process and in lock-step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mujoco
import numpy as np

from serl.bimanual import PairConfig
from serl.compliance import parameters_of
from serl.errors import BadInput
from serl.geometry import Quaternion
from serl.motion import Pose, check_action, pose_from
from serl.robot import reading_parts, reading_spec
from serl.setpoint import PROFILE_PERIOD_S
from serl.sim.physics.arm import JOINTS, FrankaArm, flat, pose_array
from serl.sim.physics.controller import TABLE_PARAMETERS, Impedance
from serl.sim.physics.kinematics import body_frame, to_wxyz
from serl.sim.physics.urdf import arm_urdf
from serl.sim.scene import PHYSICS_DT_S, build_model, scene_mjcf
from serl.sim.world import STEPS_PER_TICK, World
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Array

_FILTER_S = 0.05


class ArmWorld(World):
    """Frankas in MuJoCo with a task's scene; implements `serl.robot.SimulatedRobot`.

    A reading carries, for each arm, with its prefix, `tcp_pose`, `tcp_twist` and `wrench` in the
    base frame, `gripper` (opening, 0 to 1), `q`, `dq` and `target_pose` (the last command); then
    `<name>_pose` of each tracked body. The wrench is the one that the surroundings exert on the
    tool: its mean over the last `advance` (or over the last 100 ms of that), less its value after
    the reset. The stamp "robot" is simulated time. Images are those of the task's `all_views`,
    each stamped by its name.

    Args:
        scene: scene of the task, with the base poses of the arms.
        config: settings of the task.

    Attributes:
        arms: the arms, the left one first.
    """

    settle_s = 0.1

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        model = build_model(scene, config.randomize)
        data = mujoco.MjData(model)
        self._motions = [config.motion]
        if isinstance(config, PairConfig):
            self._motions.append(config.right_motion)
        compliance = config.compliance
        self.arms = [
            FrankaArm(model, data, motion, prefix, compliance.target_wrench)
            for prefix, motion in zip(scene.bases, self._motions, strict=True)
        ]
        table = parameters_of(TABLE_PARAMETERS, compliance.task, "compliance.task")
        for arm in self.arms:
            arm.impedance.set(table)
            if compliance.wrench:
                compliance.check_wrench(arm.most_wrench())
        gains = {arm.prefix: arm.impedance for arm in self.arms}
        super().__init__(model, data, scene, config, gains)
        for arm in self.arms:
            arm.is_late = self.randomizer is not None
        self._pushed_bodies = [arm.hand for arm in self.arms]
        self._bodies = {name: body_frame(model, data, name) for name in scene.tracked}
        self.action_spec = config.action_spec
        ends = np.cumsum([motion.action_spec.shape[0] for motion in self._motions]).tolist()
        self._entries = [slice(*limits) for limits in pairwise([0, *ends])]  # of each arm's action
        self.observation_spec = reading_spec(JOINTS, scene.tracked, config.all_views, scene.bases)
        self._parts = reading_parts(self.observation_spec)
        self._delayed: tuple[list[float], float] | None = None  # numbers of a reading, their time
        self.reset(0)

    @property
    def stop_reason(self) -> str | None:
        """The reason of the first stopped arm's stop; None while all arms may move."""
        return next((arm.stop_reason for arm in self.arms if arm.stop_reason is not None), None)

    def measure(self) -> dict[str, list[float]]:
        """Return the state of a reading by name, in full precision; raises like `observe`."""
        numbers = self._measured_numbers()
        return {name: numbers[part] for name, part in self._parts.items()}

    def act(self, action: Action) -> Action:
        """Move the targets by `action`; return the executed action, zeros while stopped or homing.

        An action that is a wrench is exerted until the next one, at most for `timeout_s`.
        """
        check_action(action, self.action_spec)
        parts = zip(self.arms, self._entries, strict=True)
        return np.concatenate([arm.act(action[entries]) for arm, entries in parts])

    def stop(self, reason: str) -> None:
        """Brake all arms immediately, then hold their measured poses until `recover`."""
        for arm in self.arms:
            arm.stop(reason)

    def recover(self) -> None:
        """Allow motion again, from the current poses of the arms."""
        for arm in self.arms:
            arm.recover()

    def truth(self) -> dict[str, Array]:
        """Return the time, the truth of each arm, and the pose of each tracked body.

        The truth of an arm is the pose and twist of its tool, its target pose and its opening.
        `<name>_grasped` is 1 while both pads of an arm touch the body, `<name>_touched` while any
        pad does; both have the arm's prefix.
        """
        truth = {"time_s": np.array([self.time_s], np.float32)}
        for arm in self.arms:
            truth.update({f"{arm.prefix}{name}": value for name, value in arm.truth().items()})
        for name, body in self._bodies.items():
            truth[f"{name}_pose"] = pose_array(body.pose)
            for arm in self.arms:
                pads = arm.gripper.touching(name)
                truth[f"{arm.prefix}{name}_grasped"] = np.array([pads == 2], np.float32)
                truth[f"{arm.prefix}{name}_touched"] = np.array([pads > 0], np.float32)
        return truth

    def urdf(self, prefix: str = "") -> str:
        """Return the URDF of the arm with this prefix in the frame of its poses, not randomised."""
        return arm_urdf(build_model(self._scene), prefix)

    def pass_tick(self) -> None:
        """Advance by 10 ms with the controllers at the setpoints that the arms were given.

        The wrench is filtered, as an arm's own estimate is: fingers that close on an object
        cause 60 N for 10 ms.
        """
        self._period_s = _FILTER_S
        self._images, self._delayed = None, None
        self._step(STEPS_PER_TICK)

    def restore(self, seed: int) -> None:
        """Place the free bodies as the scene samples them from `seed`, and leave the arms."""
        placement = self._scene.place(np.random.default_rng(seed))
        for name, pose in placement.bodies.items():
            self._place(self.model.body(name), pose_from(pose))
        mujoco.mj_forward(self.model, self.data)

    def _mjcf(self) -> str:
        return scene_mjcf(self._scene, self._randomize)

    def _begin(self, placement: Placement) -> None:
        for name, pose in placement.bodies.items():
            self._place(self.model.body(name), pose_from(pose))
        for number, arm in enumerate(self.arms):
            held_m = placement.right_held_m if number else placement.held_m
            arm.begin(self._start(placement, number), held_m)
        self._delayed = None
        mujoco.mj_forward(self.model, self.data)
        self._begin_period(PROFILE_PERIOD_S)
        self._step(round(self.settle_s / PHYSICS_DT_S))
        for arm in self.arms:
            arm.settle()

    def _start(self, placement: Placement, number: int) -> Pose:
        """Return the start pose of the tool of arm `number` in this world."""
        tcp = placement.right_tcp if number else placement.tcp
        if tcp is None:
            raise BadInput("a pair: expected the start of its right arm as well (right_tcp)")
        held_m = placement.right_held_m if number else placement.held_m
        if self.randomizer is not None and held_m is None:
            tcp = self.randomizer.start(tcp, self._motions[number], number)
        return pose_from(tcp)

    def _place(self, body: Any, pose: Pose) -> None:
        mocap = self.model.body_mocapid[body.id]
        if mocap >= 0:
            self.data.mocap_pos[mocap] = pose.position
            self.data.mocap_quat[mocap] = to_wxyz(pose.quaternion)
        else:
            joint = body.jntadr[0]
            address, speed = self.model.jnt_qposadr[joint], self.model.jnt_dofadr[joint]
            self.data.qpos[address : address + 7] = (*pose.position, *to_wxyz(pose.quaternion))
            self.data.qvel[speed : speed + 6] = 0.0

    def _state(self) -> dict[str, Array]:
        values = np.array(self._measured_numbers(), np.float32)
        return {name: values[part] for name, part in self._parts.items()}

    def _measured_numbers(self) -> list[float]:
        """Return the numbers of a reading with sensor errors and lag, if randomised."""
        if self.randomizer is None:
            return self._numbers()
        delayed, time_s = self._delayed or (self._numbers(), self.data.time)
        numbers = list(delayed)
        for disturbance in self.randomizer.disturbances:
            numbers = disturbance.add_sensor_errors(numbers, self._parts, time_s)
        return numbers

    def _numbers(self) -> list[float]:
        """Return all numbers of a reading, in the order of its specification."""
        self._check_stable()
        period_s, world = self._period_s, self.randomizer
        period_s = world.disturbances[0].wrench_period_s(period_s) if world else period_s
        numbers = self.arms[0].numbers(period_s)
        for arm in self.arms[1:]:
            numbers += arm.numbers(period_s)
        for body in self._bodies.values():
            numbers += flat(body.pose)
        return numbers

    def _begin_period(self, period_s: float) -> None:
        self._period_s = period_s
        for arm in self.arms:
            arm.hold()

    def _drive(self) -> None:
        for arm in self.arms:
            arm.drive()

    def _drive_late(self, tick: int, lags: Sequence[int]) -> None:
        for arm, lag in zip(self.arms, lags, strict=True):
            arm.drive(late=tick < lag)
            if tick == lag:
                arm.apply_gripper()

    def _store_state(self) -> None:
        self._delayed = self._numbers(), self.data.time

    def _end_late_period(self) -> None:
        for arm in self.arms:
            arm.end_period()


class ServedArm(ABC):
    """Commands of a driver to one arm of a world, in real time; see `serl.robot.ServedRobot`.

    Attributes:
        impedance: gains and clips of the arm's controller.
    """

    _arm: FrankaArm
    impedance: Impedance

    @property
    def target(self) -> tuple[Pose, bool]:
        """The target pose of the tool, and whether the gripper is commanded to close."""
        return self._arm.target

    @abstractmethod
    def pass_tick(self) -> None:
        """Advance by 10 ms with the controller at the setpoint that the arm was given."""

    def grip(self, closed: bool) -> None:
        """Close or open the gripper."""
        self._arm.grip(closed)

    def slip(self, slips: bool) -> None:
        """Let the fingers lose their hold, or hold again."""
        self._arm.gripper.slip(slips)

    def exert(self, wrench: Sequence[float]) -> None:
        """Exert a wrench with the tool until the next one, in its own frame: N and Nm."""
        self._arm.exert(wrench)

    def follow(self, setpoint: Pose) -> None:
        """Set the controller to a setpoint that the caller has limited already; see `pass_tick`."""
        self._arm.follow(setpoint)
        self.pass_tick()

    def follow_joints(self, joints: Sequence[float]) -> None:
        """Set the controller to joint angles that the caller has limited; see `pass_tick`."""
        self._arm.follow_joints(joints)
        self.pass_tick()


class SimArm(ArmWorld, ServedArm):
    """One arm in MuJoCo, which can also replace a driver; implements `serl.robot.ServedRobot`."""

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        super().__init__(scene, config)
        (self._arm,) = self.arms
        self.impedance = self._arm.impedance

    def aim(self, target: Pose, closed: bool) -> None:
        """Set the target pose and the gripper command directly; ignored while stopped."""
        self._arm.aim(target, closed)

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target with the next actions, also about axes that actions do not turn."""
        self._arm.turn_to(orientation)

    def home(self) -> None:
        """Start moving all joints home, regardless of the box; actions are ignored meanwhile."""
        self._arm.home()

    @property
    def is_home(self) -> bool:
        """Whether the joints are at rest at the home posture, within an arm's tolerance."""
        return self._arm.is_home


sim = SimArm
