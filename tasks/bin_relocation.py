"""Move a part from one bin to the other; the two directions reset each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from serl.camera import View
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec
from serl.task import Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.arm_task import (
    POSITION,
    TOOL_SPEC,
    ArmTask,
    Specs,
    State,
    gripper_motion,
    small_views,
    tool_state,
)
from serl.tasks.parts.cube import Cube, PutDown, Starts, restore
from serl.tasks.parts.steering import DOWN, about_z, rng_at, scalar, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Array, Observation

_PART = Cube("part", half_m=0.02, grasp_m=0.012)  # above the walls, even if it touches one
_INSIDE_M = (0.09, 0.075)  # half the inside of a bin
_WALL_M = (0.003, 0.009)  # half the thickness and half the height
_FROM_M, _TO_M = (0.47, 0.12), (0.47, -0.12)
_STARTS = Starts((0.40, -0.10), (0.50, 0.10), 0.20)


class BinRelocationConfig(TaskConfig):
    """Settings of the bin relocation task.

    Attributes:
        direction: forward is from the left bin, seen from the arm, to the right one.
        hold_steps: number of consecutive steps for which the part must lie in the bin, released.
        up_m: height that the tool must exceed during these steps.
    """

    time_limit_s: float = Field(12.0, gt=0, le=86_400)
    motion: Motion = gripper_motion((0.33, -0.24, 0.030), (0.61, 0.24, 0.30), 0.9)
    views: dict[ViewName, View] = small_views(front="field", wrist="wrist")
    can_reset: ClassVar[bool] = True
    direction: Literal["forward", "backward"] = "forward"
    hold_steps: int = Field(3, ge=1, le=1000)
    up_m: float = Field(0.09, gt=0, le=1)


class BinRelocation(ArmTask):
    """Take the part out of one bin, put it into the other, let go and go up.

    Each episode draws a goal spot in the bin, which the policy observes. Demonstrations put the
    part down there, so that episodes of the opposite direction start with the part anywhere in the
    bin. Any place in the bin is a success.

    The reset works from readings alone, as on a real arm with a tracker of the part: it puts a part
    that lies elsewhere into the start bin of this direction, and moves the tool to a random start.
    """

    config: BinRelocationConfig

    def __init__(self, config: BinRelocationConfig | None = None) -> None:
        made = config or BinRelocationConfig()
        super().__init__(made, made.hold_steps)
        self.name = f"bin_relocation_{self.config.direction}"
        forward = self.config.direction == "forward"
        self._source, self._goal = (_FROM_M, _TO_M) if forward else (_TO_M, _FROM_M)
        self._spot = np.array(self._goal)

    def _specs(self) -> tuple[Specs, Specs]:
        arm = {
            "goal_from_tcp": ArraySpec(
                shape=(3,), unit="m, base frame; the spot that is asked for"
            ),
            "yaw": ArraySpec(shape=(1,), unit="rad"),
            **TOOL_SPEC,
        }
        part = {
            "part_from_tcp": POSITION,
            "part_yaw": ArraySpec(shape=(1,), unit="rad from the tool's, modulo 90 degrees"),
            "part_height": ArraySpec(shape=(1,), unit="m above the table"),
        }
        return arm, part

    @property
    def scene(self) -> Scene:
        """Two bins and a tracked part."""
        return Scene(bodies=_BODIES, place=self._place, tracked=("part",))

    def begin(self, reading: Observation) -> None:
        """Begin an episode: reset the count of steps in the bin, and draw a goal spot."""
        super().begin(reading)
        self._spot = _spot(self._goal, rng_at(reading.state["tcp_pose"]))

    def _arm_state(self, state: State) -> dict[str, Array]:
        tcp = state["tcp_pose"]
        goal = np.array((*self._spot, _PART.half_m), np.float32)
        return {
            "goal_from_tcp": goal - tcp[:3],
            "yaw": scalar(yaw(tcp)),
            **tool_state(state),
        }

    def _scene_state(self, state: State) -> dict[str, Array]:
        part = _PART.position(state)
        return {
            "part_from_tcp": part - state["tcp_pose"][:3],
            "part_yaw": scalar(_PART.turn(state)),
            "part_height": scalar(float(part[2]) - _PART.half_m),
        }

    def reset(self, reading: Observation) -> Policy | None:
        """Return the part to its bin, and the tool to a start; see `restore`."""
        return restore(
            reading,
            self.config.motion,
            _PART,
            lambda state: _lies_in(state, self._source),
            lambda rng: _spot(self._source, rng),
            _STARTS,
        )

    def is_success(self, truth: Truth) -> bool:
        """Return whether the part lies in the bin, and the hand is open and above it."""
        let_go = truth["gripper"][0] > 0.9 and truth["tcp_pose"][2] > self.config.up_m
        return bool(let_go) and _lies_in(truth, self._goal)

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.2 approaching, 0.2 grasping, 0.4 carrying, 0.2 letting go."""
        tcp, part = truth["tcp_pose"][:3], _PART.position(truth)
        if _lies_in(truth, self._goal):
            up = (float(tcp[2]) - 0.03) / (self.config.up_m - 0.03)
            return 0.8 + 0.2 * min(1.0, max(0.0, up)) * float(truth["gripper"][0])
        distance = float(np.linalg.norm(part - tcp))
        between = math.exp(-((max(0.0, distance - _PART.grasp_m) / 0.02) ** 2))
        closing = min(1.0, 2.0 * (1.0 - float(truth["gripper"][0])))
        left = math.hypot(part[0] - self._goal[0], part[1] - self._goal[1])
        carried = max(0.0, 1.0 - left / math.dist(_FROM_M, _TO_M))
        approached = 0.2 * max(0.0, 1.0 - distance / 0.4)
        return approached + 0.2 * between * closing + 0.4 * carried

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that moves the part to the goal spot, with some noise."""
        rng = np.random.default_rng(seed)

        def act(observation: Observation) -> Action:
            put_down = PutDown(
                self.config.motion,
                _PART,
                lambda state: _lies_in(state, self._goal),
                self._spot,
                noise=lambda: rng.normal(0.0, 0.05, len(self.config.motion.axes)),
            )
            return put_down(truth())

        return act

    def training_defaults(self) -> Mapping[str, Any]:
        """Return stages for both directions; each begins where the other one has succeeded.

        A classifier of images is queried only while the tool is higher than `up_m`.
        """
        directions = {"forward": "backward", "backward": "forward"}
        stages = {
            name: {"then": then, "config": {"task_config": {"direction": name}}}
            for name, then in directions.items()
        }
        pixels = self.config.observe == "pixels"
        reward = {"tool_low_m": (-1.0, -1.0, self.config.up_m)}
        tuned = from_pixels(12_000) if pixels else from_state_at_length(6000)
        return {"stages": stages, "reward": reward, **tuned}

    def _place(self, rng: np.random.Generator) -> Placement:
        x, y = _spot(self._source, rng)
        turned = about_z(rng.uniform(-0.6, 0.6))
        part = np.array((x, y, _PART.half_m, *turned))
        return Placement(tcp=np.array((*_STARTS.draw(rng), *DOWN)), bodies={"part": part})


def _spot(bin_m: tuple[float, float], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Draw a spot in a bin where the part fits at any yaw.  # (2,)."""
    room = np.array(_INSIDE_M) - 1.5 * _PART.half_m
    spot: np.ndarray[Any, Any] = np.array(bin_m) + rng.uniform(-room, room)
    return spot


