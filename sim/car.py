"""A small car with four driven wheels between walls, in process and in lock-step."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Any, Self

import mujoco
import numpy as np

from serl.camera import image_specs
from serl.errors import BadInput, SerlError
from serl.motion import check_action
from serl.sim.disturbance import Disturbance
from serl.sim.physics.kinematics import body_frame, placement, show, to_wxyz
from serl.sim.randomization import Randomizer, distractors_mjcf
from serl.sim.randomization_ranges import LEVELS
from serl.sim.render.cameras import Cameras
from serl.sim.render.lighting import LIGHTS, LOOKS
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Scene, TaskConfig
from serl.types import Action, Array, Image, Observation

_PHYSICS_DT_S, _PERIOD_S = 0.002, 0.01
_WHEEL_M, _TRACK_M, _AXLE_M, _REVERSE_M_S = 0.055, 0.11, 0.16, 1.0
_STEPS = round(_PERIOD_S / _PHYSICS_DT_S)
_SETTLE_S = 0.2
_TYRE, _BODY, _GLASS = "0.10 0.10 0.11 1", "0.85 0.22 0.12 1", "0.16 0.17 0.19 1"

_MODEL = """
<mujoco model="car">
<compiler angle="radian" autolimits="true"/>
<option timestep="{dt}" integrator="implicitfast" cone="elliptic" impratio="5"/>
{looks}
<default>
  <geom solref="0.01 1" friction="0.7 0.005 0.0001"/>
  <default class="car"><geom contype="2" conaffinity="1"/></default>
  <default class="wheel">
    <geom type="cylinder" size="{wheel} 0.025" mass="0.2" zaxis="0 1 0" condim="6"
      contype="2" conaffinity="1"
      friction="0.7 0.01 0.002" rgba="{tyre}"/>
    <joint type="hinge" axis="0 1 0" damping="0.002" armature="0.001"/>
  </default>
</default>
<worldbody>
  {lights}
  <geom name="table" type="plane" size="8 8 0.1" material="tiles"/>
  <camera name="front" fovy="40" {front}/>
  <body name="car">
    <freejoint/>
    <geom class="car" type="box" size="0.19 0.07 0.025" pos="0 0 0.03" mass="2.2" rgba="{body}"/>
    <geom class="car" type="box" size="0.09 0.06 0.022" pos="-0.03 0 0.075" mass="0.2"
      rgba="{glass}"/>
    <site name="car"/>
    <camera name="driver" pos="0.16 0 0.13" xyaxes="0 -1 0 0.26 0 0.966" fovy="80"/>
    {wheels}
  </body>
  {bodies}
</worldbody>
<equality><joint joint1="steer_left" joint2="steer_right"/></equality>
<actuator>
  <position name="steer" joint="steer_left" kp="3" kv="0.1" forcerange="-2 2"/>
  {drives}
