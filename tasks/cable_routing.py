"""Lead a cable through a clip, hold it taut while it is lowered, and let go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.geometry import rotate, wrap_angle
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Detail, Length, Placement, Scene, TaskConfig, Turns, ViewName
from serl.tasks.parts.arm_task import (
    FORCE,
    POSITION,
    TOOL_SPEC,
    ArmExpert,
    ArmTask,
    Specs,
    State,
    gripper_motion,
    small_views,
    tool_state,
)
from serl.tasks.parts.steering import CLOSE, DOWN, OPEN, about_z, quaternion_of, scalar, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Array

_LINKS = 16
_LINK_M = 0.025
_RADIUS_M = 0.004
_GRIP = _LINKS - 2  # the link that scripts grasp
_CLIP_LINK = 8  # begins at the slot if the cable is taut
_CLIP_M = _CLIP_LINK * _LINK_M  # from the fixed end of the cable to the clip
_SLOT_M = 0.005  # half of it: a millimetre of room on each side of the cable
_POST_M = (0.006, 0.006, 0.0225)  # half the size of a post


class CableRoutingConfig(TaskConfig):
    """Settings of the cable routing task.

    Attributes:
        fixed_m: nominal position of the fixed end of the cable.
        spread_m: largest distance of the fixed end from `fixed_m` at the start, along each axis.
        turned_rad: least and largest angle between cable and clip at the start.
        hold_steps: number of consecutive steps for which the cable must be in the clip, released.
        up_m: height that the tool must exceed during these steps.
    """

    time_limit_s: float = Field(12.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.38, -0.32, 0.013), (0.70, 0.32, 0.25), 0.9)
    views: dict[ViewName, View] = small_views(side="side", wrist="wrist")
    fixed_m: tuple[float, float] = (0.28, 0.0)
    spread_m: tuple[Length, Length] = (0.01, 0.04)
    turned_rad: Turns = (0.3, 0.6)
    hold_steps: int = Field(3, ge=1, le=1000)
    up_m: float = Field(0.08, gt=0, le=1)


class CableRouting(ArmTask):
    """Grasp the cable near its free end, lay it into the slot of the clip, let go, go up."""

    name = "cable_routing"
    config: CableRoutingConfig

    def __init__(self, config: CableRoutingConfig | None = None) -> None:
        made = config or CableRoutingConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        yaw_spec = ArraySpec(shape=(1,), unit="rad")
        arm = {"clip_from_tcp": POSITION, "yaw": yaw_spec, **TOOL_SPEC, "force": FORCE}
        cable = {
            "end_from_tcp": POSITION,
            "end_yaw": ArraySpec(shape=(1,), unit="rad from the tool's, modulo 180 degrees"),
            "cable_from_clip": ArraySpec(
                shape=(3,), unit="m, from the slot's foot to the cable's segment that belongs in it"
            ),
        }
        return arm, cable

    @property
    def scene(self) -> Scene:
        """A cable fixed at one end, and a clip; each link of the cable is tracked."""
        tracked = ("clip", *(f"cable{index}" for index in range(_LINKS)))
        detail = Detail("clip", (0.0, 0.0, _POST_M[2]), (0.28, -0.20, 0.11), 0.13)
        return Scene(bodies=_BODIES, place=self._place, tracked=tracked, detail=detail)

    def _arm_state(self, state: State) -> dict[str, Array]:
        tcp = state["tcp_pose"]
        return {
            "clip_from_tcp": state["clip_pose"][:3] - tcp[:3],
            "yaw": scalar(yaw(tcp)),
            **tool_state(state),
            "force": state["wrench"][:3],
        }

    def _scene_state(self, state: State) -> dict[str, Array]:
        return {
            "end_from_tcp": grip_point(state) - state["tcp_pose"][:3],
            "end_yaw": scalar(_turn(state)),
            "cable_from_clip": from_clip(state),
        }

    def is_success(self, truth: Truth) -> bool:
        """Return whether the cable is in the slot, and the hand is open and above it."""
        let_go = truth["gripper"][0] > 0.9 and truth["tcp_pose"][2] > self.config.up_m
        return bool(let_go) and is_routed(truth)

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.2 approaching, 0.2 grasping, 0.3 over the slot; 0.8 in, 1 released."""
        tcp, opening = truth["tcp_pose"][:3], float(truth["gripper"][0])
        if is_routed(truth):
            up = (float(tcp[2]) - 0.02) / (self.config.up_m - 0.02)
            return float(0.8 + 0.2 * min(1.0, max(0.0, up)) * opening)
        distance = float(np.linalg.norm(grip_point(truth) - tcp))
        between = math.exp(-((max(0.0, distance - 0.01) / 0.02) ** 2))
        x, y, z = from_clip(truth).tolist()
        lifted = min(1.0, max(0.0, z / (2.0 * _POST_M[2])))
        aside = max(0.0, 1.0 - math.hypot(x, y) / 0.12)
        laid = 0.2 * aside + 0.1 * lifted
        approached = 0.2 * max(0.0, 1.0 - distance / 0.4)
        return float(approached + 0.2 * between * (1.0 - opening) + laid)

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that routes the cable."""
        return _Expert(truth, self.config.motion, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings."""
        if self.config.observe == "pixels":
            return from_pixels(20_000)
        return from_state_at_length(10_000)

    def _place(self, rng: np.random.Generator) -> Placement:
        spread = np.array(self.config.spread_m)
        x, y = np.array(self.config.fixed_m) + rng.uniform(-spread, spread)
        turned = rng.choice((-1.0, 1.0)) * rng.uniform(*self.config.turned_rad)
        start = rng.uniform((0.44, -0.10, 0.17), (0.52, 0.10, 0.20))
        quaternion = about_z(turned)
        return Placement(
            tcp=np.array((*start, *DOWN)),
            bodies={
                "fixture": np.array((x, y, _RADIUS_M, *quaternion)),
                "clip": np.array((x + _CLIP_M, y, 0.0, 0.0, 0.0, 0.0, 1.0)),
            },
        )


