"""Common base of insertion in six dimensions: a tilted hole, and a peg that is held in any grasp.

Each task declares the shape (`serl.tasks.parts.peg_and_hole.Fit`) and its numbers
(`Insertion6DConfig`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from serl.camera import image_specs
from serl.errors import BadInput
from serl.geometry import (
    Quaternion,
    Vector,
    add,
    conjugate,
    from_rotation_vector,
    multiply,
    rotate,
    rotation_between,
    subtract,
)
from serl.motion import Limits, Motion
from serl.perception import seed_of
from serl.policy import Policy
from serl.robot import Truth
from serl.specs import ArraySpec, ObservationSpec
from serl.task import Lengths, Placement, Scene
from serl.tasks.parts.insertion import BEHIND, Insertion, InsertionConfig
from serl.tasks.parts.peg_and_hole import hole_detail, hole_mjcf, peg_mjcf, stand_mjcf
from serl.tasks.parts.steering import DOWN, about_z, quaternion_of
from serl.tasks.parts.training_defaults import from_pixels, from_state
from serl.types import Action, Array, Observation

_STAND_M = 0.10  # length of the block below the hole, most of which is in the table
_UP_M = 0.04  # height of the hole's bottom

_BESIDE = 'pos="0.803 -0.263 0.337" xyaxes="0.655 0.756 0 -0.445 0.386 0.808"'

# Offset across the fingers, offset along them and tilt of the peg, as shares of the largest.
_GRASPS = (
    (0.0, 0.0, 0.0),
    (-1.0, 0.4, 0.2),
    (0.6, -1.0, -0.3),
    (0.2, 0.8, 1.0),
    (-0.5, -0.5, -1.0),
    (1.0, 0.2, 0.6),
    (-0.8, 1.0, -0.6),
    (0.4, -0.2, 0.8),
    (-0.2, -0.8, 0.4),
    (0.8, 0.6, -0.8),
)


class Insertion6DConfig(InsertionConfig):
    """Settings of an insertion in six dimensions.

    Attributes:
        tilt_rad: largest tilt of the hole, about each of x and y.
        grasps: number of ways in which the peg is held, one of which is drawn for each episode.
        grasp_m: largest offset of the peg in the hand, across the fingers and along them.
        grasp_tilt_rad: largest tilt of the peg in the hand, about the axis between the fingers.
    """

    motion: Motion = Motion(
        axes=("x", "y", "z", "roll", "pitch", "yaw"),
        translation_m=0.015,
        rotation_rad=0.1,
        frame="tool",
        box_low_m=(0.38, -0.16, 0.05),
        box_high_m=(0.62, 0.16, 0.26),
        max_rotation_rad=0.9,
        limits=Limits(lead_m=0.010),
    )
    can_reset: ClassVar[bool] = False
    start_height_m: Lengths = (0.04, 0.08)
    tilt_rad: float = Field(math.radians(15.0), ge=0, le=0.5)
    grasps: int = Field(len(_GRASPS), ge=1, le=len(_GRASPS))
    grasp_m: float = Field(0.003, ge=0, le=0.005)
    grasp_tilt_rad: float = Field(0.17, ge=0, le=0.3)


class Insertion6D(Insertion):
    """Insertion of a peg into a hole whose axis points anywhere within a cone.

    The policy acts in the frame of the tool, by translations and rotations along and about all
    axes. It observes the tool relative to its start, the wrench at the wrist, and the hole relative
    to the peg, all in the frame of the tool. An episode ends if the peg falls.
    """

    config: Insertion6DConfig

    @cached_property
    def observation_spec(self) -> ObservationSpec:
        """The arm's own numbers, and those of the hole or images."""
        start, tool = "frame of the tool at the start", "tool frame"
        arm = {
            "tcp_from_start": ArraySpec(shape=(3,), unit=f"m, {start}"),
            "turn_from_start": ArraySpec(shape=(3,), unit=f"rad, rotation vector, {start}"),
            "tcp_velocity": ArraySpec(shape=(3,), unit=f"m/s, {tool}"),
            "angular_velocity": ArraySpec(shape=(3,), unit=f"rad/s, {tool}"),
            "force": ArraySpec(shape=(3,), unit=f"N, {tool}"),
            "torque": ArraySpec(shape=(3,), unit=f"Nm, {tool}"),
            "lead": ArraySpec(shape=(3,), unit=f"m, {tool}"),
            "turn_lead": ArraySpec(shape=(3,), unit=f"rad, rotation vector, {tool}"),
            "gripper": ArraySpec(shape=(1,), unit="opening, 0 to 1"),
        }
        if self.config.observe == "pixels":
            return ObservationSpec(state=arm, images=image_specs(self.config.policy_views))
        hole = {
            "hole_from_tip": ArraySpec(shape=(3,), unit=f"m, {tool}; the rim's centre"),
            "hole_turn": ArraySpec(shape=(3,), unit=f"rad, rotation vector from the peg's, {tool}"),
        }
        return ObservationSpec(state=arm | hole)

    @property
    def scene(self) -> Scene:
        """A block with a hole, which comes out of the table at an angle, and the peg."""
        clearance_m = self.config.clearance_m
        stand = stand_mjcf(self.fit, clearance_m, _STAND_M)
        return Scene(
            bodies=hole_mjcf(self.fit, clearance_m, stand) + peg_mjcf(self.fit),
            place=self._place,
            tracked=("peg", "hole"),
            fits={"peg": clearance_m},
            front=_BESIDE,
            detail=hole_detail(self.fit, clearance_m),
            tool=BEHIND,
        )

    def begin(self, reading: Observation) -> None:
        """Begin an episode: remember the tool's start."""
        self.perception.begin(seed_of(reading))
        self._start = reading.state["tcp_pose"].copy()

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the policy for a reading."""
        values = self.perception(reading).state
        tcp, wrench, twist = values["tcp_pose"], values["wrench"], values["tcp_twist"]
        tool, start = quaternion_of(tcp), quaternion_of(self._start)
        target = quaternion_of(values["target_pose"])
        state = {
            "tcp_from_start": _within(start, tcp[:3] - self._start[:3]),
            "turn_from_start": _within(start, rotation_between(start, tool)),
            "tcp_velocity": _within(tool, twist[:3]),
            "angular_velocity": _within(tool, twist[3:]),
            "force": _within(tool, wrench[:3]),
            "torque": _within(tool, wrench[3:]),
            "lead": _within(tool, values["target_pose"][:3] - tcp[:3]),
            "turn_lead": _within(tool, rotation_between(tool, target)),
            "gripper": values["gripper"],
        }
        if self.config.observe == "pixels":
            return Observation(state, self.config.policy_images(reading), reading.stamps)
        state["hole_from_tip"] = _within(tool, self.rim_from_tip(values))
        state["hole_turn"] = _within(tool, self.turn_to_hole(values))
        return Observation(state, stamps=reading.stamps)

    def expert(self, truth: Callable[[], Truth], seed: int) -> Policy:
        """Return a script without memory that inserts the peg."""
        return _Expert(self, truth, seed)

    def training_defaults(self) -> Mapping[str, Any]:
        """Return settings for more steps than with an upright hole; they are not tuned."""
        tuned = from_pixels if self.config.observe == "pixels" else from_state
        return {
            "human": {"noise": 0.03, "gain": 0.5, "max_hold_steps": 30},
            **tuned(20_000, target_entropy=-12.0),
        }

    def hole_from_tip(self, state: Mapping[str, Array]) -> Vector:
        """Return the vector from the peg's tip to the middle of the rim, m, frame of the hole.

        Its z is the depth of the tip.
        """
        return rotate(conjugate(quaternion_of(state["hole_pose"])), self.rim_from_tip(state))

    def rim_from_tip(self, state: Mapping[str, Array]) -> Vector:
        """Return the vector from the peg's tip to the middle of the rim, m, base frame."""
        hole, peg = (state[f"{name}_pose"] for name in ("hole", "peg"))
        rim = add(_place(hole), rotate(quaternion_of(hole), (0.0, 0.0, self.fit.rim_m)))
        return subtract(rim, self.tip(peg))

    def tip(self, peg: Array) -> Vector:
        """Return the position of the tip of a peg at a pose, m, base frame."""
        return add(_place(peg), rotate(quaternion_of(peg), (0.0, 0.0, -self.fit.peg_m[2])))

    def turn_to_hole(self, state: Mapping[str, Array]) -> Vector:
        """Return the least rotation from the peg to the hole, rotation vector, base frame.

        Rotations by which the peg is symmetrical make no difference.
        """
        hole, peg = (quaternion_of(state[f"{name}_pose"]) for name in ("hole", "peg"))
        count = round(2.0 * math.pi / self.fit.symmetry_rad)
        angles = (index * self.fit.symmetry_rad for index in range(count))
        turns = (rotation_between(peg, multiply(hole, about_z(angle))) for angle in angles)
        return min(turns, key=lambda turn: math.hypot(*turn))

    def _place(self, rng: np.random.Generator) -> Placement:
        config, fit = self.config, self.fit
        x, y = (np.array((0.5, 0.0)) + rng.uniform(-1.0, 1.0, 2) * config.field_m).tolist()
        hole_yaw = rng.uniform(-config.max_yaw_rad, config.max_yaw_rad)
        roll, pitch = rng.uniform(-config.tilt_rad, config.tilt_rad, 2).tolist()
        hole = multiply(about_z(hole_yaw), from_rotation_vector((roll, pitch, 0.0)))
        rim = add((x, y, _UP_M), rotate(hole, (0.0, 0.0, fit.rim_m)))
        start = self._draw_start(rng)
        tip = add(rim, start.place_m)
        tool = multiply(about_z(hole_yaw + start.yaw_rad), DOWN)
        across, along, tilt = _GRASPS[int(rng.integers(config.grasps))]
        tilted = from_rotation_vector((0.0, tilt * config.grasp_tilt_rad, 0.0))
        below = rotate(tilted, (0.0, 0.0, fit.below_tcp_m + along * config.grasp_m))
        centre = rotate(tool, add((across * config.grasp_m, 0.0, 0.0), below))
        peg = multiply(multiply(tool, tilted), conjugate(DOWN))
        tip_from_centre = rotate(peg, (0.0, 0.0, -fit.peg_m[2]))
        tcp = subtract(subtract(tip, tip_from_centre), centre)
        return Placement(
            tcp=np.array((*tcp, *tool)),
            bodies={
                "hole": np.array((x, y, _UP_M, *hole)),
                "peg": np.array((*add(tcp, centre), *peg)),
            },
            held_m=2.0 * fit.peg_m[1],
        )


