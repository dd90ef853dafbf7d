"""Pull a drawer open by its handle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.geometry import Vector
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Length, Placement, Scene, TaskConfig, ViewName
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
from serl.tasks.parts.steering import CLOSE, DOWN, OPEN, scalar
from serl.tasks.parts.training_defaults import from_pixels, from_state
from serl.types import Action, Array

_TRAVEL_M = 0.16
_FACE_M = 0.06  # from the middle of the handle to the front, with room for the hand between
_DEPTH_M = 0.20
_CABINET, _FRONT, _HANDLE = "0.36 0.52 0.68 1", "0.80 0.72 0.58 1", "0.94 0.45 0.20 1"


class DrawerConfig(TaskConfig):
    """Settings of the drawer task.

    Attributes:
        middle_m: nominal start position of the handle, base frame.
        spread_m: largest distance of the start from `middle_m`, along each axis.
        open_m: opening that the drawer must exceed.
        hold_steps: number of consecutive steps for which the drawer must be open.
    """

    time_limit_s: float = Field(8.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.32, -0.20, 0.10), (0.62, 0.20, 0.32))
    views: dict[ViewName, View] = small_views(side="side", wrist="wrist")
    middle_m: Vector = (0.55, 0.0, 0.16)
    spread_m: tuple[Length, Length, Length] = (0.03, 0.06, 0.03)
    open_m: float = Field(0.10, gt=0, lt=_TRAVEL_M)
    hold_steps: int = Field(3, ge=1, le=1000)
    practice: ClassVar[Mapping[str, Any]] = {
        "steps": 8000,
        "agent": {
            "initial_std": 0.1,
            "bc_warm_start": 1500,
            "bc_weight": 0.3,
            "bc_final_weight": 0.0,
            "bc_steps": 2000,
        },
        "learner": {"warm_up": 1500, "imitate_successes": False},
    }


class Drawer(ArmTask):
    """Grasp the handle of a drawer and pull the drawer out by more than 10 cm."""

    name = "drawer"
    config: DrawerConfig

    def __init__(self, config: DrawerConfig | None = None) -> None:
        made = config or DrawerConfig()
        super().__init__(made, made.hold_steps)

    def _specs(self) -> tuple[Specs, Specs]:
        arm = {"tcp_from_start": POSITION, **TOOL_SPEC, "force": FORCE}
        opening = ArraySpec(shape=(1,), unit="m that the drawer is out")
        return arm, {"handle_from_tcp": POSITION, "opening": opening}

    @property
    def scene(self) -> Scene:
        """A fixed cabinet with one drawer; the pose of each is tracked."""
        tracked = ("cabinet", "handle")
        return Scene(bodies=_BODIES, place=self._place, tracked=tracked, front=_FRONT_CAMERA)

    def _arm_state(self, state: State) -> dict[str, Array]:
        start = state["tcp_pose"][:3] - self._start[:3]
        return {"tcp_from_start": start, **tool_state(state), "force": state["wrench"][:3]}

    def _scene_state(self, state: State) -> dict[str, Array]:
        handle = state["handle_pose"][:3] - state["tcp_pose"][:3]
        return {"handle_from_tcp": handle, "opening": scalar(opening_m(state))}

    def is_success(self, truth: Truth) -> bool:
        """Return whether the drawer is open, relative to its cabinet."""
        return opening_m(truth) > self.config.open_m

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.3 for approaching, 0.2 for grasping, 0.5 for opening."""
        distance = float(np.linalg.norm(truth["handle_pose"][:3] - truth["tcp_pose"][:3]))
        between = math.exp(-((distance / 0.02) ** 2))
        closing = min(1.0, 2.0 * (1.0 - float(truth["gripper"][0])))
        out = min(1.0, max(0.0, opening_m(truth) / (self.config.open_m + 0.01)))
        approached = max(0.0, 1.0 - distance / 0.3)
        return 0.3 * max(approached, out) + 0.2 * max(between * closing, out) + 0.5 * out

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that opens the drawer."""
        return _Expert(truth, self.config.motion, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings: RL improves a policy cloned from 20 demonstrations."""
        return from_pixels(10_000) if self.config.observe == "pixels" else from_state(5000)

    def _place(self, rng: np.random.Generator) -> Placement:
        spread = np.array(self.config.spread_m)
        handle = np.array(self.config.middle_m) + rng.uniform(-spread, spread)
        tool = rng.uniform((0.40, -0.10, 0.26), (0.46, 0.10, 0.29))
        cabinet = np.array((*handle, 0.0, 0.0, 0.0, 1.0))
        return Placement(tcp=np.array((*tool, *DOWN)), bodies={"cabinet": cabinet})