def passage(state: State) -> Array:
    """Return where the cable crosses the clip's plane, relative to the foot of the slot.  # (3,).

    Of several crossings, the nearest is returned; without any, the nearest joint of the cable,
    whose x is then not zero.
    """
    joints = np.stack([state[f"cable{index}_pose"][:3] for index in range(_LINKS)])
    joints = joints - state["clip_pose"][:3]  # (links, 3)
    before, after = joints[:-1], joints[1:]
    crossing = (before[:, 0] <= 0.0) != (after[:, 0] <= 0.0)
    if crossing.any():
        before, after = before[crossing], after[crossing]
        part = before[:, :1] / (before[:, :1] - after[:, :1])
        joints = before + part * (after - before)
        joints[:, 0] = 0.0
    nearest: Array = joints[np.linalg.norm(joints[:, :2], axis=1).argmin()]
    return nearest.astype(np.float32)


def from_clip(state: State) -> Array:
    """Return the position of the cable's slot link, relative to the foot of the slot.  # (3,).

    This link would be in the slot if the cable were taut. Unlike `passage`, its position never
    jumps.
    """
    place: Array = state[f"cable{_CLIP_LINK}_pose"][:3] - state["clip_pose"][:3]
    return place


def is_routed(state: State) -> bool:
    """Return whether the cable passes through the slot, below the tops of the posts."""
    x, y, z = passage(state).tolist()
    return bool(x == 0.0 and abs(y) < _SLOT_M and z < 2.0 * _POST_M[2])


def grip_point(state: State) -> Array:
    """Return the middle of the link that scripts grasp.  # (3,)."""
    pose = state[f"cable{_GRIP}_pose"]
    along = rotate(quaternion_of(pose), (0.5 * _LINK_M, 0.0, 0.0))
    return pose[:3] + np.array(along, np.float32)


def _turn(state: State) -> float:
    """Return the angle from the tool's yaw to that of the grasped link, rad, modulo pi."""
    return wrap_angle(yaw(state[f"cable{_GRIP}_pose"]) - yaw(state["tcp_pose"]), math.pi)