</actuator>
<sensor><velocimeter site="car" name="velocity"/><gyro site="car" name="rates"/></sensor>
{extra}
</mujoco>
"""


class SimCar:
    """A car in MuJoCo with a task's scene; implements `serl.robot.SimulatedRobot`.

    An action is a speed and a steering angle, scaled by the task's motion: speed 1 is
    `translation_m` forwards per control period, speed -1 is backwards at 1 m/s; steering 1 is
    `rotation_rad` to the left.

    A reading carries `car_pose` (x y z, quaternion xyzw), `car_twist` (linear and angular, in the
    frame of the car, whose x points ahead), `steering` (rad), `bumper` (1 if the car touched
    anything but the floor in the last `advance`) and `command` (the last action). Its stamp
    "robot" is simulated time. Images are those of the task's `all_views`, each stamped by its
    name. If the task is randomised, each episode has its own world; the truth is not disturbed.

    Attributes:
        stop_reason: reason of the first stop; None while motion is allowed.
    """

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        self.model = _build(scene, config.randomize)
        self.data = mujoco.MjData(self.model)
        self.stop_reason: str | None = None
        self._scene, self._motion, self._level = scene, config.motion, config.randomize
        varied = config.randomize != "none"
        self._world = Randomizer(self.model, scene, config, {}) if varied else None
        self._disturbance: Disturbance | None = None
        motion = config.motion
        self._top_m_s = motion.translation_m * config.rate_hz
        self._widest_rad = motion.rotation_rad
        self._spec = motion.action_spec
        self._car = body_frame(self.model, self.data, "car")
        self._own = np.isin(self.model.geom_bodyid, _subtree(self.model, "car"))
        self._floor, self._body = self.model.geom("table").id, self.model.body("car").id
        self._steering = int(self.model.joint("steer_left").qposadr[0])
        self._cameras = Cameras(
            self.model, self.data, config.all_views, config.renderer, self._through_lens
        )
        self._images: dict[str, Image] | None = None
        self._shot_s = 0.0
        self._observation_spec = ObservationSpec(
            state={
                "car_pose": ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame"),
                "car_twist": ArraySpec(shape=(6,), unit="m/s rad/s, frame of the car"),
                "steering": ArraySpec(shape=(1,), unit="rad"),
                "bumper": ArraySpec(shape=(1,), unit="1 after a touch"),
                "command": ArraySpec(shape=(2,), unit="speed and steering, as actions"),
            },
            images=image_specs(config.all_views),
        )
        self.reset(0)

    @property
    def observation_spec(self) -> ObservationSpec:
        """Names, shapes and units of a reading."""
        return self._observation_spec

    @property
    def action_spec(self) -> ArraySpec:
        """Shape and bounds of an action: a speed and a steering angle."""
        return self._spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the renderer of the cameras."""
        self._cameras.close()

    def reset(self, seed: int) -> Observation:
        """Place the car where the scene samples it from `seed`, at rest."""
        self._seed, start = seed, self._scene.place(np.random.default_rng(seed)).tcp
        if self._world is not None:
            self._world.draw(seed)
            self._disturbance = Disturbance(LEVELS[self._level], seed, ())
            start = np.array((*self._world.start(start, self._motion)[:2], start[2], *start[3:]))
        mujoco.mj_resetData(self.model, self.data)
        x, y, z, w = start[3:].tolist()
        self.data.qpos[:7] = (*start[:3], *to_wxyz((x, y, z, w)))
        self.stop_reason, self._touched, self._images = None, False, None
        self._command: Action = np.zeros(2, np.float32)
        self._late: Action | None = None
        self._measured: dict[str, Array] | None = None
        mujoco.mj_step(self.model, self.data, round(_SETTLE_S / _PHYSICS_DT_S))
        return self.observe()

    def observe(self) -> Observation:
        """Return the current reading.

        Raises:
            SerlError: the simulation became unstable; only a reset helps.
        """
        warnings = self.data.warning.number
        if warnings.any():
            names = [mujoco.mjtWarning(i).name for i in np.flatnonzero(warnings).tolist()]
            raise SerlError(f"the simulation became unstable ({', '.join(names)}): reset it")
        if self._images is None:
            self._shoot()
        state = {
            **(self._measured or self._measure()),
            "bumper": np.array([self._touched], np.float32),
            "command": self._command.copy(),
        }
        images = self._images or {}
        stamps = {"robot": self._time_s, **dict.fromkeys(images, self._shot_s)}
        return Observation(state=state, images=images, stamps=stamps)

    def act(self, action: Action) -> Action:
        """Drive with `action` from now on; return the executed action, zeros while stopped."""
        check_action(action, self._spec)
        if self.stop_reason is not None:
            return np.zeros_like(action)
        self._command = action.copy()
        if self._disturbance is None:
            self._drive(action)
        else:
            self._late = action.copy()
        return action.copy()

    def advance(self, dt_s: float) -> None:
        """Advance the simulation by `dt_s`, a multiple of 10 ms."""
        ticks = round(dt_s / _PERIOD_S) if math.isfinite(dt_s) else 0
        if ticks < 1 or abs(ticks * _PERIOD_S - dt_s) > 1e-9:
            raise BadInput(f"dt_s {dt_s}: expected a positive multiple of {_PERIOD_S}")
        self._touched = False
        if self._disturbance is not None:
            self._advance_disturbed(ticks, self._disturbance)
            return
        self._images = None
        for _ in range(ticks):
            self._step(_STEPS)

    def stop(self, reason: str) -> None:
        """Brake immediately and stand still until `recover`."""
        if self.stop_reason is None:
            self.stop_reason, self._late = reason, None
            self._command = np.zeros(2, np.float32)
            self._drive(self._command)

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = None

    def truth(self) -> dict[str, Array]:
        """Return the time, and the pose, twist and bumper of a reading without disturbance."""
        return {
            "time_s": np.array([self._time_s], np.float32),
            "car_pose": self._pose(),
            "car_twist": self.data.sensordata.astype(np.float32),
            "bumper": np.array([self._touched], np.float32),
        }

    def placement(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the configuration of the scene; see `SimArm.placement`."""
        return np.append(placement(self.data), float(self._seed))

    def show(self, where: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Apply a `placement` for pictures; see `SimArm.show`."""
        drawn, world = where[-1] if where.size else math.nan, self._world
        if world is not None and math.isfinite(drawn) and world.seed != int(drawn):
            world.draw(int(drawn))
            mujoco.mj_resetData(self.model, self.data)
        show(self.model, self.data, where[:-1])

    @property
    def _time_s(self) -> float:
        return float(self.data.time) - _SETTLE_S

    def _pose(self) -> Array:
        position, quaternion = self._car.pose
        return np.array((*position, *quaternion), np.float32)

    def _measure(self) -> dict[str, Array]:
        """Return the car's current pose, twist and steering, with the disturbance of the pose."""
        pose = self._pose()
        if self._disturbance is not None:
            pose[:3] += self._disturbance.place_error_m(self.data.time).astype(np.float32)
        return {
            "car_pose": pose,
            "car_twist": self.data.sensordata.astype(np.float32),
            "steering": self.data.qpos[self._steering : self._steering + 1].astype(np.float32),
        }

    def _shoot(self) -> None:
        self._images, self._shot_s = self._cameras.shoot(), self._time_s

    def _through_lens(self, camera: str, picture: Image) -> Image:
        world = self._world
        return world.picture(camera, picture, self.data.time) if world else picture

    def _step(self, steps: int) -> None:
        mujoco.mj_step(self.model, self.data, steps)
        self._touched = self._touched or self._touches()

    def _advance_disturbed(self, ticks: int, disturbance: Disturbance) -> None:
        """Advance by `ticks` of 10 ms with lagged actions, state and images, and with pushes."""
        lags = disturbance.lags(self.data.time, ticks)
        self.data.xfrc_applied[self._body, :3] = disturbance.push_n(self.data.time)
        for tick in range(ticks):
            if tick == lags.action and self._late is not None:
                self._drive(self._late)
            if tick < ticks - 1:
                self._step(_STEPS)
            else:
                self._step(_STEPS - lags.state)
                self._measured = self._measure()
                self._step(lags.state)
            if lags.image is not None and tick == ticks - 1 - lags.image:
                self._shoot()
        self._late = None  # an action lost in this period never arrives

    def _drive(self, action: Action) -> None:
        speed, steering = action.tolist()
        top_m_s = self._top_m_s if speed > 0.0 else _REVERSE_M_S
        self.data.ctrl[0] = steering * self._widest_rad
        self.data.ctrl[1:] = speed * top_m_s / _WHEEL_M

    def _touches(self) -> bool:
        """Return whether the car is in contact with anything but the floor."""
        geoms = self.data.contact.geom  # (contacts, 2)
        own = self._own[geoms].any(axis=1)
        return bool((own & (geoms != self._floor).all(axis=1)).any())


def _build(scene: Scene, randomize: str) -> mujoco.MjModel:
    wheels, drives = [], []
    for name, x, y in (
        ("front_left", _AXLE_M, _TRACK_M),
        ("front_right", _AXLE_M, -_TRACK_M),
        ("rear_left", -_AXLE_M, _TRACK_M),
        ("rear_right", -_AXLE_M, -_TRACK_M),
    ):
        wheel = f'<joint class="wheel" name="{name}"/><geom class="wheel"/>'
        if x > 0.0:
            side = name.removeprefix("front_")
            wheel = f"""<inertial mass="0.05" pos="0 0 0" diaginertia="1e-4 1e-4 1e-4"/>
              <joint name="steer_{side}" axis="0 0 1" range="-0.55 0.55" damping="0.05"
                armature="0.002"/><body>{wheel}</body>"""
        wheels.append(f'<body pos="{x} {y} 0">{wheel}</body>')
        drives.append(f'<velocity joint="{name}" kv="0.05" forcerange="-0.6 0.6"/>')
    return mujoco.MjModel.from_xml_string(
        _MODEL.format(
            dt=_PHYSICS_DT_S,
            looks=LOOKS,
            lights=LIGHTS,
            wheel=_WHEEL_M,
            tyre=_TYRE,
            body=_BODY,
            glass=_GLASS,
            front=scene.front,
            wheels="".join(wheels),
            drives="".join(drives),
            bodies=scene.bodies + distractors_mjcf(randomize),
            extra=scene.extra,
        )
    )


def _subtree(model: mujoco.MjModel, name: str) -> list[int]:
    """Return the numbers of a top-level body and of all bodies below it."""
    root = model.body(name).id
    return [body for body in range(model.nbody) if model.body_rootid[body] == root]


sim = SimCar
