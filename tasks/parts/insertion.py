"""Common base of insertion tasks: a peg in the hand, a hole below, and little clearance.

Each task declares the shape (`serl.tasks.parts.peg_and_hole.Fit`) and its numbers
(`InsertionConfig`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from serl.camera import View, image_specs
from serl.errors import BadInput, NeedsPerson
from serl.geometry import (
    Vector,
    multiply,
    rotate,
    wrap_angle,
    yaw,
)
from serl.motion import Limits, Motion
from serl.perception import Perception, seed_of
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Length, Lengths, Placement, Scene, TaskConfig, ViewName
from serl.tasks.parts.peg_and_hole import Fit, hole_detail, hole_mjcf, peg_mjcf
from serl.tasks.parts.steering import DOWN, about_z, quaternion_of, rng_at, steer
from serl.tasks.parts.training_defaults import from_pixels, from_state, on_features
from serl.types import Action, Array, Observation, Outcome

_CLEAR_M = 0.010  # height above the rim from which the peg moves freely
# Share of the depth below a peg that is just in, by which the hand must be deeper before a
# classifier is queried, since a pressed peg slips in the hand.
_DEEPER = 0.4
_NEAR_M, _NEAR_RAD = 0.005, 0.05  # a start


# Crops of a hand camera's picture: the field coming into sight, and the surroundings of the peg's
# tip, where a pixel is 0.7 mm.
_AROUND, _TIP = (0.25, 0.35, 0.75, 0.85), (0.40625, 0.4765625, 0.59375, 0.6640625)
VIEWS = {
    camera + near: View(camera=camera, width=side, height=side, crop=crop, capture=(256, 256))
    for camera in ("wrist", "behind")
    for near, side, crop in (("", 32, _AROUND), ("_tip", 48, _TIP))
}
_BESIDE = 'pos="0.80 -0.29 0.29" xyaxes="0.683 0.730 0 -0.318 0.297 0.900"'
# Opposite the wrist camera: an offset along the view of one is an offset across that of the other.
BEHIND = '<camera name="behind" pos="-0.075 0 0.02" xyaxes="0 -1 0 -0.966 0 0.259" fovy="64"/>'


class Start(NamedTuple):
    """Start of the peg: its tip relative to the middle of the rim, its yaw to the hole's."""

    place_m: Vector
    yaw_rad: float

    def is_reached(self, place_m: Vector, yaw_rad: float) -> bool:
        """Return whether the peg is at this start, within half a centimetre."""
        near = math.dist(place_m, self.place_m) < _NEAR_M
        return near and abs(yaw_rad - self.yaw_rad) < _NEAR_RAD


def motion_above(low_m: float) -> Motion:
    """Return the motion over the whole field, with the tool point `low_m` or more up."""
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
    """Settings of an insertion task.

    Attributes:
        clearance_m: clearance between peg and hole, on each side.
        field_m: largest distance of the hole's centre from the field's middle, along x and y.
        max_yaw_rad: largest yaw of the hole, to either side.
        start_m: largest distance of the peg's start from the hole's axis, along x and y.
        start_height_m: lowest and highest start of the peg's tip, above the rim.
        start_yaw_rad: largest difference between the yaws of peg and hole at the start.
        depth_m: depth that the tip must exceed for success.
        lateral_m: distance from the hole's axis below which the tip must be.
    """

    motion: Motion = motion_above(0.045)
    views: dict[ViewName, View] = VIEWS
    can_reset: ClassVar[bool] = True
    clearance_m: float = Field(0.0005, gt=0, le=0.005)
    field_m: tuple[Length, Length] = (0.03, 0.05)
    max_yaw_rad: float = Field(0.2, ge=0, le=math.pi)
    start_m: float = Field(0.03, ge=0, le=1)
    start_height_m: Lengths = (0.02, 0.06)
    start_yaw_rad: float = Field(0.15, ge=0, le=math.pi)
    depth_m: float = Field(0.025, gt=0, le=1)
    lateral_m: float = Field(0.003, gt=0, le=1)


