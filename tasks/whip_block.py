"""Whip one block out of a stack, so fast that those above it drop straight down."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.geometry import Vector, rotate
from serl.motion import Motion, WrenchLimits
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Length, Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.arm_task import ArmTask, Specs, State, Vector64, small_views
from serl.tasks.parts.steering import DOWN, about_z, quaternion_of, scalar, tilt_of
from serl.tasks.parts.training_defaults import from_state
from serl.types import Action, Array, Observation, Outcome

_BLOCKS = 5
_HALF_M = (0.022, 0.022, 0.008)  # of a block
_STAND_M = 0.05
_OTHERS = tuple(f"block{index}" for index in range(_BLOCKS - 1))
_STEM_M, _PLATE_M = 0.16, (0.002, 0.014, 0.009)  # of the handle: its length; half its end plate
# The fork in the hand's frame, whose z is down at the start; the tool point is at 0.1034.
_PRONG_M, _APART_M, _LOWEST_M, _TOOL_M = 0.003, 0.010, 0.19, 0.1034
_REACH_M = _LOWEST_M - _TOOL_M - 0.016  # from the tool point down to where the stem should be
_START_M = (0.52, 0.0, 0.27)


class WhipBlockConfig(TaskConfig):
    """Settings of the task.

    Attributes:
        spread_m: largest distance of the stack from its nominal place, along x and y.
        max_yaw_rad: largest yaw of the stack, to either side.
        aside_m: largest offset of a block in the stack, along x and y.
        out_m: distance from the stack's axis that the block must exceed.
        lean_m: distance between the middles of two blocks that the other four must stay below.
        hold_steps: number of consecutive steps for which the other four must stand.
    """

    rate_hz: float = Field(20.0, gt=0, le=500)
    time_limit_s: float = Field(6.0, gt=0, le=86_400)
    motion: Motion = Motion(
        action_mode="wrench",
        wrench=WrenchLimits(force_n=20.0, speed_m_s=1.0),
        axes=("x", "z", "pitch"),
        translation_m=0.01,
        box_low_m=(0.25, -0.20, 0.12),
        box_high_m=(0.60, 0.20, 0.40),
        max_rotation_rad=0.5,
    )
    views: dict[ViewName, View] = small_views(side="side", wrist="wrist")
    spread_m: tuple[Length, Length] = (0.02, 0.003)
    max_yaw_rad: float = Field(0.02, ge=0, le=math.pi)
    aside_m: float = Field(0.001, ge=0, le=0.01)
    out_m: float = Field(0.06, gt=0, le=1)
    lean_m: float = Field(0.017, gt=0, le=0.02)
    hold_steps: int = Field(10, ge=1, le=1000)


class WhipBlock(ArmTask):
    """Whip one block out of a stack of five by its handle; the other four must stand.

    The block is the second or third from below. The arm exerts forces on a fork, which goes over
    the handle from above, and has to gain speed before it pulls: a slow pull takes the blocks above
    along. An episode succeeds once the four have stood on each other, upright, for half a second,
    and fails if one of them falls; there is no other reward.
    """

    name = "whip_block"
    config: WhipBlockConfig

    def __init__(self, config: WhipBlockConfig | None = None) -> None:
        made = config or WhipBlockConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        fork = {
            "tool_from_start": ArraySpec(shape=(2,), unit="m, base frame, x and z"),
            "tilt": ArraySpec(shape=(1,), unit="rad, about the base's y"),
            "velocity": ArraySpec(shape=(3,), unit="m/s m/s rad/s, as wrenches"),
        }
        place = ArraySpec(shape=(3,), unit="m, base frame, from the fork")
        return fork, {"loose": place, "top": place, "stand": place}

    @property
    def scene(self) -> Scene:
        """A fork below the hand, a stand, and the blocks on it."""
        return Scene(
            bodies=_BODIES,
            place=self._place,
            tracked=("stand", "loose", *_OTHERS),
            front=_FRONT,
            tool=_FORK,
        )

    def _arm_state(self, state: State) -> dict[str, Array]:
        return {
            "tool_from_start": state["tcp_pose"][[0, 2]] - np.array(_START_M, np.float32)[[0, 2]],
            "tilt": scalar(tilt_of(state["tcp_pose"])),
            "velocity": state["tcp_twist"][[0, 2, 4]],
        }

    def _scene_state(self, state: State) -> dict[str, Array]:
        fork = fork_m(state)
        places = {"loose": "loose", "top": _OTHERS[-1], "stand": "stand"}
        return {
            name: (state[f"{body}_pose"][:3] - fork).astype(np.float32)
            for name, body in places.items()
        }

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the rest stands; 0 and the end if one of it fell."""
        state = reading.state
        return self._outcome(self.is_success(state), index, lost=self.is_lost(state))

    def is_success(self, truth: Truth) -> bool:
        """Return whether the block is out, and the others stand on each other, level by level."""
        below = truth["stand_pose"][:3].astype(np.float64)
        out = math.dist(truth["loose_pose"][:2], below[:2]) > self.config.out_m
        below[2] += _STAND_M - _HALF_M[2]
        for name in _OTHERS:
            pose = truth[f"{name}_pose"]
            beside = math.dist(pose[:2], below[:2]) < self.config.lean_m
            on = abs(float(pose[2] - below[2]) - 2.0 * _HALF_M[2]) < 0.004
            if not (out and beside and on and _upright(pose) > 0.98):
                return False
            below = pose[:3].astype(np.float64)
        return True

    def is_lost(self, state: State) -> bool:
        """Return whether one of the other blocks has toppled, or left the stack."""
        axis = state["stand_pose"][:2]
        poses = (state[f"{name}_pose"] for name in _OTHERS)
        return any(math.dist(p[:2], axis) > 0.06 or _upright(p) < 0.7 for p in poses)

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.3 for going to the handle, 0.2 for the run, 0.5 for the stack."""
        if self.is_success(truth):
            return 1.0
        axis = truth["stand_pose"][:2]
        out = min(1.0, math.dist(truth["loose_pose"][:2], axis) / self.config.out_m)
        if out > 0.5:
            return 0.0 if self.is_lost(truth) else 0.5 + 0.4 * out
        x, _, z = (truth["loose_pose"][:3] - fork_m(truth)).tolist()
        there = 0.3 * max(0.0, 1.0 - math.hypot(min(0.0, x - _NEAR_M), z) / 0.15)
        run = min(1.0, max(0.0, x / (_HALF_M[0] + _STEM_M))) if abs(z) < 0.01 else 0.0
        return float(there + 0.2 * run)

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script that puts the fork over the handle, and pulls."""
        return _Expert(self, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings like those of the other dynamic task; they are not tuned."""
        return from_state(12_000, required=0.8, utd=2, discount=0.985)

    def _place(self, rng: np.random.Generator) -> Placement:
        config = self.config
        x, y = (np.array((0.60, 0.0)) + rng.uniform(-1.0, 1.0, 2) * config.spread_m).tolist()
        turned = rng.uniform(-config.max_yaw_rad, config.max_yaw_rad)
        names = list(_OTHERS)
        names.insert(int(rng.integers(1, _BLOCKS - 2)), "loose")
        bodies = {"stand": np.array((x, y, 0.0, *about_z(turned)))}
        for level, name in enumerate(names):
            dx, dy = rng.uniform(-config.aside_m, config.aside_m, 2).tolist()
            height = _STAND_M + (2 * level + 1) * _HALF_M[2] + 0.0002
            yaw = turned + rng.uniform(-0.02, 0.02)
            bodies[name] = np.array((x + dx, y + dy, height, *about_z(yaw)))
        x, y, z = _START_M
        start = (x + rng.uniform(-0.02, 0.02), y, z + rng.uniform(-0.02, 0.02))
        return Placement(tcp=np.array((*start, *DOWN)), bodies=bodies, held_m=0.02)


def fork_m(state: State) -> Vector64:
    """Return the place between the prongs at which the handle should be.  # (3,)."""
    pose = state["tcp_pose"]
    place: Vector64 = pose[:3].astype(np.float64)
    place += rotate(quaternion_of(pose), (0.0, 0.0, _REACH_M))
    return place


def _upright(pose: Array) -> float:
    """Return the cosine of the tilt of a block."""
    return rotate(quaternion_of(pose), (0.0, 0.0, 1.0))[2]


_NEAR_M = _HALF_M[0] + 0.012  # from the block's middle to the fork where its run begins


class _Expert:
    """Script without memory: go over the handle beside the block, down, and pull; then brake.

    A force along one axis also moves and turns the arm along the others, so the wrench is found
    from the wanted acceleration.
    """

    NOISE = 0.02
    HOVER_M = 0.045  # above the handle's end plate
    # Acceleration for each metre or radian, and for each m/s or rad/s: x, z, pitch.
    GAINS, DRAGS = np.array((50.0, 60.0, 80.0)), np.array((9.0, 10.0, 14.0))
    BESIDE_M, LEVEL_M, STILL_M_S, STILL_RAD_S = 0.006, 0.004, 0.03, 0.06
    RUN_M_S, OVER_M = 0.06, 0.02  # least speed of a pull that has begun, largest height of its fork
    # Action for each m/s^2 along x and z and rad/s^2 near the stack, as pushes have shown.
    ACTIONS = np.array(((0.61, -0.17, 0.11), (-0.17, 0.46, 0.006), (0.62, 0.04, 0.185)))
    PULL = np.array((-1.0, 0.2, -1.0))  # along x, as fast as an action allows

    def __init__(self, task: WhipBlock, truth: Callable[[], Truth], seed: int) -> None:
        self._truth, self._task = truth, task
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        truth = self._truth()
        axis = truth["stand_pose"][:2]
        if math.dist(truth["loose_pose"][:2], axis) > self._task.config.out_m + 0.01:
            return np.zeros(3, np.float32)  # it brakes and holds
        dx, _, dz = (truth["loose_pose"][:3] - fork_m(truth)).tolist()
        dx -= _NEAR_M
        moving = truth["tcp_twist"][[0, 2, 4]].astype(np.float64)
        beside, low = abs(dx) < self.BESIDE_M, abs(dz) < self.LEVEL_M
        still = np.abs(moving[:2]).max() < self.STILL_M_S and abs(moving[2]) < self.STILL_RAD_S
        pulls = (beside and low and still) or (moving[0] < -self.RUN_M_S and abs(dz) < self.OVER_M)
        down = pulls or beside or (dz > -self.OVER_M and dx < 0.02)
        above = 0.0 if down else self.HOVER_M
        tilt = tilt_of(truth["tcp_pose"])
        wanted = self.GAINS * (dx, dz + above, -tilt) - self.DRAGS * moving
        if pulls:
            wanted[0] = 0.0
        action = self.ACTIONS @ wanted
        action /= max(1.0, float(np.abs(action).max()))
        if pulls:
            action += self.PULL
        action += self._rng.normal(0.0, self.NOISE, 3)
        found: Action = action.clip(-1.0, 1.0).astype(np.float32)
        return found


def _text(values: Vector) -> str:
    return " ".join(f"{value:.5g}" for value in values)


def _block(name: str, colour: str, more: str = "") -> str:
    """Return the MJCF of a block of smooth wood."""
    return (
        f'<body name="{name}"><freejoint/><geom type="box" size="{_text(_HALF_M)}" mass="0.03"'
        f' friction="0.08 0.005 0.0001" condim="3" rgba="{colour}"/>{more}</body>'
    )


_BLUE, _PALE, _ORANGE = "0.36 0.52 0.68 1", "0.80 0.72 0.58 1", "0.94 0.45 0.20 1"
_IRON = "0.25 0.27 0.30 1"
_FRONT = 'pos="0.734 -0.49 0.34" xyaxes="0.894 0.447 0 -0.136 0.272 0.953"'
_HANDLE = f"""
<geom type="capsule" fromto="{-_HALF_M[0]} 0 0 {-_HALF_M[0] - _STEM_M} 0 0" size="0.003"
  mass="0.001" rgba="{_ORANGE}"/>
<geom type="box" pos="{-_HALF_M[0] - _STEM_M} 0 0" size="{_text(_PLATE_M)}" mass="0.001"
  rgba="{_ORANGE}"/>
"""
_FORK = "".join(
    f'<geom class="shell" type="capsule" fromto="0 {y} 0.06 0 {y} {_LOWEST_M - _PRONG_M}"'
    f' size="{_PRONG_M}" friction="0.2 0.005 0.0001" rgba="{_IRON}"/>'
    for y in (_APART_M, -_APART_M)
)
_BODIES = f"""
<camera name="side" {_FRONT} fovy="36"/>
<body name="stand" mocap="true">
  <geom type="box" pos="0 0 {0.5 * _STAND_M}" size="0.03 0.03 {0.5 * _STAND_M}"
    friction="0.4 0.005 0.0001" rgba="{_BLUE}"/>
</body>
{_block("loose", _ORANGE, _HANDLE)}
{"".join(_block(name, _PALE) for name in _OTHERS)}
"""

task = WhipBlock