class _Expert(ArmExpert):
    """Script without memory for one arm.

    It grasps the cable crosswise, lifts it, and lowers it into the slot on an arc about the
    fixture, on which the cable is always taut: with two centimetres of slack the cable stays beside
    the slot. If the cable has missed the slot, the script lets go and begins again.
    """

    NOISE = 0.03
    HOVER_M, GRASP_M, TRAVEL_M, LAID_M = 0.05, 0.014, 0.13, 0.022
    TAUT_M = 0.003

    def _act(self, truth: Truth) -> Action:
        tcp = truth["tcp_pose"][:3].astype(np.float64)
        held = max(float(truth[f"cable{index}_grasped"][0]) for index in range(_GRIP, _LINKS)) > 0.5
        held = held or float(truth[f"cable{_GRIP - 1}_grasped"][0]) > 0.5
        if is_routed(truth) and (not held or tcp[2] < self.LAID_M + 0.006):
            height = tcp[2] if truth["gripper"][0] < 0.9 else 0.15
            return self._steer(truth, np.array((tcp[0], tcp[1], height)), OPEN)
        return self._lay(truth, tcp) if held else self._grasp(truth, tcp)

    def _lay(self, truth: Truth, tcp: np.ndarray[Any, Any]) -> Action:
        """Move up, over the slot, and down."""
        fixed = truth["clip_pose"][:3] - np.array((_CLIP_M, 0.0, -_RADIUS_M))
        aside, turn = tcp[1] - fixed[1], wrap_angle(yaw(truth["tcp_pose"]), math.pi)
        # The lower the tool, the larger the tolerance: a descent that has begun is completed.
        room = 0.002 + 0.1 * max(0.0, self.TRAVEL_M - 0.01 - tcp[2])
        if abs(aside) < room and abs(turn) < 0.06:
            if tcp[2] < self.LAID_M + 0.004:
                return self._steer(truth, tcp, OPEN)
            height = self.LAID_M
        else:
            height = self.TRAVEL_M
        # Aim a little ahead on the arc, so that the tool follows it.
        ahead = max(height, tcp[2] - 0.03) if height < tcp[2] else height
        length = self._length(truth, tcp) + self.TAUT_M
        across = 0.0 if tcp[2] > 0.07 or height < tcp[2] else aside
        reach = math.sqrt(max(0.0, length**2 - (ahead - fixed[2]) ** 2 - across**2))
        goal = np.array((fixed[0] + reach, fixed[1] + across, ahead))
        turned = -wrap_angle(yaw(truth["target_pose"]), math.pi)
        return self._steer(truth, goal, CLOSE, turned)

    def _length(self, truth: Truth, tcp: np.ndarray[Any, Any]) -> float:
        """Return the length of cable from the fixture to the fingers, m."""
        along = np.array(rotate(quaternion_of(truth[f"cable{_GRIP}_pose"]), (1.0, 0.0, 0.0)))
        beyond = float(along @ (tcp - truth[f"cable{_GRIP}_pose"][:3]))
        return _GRIP * _LINK_M + min(1.5 * _LINK_M, max(-_LINK_M, beyond))

    def _grasp(self, truth: Truth, tcp: np.ndarray[Any, Any]) -> Action:
        """Move over the cable, crosswise; descend as the tool gets aligned."""
        goal, turn = grip_point(truth).astype(np.float64), _turn(truth)
        offset, opening = goal - tcp, float(truth["gripper"][0])
        off = math.hypot(offset[0], offset[1]) + 0.05 * abs(turn)
        goal[2] = max(self.GRASP_M, goal[2])
        low = tcp[2] < goal[2] + 0.006
        if low and off < 0.010 and opening > 0.05:
            return self._steer(truth, goal, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.005) / 0.010)) if opening > 0.9 else 1.0
        goal[2] += self.HOVER_M * clear
        turned = wrap_angle(yaw(truth[f"cable{_GRIP}_pose"]) - yaw(truth["target_pose"]), math.pi)
        return self._steer(truth, goal, OPEN, turned)

    def _steer(
        self, truth: Truth, goal: np.ndarray[Any, Any], gripper: float, turn_rad: float = 0.0
    ) -> Action:
        return self._move(goal - truth["target_pose"][:3], gripper, turn_rad)


def _cable() -> str:
    """Return the MJCF of links with ball joints, stiff enough not to coil, soft enough to lie."""
    inner = ""
    for index in reversed(range(_LINKS)):
        place = f"{_LINK_M if index else 0} 0 0"
        inner = (
            f'<body name="cable{index}" pos="{place}">'
            '<joint type="ball" stiffness="0.01" damping="0.001" armature="1e-5"/>'
            f'<geom type="capsule" fromto="0 0 0 {_LINK_M} 0 0" size="{_RADIUS_M}" mass="0.0025"'
            f' condim="4" friction="0.6 0.005 0.0001" rgba="0.94 0.45 0.20 1"/>{inner}</body>'
        )
    return inner


def _clip() -> str:
    dx, dy, dz = _POST_M
    return "".join(
        f'<geom type="box" pos="0 {side * (_SLOT_M + dy)} {dz}" size="{dx} {dy} {dz}"'
        ' friction="0.3 0.005 0.0001" rgba="0.36 0.52 0.68 1"/>'
        for side in (1.0, -1.0)
    )


_BODIES = f"""
<camera name="side" pos="0.62 -0.42 0.34" xyaxes="0.949 0.316 0 -0.181 0.544 0.819" fovy="44"/>
<body name="fixture" mocap="true">
  <geom type="cylinder" pos="0 0 0.008" size="0.012 0.012" rgba="0.36 0.52 0.68 1"
    contype="0" conaffinity="0"/>
  {_cable()}
</body>
<body name="clip" mocap="true">{_clip()}</body>
"""

task = CableRouting