class Insertion:
    """Insertion of a peg, held in the hand, into a hole anywhere on a field.

    The policy observes the hole relative to the peg, as an object tracker would measure it, and the
    force at the wrist. An episode ends if the peg falls.
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
        self._start = np.array((0.0, 0.0, 0.0, *DOWN), np.float32)  # of the tool
        self._next: Start | None = None  # start that the reset leads to

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """Nine numbers of the arm, and four of the hole or images."""
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
        bodies = hole_mjcf(self.fit, self.config.clearance_m) + peg_mjcf(self.fit)
        fits = {"peg": self.config.clearance_m}
        tracked = ("peg", "hole")
        return Scene(
            bodies=bodies,
            place=self._place,
            tracked=tracked,
            fits=fits,
            front=_BESIDE,
            detail=hole_detail(self.fit, self.config.clearance_m),
            tool=BEHIND,
        )

    @cached_property
    def perception(self) -> Perception:
        """The view of the tracked bodies through which a policy observes them."""
        return Perception(self.config.perception, self.scene.tracked)

    def begin(self, reading: Observation) -> None:
        """Begin an episode: remember the tool's start, and draw the start of the next episode."""
        self.perception.begin(seed_of(reading))
        self._start = reading.state["tcp_pose"].copy()
        self._next = self._draw_start(rng_at(self._start))

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        values = self.perception(reading).state
        tcp = values["tcp_pose"]
        arm = {
            "tcp_velocity": values["tcp_twist"][:3],
            "lead": values["target_pose"][:3] - tcp[:3],
            "force": values["wrench"][:3],
        }
        if self.config.observe == "pixels":
            turned = yaw(quaternion_of(tcp)) - yaw(quaternion_of(self._start))
            start = {
                "tcp_from_start": tcp[:3] - self._start[:3],
                "yaw_from_start": np.array([wrap_angle(turned, 2.0 * math.pi)], np.float32),
            }
            return Observation(start | arm, self.config.policy_images(reading), reading.stamps)
        hole = {
            "hole_from_tip": np.array(self.hole_from_tip(values), np.float32),
            "hole_yaw": np.array([self.turn(values)], np.float32),
        }
        return Observation(hole | arm, stamps=reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return reward 1 and the end once the peg is in; the end without reward if it fell."""
        state = reading.state
        return self.config.outcome(self.is_success(state), index, lost=self._fell(state))

    def reset(self, reading: Observation) -> Policy | None:
        """Return a policy that pulls the peg out and goes to a start, or None when ready.

        Without `auto_reset`, the simulation places peg and hole.

        Raises:
            NeedsPerson: the peg has fallen; the gripper, which never opens, cannot pick it up.
        """
        if not self.config.auto_reset:
            return None
        if self._fell(reading.state):
            raise NeedsPerson("the peg is not in the hand")
        where = self._away(reading.state)
        if self._next is None:  # no episode has begun: the peg may be in the hole
            if self._is_start(*where):
                return None
            self._next = self._draw_start(rng_at(reading.state["tcp_pose"]))
        return None if self._next.is_reached(*where) else self._withdraw

    def is_success(self, truth: Truth) -> bool:
        """Return whether the tip is deep in the hole; elsewhere the rim or the table stops it."""
        x, y, z = self.hole_from_tip(truth)
        return z > self.config.depth_m and math.hypot(x, y) < self.config.lateral_m

    def progress(self, truth: Truth) -> float:
        """Return progress: 0.3 for approaching, 0.2 for being above the hole, 0.5 for depth."""
        x, y, z = self.hole_from_tip(truth)
        lateral = math.hypot(x, y)
        depth = max(0.0, z) if lateral < self.config.lateral_m else 0.0
        return (
            0.3 * max(0.0, 1.0 - math.hypot(lateral, min(0.0, z)) / 0.15)
            + 0.2 * math.exp(-((lateral / 0.01) ** 2))
            + 0.5 * min(1.0, depth / self.fit.rim_m)
        )

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that inserts the peg."""
        return _Expert(self, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return tuned settings: exploration stays within half a millimetre a step.

        With the entropy of other tasks it would be two millimetres, in a hole with half a
        millimetre of room: 42 of 50 trials succeeded instead of all. Shaky or short interventions
        do not help here.

        A classifier of images is queried only while the tool is lower than with a peg that is just
        in, by more than a peg slips in the hand: images do not show the last millimetre. If the
        peg reaches the bottom earlier, pressing on lowers the hand as far within 3 steps.
        """
        tuned = from_pixels if self.config.observe == "pixels" else from_state
        fit, depth_m = self.fit, self.config.depth_m
        deep_m = depth_m + _DEEPER * (fit.rim_m - depth_m)
        lowest = round(fit.rim_m - deep_m + fit.peg_m[2] + fit.below_tcp_m, 5)
        return {
            "reward": {"tool_high_m": (1.0, 1.0, lowest)},
            "human": {"noise": 0.03, "gain": 0.5, "max_hold_steps": 30},
            **tuned(6000, target_entropy=-8.0),
        }

    def feature_defaults(self) -> Mapping[str, Any]:
        """Return settings for a fixed encoder: as many updates as from state, and more steps."""
        return on_features(10_000)

    def hole_from_tip(self, state: Mapping[str, Array]) -> Vector:
        """Return the vector from the peg's tip to the middle of the rim, m, base frame.

        Its z is the depth of the tip.
        """
        peg, hole = state["peg_pose"].tolist(), state["hole_pose"].tolist()
        tip = rotate(quaternion_of(state["peg_pose"]), (0.0, 0.0, -self.fit.peg_m[2]))
        x, y, z = (hole[axis] - peg[axis] - tip[axis] for axis in range(3))
        return x, y, z + self.fit.rim_m

    def turn(self, state: Mapping[str, Array]) -> float:
        """Return the angle from the peg's yaw to the hole's, rad."""
        peg, hole = (yaw(quaternion_of(state[name])) for name in ("peg_pose", "hole_pose"))
        return wrap_angle(hole - peg, self.fit.symmetry_rad)

    def _away(self, state: Mapping[str, Array]) -> tuple[Vector, float]:
        """Return the tip relative to the middle of the rim, m, and the yaw to the hole's, rad."""
        x, y, z = self.hole_from_tip(state)
        return (-x, -y, -z), -self.turn(state)

    def _withdraw(self, observation: Observation) -> Action:
        """Return an action that lifts the peg out, then moves to the next start, from a reading."""
        assert self._next is not None
        state = observation.state
        place, turned = self._away(state)
        shift = np.subtract(self._next.place_m, place)
        if place[2] < _CLEAR_M:
            shift = np.array((0.0, 0.0, 2.0 * _CLEAR_M - place[2]))
        lead = state["target_pose"][:3] - state["tcp_pose"][:3]
        led = yaw(quaternion_of(state["target_pose"])) - yaw(quaternion_of(state["tcp_pose"]))
        turn = wrap_angle(self._next.yaw_rad - turned - led, 2.0 * math.pi)
        return steer(self.config.motion, shift - lead, turn if place[2] >= _CLEAR_M else 0.0)

    def _is_start(self, place_m: Vector, yaw_rad: float) -> bool:
        """Return whether this is a valid start, with the tolerance of `Start.is_reached`."""
        config, (x, y, height) = self.config, place_m
        low, high = config.start_height_m
        near = max(abs(x), abs(y)) < config.start_m + _NEAR_M
        up = low - _NEAR_M < height < high + _NEAR_M
        return near and up and abs(yaw_rad) < config.start_yaw_rad + _NEAR_RAD

    def _fell(self, state: Mapping[str, Array]) -> bool:
        """Return whether the peg is no longer between the fingers."""
        apart = state["peg_pose"][:3] - state["tcp_pose"][:3]
        return float(np.linalg.norm(apart)) > self.fit.below_tcp_m + 0.02

    def _place(self, rng: np.random.Generator) -> Placement:
        config, fit = self.config, self.fit
        hole = np.array((0.5, 0.0)) + rng.uniform(-1.0, 1.0, 2) * config.field_m
        hole_yaw = rng.uniform(-config.max_yaw_rad, config.max_yaw_rad)
        start = self._draw_start(rng)
        x, y = hole + start.place_m[:2]
        upright = about_z(hole_yaw + start.yaw_rad)
        centre = fit.rim_m + start.place_m[2] + fit.peg_m[2]
        return Placement(
            tcp=np.array((x, y, centre + fit.below_tcp_m, *multiply(upright, DOWN))),
            bodies={
                "hole": np.array((*hole, 0.0, *about_z(hole_yaw))),
                "peg": np.array((x, y, centre, *upright)),
            },
            held_m=2.0 * fit.peg_m[1],
        )

    def _draw_start(self, rng: np.random.Generator) -> Start:
        config = self.config
        x, y = rng.uniform(-config.start_m, config.start_m, 2).tolist()
        height = rng.uniform(*config.start_height_m)
        return Start((x, y, height), rng.uniform(-config.start_yaw_rad, config.start_yaw_rad))


class _Expert:
    """Script that acts on the truth alone: it aligns the peg above the hole, then descends.

    A peg stuck on the rim is above the hole and not aligned, so the script goes up and tries again.
    """

    NOISE = 0.05  # far away; a tenth of it where the peg could jam
    HOVER_M = 0.003
    ALIGNED_M, ALIGNED_RAD, STILL_M_S = 0.0004, 0.010, 0.006
    BEGUN_M = 0.0010  # on the way down friction pulls aside; the rim shows if too far
    ENTER_M, FEED_M = 0.003, 0.008  # per step, into the hole and down in it

    def __init__(self, task: Insertion, truth: Callable[[], Truth], seed: int) -> None:
        self._task, self._truth, self._motion = task, truth, task.config.motion
        self._rng = np.random.default_rng(seed)

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth and the observed velocity."""
        truth = self._truth()
        tcp, target = truth["tcp_pose"], truth["target_pose"]
        offset, turn = np.array(self._task.hole_from_tip(truth)), self._task.turn(truth)
        lateral = math.hypot(offset[0], offset[1])
        inside = offset[2] > 0.001 and lateral < 0.002
        # Descending sways the arm by up to half a millimetre: it begins once the arm stands still.
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
        turned = wrap_angle(
            turn + yaw(quaternion_of(tcp)) - yaw(quaternion_of(target)), 2.0 * math.pi
        )
        if slow and near:  # an arm at rest off its target gets no nearer
            shift[:2], turned = 0.6 * offset[:2], turn
            shift[2] = -self.FEED_M if inside else shift[2]
        deviation = self.NOISE * (0.1 if near else 1.0)
        noise = self._rng.normal(0.0, deviation, len(self._motion.axes))
        return steer(self._motion, shift, turned, noise=noise)
