"""Behaviour of the fakes beyond their contracts."""

from __future__ import annotations

import numpy as np

from serl.testing import (
    FakeRobot,
    FakeTask,
    episode,
)
from serl.types import Action, End, Observation


def test_fake_task_reset_moves_robot_away_from_goal() -> None:
    robot, task = FakeRobot(), FakeTask()
    episode(robot, task, task.expert(robot.truth, 0))
    for _ in range(task.config.max_steps):
        reading = robot.observe()
        policy = task.reset(reading)
        if policy is None:
            break
        robot.act(policy(task.observation(reading)))
        robot.advance(0.1)
    assert np.linalg.norm(robot.observe().state["position"]) >= task.config.ready_m


def test_broken_sensor_of_fake_robot_ends_episode() -> None:
    robot, task = FakeRobot(), FakeTask()

    def breaks_after_three_steps(observation: Observation) -> Action:
        robot.broken = robot.observe().stamps["robot"] > 0.25
        return np.zeros(2, np.float32)

    *steps, end = episode(robot, task, breaks_after_three_steps)
    assert isinstance(end, End)
    assert "not finite" in end.text
    assert len(steps) == 4
    assert robot.stop_reason
