"""Pegs pushed next to their hole: how far they get, and whether a wall gives way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from serl.geometry import rotate, yaw
from serl.robot import Truth
from serl.sim.arm import SimArm
from serl.tasks.parts.insertion import Insertion
from serl.types import Action, Array

STEPS = 60
_NEAR_M, _ABOVE_M = 0.0003, 0.003


def offset_in_base(truth: Truth, by_m: float, angle_rad: float) -> Array:
    """Convert a vector in the hole's frame to the base frame.  # (2,)."""
    angle_rad += _yaw(truth, "hole")
    return np.array((by_m * math.cos(angle_rad), by_m * math.sin(angle_rad)), np.float32)


def push(arm: SimArm, task: Insertion, by_m: float, angle_rad: float) -> Iterator[Truth]:
    """Hold the tip `by_m` from the hole's axis, press it down with the largest allowed force."""
    for _ in range(STEPS):
        truth, motion = arm.truth(), task.config.motion
        x, y, z = task.hole_from_tip(truth)
        to = np.array((x, y)) + offset_in_base(truth, by_m, angle_rad)
        down = z + _ABOVE_M
        if z > -_ABOVE_M or math.hypot(*to) < _NEAR_M:
            down = -motion.translation_m
        lead = truth["target_pose"][:3] - truth["tcp_pose"][:3]
        shift = (np.array((*to, down)) - lead) / motion.translation_m
        turn = task.turn(truth) / motion.rotation_rad
        arm.act(np.array((*shift, turn), np.float32).clip(-1.0, 1.0))
        arm.advance(0.1)
        yield arm.truth()


def check_walls_keep_out(
    arm: SimArm, task: Insertion, outside_m: float, gives_m: float, slips_m: float
) -> None:
    """Fail unless the walls keep out a tip that is pushed down outside of them.

    Args:
        arm: arm that holds the peg.
        task: insertion task of the peg.
        outside_m: distance of the tip beyond the clearance.
        gives_m: upper bound of the penetration of a contact.
        slips_m: distance below which the tip may slip into the hole, though not into a wall.
    """
    for seed, angle in enumerate((0.0, 0.25 * math.pi, 0.5 * math.pi, 1.25 * math.pi)):
        arm.reset(seed)
        pressed_n = 0.0
        for truth in push(arm, task, task.config.clearance_m + outside_m, angle):
            force = task.observation(arm.observe()).state["force"]
            pressed_n = max(pressed_n, float(np.linalg.norm(force)))
            assert wall_penetration_m(task, truth) < gives_m
            assert outside_m < slips_m or not task.is_success(truth)
        assert pressed_n > 10.0, "the push must press on the wall"


def misled_expert_inserts(
    arm: SimArm, task: Insertion, by_m: float, angle_rad: float, seed: int
) -> bool:
    """Return whether an expert that believes the hole to be displaced still inserts the peg."""

    def believed() -> Truth:
        truth = dict(arm.truth())
        truth["hole_pose"] = truth["hole_pose"].copy()
        truth["hole_pose"][:2] += offset_in_base(truth, by_m, angle_rad)
        return truth

    arm.reset(seed)
    expert: Callable[..., Action] = task.expert(believed, seed)
    for _ in range(STEPS):
        arm.act(expert(task.observation(arm.observe())))
        arm.advance(0.1)
        if task.is_success(arm.truth()):
            return True
    return False


def wall_penetration_m(task: Insertion, truth: Truth) -> float:
    """Return how far the tip's corners below the rim are beyond the sides of the hole."""
    room_m = np.array(task.fit.peg_m[:2]) + task.config.clearance_m
    inside = [each for each in _corners(task, truth) if each[2] < task.fit.rim_m - 0.0005]
    return max((float((np.abs(each[:2]) - room_m).max()) for each in inside), default=-math.inf)


def _corners(task: Insertion, truth: Truth) -> Iterator[Array]:
    """Yield the corners of the tip in the hole's frame, whose origin is on the table.  # (3,)."""
    peg, hole, turned = truth["peg_pose"], truth["hole_pose"], -_yaw(truth, "hole")
    x, y, z, w = peg[3:].tolist()
    about_z = (0.0, 0.0, math.sin(0.5 * turned), math.cos(0.5 * turned))
    dx, dy, dz = task.fit.peg_m
    for corner in ((dx, dy, -dz), (-dx, dy, -dz), (dx, -dy, -dz), (-dx, -dy, -dz)):
        from_hole = np.array(rotate((x, y, z, w), corner)) + peg[:3] - hole[:3]
        yield np.array(rotate(about_z, tuple(from_hole.tolist())))


def _yaw(truth: Truth, body: str) -> float:
    x, y, z, w = truth[f"{body}_pose"][3:].tolist()
    return yaw((x, y, z, w))
