"""The world that the arms of a simulation share: time, scene, cameras and randomisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np

from serl.camera import image_specs
from serl.errors import BadInput, SerlError
from serl.motion import Motion, Pose, pose_from
from serl.robot import POSE, reading_parts
from serl.setpoint import PROFILE_PERIOD_S
from serl.sim.disturbance import Disturbance
from serl.sim.physics.arm import SETTLE_S, FrankaArm, flat, pose_array
from serl.sim.physics.kinematics import body_frame, placement, show, to_wxyz
from serl.sim.randomization import Randomizer
from serl.sim.render.cameras import Cameras
from serl.sim.scene import PHYSICS_DT_S, build_model
from serl.specs import ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Array, Image, Observation

_STEPS_PER_TICK = round(PROFILE_PERIOD_S / PHYSICS_DT_S)

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class World:
    """Arms in one simulated world, stepped together.

    Args:
        scene: scene of the task, with the base poses of the arms.
        config: settings of the task.
        motions: meaning of an action for each arm.

    Attributes:
        model: MuJoCo model of the arms and the scene.
        data: state of the model.
        limbs: the arms.
        randomizer: sampler of the world of a seed; None without randomisation.
        observation_spec: specification of readings: those of the arms, with their prefixes, then
            `<name>_pose` of each tracked body and the images of the task's `all_views`.
    """

    def __init__(self, scene: Scene, config: TaskConfig, motions: Sequence[Motion]) -> None:
        self.model = build_model(scene, config.randomize)
        self.data = mujoco.MjData(self.model)
        self._scene, self._motions = scene, motions
        self.limbs = [
            FrankaArm(self.model, self.data, motion, prefix)
            for prefix, motion in zip(scene.bases, motions, strict=True)
        ]
        self._bodies = {name: body_frame(self.model, self.data, name) for name in scene.tracked}
        self.randomizer: Randomizer | None = None
        if config.randomize != "none":
            gains = {limb.prefix: limb.impedance for limb in self.limbs}
            self.randomizer = Randomizer(self.model, scene, config, gains)
        for limb in self.limbs:
            limb.is_late = self.randomizer is not None
        views = config.all_views
        self._cameras = Cameras(self.model, self.data, views, config.renderer, self._through_lens)
        self._images: dict[str, Image] | None = None  # of this instant, once they were requested
        self._numbers_then: tuple[list[float], float] | None = None
        state = {
            f"{limb.prefix}{name}": array
            for limb in self.limbs
            for name, array in limb.observation_spec.state.items()
        }
        state.update({f"{name}_pose": POSE for name in scene.tracked})
        self.observation_spec = ObservationSpec(state=state, images=image_specs(views))
        self._parts = reading_parts(self.observation_spec)
        self._warnings = self.data.warning.number  # a view: looking the array up takes longer

    def close(self) -> None:
        """Close the renderer of the cameras."""
        self._cameras.close()

    def reset(self, seed: int) -> None:
        """Place the arms and the bodies as the scene samples them from `seed`, at rest."""
        drawn = self._scene.place(np.random.default_rng(seed))
        model, data = self.model, self.data
        self._seed = seed
        if self.randomizer is not None:
            self.randomizer.draw(seed)
        mujoco.mj_resetData(model, data)
        for name, pose in drawn.bodies.items():
            self._place(model.body(name), pose_from(pose))
        for number, limb in enumerate(self.limbs):
            held_m = drawn.right_held_m if number else drawn.held_m
            limb.begin(self._start(drawn, number), held_m)
        self._images, self._numbers_then = None, None
        mujoco.mj_forward(model, data)
        self._hold()
        mujoco.mj_step(model, data, round(SETTLE_S / PHYSICS_DT_S))
        for limb in self.limbs:
            limb.settle()
        self._period_s = PROFILE_PERIOD_S

    def observe(self) -> Observation:
        """Return the current reading.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        values = np.array(self._sensed(), np.float32)
        state = {name: values[part] for name, part in self._parts.items()}
        if self._images is None:
            self._shoot()
        stamps = {"robot": self.time_s, **dict.fromkeys(self._images or {}, self._shot_s)}
        return Observation(state=state, images=self._images or {}, stamps=stamps)

    def measure(self) -> dict[str, list[float]]:
        """Return the state of a reading by name, in full precision; raises like `observe`."""
        numbers = self._sensed()
        return {name: numbers[part] for name, part in self._parts.items()}

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """Return the current pictures of the cameras of the task's views, by camera and size."""
        return self._cameras.pictures()

    def advance(self, dt_s: float) -> None:
        """Advance the simulation by `dt_s`, a multiple of 10 ms."""
        ticks = round(dt_s / PROFILE_PERIOD_S) if math.isfinite(dt_s) else 0
        if ticks < 1 or abs(ticks * PROFILE_PERIOD_S - dt_s) > 1e-9:
            raise BadInput(f"dt_s {dt_s}: expected a positive multiple of {PROFILE_PERIOD_S}")
        self._period_s = dt_s
        self._hold()
        if self.randomizer is not None:
            self._advance_disturbed(ticks, self.randomizer.disturbances)
            return
        self._images = None
        for _ in range(ticks):
            for limb in self.limbs:
                limb.drive()
            mujoco.mj_step(self.model, self.data, _STEPS_PER_TICK)

    def tick(self, period_s: float) -> None:
        """Advance by 10 ms with the current controls; the wrench is averaged over `period_s`."""
        self._period_s = period_s
        self._images, self._numbers_then = None, None
        mujoco.mj_step(self.model, self.data, _STEPS_PER_TICK)

    def truth(self) -> dict[str, Array]:
        """Return the time, the truth of each arm, and the pose of each tracked body.

        `<name>_grasped` is 1 while both pads of an arm touch the body, `<name>_touched` while any
        pad does; both have the arm's prefix.
        """
        truth = {"time_s": np.array([self.time_s], np.float32)}
        for limb in self.limbs:
            truth.update({f"{limb.prefix}{name}": value for name, value in limb.truth().items()})
        for name, body in self._bodies.items():
            truth[f"{name}_pose"] = pose_array(body.pose)
            for limb in self.limbs:
                pads = limb.gripper.touching(name)
                truth[f"{limb.prefix}{name}_grasped"] = np.array([pads == 2], np.float32)
                truth[f"{limb.prefix}{name}_touched"] = np.array([pads > 0], np.float32)
        return truth

    def placement(self) -> Vector64:
        """Return the configuration for `show` of an equal scene: joints, mocaps, seed.

        May be called from any thread, and costs microseconds.
        """
        return np.append(placement(self.data), float(self._seed))

    def show(self, where: Vector64) -> None:
        """Apply a `placement` for pictures; raises `BadInput` if it does not fit this scene."""
        drawn, world = where[-1] if where.size else math.nan, self.randomizer
        if world is not None and math.isfinite(drawn) and world.seed != int(drawn):
            world.draw(int(drawn))
            mujoco.mj_resetData(self.model, self.data)  # or fixed bodies would stay put
        show(self.model, self.data, where[:-1])

    @property
    def time_s(self) -> float:
        """Simulated time since the reset."""
        return float(self.data.time) - SETTLE_S

    def _start(self, drawn: Placement, number: int) -> Pose:
        """Return the start pose of the tool of arm `number` in this world."""
        tcp = drawn.right_tcp if number else drawn.tcp
        if tcp is None:
            raise BadInput("a pair: expected the start of its right arm as well (right_tcp)")
        held_m = drawn.right_held_m if number else drawn.held_m
        if self.randomizer is not None and held_m is None:
            tcp = self.randomizer.start(tcp, self._motions[number], number)
        return pose_from(tcp)

    def _hold(self) -> None:
        for limb in self.limbs:
            limb.hold()

    def _numbers(self) -> list[float]:
        """Return all numbers of a reading, in the order of its specification."""
        if any(self._warnings.tolist()):
            names = [mujoco.mjtWarning(i).name for i in np.flatnonzero(self._warnings).tolist()]
            raise SerlError(f"the simulation became unstable ({', '.join(names)}): reset it")
        period_s, world = self._period_s, self.randomizer
        period_s = world.disturbances[0].wrench_period_s(period_s) if world else period_s
        numbers = self.limbs[0].numbers(period_s)
        for limb in self.limbs[1:]:
            numbers += limb.numbers(period_s)
        for body in self._bodies.values():
            numbers += flat(body.pose)
        return numbers

    def _sensed(self) -> list[float]:
        """Return the numbers of a reading with sensor errors and lag, if randomised."""
        if self.randomizer is None:
            return self._numbers()
        then, time_s = self._numbers_then or (self._numbers(), self.data.time)
        numbers = list(then)
        for disturbance in self.randomizer.disturbances:
            numbers = disturbance.sensed(numbers, self._parts, time_s)
        return numbers

    def _advance_disturbed(self, ticks: int, disturbances: Sequence[Disturbance]) -> None:
        """Advance by `ticks` of 10 ms with lagged actions, state and images, and with pushes."""
        model, data = self.model, self.data
        arms = [(limb, own.lags(data.time, ticks)) for limb, own in self._disturbed(disturbances)]
        shared = arms[0][1]  # all arms share the lags of state and images
        for tick in range(ticks):
            for limb, lags in arms:
                limb.drive(late=tick < lags.action)
                if tick == lags.action:
                    limb.obey()
            last = tick == ticks - 1
            mujoco.mj_step(model, data, _STEPS_PER_TICK - (shared.state if last else 0))
            if last:
                self._numbers_then = self._numbers(), data.time
                mujoco.mj_step(model, data, shared.state)
            if shared.image is not None and tick == ticks - 1 - shared.image:
                self._shoot()
        for limb in self.limbs:
            limb.pass_period()

    def _disturbed(
        self, disturbances: Sequence[Disturbance]
    ) -> list[tuple[FrankaArm, Disturbance]]:
        """Pair each arm with its disturbance, and apply the push to its hand."""
        arms = list(zip(self.limbs, disturbances, strict=True))
        for limb, disturbance in arms:
            self.data.xfrc_applied[limb.hand, :3] = disturbance.push_n(self.data.time)
        return arms

    def _shoot(self) -> None:
        self._images, self._shot_s = self._cameras.shoot(), self.time_s

    def _through_lens(self, camera: str, picture: Image) -> Image:
        world = self.randomizer
        return world.picture(camera, picture, self.data.time) if world else picture

    def _place(self, body: Any, pose: Pose) -> None:
        mocap = self.model.body_mocapid[body.id]
        if mocap >= 0:
            self.data.mocap_pos[mocap] = pose.position
            self.data.mocap_quat[mocap] = to_wxyz(pose.quaternion)
        else:
            address = self.model.jnt_qposadr[body.jntadr[0]]
            self.data.qpos[address : address + 7] = (*pose.position, *to_wxyz(pose.quaternion))
