"""Flip a patty in a pan by forces on the pan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.errors import NeedsPerson
from serl.geometry import Vector, conjugate, rotate
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.arm_task import ArmTask, Specs, State, small_views
from serl.tasks.parts.steering import DOWN, quaternion_of, rng_at, scalar, tilt_of
from serl.tasks.parts.training_defaults import from_state
from serl.types import Action, Array, Observation, Outcome

# The pan in the hand's frame, whose z is down at the start; the tool point is at 0.1034.
_NEAR_M, _FAR_M, _HALF_M, _BASE_M, _TOOL_M = 0.085, 0.235, 0.055, 0.13, 0.1034
_WALL_M, _SLOPE_RAD, _SHEET_M = 0.072, math.radians(70.0), 0.003
_PATTY_M, _HALF_THICK_M = 0.03, 0.008
_START_M = (0.45, 0.0, 0.35)
_LIP_M = 0.010
_IRON = "0.25 0.27 0.30 1"


class ObjectFlipConfig(TaskConfig):
    """Settings of the object flip task.

    Attributes:
        hold_steps: number of consecutive steps for which the patty must lie flipped in the pan.
    """

    can_reset: ClassVar[bool] = True
    rate_hz: float = Field(20.0, gt=0, le=500)
    time_limit_s: float = Field(8.0, gt=0, le=86_400)
    motion: Motion = Motion(
        action_mode="wrench",
        axes=("x", "z", "pitch"),
        translation_m=0.01,
        box_low_m=(0.30, -0.20, 0.20),
        box_high_m=(0.70, 0.20, 0.55),
        max_rotation_rad=1.8,
    )
    views: dict[ViewName, View] = small_views(side="side", pan="pan")
    hold_steps: int = Field(10, ge=1, le=1000)


class ObjectFlip(ArmTask):
    """Flip a patty by swinging its pan, and let the patty come to rest in the pan."""

    name = "object_flip"
    config: ObjectFlipConfig
    is_divisible = False  # a flip that a script has begun would count as the start

    def __init__(self, config: ObjectFlipConfig | None = None) -> None:
        made = config or ObjectFlipConfig()
        super().__init__(made, made.hold_steps)
        self._side = 1.0
        self._seen_s, self._seen_m, self._speed_m_s = math.inf, np.zeros(3), 0.0  # of the patty

    def _specs(self) -> tuple[Specs, Specs]:
        pan = {
            "pan_from_start": ArraySpec(shape=(2,), unit="m, base frame, x and z"),
            "tilt": ArraySpec(shape=(1,), unit="rad, about the base's y"),
            "pan_velocity": ArraySpec(shape=(3,), unit="m/s m/s rad/s, as wrenches"),
        }
        patty = {
            "patty_in_pan": ArraySpec(shape=(3,), unit="m, tool frame"),
            "turned": ArraySpec(shape=(2,), unit="cosine and sine, since the start"),
        }
        return pan, patty

    @property
    def scene(self) -> Scene:
        """A pan in place of the hand, and in it a patty with sides of two colours."""
        return Scene(
            bodies=_BODIES,
            place=self._place,
            tracked=("patty",),
            front=_FRONT_CAMERA,
            tool=_pan(),
        )

    def begin(self, reading: Observation) -> None:
        """Begin an episode: remember which side of the patty is up."""
        super().begin(reading)
        self._side = 1.0 if _up(reading.state)[2] >= 0.0 else -1.0

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        self._watch(reading)
        return super().observation(reading)

    def _arm_state(self, state: State) -> dict[str, Array]:
        return {
            "pan_from_start": state["tcp_pose"][[0, 2]] - np.array(_START_M, np.float32)[[0, 2]],
            "tilt": scalar(_View.of(state, self._side).tilt_rad),
            "pan_velocity": state["tcp_twist"][[0, 2, 4]],
        }

    def _scene_state(self, state: State) -> dict[str, Array]:
        view = _View.of(state, self._side)
        turned = math.cos(view.turned_rad), math.sin(view.turned_rad)
        return {
            "patty_in_pan": np.array(view.place_m, np.float32),
            "turned": np.array(turned, np.float32),
        }

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the patty lies flipped; reward 0 and the end if lost."""
        state = reading.state
        return self._outcome(self.is_success(state), index, lost=is_lost(state))

    def reset(self, reading: Observation) -> Policy | None:
        """Return a policy that levels the pan, or None if the pan is level and the patty rests.

        Without `auto_reset`, the simulation places the patty.

        Raises:
            NeedsPerson: the patty is not in the pan.
        """
        self._watch(reading)
        if self.config.auto_reset and is_lost(reading.state):
            raise NeedsPerson("the patty is not in the pan")
        resting = self._speed_m_s < _RESTING_M_S
        if not self.config.auto_reset or (resting and _is_ready(reading.state)):
            return None
        rng = rng_at(reading.state["tcp_pose"])
        flipper = _Flipper(self.config.motion, rng)  # another motion from each pose of the pan
        return lambda reading: flipper.level(reading.state)

    def is_success(self, truth: Truth) -> bool:
        """Return whether the patty lies flat on the pan's base with its other side up.

        A patty beside the pan, on edge or held is no success.
        """
        view = _View.of(truth, self._side)
        return view.lies and self._side * _up(truth)[2] < -0.95

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.3 lifting the front, 0.2 toppling, 0.3 tilting back, 0.2 levelling."""
        view = _View.of(truth, self._side)
        if is_lost(truth):
            return 0.0
        turned = abs(view.turned_rad)
        if turned > _FLIPPED_RAD:
            return 0.8 + 0.2 * max(0.0, 1.0 - abs(view.tilt_rad))
        if turned > _TOPPLED_RAD:
            return 0.5 + 0.3 * min(1.0, max(0.0, (view.tilt_rad + 1.45) / 1.85))
        return 0.3 * min(1.0, max(0.0, -view.tilt_rad / 1.45)) + 0.2 * turned / _TOPPLED_RAD

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that flips the patty."""
        flipper = _Flipper(self.config.motion, np.random.default_rng(seed))
        return lambda observation: flipper.flip(truth(), self._side)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings that clone 20 demonstrations first, like those of the other tasks."""
        return from_state(6000, required=0.8, utd=2, discount=0.985)

    def _watch(self, reading: Observation) -> None:
        """Estimate the patty's speed from two readings; 0 after the first one."""
        now_s, place = reading.stamps["robot"], reading.state["patty_pose"][:3].astype(float)
        if now_s != self._seen_s:
            apart_s = now_s - self._seen_s
            moved_m = float(np.linalg.norm(place - self._seen_m))
            self._speed_m_s = moved_m / apart_s if apart_s > 0.0 else 0.0
        self._seen_s, self._seen_m = now_s, place

    def _place(self, rng: np.random.Generator) -> Placement:
        x, y, z = _START_M
        ahead = rng.uniform(_NEAR_M + 0.04, _FAR_M - 0.04)
        aside, half_yaw = rng.uniform(-0.015, 0.015), 0.5 * rng.uniform(-0.3, 0.3)
        height = z + _TOOL_M - _BASE_M + _HALF_THICK_M + 0.0005
        turned = 0.0, 0.0, math.sin(half_yaw), math.cos(half_yaw)
        patty = np.array((x + ahead, y + aside, height, *turned))
        return Placement(tcp=np.array((*_START_M, *DOWN)), bodies={"patty": patty}, held_m=0.02)