class _Expert:
    """Script that acts on the truth alone: it aligns the peg above the hole, then descends.

    It is the script of an upright hole with all distances along and across the hole's axis. A peg
    stuck on the rim is above the hole and not aligned, so the script goes up and tries again.
    """

    NOISE = 0.05  # far away; a tenth of it where the peg could jam
    HOVER_M, CLEAR_M_RAD = 0.003, 0.05
    ALIGNED_M, ALIGNED_RAD, STILL_M_S, STILL_RAD_S = 0.0004, 0.010, 0.006, 0.03
    BEGUN_M = 0.0010  # on the way down friction pulls aside; the rim shows if too far
    ENTER_M, FEED_M = 0.003, 0.008  # per step, into the hole and down in it

    def __init__(self, task: Insertion6D, truth: Callable[[], Truth], seed: int) -> None:
        self._task, self._truth, self._motion = task, truth, task.config.motion
        self._rng = np.random.default_rng(seed)
        usual = Insertion6DConfig.model_fields["motion"].default
        if (self._motion.axes, self._motion.frame) != (usual.axes, usual.frame):
            raise BadInput(
                f"task_config.motion: the script moves {' '.join(usual.axes)} in the tool frame"
            )

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, from the truth alone."""
        truth, task = self._truth(), self._task
        tcp, target, hole = (truth[f"{name}_pose"] for name in ("tcp", "target", "hole"))
        aside_x, aside_y, depth = task.hole_from_tip(truth)
        turn = task.turn_to_hole(truth)
        lateral, angle = math.hypot(aside_x, aside_y), math.hypot(*turn)
        near = lateral < 0.01 and abs(depth) < 0.03 and angle < 0.1
        slow = self._is_slow(truth)
        inside = depth > 0.001 and lateral < 0.002
        # Positions along and across the axis of the hole.
        axes = quaternion_of(hole)
        led = rotate(conjugate(axes), subtract(_place(target), _place(tcp)))
        begun = led[2] < -0.001 and depth > -self.HOVER_M
        aligned = lateral < (self.BEGUN_M if begun else self.ALIGNED_M) and angle < self.ALIGNED_RAD
        if inside or (aligned and (begun or slow) and depth > -self.HOVER_M - 0.001):
            along = -self.FEED_M if depth > self.ENTER_M else -self.ENTER_M
        else:
            along = depth + self.HOVER_M + max(0.0, lateral - 0.005) + self.CLEAR_M_RAD * angle
        # The peg turns about its tip, so the tool moves aside.
        arm = subtract(_place(tcp), task.tip(truth["peg_pose"]))
        swung = subtract(rotate(from_rotation_vector(turn), arm), arm)
        swing = rotate(conjugate(axes), swung)
        goal = multiply(from_rotation_vector(turn), quaternion_of(tcp))
        shift = subtract(add((aside_x, aside_y, along), swing), led)
        turned = rotation_between(quaternion_of(target), goal)
        if slow and inside:  # presses harder along the axis, and not against the walls
            shift = (shift[0], shift[1], -self.FEED_M)
        elif slow and near:  # an arm at rest off its target gets no nearer
            x, y, _ = add((0.6 * aside_x, 0.6 * aside_y, 0.0), swing)
            shift, turned = (x, y, shift[2]), turn
        return self._action(rotate(axes, shift), turned, quaternion_of(target), near)

    def _is_slow(self, truth: Truth) -> bool:
        """Return whether the arm stands still: descending before then sways it."""
        moving, turning = np.abs(truth["tcp_twist"]).reshape(2, 3).max(axis=1).tolist()
        return bool(moving < self.STILL_M_S and turning < self.STILL_RAD_S)

    def _action(self, shift_m: Vector, turn_rad: Vector, target: Quaternion, near: bool) -> Action:
        """Return an action in the frame of the target, with noise."""
        parts = []
        for vector, scale in (
            (shift_m, self._motion.translation_m),
            (turn_rad, self._motion.rotation_rad),
        ):
            part = np.array(rotate(conjugate(target), vector)) / scale
            parts.append(part / max(1.0, float(np.abs(part).max())))
        noise = self._rng.normal(0.0, self.NOISE * (0.1 if near else 1.0), 6)
        action: Action = (np.concatenate(parts) + noise).clip(-1.0, 1.0).astype(np.float32)
        return action


def _within(frame: Quaternion, vector: Any) -> Array:
    """Return a vector of the base frame in a frame of this orientation.  # (3,) float32."""
    x, y, z = (float(value) for value in vector)
    return np.array(rotate(conjugate(frame), (x, y, z)), np.float32)


def _place(pose: Array) -> Vector:
    x, y, z = pose[:3].tolist()
    return x, y, z