def opening_m(state: State) -> float:
    """Return the opening of the drawer, m; the handle is at the cabinet's frame when closed."""
    return float(state["cabinet_pose"][0] - state["handle_pose"][0])


class _Expert(ArmExpert):
    """Script without memory for one arm.

    It goes above the handle, descends, closes the gripper, and pulls; if the gripper has closed on
    nothing or has lost the handle, the script opens it and tries again.
    """

    HOVER_M = 0.055  # the handle ends 32 mm above its middle, the pads 12 mm below the tool point
    GRASP_M = 0.004  # the hand is 39 mm above the tool point
    AHEAD_M = 0.025

    def _act(self, truth: Truth) -> Action:
        tcp, target, handle = (truth[f"{name}_pose"][:3] for name in ("tcp", "target", "handle"))
        goal = handle.astype(np.float64)
        goal[2] += self.GRASP_M
        offset = goal - tcp
        opening = float(truth["gripper"][0])
        if truth["handle_grasped"][0] > 0.5 and abs(offset[2]) < 0.02:
            goal[0] = tcp[0] - self.AHEAD_M
            return self._move(goal - target, CLOSE)
        off = math.hypot(offset[0], offset[1])
        if off < 0.008 and abs(offset[2]) < 0.012 and opening > 0.3:
            return self._move(goal - target, CLOSE)
        clear = min(1.0, max(0.0, (off - 0.006) / 0.010)) if opening > 0.9 else 1.0
        if opening <= 0.9 and off < 0.02:  # first release a wrong grasp
            goal[2] = tcp[2]
        else:
            goal[2] += self.HOVER_M * clear
        return self._move(goal - target, OPEN)


def _box(low: Vector, high: Vector, colour: str, more: str = "") -> str:
    """Return the MJCF of a box between two corners."""
    middle = " ".join(f"{0.5 * (a + b):g}" for a, b in zip(low, high, strict=True))
    half = " ".join(f"{0.5 * (b - a):g}" for a, b in zip(low, high, strict=True))
    return f'<geom type="box" pos="{middle}" size="{half}" rgba="{colour}" {more}/>'


def _cabinet() -> str:
    """Return the MJCF of the cabinet around the drawer, with the handle at the origin."""
    near, far = _FACE_M + 0.01, _FACE_M + 0.01 + _DEPTH_M
    return "".join(
        _box(low, high, _CABINET)
        for low, high in (
            ((near, -0.14, 0.07), (far, 0.14, 0.09)),
            ((near, -0.14, -0.20), (far, 0.14, -0.07)),
            ((near, -0.14, -0.07), (far, -0.12, 0.07)),
            ((near, 0.12, -0.07), (far, 0.14, 0.07)),
        )
    )


def _drawer() -> str:
    """Return the MJCF of the drawer: front, a box that shows its opening, upright handle."""
    back = _FACE_M + 0.01 + _DEPTH_M - 0.01
    bar = 'mass="0.05" condim="4" friction="1 0.01 0.001"'
    return "".join(
        (
            _box((_FACE_M, -0.115, -0.065), (_FACE_M + 0.01, 0.115, 0.065), _FRONT, 'mass="0.3"'),
            _box((_FACE_M + 0.01, -0.11, -0.06), (back, 0.11, -0.05), _FRONT, 'mass="0.5"'),
            _box((-0.006, -0.008, -0.032), (0.006, 0.008, 0.032), _HANDLE, bar),
            _box((0.006, -0.005, 0.022), (_FACE_M, 0.005, 0.032), _HANDLE, 'mass="0.01"'),
            _box((0.006, -0.005, -0.032), (_FACE_M, 0.005, -0.022), _HANDLE, 'mass="0.01"'),
        )
    )


_FRONT_CAMERA = 'pos="0.14 -1.42 0.88" xyaxes="0.982 -0.187 0 0.067 0.352 0.934"'
_BODIES = f"""
<camera name="side" pos="0.30 -0.52 0.42" xyaxes="0.945 -0.327 0 0.144 0.416 0.898" fovy="40"/>
<body name="cabinet" mocap="true">
  {_cabinet()}
  <body name="handle" gravcomp="1">
    <joint name="drawer" type="slide" axis="-1 0 0" range="0 {_TRAVEL_M}" damping="8"
      frictionloss="1.5" armature="0.2"/>
    {_drawer()}
  </body>
</body>
"""

task = Drawer
