"""MuJoCo models in lock-step: time, cameras, and the randomised world of each episode."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import mujoco
import numpy as np

from serl.errors import BadInput, SerlError
from serl.setpoint import PROFILE_PERIOD_S
from serl.sim.physics.controller import Impedance
from serl.sim.randomization import Randomizer
from serl.sim.render.appearance import Appearance
from serl.sim.render.cameras import Cameras
from serl.sim.scene import PHYSICS_DT_S
from serl.specs import ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Array, Image, Observation

STEPS_PER_TICK = round(PROFILE_PERIOD_S / PHYSICS_DT_S)

Vector64 = np.ndarray[Any, np.dtype[np.float64]]


class World(ABC):
    """A simulated robot in its scene, without the robot's own measurements and actions.

    A subclass adds what is missing of `serl.robot.SimulatedRobot`.

    Args:
        model: MuJoCo model of the robot and its scene.
        data: state of the model.
        config: settings of the task.
        gains: controller gains of the arms, by the prefix of their names.

    Attributes:
        model: MuJoCo model, as given.
        data: state of the model, as given.
        randomizer: sampler of the world of a seed; None without randomisation.
        fovy_rad: vertical fields of view of the cameras by name, not randomised.
        settle_s: time for which a reset simulates the robot at rest.
        observation_spec: names, shapes and units of a reading.
    """

    settle_s: ClassVar[float]
    observation_spec: ObservationSpec
    _pushed_bodies: Sequence[int]  # the body of each disturbance on which its pushes act

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        scene: Scene,
        config: TaskConfig,
        gains: Mapping[str, Impedance],
    ) -> None:
        self.model, self.data, self._scene = model, data, scene
        cameras = map(model.camera, range(model.ncam))
        self.fovy_rad = {each.name: math.radians(each.fovy[0]) for each in cameras}
        self.randomizer: Randomizer | None = None
        if config.randomize != "none":
            self.randomizer = Randomizer(model, scene, config, gains)
        self._randomize = config.randomize
        views = config.all_views
        self._cameras = Cameras(model, data, views, config.renderer, self._add_noise)
        self._images: dict[str, Image] | None = None  # of this instant, once they were requested
        self._warnings = data.warning.number  # a view: looking the array up takes longer

    @abstractmethod
    def _mjcf(self) -> str:
        """Return the MJCF of the model."""

    @abstractmethod
    def _begin(self, placement: Placement) -> None:
        """Place the robot and the bodies, and simulate until they rest."""

    @abstractmethod
    def _state(self) -> dict[str, Array]:
        """Return the state of a reading, with sensor errors and lag if randomised."""

    @abstractmethod
    def _begin_period(self, period_s: float) -> None:
        """Prepare a control period."""

    @abstractmethod
    def _drive(self) -> None:
        """Set the controls for the next 10 ms."""

    @abstractmethod
    def _drive_late(self, tick: int, lags: Sequence[int]) -> None:
        """Set the controls for 10 ms number `tick` of a period.

        The command of this period reaches arm number i after `lags[i]` ticks.
        """

    @abstractmethod
    def _store_state(self) -> None:
        """Store the state for the reading at the end of this period, which lags behind."""

    @abstractmethod
    def _end_late_period(self) -> None:
        """End a control period whose commands were late."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the renderer of the cameras."""
        self._cameras.close()

    def reset(self, seed: int) -> Observation:
        """Place the robot and the bodies as the scene samples them from `seed`, at rest."""
        placement = self._scene.place(np.random.default_rng(seed))
        self._seed = seed
        if self.randomizer is not None:
            self.randomizer.draw(seed)
        mujoco.mj_resetData(self.model, self.data)
        self._images = None
        self._begin(placement)
        return self.observe()

    def vary(self, seed: int) -> None:
        """Draw the world of a seed, and leave robot and bodies; raises like `observe`."""
        if self.randomizer is None:
            return
        self._check_stable()
        model, data, kind = self.model, self.data, int(mujoco.mjtState.mjSTATE_INTEGRATION)
        state = np.empty(mujoco.mj_stateSize(model, kind))
        mujoco.mj_getState(model, data, state, kind)
        self.randomizer.draw(seed)
        self._seed, self._images = seed, None
        mujoco.mj_resetData(model, data)  # or fixed bodies would stay put
        mujoco.mj_setState(model, data, state, kind)
        mujoco.mj_forward(model, data)

    def observe(self) -> Observation:
        """Return the current reading.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        state = self._state()
        if self._images is None:
            self._capture()
        images = self._images or {}
        stamps = {"robot": self.time_s, **dict.fromkeys(images, self._captured_s)}
        return Observation(state=state, images=images, stamps=stamps)

    def advance(self, dt_s: float) -> None:
        """Advance the simulation by `dt_s`, a multiple of 10 ms."""
        ticks = round(dt_s / PROFILE_PERIOD_S) if math.isfinite(dt_s) else 0
        if ticks < 1 or abs(ticks * PROFILE_PERIOD_S - dt_s) > 1e-9:
            raise BadInput(
                f"control period {dt_s:g} s: expected a positive multiple of {PROFILE_PERIOD_S} s, "
                "as with task_config.rate_hz 10, 20, 25, 50 or 100"
            )
        self._begin_period(dt_s)
        if self.randomizer is not None:
            self._advance_disturbed(ticks, self.randomizer)
            return
        self._images = None
        for _ in range(ticks):
            self._drive()
            self._step(STEPS_PER_TICK)

    def pictures(self) -> dict[tuple[str, tuple[int, int]], Image]:
        """Return the current pictures of the cameras of the task's views, by camera and size."""
        return self._cameras.pictures()

    def appearance(self) -> Appearance:
        """Return the scene as people see it, which follows this simulation by its `update`."""
        return Appearance(self._mjcf(), self.model, self.data, self._scene.detail)

    def placement(self) -> Vector64:
        """Return the configuration for `show` of a robot in an equal scene: joints, mocaps, seed.

        May be called from any thread, and costs microseconds.
        """
        data = self.data
        mocaps = data.mocap_pos.ravel(), data.mocap_quat.ravel()
        return np.concatenate([data.qpos, *mocaps, [float(self._seed)]])

    def show(self, where: Vector64) -> None:
        """Apply a `placement` for pictures; raises `BadInput` if it does not fit this scene."""
        model, data, world = self.model, self.data, self.randomizer
        joints, mocaps = model.nq, model.nmocap
        if where.shape != (joints + 7 * mocaps + 1,) or not np.isfinite(where).all():
            raise BadInput(f"placement: expected {joints} joints and mocaps of this scene")
        seed = int(where[-1])
        if world is not None and world.seed != seed:
            world.draw(seed)
            mujoco.mj_resetData(model, data)  # or fixed bodies would stay put
        positions, quaternions = joints + 3 * mocaps, joints + 7 * mocaps
        data.qpos[:] = where[:joints]
        data.mocap_pos[:] = where[joints:positions].reshape(mocaps, 3)
        data.mocap_quat[:] = where[positions:quaternions].reshape(mocaps, 4)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_camlight(model, data)

    @property
    def time_s(self) -> float:
        """Simulated time since the reset."""
        return float(self.data.time) - self.settle_s

    def _step(self, steps: int) -> None:
        """Advance by physics steps with the current controls."""
        mujoco.mj_step(self.model, self.data, steps)

    def _advance_disturbed(self, ticks: int, randomizer: Randomizer) -> None:
        """Advance by `ticks` of 10 ms with lagged actions, state and images, and with pushes."""
        now_s, disturbances = self.data.time, randomizer.disturbances
        for body, disturbance in zip(self._pushed_bodies, disturbances, strict=True):
            self.data.xfrc_applied[body, :3] = disturbance.push_n(now_s)
        lags = [disturbance.lags(now_s, ticks) for disturbance in disturbances]
        shared = lags[0]  # all arms share the lags of state and images
        for tick in range(ticks):
            self._drive_late(tick, [lag.action for lag in lags])
            last = tick == ticks - 1
            self._step(STEPS_PER_TICK - (shared.state if last else 0))
            if last:
                self._store_state()
                self._step(shared.state)
            if shared.image is not None and tick == ticks - 1 - shared.image:
                self._capture()
        self._end_late_period()

    def _check_stable(self) -> None:
        """Raise `SerlError` if the simulation became unstable."""
        if any(self._warnings.tolist()):
            names = [mujoco.mjtWarning(i).name for i in np.flatnonzero(self._warnings).tolist()]
            raise SerlError(f"the simulation became unstable ({', '.join(names)}): reset it")

    def _capture(self) -> None:
        self._images, self._captured_s = self._cameras.images(), self.time_s

    def _add_noise(self, camera: str, picture: Image) -> Image:
        world = self.randomizer
        return world.picture(camera, picture, self.data.time) if world else picture
