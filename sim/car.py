"""A small car with four driven wheels between walls, in process and in lock-step."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from serl.camera import image_specs
from serl.motion import check_action
from serl.sim.physics.arm import pose_array
from serl.sim.physics.kinematics import body_frame, to_wxyz
from serl.sim.randomization import distractors_mjcf
from serl.sim.render.lighting import LIGHTS, LOOKS
from serl.sim.scene import PHYSICS_DT_S
from serl.sim.world import World
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Array

_WHEEL_M, _TRACK_M, _AXLE_M, _REVERSE_M_S = 0.055, 0.11, 0.16, 1.0
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


class SimCar(World):
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

    settle_s = 0.2

    def __init__(self, scene: Scene, config: TaskConfig) -> None:
        model = mujoco.MjModel.from_xml_string(_mjcf(scene, config.randomize))
        super().__init__(model, mujoco.MjData(model), scene, config, {})
        self.stop_reason: str | None = None
        self._motion = motion = config.motion
        self._top_m_s = motion.translation_m * config.rate_hz
        self._max_steering_rad = motion.rotation_rad
        self.action_spec = motion.action_spec
        self._car = body_frame(model, self.data, "car")
        self._pushed_bodies = [model.body("car").id]
        self._own = np.isin(model.geom_bodyid, _subtree(model, "car"))
        self._floor = model.geom("table").id
        self._steering = int(model.joint("steer_left").qposadr[0])
        self.observation_spec = ObservationSpec(
            state={
                "car_pose": ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame"),
                "car_twist": ArraySpec(shape=(6,), unit="m/s rad/s, frame of the car"),
                "steering": ArraySpec(shape=(1,), unit="rad"),
                "bumper": ArraySpec(shape=(1,), unit="1 after a touch"),
                "command": ArraySpec(shape=(2,), unit="speed and steering, as actions"),
            },
            images=image_specs(config.all_views),
        )
        self._command: Action  # the last one executed
        self._late: Action | None  # until it reaches the car
        self._delayed: dict[str, Array] | None
        self.reset(0)

    def act(self, action: Action) -> Action:
        """Drive with `action` from now on; return the executed action, zeros while stopped."""
        check_action(action, self.action_spec)
        if self.stop_reason is not None:
            return np.zeros_like(action)
        self._command = action.copy()
        if self.randomizer is None:
            self._control(action)
        else:
            self._late = action.copy()
        return action.copy()

    def stop(self, reason: str) -> None:
        """Brake immediately and stand still until `recover`."""
        if self.stop_reason is None:
            self.stop_reason, self._late = reason, None
            self._command = np.zeros(2, np.float32)
            self._control(self._command)

    def recover(self) -> None:
        """Allow motion again."""
        self.stop_reason = None

    def truth(self) -> dict[str, Array]:
        """Return the time, and the pose, twist and bumper of a reading without disturbance."""
        return {
            "time_s": np.array([self.time_s], np.float32),
            "car_pose": pose_array(self._car.pose),
            "car_twist": self.data.sensordata.astype(np.float32),
            "bumper": np.array([self._touched], np.float32),
        }

    def _begin(self, placement: Placement) -> None:
        start = placement.tcp
        if self.randomizer is not None:
            place = self.randomizer.start(start, self._motion)[:2]
            start = np.array((*place, start[2], *start[3:]))
        x, y, z, w = start[3:].tolist()
        self.data.qpos[:7] = (*start[:3], *to_wxyz((x, y, z, w)))
        self.stop_reason, self._touched = None, False
        self._command, self._late, self._delayed = np.zeros(2, np.float32), None, None
        mujoco.mj_step(self.model, self.data, round(self.settle_s / PHYSICS_DT_S))

    def _state(self) -> dict[str, Array]:
        self._check_stable()
        return {
            **(self._delayed or self._measure()),
            "bumper": np.array([self._touched], np.float32),
            "command": self._command.copy(),
        }

    def _measure(self) -> dict[str, Array]:
        """Return the car's current pose, twist and steering, with the disturbance of the pose."""
        pose = pose_array(self._car.pose)
        if self.randomizer is not None:
            (disturbance,) = self.randomizer.disturbances
            pose[:3] += disturbance.place_error_m(self.data.time).astype(np.float32)
        return {
            "car_pose": pose,
            "car_twist": self.data.sensordata.astype(np.float32),
            "steering": self.data.qpos[self._steering : self._steering + 1].astype(np.float32),
        }

    def _begin_period(self, period_s: float) -> None:
        self._touched = False

    def _drive(self) -> None:
        """Do nothing: the controls of a car last for a whole period."""

    def _drive_late(self, tick: int, lags: Sequence[int]) -> None:
        if tick == lags[0] and self._late is not None:
            self._control(self._late)

    def _step(self, steps: int) -> None:
        super()._step(steps)
        self._touched = self._touched or self._touches()

    def _store_state(self) -> None:
        self._delayed = self._measure()

    def _end_late_period(self) -> None:
        self._late = None  # an action lost in this period never arrives

    def _control(self, action: Action) -> None:
        speed, steering = action.tolist()
        top_m_s = self._top_m_s if speed > 0.0 else _REVERSE_M_S
        self.data.ctrl[0] = steering * self._max_steering_rad
        self.data.ctrl[1:] = speed * top_m_s / _WHEEL_M

    def _mjcf(self) -> str:
        return _mjcf(self._scene, self._randomize)

    def _touches(self) -> bool:
        """Return whether the car is in contact with anything but the floor."""
        geoms = self.data.contact.geom  # (contacts, 2)
        own = self._own[geoms].any(axis=1)
        return bool((own & (geoms != self._floor).all(axis=1)).any())


def _mjcf(scene: Scene, randomize: str) -> str:
    """Return the MJCF of the car in its scene."""
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
    return _MODEL.format(
        dt=PHYSICS_DT_S,
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


def _subtree(model: mujoco.MjModel, name: str) -> list[int]:
    """Return the numbers of a top-level body and of all bodies below it."""
    root = model.body(name).id
    return [body for body in range(model.nbody) if model.body_rootid[body] == root]


sim = SimCar
