"""Insert a square peg into a hole that is wider by half a millimetre a side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field

from serl.policy import Policy
from serl.robot import Truth
from serl.rotations import Quaternion, from_rotation_vector, multiply, rotate, wrapped, yaw
from serl.safety import Limits, Motion
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig
from serl.types import Action, Array, Observation, Outcome
from serl.vectors import Vector

_PEG_M = (0.010, 0.010, 0.025)  # half its size
_RIM_M = 0.030  # height of the block, and depth of its hole
_WALL_M = 0.020  # half the thickness
_BELOW_TCP_M = 0.020  # the peg's centre
_DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)
_QUARTER = 0.5 * math.pi  # peg and hole are square

# Contacts stiffer than the built-in ones: with those the peg sinks further into a wall than it has
# room in the hole.
_FIT = 'condim="4" friction="0.3 0.005 0.0001" solref="0.004 1" solimp="0.95 0.99 0.0005"'


class PegInsertionConfig(TaskConfig):
    """The task's numbers.

    Attributes:
        clearance_m: between peg and hole, on each side.
        field_m: the hole's centre is within this of the middle of the field, along x and y.
        max_yaw_rad: the hole's yaw is within this of zero, either way.
        start_m: the peg starts within this of above the hole, along x and y.
        start_height_m: lowest and highest start of the peg's tip, above the rim.
        start_yaw_rad: the peg's yaw at the start is within this of the hole's.
        depth_m: the tip must be deeper than this.
        lateral_m: and nearer than this to the hole's axis.
    """

    motion: Motion = Motion(
        axes=("x", "y", "z", "yaw"),
        translation_m=0.015,
        rotation_rad=0.1,
        box_low_m=(0.42, -0.10, 0.045),
        box_high_m=(0.58, 0.10, 0.20),
        max_rotation_rad=0.6,
        limits=Limits(lead_m=0.010),
    )
    clearance_m: float = Field(0.0005, gt=0, le=0.005)
    field_m: tuple[float, float] = (0.03, 0.05)
    max_yaw_rad: float = Field(0.2, ge=0)
    start_m: float = Field(0.03, ge=0)
    start_height_m: tuple[float, float] = (0.02, 0.06)
    start_yaw_rad: float = Field(0.15, ge=0)
    depth_m: float = Field(0.025, gt=0, lt=_RIM_M)
    lateral_m: float = Field(0.003, gt=0)


class PegInsertion:
    """The peg is in the hand; the hole lies anywhere on a field of 6 x 10 cm.

    Where the hole is, the policy sees relative to the peg, as an object tracker would say it; what
    it feels is the force at the wrist. An episode in which the peg falls is over.
    """

    name = "peg_insertion"

    def __init__(self, config: PegInsertionConfig | None = None) -> None:
        self.config = config or PegInsertionConfig()

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Thirteen numbers."""
        return ObservationSpec(
            state={
                "hole_from_tip": ArraySpec(shape=(3,), unit="m, base frame; the rim's centre"),
                "hole_yaw": ArraySpec(shape=(1,), unit="rad from the peg's, modulo 90 degrees"),
                "tcp_velocity": ArraySpec(shape=(3,), unit="m/s, base frame"),
                "lead": ArraySpec(shape=(3,), unit="m, base frame"),
                "force": ArraySpec(shape=(3,), unit="N, base frame"),
            }
        )

    @property
    def scene(self) -> Scene:
        """A block with a hole, and the peg."""
        return Scene(
            bodies=_bodies(self.config.clearance_m), place=self._place, tracked=("peg", "hole")
        )

    def begin(self, reading: Observation) -> None:
        """Nothing to keep."""

    def observation(self, reading: Observation) -> Observation:
        """What the policy sees of a reading."""
        values = reading.state
        state = {
            "hole_from_tip": np.array(hole_from_tip(values), np.float32),
            "hole_yaw": np.array([_turn(values)], np.float32),
            "tcp_velocity": values["tcp_twist"][:3],
            "lead": values["target_pose"][:3] - values["tcp_pose"][:3],
            "force": values["wrench"][:3],
        }
        return Observation(state=state, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Reward 1 and the end once the peg is in; over as well when it fell."""
        success = self.is_success(reading.state)
        over = success or _fell(reading.state)
        return Outcome(
            reward=float(success),
            terminated=over,
            truncated=not over and index + 1 >= self.config.max_steps,
            success=success,
        )

    def reset(self, reading: Observation) -> Policy | None:
        """The simulation places peg and hole itself."""
        return None

    def is_success(self, truth: Truth) -> bool:
        """The tip is deep in the hole: beside it, it would be above the rim or on the table."""
        x, y, z = hole_from_tip(truth)
        return z > self.config.depth_m and math.hypot(x, y) < self.config.lateral_m

    def progress(self, truth: Truth) -> float:
        """0.3 for approaching, 0.2 for being above the hole, 0.5 for depth."""
        x, y, z = hole_from_tip(truth)
        lateral = math.hypot(x, y)
        depth = max(0.0, z) if lateral < self.config.lateral_m else 0.0
        return (
            0.3 * max(0.0, 1.0 - math.hypot(lateral, min(0.0, z)) / 0.15)
            + 0.2 * math.exp(-((lateral / 0.01) ** 2))
            + 0.5 * min(1.0, depth / _RIM_M)
        )

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """A scripted inserter without memory."""
        return _Expert(truth, self.config.motion, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Tuned settings, as for `pick_cube`; a shaky human would be of no help."""
        return {
            "human": {"noise": 0.03},
            "steps": 6000,
            "required_success_rate": 0.9,
            "agent": {
                "hidden": (128, 128),
                "return_bounds": (0.0, 1.0),
                "bc_weight": 0.3,
                "bc_final_weight": 0.3,
                "bc_warm_start": 400,
            },
            "learner": {"warm_up": 400},
        }

    def _place(self, rng: np.random.Generator) -> Placement:
        config = self.config
        hole = np.array((0.5, 0.0)) + rng.uniform(-1.0, 1.0, 2) * config.field_m
        hole_yaw = rng.uniform(-config.max_yaw_rad, config.max_yaw_rad)
        x, y = hole + rng.uniform(-config.start_m, config.start_m, 2)
        tip = _RIM_M + rng.uniform(*config.start_height_m)
        upright = _about_z(hole_yaw + rng.uniform(-config.start_yaw_rad, config.start_yaw_rad))
        centre = tip + _PEG_M[2]
        return Placement(
            tcp=np.array((x, y, centre + _BELOW_TCP_M, *multiply(upright, _DOWN))),
            bodies={
                "hole": np.array((*hole, 0.0, *_about_z(hole_yaw))),
                "peg": np.array((x, y, centre, *upright)),
            },
            held_m=2.0 * _PEG_M[1],
        )


class _Expert:
    """Decides from the truth alone: above the hole first, and turned; then down.

    Where it gets stuck on the rim it is above and not aligned, so it goes up and comes again.
    """

    NOISE = 0.05  # far away; a tenth of it where the peg could jam
    HOVER_M = 0.003
    ALIGNED_M, ALIGNED_RAD, STILL_M_S = 0.0004, 0.010, 0.006
    ENTER_M, FEED_M = 0.003, 0.008  # a step, into the hole and down in it

    def __init__(self, truth: Callable[[], Truth], motion: Motion, seed: int) -> None:
        self._truth, self._motion = truth, motion
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """The next action; of the observation it needs the velocity."""
        truth = self._truth()
        tcp, target = truth["tcp_pose"], truth["target_pose"]
        offset, turn = np.array(hole_from_tip(truth)), _turn(truth)
        lateral = math.hypot(offset[0], offset[1])
        inside = offset[2] > 0.001 and lateral < 0.002
        # Going down sways the arm by up to half a millimetre: it begins once it stands still.
        velocity = observation.state["tcp_velocity"]
        begun = target[2] - tcp[2] < -0.001 and offset[2] > -self.HOVER_M
        still = begun or float(np.abs(velocity).max()) < self.STILL_M_S
        aligned = lateral < self.ALIGNED_M and abs(turn) < self.ALIGNED_RAD
        near = lateral < 0.01 and abs(offset[2]) < 0.03
        goal = tcp[:3] + offset
        if inside or (aligned and still and offset[2] > -self.HOVER_M - 0.001):
            goal[2] = tcp[2] - (self.FEED_M if offset[2] > self.ENTER_M else self.ENTER_M)
        else:
            goal[2] += self.HOVER_M + max(0.0, lateral - 0.005)
        shift = (goal - target[:3]) / self._motion.translation_m
        shift /= max(1.0, float(np.abs(shift).max()))
        turned = wrapped(turn + yaw(_rotation(tcp)) - yaw(_rotation(target)), 2.0 * math.pi)
        noise = self._rng.normal(0.0, self.NOISE * (0.1 if near else 1.0), 4)
        motion = np.array((*shift, turned / self._motion.rotation_rad)) + noise
        return motion.clip(-1.0, 1.0).astype(np.float32)


def _bodies(clearance_m: float) -> str:
    """Four walls around a square hole, moved as one, and the free peg."""
    inner = _PEG_M[0] + clearance_m
    outer, middle, half = inner + 2.0 * _WALL_M, inner + _WALL_M, 0.5 * _RIM_M
    walls = "".join(
        f'<geom type="box" pos="{x} {y} {half}" size="{dx} {dy} {half}" {_FIT}'
        ' rgba="0.36 0.52 0.68 1"/>'
        for x, y, dx, dy in (
            (middle, 0.0, _WALL_M, outer),
            (-middle, 0.0, _WALL_M, outer),
            (0.0, middle, inner, _WALL_M),
            (0.0, -middle, inner, _WALL_M),
        )
    )
    size = " ".join(map(str, _PEG_M))
    return f"""
<body name="hole" mocap="true">{walls}</body>
<body name="peg">
  <freejoint/>
  <geom type="box" size="{size}" mass="0.05" {_FIT} rgba="0.94 0.45 0.20 1"/>
</body>
"""


def hole_from_tip(state: Mapping[str, Array]) -> Vector:
    """From the peg's tip to the middle of the rim, m, base frame; z is the tip's depth."""
    peg, hole = state["peg_pose"].tolist(), state["hole_pose"].tolist()
    tip = rotate(_rotation(state["peg_pose"]), (0.0, 0.0, -_PEG_M[2]))
    x, y, z = (hole[axis] - peg[axis] - tip[axis] for axis in range(3))
    return x, y, z + _RIM_M


def _turn(state: Mapping[str, Array]) -> float:
    """From the peg's yaw to the hole's."""
    peg, hole = (yaw(_rotation(state[name])) for name in ("peg_pose", "hole_pose"))
    return wrapped(hole - peg, _QUARTER)


def _fell(state: Mapping[str, Array]) -> bool:
    """The peg is no longer between the fingers."""
    apart = state["peg_pose"][:3] - state["tcp_pose"][:3]
    return float(np.linalg.norm(apart)) > 2.0 * _BELOW_TCP_M


def _rotation(pose: Array) -> Quaternion:
    x, y, z, w = pose[3:].tolist()
    return x, y, z, w


def _about_z(angle_rad: float) -> Quaternion:
    return from_rotation_vector((0.0, 0.0, angle_rad))


task = PegInsertion