_RESTING_M_S = 0.03
_TOPPLED_RAD, _FLIPPED_RAD = math.radians(50.0), math.radians(165.0)


class _View(NamedTuple):
    """Pose of the patty relative to the pan.

    Attributes:
        tilt_rad: tilt of the pan about the base's y; lower with its front up.
        place_m: position of the patty in the frame of the tool.
        turned_rad: backward rotation of the patty relative to the pan; pi when flipped.
    """

    tilt_rad: float
    place_m: Vector
    turned_rad: float

    @classmethod
    def of(cls, state: State, side: float) -> _View:
        """Return the view for a reading's state or the truth; `side` is the initial upper side."""
        back = conjugate(quaternion_of(state["tcp_pose"]))
        dx, dy, dz = (state["patty_pose"][:3] - state["tcp_pose"][:3]).tolist()
        ux, _, uz = rotate(back, _up(state))
        turned = math.atan2(-side * ux, -side * uz)
        return cls(tilt_of(state["tcp_pose"]), rotate(back, (dx, dy, dz)), turned)

    @property
    def lies(self) -> bool:
        """Whether the patty is on the base of the pan, within its walls."""
        x, y, z = self.place_m
        height = _BASE_M - _TOOL_M - z - _HALF_THICK_M
        return _NEAR_M < x < _FAR_M and abs(y) < _HALF_M and -0.003 < height < 0.004


