"""Random actions break no simulation: nothing becomes unstable, or falls out of the world."""

from __future__ import annotations

import numpy as np
import pytest

from serl import plugins
from serl.policy import Random
from serl.robot import SimulatedRobot
from serl.task import SimulatedTask

NEW = ("bin_relocation", "cable_routing", "drawer", "object_flip", "racing_car")


def walk(name: str, steps: int) -> None:
    """An episode of random actions after the other; every reading is looked at."""
    task: SimulatedTask = plugins.load("task", name)()
    robot: SimulatedRobot = plugins.make_simulation(task)
    policy = Random(robot.action_spec, 0)
    far_m = 2.0 if task.scene.robot == "arm" else 4.0
    held, action = 0, policy(robot.observe())
    for index in range(steps):
        if index % task.config.max_steps == 0:
            robot.reset(index)
        if held == 0:  # the same for a while: who changes his mind at every step gets nowhere
            held, action = 1 + index % 7, policy(robot.observe())
        held -= 1
        robot.act(action)
        robot.advance(1.0 / task.config.rate_hz)
        reading = robot.observe()
        for key, value in reading.state.items():
            assert np.isfinite(value).all(), f"step {index}: {key}"
            if key.endswith("_pose"):
                place = value[:3]
                assert np.abs(place).max() < far_m, f"step {index}: {key} is lost: {place}"
                assert place[2] > -0.01, f"step {index}: {key} is below the table: {place}"


@pytest.mark.parametrize("name", NEW)
def test_some_thousand_random_steps(name: str) -> None:
    walk(name, 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("task"))
def test_a_hundred_thousand_random_steps(name: str) -> None:
    walk(name, 100_000)