def _lies_in(state: State, bin_m: tuple[float, float]) -> bool:
    x, y = np.abs(_PART.position(state)[:2] - np.array(bin_m)).tolist()
    return _PART.lies(state) and x < _INSIDE_M[0] and y < _INSIDE_M[1]


def _bin(middle_m: tuple[float, float], colour: str) -> str:
    """Return the MJCF of a bin: a coloured floor without collisions, and four walls."""
    (x, y), (dx, dy), (thick, high) = middle_m, _INSIDE_M, _WALL_M
    walls = (
        (x - dx - thick, y, thick, dy + 2.0 * thick),
        (x + dx + thick, y, thick, dy + 2.0 * thick),
        (x, y - dy - thick, dx, thick),
        (x, y + dy + thick, dx, thick),
    )
    floor = f'pos="{x} {y} 0" size="{dx} {dy} 0.0005" contype="0" conaffinity="0"'
    return f'<geom type="box" {floor} rgba="{colour}"/>' + "".join(
        f'<geom type="box" pos="{wx} {wy} {high}" size="{wdx} {wdy} {high}" rgba="{colour}"/>'
        for wx, wy, wdx, wdy in walls
    )


_BODIES = f"""
<camera name="field" pos="1.05 0 0.62" xyaxes="0 1 0 -0.72 0 0.69" fovy="36"/>
{_bin(_FROM_M, "0.36 0.52 0.68 1")}
{_bin(_TO_M, "0.45 0.66 0.50 1")}
<body name="part">
  <freejoint/>
  <geom type="box" size="0.02 0.02 0.02" mass="0.1" condim="4" rgba="0.94 0.45 0.20 1"/>
</body>
"""

task = BinRelocation