def is_lost(state: State) -> bool:
    """Return whether the patty is out of the pan.

    A patty in the pan is within a pan's length of the hand, and not below the pan.
    """
    away = state["patty_pose"][:3] - state["tcp_pose"][:3]
    return bool(np.linalg.norm(away) > 0.28 or state["patty_pose"][2] < 0.05)


def _is_ready(state: State) -> bool:
    view = _View.of(state, 1.0)
    off = np.abs(state["tcp_pose"][:3] - np.array(_START_M)).max()
    return view.lies and abs(view.tilt_rad) < 0.1 and bool(off < 0.05)


def _up(state: State) -> Vector:
    """Return the direction of the patty's z axis in the base frame."""
    return rotate(quaternion_of(state["patty_pose"]), (0.0, 0.0, 1.0))


class _Flipper:
    """Script that topples the patty onto the rear wall and lets it slide off, feet first.

    It lifts the front until the patty falls over its rear edge, then tilts the pan back slowly, and
    the patty comes to lie on its other side.
    """

    NOISE = 0.05
    SWING_RAD, BACK_RAD = -1.95, 0.4
    SWING_RAD_S, BACK_RAD_S, TURN_S = 1.0, 0.5, 1.5
    MIDDLE_M = (0.46, 0.42)
    PULL_N_M, DRAG_N_S_M, DRAG_NM_S, TURN_NM_S = 73.0, 14.6, 2.8, 6.0

    def __init__(self, motion: Motion, rng: np.random.Generator) -> None:
        self._scale = np.array([motion.wrench.force_n] * 2 + [motion.wrench.torque_nm])
        self._rng = rng

    def flip(self, state: State, side: float) -> Action:
        """Return the next action of a flip, from the state alone."""
        view = _View.of(state, side)
        turned = abs(view.turned_rad)
        if turned > _FLIPPED_RAD:
            goal = 0.0
        elif turned > _TOPPLED_RAD:
            goal = self.BACK_RAD
        else:
            goal = self.SWING_RAD
        return self._push(state, view.tilt_rad, goal, self.MIDDLE_M)

    def level(self, state: State) -> Action:
        """Return the next action towards the start; tilts first if the patty leans on a wall."""
        view = _View.of(state, 1.0)
        flat = abs(math.sin(view.turned_rad)) < 0.2
        goal = 0.0 if flat else self.BACK_RAD
        return self._push(state, view.tilt_rad, goal, (_START_M[0], _START_M[2]))

    def _push(self, state: State, tilt: float, goal: float, middle: tuple[float, float]) -> Action:
        x, _, z = state["tcp_pose"][:3].tolist()
        vx, _, vz, _, turning, _ = state["tcp_twist"].tolist()
        speed = min(self.BACK_RAD_S, max(-self.SWING_RAD_S, self.TURN_S * (goal - tilt)))
        wrench = (
            self.PULL_N_M * (middle[0] - x) - self.DRAG_N_S_M * vx,
            self.PULL_N_M * (middle[1] - z) - self.DRAG_N_S_M * vz,
            self.DRAG_NM_S * speed + self.TURN_NM_S * (speed - turning),
        )
        noise = self._rng.normal(0.0, self.NOISE, 3)
        action: Action = (wrench / self._scale + noise).clip(-1.0, 1.0).astype(np.float32)
        return action


