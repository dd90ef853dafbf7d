"""Random actions break no simulation: nothing becomes unstable, or falls out of the world.

`python tests/tasks/test_random_steps.py --steps 100000 [TASK ...]` says how deep things got into
each other as well.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.assignment import make_task
from serl.config import resolve
from serl.policy import Random

NEW = (
    "bin_relocation", "cable_routing", "drawer", "handover", "object_flip", "racing_car",
    "timing_belt",
)  # fmt: skip
SLOW = ("cable_routing", "timing_belt")  # chains
DEEP_M = 0.008  # an object in a wall is deeper; a hand that presses one onto the table is not
LONG_S = 1.0


def walk(name: str, steps: int, randomize: str = "none", seed: int = 0) -> float:
    """An episode of random actions after the other; every reading is looked at.

    Returns:
        How deep things were in each other at most, m.
    """
    task = make_task(resolve({"task": name, "task_config": {"randomize": randomize}}))
    robot: Any = plugins.make_simulation(task)
    policy = Random(robot.action_spec, seed)
    far_m = 2.0 if task.scene.robot == "arm" else 4.0
    held, action, deep_steps, deepest_m = 0, policy(robot.observe()), 0, 0.0
    for index in range(steps):
        if index % task.config.max_steps == 0:
            robot.reset(index)
        if held == 0:  # the same for a while: who changes his mind at every step gets nowhere
            held, action = 1 + index % 7, policy(robot.observe())
        held -= 1
        robot.act(action)
        robot.advance(1.0 / task.config.rate_hz)
        reading = robot.observe()  # raises once MuJoCo has warned
        for key, value in reading.state.items():
            assert np.isfinite(value).all(), f"step {index}: {key}"
            if key.endswith("_pose"):
                place = value[:3]
                assert np.abs(place).max() < far_m, f"step {index}: {key} is lost: {place}"
                assert place[2] > -0.01, f"step {index}: {key} is below the table: {place}"
        depth_m = -float(robot.data.contact.dist.min(initial=0.0))
        deepest_m = max(deepest_m, depth_m)
        deep_steps = deep_steps + 1 if depth_m > DEEP_M else 0
        assert deep_steps < LONG_S * task.config.rate_hz, f"step {index}: stuck {depth_m} m deep"
    return deepest_m


@pytest.mark.parametrize("name", NEW)
def test_some_thousand_random_steps(name: str) -> None:
    walk(name, 500 if name in SLOW else 2_000)


@pytest.mark.parametrize("name", ["handover", "pick_cube", "peg_insertion"])
def test_random_steps_in_random_worlds(name: str) -> None:
    walk(name, 1_000, randomize="full")


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("task"))
def test_a_hundred_thousand_random_steps(name: str) -> None:
    walk(name, 100_000)


def main() -> None:
    """Walk, and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="*", default=plugins.names("task"))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--randomize", default="none")
    options = parser.parse_args()
    for name in options.task:
        deepest_m = walk(name, options.steps, options.randomize, options.seed)
        print(f"{name}: {options.steps} steps, contacts up to {deepest_m * 1e3:.1f} mm deep")  # noqa: T201


if __name__ == "__main__":
    main()
