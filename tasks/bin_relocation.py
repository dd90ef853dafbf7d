"""Move a part from one bin to the other; the two directions reset each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from serl.camera import View, image_specs
from serl.geometry import from_rotation_vector
from serl.motion import Limits, Motion
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.cube import Cube, PutDown, Starts, State, restore
from serl.tasks.parts.steering import DOWN, rng_at, scalar, yaw
from serl.tasks.parts.training_defaults import from_pixels, from_state_at_length
from serl.types import Action, Observation, Outcome

_PART = Cube("part", half_m=0.02, grasp_m=0.012)  # above the walls, even if it touches one
_INSIDE_M = (0.09, 0.075)  # half the inside of a bin
_WALL_M = (0.003, 0.009)  # half the thickness and half the height
_FROM_M, _TO_M = (0.47, 0.12), (0.47, -0.12)
_STARTS = Starts((0.40, -0.10), (0.50, 0.10), 0.20)

_VIEWS = {
    "front": View(camera="field", width=64, height=64),
    "wrist": View(camera="wrist", width=64, height=64),
}


class BinRelocationConfig(TaskConfig):
    """Settings of the bin relocation task.

    Attributes:
        direction: forward is from the left bin, seen from the arm, to the right one.
        hold_steps: number of consecutive steps for which the part must lie in the bin, released.
        up_m: height that the tool must exceed during these steps.
    """

    time_limit_s: float = Field(12.0, gt=0, le=86_400)
    motion: Motion = Motion(
        axes=("x", "y", "z", "yaw"),
        translation_m=0.015,
        rotation_rad=0.1,
        box_low_m=(0.33, -0.24, 0.030),
        box_high_m=(0.61, 0.24, 0.30),
        max_rotation_rad=0.9,
        gripper=True,
        gripper_interval_s=0.3,
        limits=Limits(lead_m=0.020),
    )
    views: dict[ViewName, View] = _VIEWS
    can_reset: ClassVar[bool] = True
    direction: Literal["forward", "backward"] = "forward"
    hold_steps: int = Field(3, ge=1, le=1000)
    up_m: float = Field(0.09, gt=0, le=1)


class BinRelocation:
    """Take the part out of one bin, put it into the other, let go and go up.

    Each episode draws a goal spot in the bin, which the policy observes: demonstrations put the
    part down there, so that the parts of the opposite direction start all over the bin. Any place
    in the bin is a success.

    The reset works from readings alone, as on a real arm with a tracker of the part: it puts a part
    that lies elsewhere into the start bin of this direction, and moves the tool to a random start.
    """

    def __init__(self, config: BinRelocationConfig | None = None) -> None:
        self.config = config or BinRelocationConfig()
        self.name = f"bin_relocation_{self.config.direction}"
        forward = self.config.direction == "forward"
        self._source, self._goal = (_FROM_M, _TO_M) if forward else (_TO_M, _FROM_M)
        self._held, self._spot = 0, np.array(self._goal)

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Eleven numbers of the arm, and five of the part or images."""
        position = ArraySpec(shape=(3,), unit="m, base frame")
        arm = {
            "goal_from_tcp": ArraySpec(
                shape=(3,), unit="m, base frame; the spot that is asked for"
            ),
            "yaw": ArraySpec(shape=(1,), unit="rad"),
            "tcp_velocity": ArraySpec(shape=(3,), unit="m/s, base frame"),
            "gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
            "lead": position,
        }
        part = {
            "part_from_tcp": position,
            "part_yaw": ArraySpec(shape=(1,), unit="rad from the tool's, modulo 90 degrees"),
            "part_height": ArraySpec(shape=(1,), unit="m above the table"),
        }
        if self.config.observe == "pixels":
            return ObservationSpec(state=arm, images=image_specs(self.config.policy_views))
        return ObservationSpec(state=arm | part)

    @property
    def scene(self) -> Scene:
        """Two bins and a tracked part."""
        return Scene(bodies=_BODIES, place=self._place, tracked=("part",))

    def begin(self, reading: Observation) -> None:
        """Begin an episode: reset the count of steps in the bin, and draw a goal spot."""
        self._held, self._spot = 0, _spot(self._goal, rng_at(reading.state["tcp_pose"]))

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        state = reading.state
        tcp = state["tcp_pose"]
        goal = np.array((*self._spot, _PART.half_m), np.float32)
        arm = {
            "goal_from_tcp": goal - tcp[:3],
            "yaw": scalar(yaw(tcp)),
            "tcp_velocity": state["tcp_twist"][:3],
            "gripper": state["gripper"],
            "lead": state["target_pose"][:3] - tcp[:3],
        }
        if self.config.observe == "pixels":
            return Observation(arm, self.config.policy_images(reading), reading.stamps)
        part = _PART.position(state)
        seen = {
            "part_from_tcp": part - tcp[:3],
            "part_yaw": scalar(_PART.turn(state)),
            "part_height": scalar(float(part[2]) - _PART.half_m),
        }
        return Observation(arm | seen, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the part is left in the bin; truncated at the limit."""
        self._held = self._held + 1 if self.is_success(reading.state) else 0
        return self.config.outcome(self._held >= self.config.hold_steps, index)

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
                noise=lambda: rng.normal(0.0, 0.05, 4),
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
        turned = from_rotation_vector((0.0, 0.0, rng.uniform(-0.6, 0.6)))
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