def _sheet(place: Vector, half: Vector, turn_rad: float = 0.0, friction: float = 0.08) -> str:
    """Return the MJCF of a box of the pan, in the hand's frame; its friction has priority."""
    position, size = (" ".join(f"{value:.5g}" for value in values) for values in (place, half))
    return (
        f'<geom class="shell" type="box" pos="{position}" size="{size}" euler="0 {turn_rad:.5g} 0"'
        f' friction="{friction} 0.005 0.0001" priority="2" rgba="{_IRON}"/>'
    )


def _pan() -> str:
    """Return the MJCF of the pan: slippery base, low walls, a rough sloping rear wall, a lip."""
    cos, sin = math.cos(_SLOPE_RAD), math.sin(_SLOPE_RAD)
    middle, half = 0.5 * (_NEAR_M + _FAR_M), 0.5 * (_FAR_M - _NEAR_M)
    wall_x, wall_z = _NEAR_M - 0.5 * _WALL_M * cos, _BASE_M - 0.5 * _WALL_M * sin
    lip_x, lip_z = _NEAR_M - _WALL_M * cos, _BASE_M - _WALL_M * sin
    t = _SHEET_M
    parts = [
        _sheet((middle, 0.0, _BASE_M + t), (half, _HALF_M, t)),
        _sheet((_FAR_M + t, 0.0, _BASE_M - 0.01), (t, _HALF_M, 0.012)),
        _sheet(
            (wall_x - t * sin, 0.0, wall_z + t * cos),
            (0.5 * _WALL_M, _HALF_M, t),
            -_SLOPE_RAD,
            friction=0.5,
        ),
        _sheet(
            (lip_x + _LIP_M * sin, 0.0, lip_z - _LIP_M * cos),
            (_LIP_M, _HALF_M, t),
            0.5 * math.pi - _SLOPE_RAD,
        ),
    ]
    for side in (_HALF_M + t, -_HALF_M - t):
        parts.append(_sheet((middle - 0.01, side, _BASE_M - 0.0175), (half + 0.02, t, 0.02)))
        parts.append(
            _sheet(
                (wall_x + 0.012 * sin, side, wall_z - 0.012 * cos),
                (0.5 * _WALL_M, t, 0.016),
                -_SLOPE_RAD,
            )
        )
    handle = (
        f'<geom class="looks" type="box" pos="0.03 0 0.1" size="0.032 0.008 0.006" rgba="{_IRON}"/>'
    )
    camera = '<camera name="pan" pos="0.10 0 -0.05" xyaxes="0 1 0 0.949 0 -0.316" fovy="64"/>'
    return "".join((*parts, handle, camera))


def _half(z_m: float, colour: str) -> str:
    size = f"{_PATTY_M} {_PATTY_M} {0.5 * _HALF_THICK_M}"
    return f'<geom type="box" size="{size}" pos="0 0 {z_m}" mass="0.03" rgba="{colour}"/>'


_FRONT_CAMERA = 'pos="1.25 -1.10 0.95" xyaxes="0.793 0.609 0 -0.228 0.297 0.927"'
_BODIES = f"""
<camera name="side" pos="0.80 -0.55 0.80" xyaxes="0.910 0.414 0 -0.157 0.346 0.604" fovy="45"/>
<body name="patty">
  <freejoint/>
  {_half(0.5 * _HALF_THICK_M, "0.94 0.45 0.20 1")}
  {_half(-0.5 * _HALF_THICK_M, "0.95 0.90 0.72 1")}
</body>
"""

task = ObjectFlip
