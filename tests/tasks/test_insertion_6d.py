from __future__ import annotations

import math

import numpy as np
import pytest

from serl.geometry import (
    Vector,
    add,
    conjugate,
    from_rotation_vector,
    multiply,
    rotate,
    to_rotation_vector,
)
from serl.robot import Truth
from serl.sim.arm import SimArm
from serl.tasks.connector_insertion_6d import ConnectorInsertion6D
from serl.tasks.parts.steering import DOWN, quaternion_of
from serl.tasks.peg_insertion_6d import PegInsertion6D
from serl.types import Array, Observation

TASKS = (PegInsertion6D, ConnectorInsertion6D)
MISTAKE_M = 0.004


@pytest.mark.parametrize("kind", TASKS)
def test_starts_vary_grasps_and_hole_tilts(
    kind: type[PegInsertion6D] | type[ConnectorInsertion6D],
) -> None:
    task, rng = kind(), np.random.default_rng(0)
    grasps, tilts = set(), []
    for _ in range(200):
        placed = task.scene.place(rng)
        poses = (placed.tcp, placed.bodies["peg"], placed.bodies["hole"])
        tool, peg, hole = (quaternion_of(pose.astype(np.float32)) for pose in poses)
        held = multiply(multiply(conjugate(tool), peg), DOWN)
        x, y, z = (placed.bodies["peg"] - placed.tcp)[:3].tolist()
        at = rotate(conjugate(tool), (x, y, z))
        grasps.add(tuple(np.round((*at, *to_rotation_vector(held)), 4).tolist()))
        tilts.append(rotate(hole, (0.0, 0.0, 1.0)))
    assert len(grasps) == 10
    most = math.sin(task.config.tilt_rad)
    assert np.max(tilts, axis=0)[:2].min() > 0.9 * most
    assert np.min(tilts, axis=0)[:2].max() < -0.9 * most
    assert np.min(tilts, axis=0)[2] > math.cos(1.5 * task.config.tilt_rad)


def test_expert_with_wrong_hole_pose_does_not_insert_peg() -> None:
    """Shift the expert's hole pose by 4 mm and 8 degrees; the block must keep the peg out."""
    task = PegInsertion6D()
    arm = SimArm(task.scene, task.config)
    sideways, turned = (MISTAKE_M, 0.0, 0.0), from_rotation_vector((0.14, 0.0, 0.0))

    def believed() -> Truth:
        truth = dict(arm.truth())
        hole = truth["hole_pose"].copy()
        quaternion = quaternion_of(hole)
        hole[:3] += rotate(quaternion, sideways)
        hole[3:] = multiply(quaternion, turned)
        return {**truth, "hole_pose": hole}

    for seed in range(3):
        arm.reset(seed)
        expert, pressed_n = task.expert(believed, seed), 0.0
        for _ in range(40):
            seen = task.observation(arm.observe()).state
            pressed_n = max(pressed_n, float(np.linalg.norm(seen["force"])))
            arm.act(expert(task.observation(arm.observe())))
            arm.advance(0.1)
            assert task.hole_from_tip(arm.truth())[2] < 0.006
        assert pressed_n > 5.0, "the peg touched the block"


def moved(reading: Observation, yaw_rad: float, shift_m: Vector) -> Observation:
    """Return the reading of the same scene, turned about the vertical and shifted."""
    turn = from_rotation_vector((0.0, 0.0, yaw_rad))

    def turned(vector: Array) -> tuple[float, float, float]:
        x, y, z = vector.tolist()
        return rotate(turn, (x, y, z))

    state = dict(reading.state)
    for name, value in state.items():
        if name.endswith("_pose"):
            place = add(turned(value[:3]), shift_m)
            state[name] = np.array((*place, *multiply(turn, quaternion_of(value))), np.float32)
        elif name in ("tcp_twist", "wrench"):
            state[name] = np.array((*turned(value[:3]), *turned(value[3:])), np.float32)
    return Observation(state, reading.images, reading.stamps)


def test_observation_does_not_depend_on_scene_pose() -> None:
    """Check that all values are relative to the tool or its start, as actions are."""
    task = PegInsertion6D()
    arm = SimArm(task.scene, task.config)
    first = arm.reset(2)
    expert = task.expert(arm.truth, 0)
    for _ in range(12):
        arm.act(expert(first))
        arm.advance(0.1)
    now, seen = arm.observe(), []
    for yaw_rad, shift_m in ((0.0, (0.0, 0.0, 0.0)), (1.2, (0.1, -0.2, 0.03))):
        task.begin(moved(first, yaw_rad, shift_m))
        seen.append(task.observation(moved(now, yaw_rad, shift_m)).state)
    assert np.linalg.norm(seen[0]["tcp_from_start"]) > 0.02
    assert np.linalg.norm(seen[0]["turn_from_start"]) > 0.1
    for name, value in seen[0].items():
        assert seen[1][name] == pytest.approx(value, abs=2e-5), name


def test_hole_is_observed_in_the_action_frame() -> None:
    """Move by the observed turn and offset alone; this must bring the peg above the hole."""
    task = PegInsertion6D()
    arm, motion = SimArm(task.scene, task.config), task.config.motion
    for seed in range(2):
        task.begin(arm.reset(seed))
        for index in range(50):
            seen = task.observation(arm.observe()).state
            turn = 0.3 * (seen["hole_turn"] - seen["turn_lead"]) / motion.rotation_rad
            aside = 0.3 * (seen["hole_from_tip"] - seen["lead"]) / motion.translation_m
            aside[2] -= 0.3 * 0.03 / motion.translation_m  # stays 3 cm above
            moves = np.concatenate([aside * (index > 10), turn])
            arm.act(moves.clip(-1.0, 1.0).astype(np.float32))
            arm.advance(0.1)
        seen = task.observation(arm.observe()).state
        x, y, z = task.hole_from_tip(arm.truth())
        assert np.linalg.norm(seen["hole_turn"]) < 0.02
        assert math.hypot(x, y) < 0.007, "offset caused by 3 cm along a tilted grasp"
        assert z == pytest.approx(-0.03, abs=0.003)
