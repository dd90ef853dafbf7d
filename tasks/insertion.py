"""What tasks of insertion share: a peg in the hand, a hole somewhere below, little room.

A task of its own declares the shape (`Fit`) and its numbers (`InsertionConfig`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from pydantic import Field

from serl.camera import View, image_specs
from serl.errors import BadInput
from serl.policy import Policy
from serl.robot import Truth
from serl.rotations import Quaternion, from_rotation_vector, multiply, rotate, wrapped, yaw
from serl.safety import Limits, Motion
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Placement, Scene, TaskConfig, ViewName
from serl.types import Action, Array, Observation, Outcome
from serl.vectors import Vector

_WALL_M = 0.020  # half the thickness
_LATCH_N_M = 500.0
_DOWN: Quaternion = (1.0, 0.0, 0.0, 0.0)

# Contacts stiffer than the built-in ones: with those the peg sinks further into a wall than it has
# room in the hole.
_FIT = 'condim="4" friction="0.3 0.005 0.0001" solref="0.004 1" solimp="0.95 0.99 0.0005"'


_VIEWS = {
    "side": View(camera="side", width=64, height=64),
    "wrist": View(camera="wrist", width=64, height=64),
}
_CAMERA = """
<camera name="side" pos="0.80 -0.26 0.26" xyaxes="0.655 0.756 0 -0.445 0.386 0.808" fovy="28"/>
"""


@dataclass(frozen=True, slots=True)
class Fit:
    """The shapes of peg and hole.

    Attributes:
        peg_m: half the peg's size along x, y and z; the fingers hold it along y.
        below_tcp_m: from the tool point down to the peg's centre.
        rim_m: height of the rim above the table: the depth of the hole, less that of a latch.
        symmetry_rad: a turn that leaves the peg as it was.
        chamfer_m: height of the slopes beside the hole that lead into it; they stand on the rim.
        latch_n: force that a latch at the bottom gives way to; 0 for none ...
        latch_m: ... over this distance.
        mass_kg: of the peg.
    """

    peg_m: Vector
    below_tcp_m: float
    rim_m: float
    symmetry_rad: float
    chamfer_m: float = 0.0
    latch_n: float = 0.0
    latch_m: float = 0.003
    mass_kg: float = 0.05


def motion_above(low_m: float) -> Motion:
    """Over the whole field, and down to where the tool point is this far above the table."""
    return Motion(
        axes=("x", "y", "z", "yaw"),
        translation_m=0.015,
        rotation_rad=0.1,
        box_low_m=(0.42, -0.10, low_m),
        box_high_m=(0.58, 0.10, 0.20),
        max_rotation_rad=0.6,
        limits=Limits(lead_m=0.010),
    )


class InsertionConfig(TaskConfig):
    """The numbers of a task of insertion.

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

    motion: Motion = motion_above(0.045)
    views: dict[ViewName, View] = _VIEWS
    clearance_m: float = Field(0.0005, gt=0, le=0.005)
    field_m: tuple[float, float] = (0.03, 0.05)
    max_yaw_rad: float = Field(0.2, ge=0)
    start_m: float = Field(0.03, ge=0)
    start_height_m: tuple[float, float] = (0.02, 0.06)
    start_yaw_rad: float = Field(0.15, ge=0)
    depth_m: float = Field(0.025, gt=0)
    lateral_m: float = Field(0.003, gt=0)


