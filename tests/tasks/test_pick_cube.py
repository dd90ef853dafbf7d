import numpy as np
import pytest

from serl.policy import Policy
from serl.sim.arm import SimArm
from serl.tasks.pick_cube import PickCube, PickCubeConfig
from serl.types import Outcome


def make() -> tuple[SimArm, PickCube]:
    task = PickCube()
    return SimArm(task.scene, task.config), task


def play(arm: SimArm, task: PickCube, policy: Policy, steps: int) -> tuple[Outcome, list[float]]:
    """Drive on from the current state; return the last outcome and progress per step."""
    progress = []
    for index in range(steps):
        reading = arm.observe()
        if index == 0:
            task.begin(reading)
        arm.act(policy(task.observation(reading)))
        arm.advance(0.1)
        outcome = task.outcome(arm.observe(), index)
        progress.append(task.progress(arm.truth()))
        if outcome.terminated or outcome.truncated:
            break
    return outcome, progress


def test_expert_picks_the_cube() -> None:
    arm, task = make()
    successes, lengths = 0, []
    for seed in range(8):
        arm.reset(1000 + seed)
        outcome, progress = play(arm, task, task.expert(arm.truth, seed), task.config.max_steps)
        successes += outcome.success
        lengths.append(len(progress))
        assert min(np.diff(progress), default=0.0) > -0.02, f"seed {seed}: progress fell"
    assert successes >= 7
    assert np.mean(lengths) < 55


def test_expert_recovers_from_closed_gripper_and_dropped_cube() -> None:
    arm, task = make()
    expert = task.expert(arm.truth, 0)
    arm.reset(5)
    # Another policy closes the empty gripper and leaves the tool on the table.
    away = np.array([-0.5, 0.3, -1.0, 0.4, -1.0], np.float32)
    play(arm, task, lambda observation: away, 15)
    outcome, _ = play(arm, task, expert, task.config.max_steps)
    assert outcome.success
    # The cube is dropped from the air.
    drop = np.array([0.0, 0.0, 0.0, 0.0, 1.0], np.float32)
    play(arm, task, lambda observation: drop, 8)
    assert not task.is_success(arm.truth())
    outcome, _ = play(arm, task, expert, task.config.max_steps)
    assert outcome.success


def test_cube_starts_cover_the_field() -> None:
    task = PickCube()
    cubes = np.array(
        [task.scene.place(np.random.default_rng(seed)).bodies["cube"] for seed in range(300)]
    )
    assert cubes[:, :2].min(axis=0) == pytest.approx([0.35, -0.20], abs=0.01)
    assert cubes[:, :2].max(axis=0) == pytest.approx([0.60, 0.20], abs=0.01)
    yaw = 2.0 * np.arctan2(cubes[:, 5], cubes[:, 6])
    assert (yaw.min(), yaw.max()) == pytest.approx((-0.6, 0.6), abs=0.02)


def test_success_needs_half_a_second_in_the_air() -> None:
    arm, task = make()
    arm.reset(0)
    play(arm, task, task.expert(arm.truth, 0), 100)
    up = arm.observe()
    task.begin(up)
    assert [task.outcome(up, index).terminated for index in range(5)] == [False] * 4 + [True]
    task.begin(up)
    for index in range(4):
        task.outcome(up, index)
    assert not task.outcome(arm.reset(1), 4).success, "putting the cube down restarts the count"
    assert not task.outcome(up, 5).success


def test_observation_contains_only_relative_values() -> None:
    arm, task = make()
    reading = arm.reset(0)
    task.begin(reading)
    first = task.observation_spec.flatten(task.observation(reading))
    shifted = {name: value.copy() for name, value in reading.state.items()}
    for name in ("tcp_pose", "target_pose", "cube_pose"):
        shifted[name][:2] += 0.05
    moved = type(reading)(state=shifted, stamps=reading.stamps)
    task.begin(moved)
    second = task.observation_spec.flatten(task.observation(moved))
    assert second == pytest.approx(first, abs=1e-6)
    assert first.shape == (16,)


def test_lift_height_and_hold_steps_are_configurable() -> None:
    task = PickCube(PickCubeConfig(lift_m=0.05, hold_steps=2))
    arm = SimArm(task.scene, task.config)
    arm.reset(0)
    outcome, progress = play(arm, task, task.expert(arm.truth, 0), 100)
    assert outcome.success
    assert len(progress) < 55