class Insertion:
    """The peg is in the hand; the hole lies anywhere on a field.

    Where the hole is, the policy sees relative to the peg, as an object tracker would say it; what
    it feels is the force at the wrist. An episode in which the peg falls is over.
    """

    name: str
    fit: Fit

    def __init__(self, config: InsertionConfig) -> None:
        fit = self.fit
        if config.clearance_m >= config.lateral_m:
            raise BadInput(
                f"clearance_m {config.clearance_m}: expected less than lateral_m, "
                f"{config.lateral_m}, so that a peg that is in is near the axis"
            )
        self.deepest_m = fit.rim_m - (fit.latch_m if fit.latch_n else 0.0)
        if config.depth_m >= self.deepest_m:
            raise BadInput(
                f"depth_m {config.depth_m}: expected less than the hole's {self.deepest_m}"
            )
        self.config = config
        self._start, self._start_yaw = np.zeros(3, np.float32), 0.0

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Nine numbers of the arm, and four of the hole or images of it."""
        turn = math.degrees(self.fit.symmetry_rad)
        hole = {
            "hole_from_tip": ArraySpec(shape=(3,), unit="m, base frame; the rim's centre"),
            "hole_yaw": ArraySpec(shape=(1,), unit=f"rad from the peg's, modulo {turn:.0f} deg"),
        }
        arm = {
            "tcp_velocity": ArraySpec(shape=(3,), unit="m/s, base frame"),
            "lead": ArraySpec(shape=(3,), unit="m, base frame"),
            "force": ArraySpec(shape=(3,), unit="N, base frame"),
        }
        if self.config.observe == "state":
            return ObservationSpec(state=hole | arm)
        start = {
            "tcp_from_start": ArraySpec(shape=(3,), unit="m, base frame"),
            "yaw_from_start": ArraySpec(shape=(1,), unit="rad"),
        }
        return ObservationSpec(state=start | arm, images=image_specs(self.config.policy_views))

    @property
    def scene(self) -> Scene:
        """A block with a hole, and the peg."""
        bodies = _CAMERA + _hole(self.fit, self.config.clearance_m) + _peg(self.fit)
        fits = {"peg": self.config.clearance_m}
        return Scene(bodies=bodies, place=self._place, tracked=("peg", "hole"), fits=fits)

    def begin(self, reading: Observation) -> None:
        """Keep where the tool starts."""
        pose = reading.state["tcp_pose"]
        self._start, self._start_yaw = pose[:3].copy(), yaw(_rotation(pose))

    def observation(self, reading: Observation) -> Observation:
        """What the policy sees of a reading."""
        values = reading.state
        tcp = values["tcp_pose"]
        arm = {
            "tcp_velocity": values["tcp_twist"][:3],
            "lead": values["target_pose"][:3] - tcp[:3],
            "force": values["wrench"][:3],
        }
        if self.config.observe == "pixels":
            turned = wrapped(yaw(_rotation(tcp)) - self._start_yaw, 2.0 * math.pi)
            start = {
                "tcp_from_start": tcp[:3] - self._start,
                "yaw_from_start": np.array([turned], np.float32),
            }
            return Observation(start | arm, self.config.policy_images(reading), reading.stamps)
        hole = {
            "hole_from_tip": np.array(self.hole_from_tip(values), np.float32),
            "hole_yaw": np.array([self.turn(values)], np.float32),
        }
        return Observation(hole | arm, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Reward 1 and the end once the peg is in; over as well when it fell."""
        success = self.is_success(reading.state)
        over = success or self._fell(reading.state)
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
        x, y, z = self.hole_from_tip(truth)
        return z > self.config.depth_m and math.hypot(x, y) < self.config.lateral_m

    def progress(self, truth: Truth) -> float:
        """0.3 for approaching, 0.2 for being above the hole, 0.5 for depth."""
        x, y, z = self.hole_from_tip(truth)
        lateral = math.hypot(x, y)
        depth = max(0.0, z) if lateral < self.config.lateral_m else 0.0
        return (
            0.3 * max(0.0, 1.0 - math.hypot(lateral, min(0.0, z)) / 0.15)
            + 0.2 * math.exp(-((lateral / 0.01) ** 2))
            + 0.5 * min(1.0, depth / self.fit.rim_m)
        )

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """A scripted inserter without memory."""
        return _Expert(self, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Tuned settings: a steady hand, which explores within half a millimetre a step.

        With the entropy of other tasks it would be two, in a hole that leaves half a one: 42 of 50
        trials instead of all. A human who is shaky, or lets go early, is of no help here.

        A classifier of images is not asked unless the tool is as low as with a peg that is in by
        more than it has to be, half of what is left.
        """
        fit, depth = self.fit, 0.5 * (self.config.depth_m + self.deepest_m)
        lowest = round(fit.rim_m - depth + fit.peg_m[2] + fit.below_tcp_m, 5)
        return {
            "reward": {"tool_high_m": (1.0, 1.0, lowest)},
            "human": {"noise": 0.03, "gain": 0.5, "max_hold_steps": 30},
            "steps": 6000,
            "required_success_rate": 0.9,
            "agent": {
                "hidden": (128, 128),
                "layer_norm": False,
                "target_entropy": -8.0,
                "return_bounds": (0.0, 1.0),
                "bc_weight": 0.3,
                "bc_final_weight": 0.3,
                "bc_warm_start": 400,
            },
            "learner": {"warm_up": 400},
        }

    def hole_from_tip(self, state: Mapping[str, Array]) -> Vector:
        """From the peg's tip to the middle of the rim, m, base frame; z is the tip's depth."""
        peg, hole = state["peg_pose"].tolist(), state["hole_pose"].tolist()
        tip = rotate(_rotation(state["peg_pose"]), (0.0, 0.0, -self.fit.peg_m[2]))
        x, y, z = (hole[axis] - peg[axis] - tip[axis] for axis in range(3))
        return x, y, z + self.fit.rim_m

    def turn(self, state: Mapping[str, Array]) -> float:
        """From the peg's yaw to the hole's, rad."""
        peg, hole = (yaw(_rotation(state[name])) for name in ("peg_pose", "hole_pose"))
        return wrapped(hole - peg, self.fit.symmetry_rad)

    def _fell(self, state: Mapping[str, Array]) -> bool:
        """The peg is no longer between the fingers."""
        apart = state["peg_pose"][:3] - state["tcp_pose"][:3]
        return float(np.linalg.norm(apart)) > self.fit.below_tcp_m + 0.02

    def _place(self, rng: np.random.Generator) -> Placement:
        config, fit = self.config, self.fit
        hole = np.array((0.5, 0.0)) + rng.uniform(-1.0, 1.0, 2) * config.field_m
        hole_yaw = rng.uniform(-config.max_yaw_rad, config.max_yaw_rad)
        x, y = hole + rng.uniform(-config.start_m, config.start_m, 2)
        tip = fit.rim_m + rng.uniform(*config.start_height_m)
        upright = _about_z(hole_yaw + rng.uniform(-config.start_yaw_rad, config.start_yaw_rad))
        centre = tip + fit.peg_m[2]
        return Placement(
            tcp=np.array((x, y, centre + fit.below_tcp_m, *multiply(upright, _DOWN))),
            bodies={
                "hole": np.array((*hole, 0.0, *_about_z(hole_yaw))),
                "peg": np.array((x, y, centre, *upright)),
            },
            held_m=2.0 * fit.peg_m[1],
        )


class _Expert:
    """Decides from the truth alone: above the hole first, and turned; then down.

    Where it gets stuck on the rim it is above and not aligned, so it goes up and comes again.
    """

    NOISE = 0.05  # far away; a tenth of it where the peg could jam
    HOVER_M = 0.003
    ALIGNED_M, ALIGNED_RAD, STILL_M_S = 0.0004, 0.010, 0.006
    BEGUN_M = 0.0010  # on the way down friction pulls aside; the rim says whether it was too much
    ENTER_M, FEED_M = 0.003, 0.008  # a step, into the hole and down in it

    def __init__(self, task: Insertion, truth: Callable[[], Truth], seed: int) -> None:
        self._task, self._truth, self._motion = task, truth, task.config.motion
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """The next action; of the observation it needs the velocity."""
        truth = self._truth()
        tcp, target = truth["tcp_pose"], truth["target_pose"]
        offset, turn = np.array(self._task.hole_from_tip(truth)), self._task.turn(truth)
        lateral = math.hypot(offset[0], offset[1])
        inside = offset[2] > 0.001 and lateral < 0.002
        # Going down sways the arm by up to half a millimetre: it begins once it stands still.
        velocity = observation.state["tcp_velocity"]
        begun = target[2] - tcp[2] < -0.001 and offset[2] > -self.HOVER_M
        slow = float(np.abs(velocity).max()) < self.STILL_M_S
        still = begun or slow
        aligned = (
            lateral < (self.BEGUN_M if begun else self.ALIGNED_M) and abs(turn) < self.ALIGNED_RAD
        )
        near = lateral < 0.01 and abs(offset[2]) < 0.03
        goal = tcp[:3] + offset
        if inside or (aligned and still and offset[2] > -self.HOVER_M - 0.001):
            goal[2] = tcp[2] - (self.FEED_M if offset[2] > self.ENTER_M else self.ENTER_M)
        else:
            goal[2] += self.HOVER_M + max(0.0, lateral - 0.005)
        shift = goal - target[:3]
        turned = wrapped(turn + yaw(_rotation(tcp)) - yaw(_rotation(target)), 2.0 * math.pi)
        if slow and near:  # an arm that is not where its target is has come as near as it gets
            shift[:2], turned = 0.6 * offset[:2], turn
            shift[2] = -self.FEED_M if inside else shift[2]
        shift /= self._motion.translation_m
        shift /= max(1.0, float(np.abs(shift).max()))
        noise = self._rng.normal(0.0, self.NOISE * (0.1 if near else 1.0), 4)
        motion = np.array((*shift, turned / self._motion.rotation_rad)) + noise
        return motion.clip(-1.0, 1.0).astype(np.float32)


def _hole(fit: Fit, clearance_m: float) -> str:
    """Four walls around a hole, with slopes and a latch if the fit has them, moved as one."""
    inner = [half + clearance_m for half in fit.peg_m[:2]]
    outer = [half + 2.0 * _WALL_M for half in inner]
    middle = [half + _WALL_M for half in inner]
    half = 0.5 * fit.rim_m
    parts = [
        _box((x, y, half), (dx, dy, half))
        for x, y, dx, dy in (
            (middle[0], 0.0, _WALL_M, outer[1]),
            (-middle[0], 0.0, _WALL_M, outer[1]),
            (0.0, middle[1], inner[0], _WALL_M),
            (0.0, -middle[1], inner[0], _WALL_M),
        )
    ]
    if fit.chamfer_m:
        parts += [_slope(fit, inner, side) for side in (1.0, -1.0)]
    if fit.latch_n:
        parts.append(_latch(fit))
    return f'<body name="hole" mocap="true">{"".join(parts)}</body>'


def _slope(fit: Fit, inner: Sequence[float], side: float) -> str:
    """A plate at 45 degrees whose lower edge is that of a long wall of the hole."""
    along, thickness = math.sqrt(0.5) * fit.chamfer_m, 0.001
    back = thickness * math.sqrt(0.5)
    y = side * (inner[1] + 0.5 * fit.chamfer_m + back)
    centre = (0.0, y, fit.rim_m + 0.5 * fit.chamfer_m - back)
    return _box(centre, (inner[0], along, thickness), f' euler="{side * 0.25 * math.pi} 0 0"')


def _latch(fit: Fit) -> str:
    """A plate on a spring, as thick as its way; the armature keeps it from yielding at its end."""
    x, y, z = 0.8 * fit.peg_m[0], 0.8 * fit.peg_m[1], 0.5 * fit.latch_m
    joint = (
        f'<joint type="slide" axis="0 0 1" range="{-fit.latch_m} 0" solreflimit="0.004 1"'
        f' stiffness="{_LATCH_N_M}" springref="{fit.latch_n / _LATCH_N_M}" armature="1"/>'
    )
    plate = _box((0.0, 0.0, z), (x, y, z), ' mass="0.001"')
    return f'<body pos="0 0 {fit.latch_m}" gravcomp="1">{joint}{plate}</body>'


def _box(centre: Vector, half: Vector, more: str = "") -> str:
    place, size = (" ".join(map(str, vector)) for vector in (centre, half))
    return f'<geom type="box" pos="{place}" size="{size}" {_FIT}{more} rgba="0.36 0.52 0.68 1"/>'


def _peg(fit: Fit) -> str:
    size = " ".join(map(str, fit.peg_m))
    return f"""
<body name="peg">
  <freejoint/>
  <geom type="box" size="{size}" mass="{fit.mass_kg}" {_FIT} rgba="0.94 0.45 0.20 1"/>
</body>
"""


def _rotation(pose: Array) -> Quaternion:
    x, y, z, w = pose[3:].tolist()
    return x, y, z, w


def _about_z(angle_rad: float) -> Quaternion:
    return from_rotation_vector((0.0, 0.0, angle_rad))
