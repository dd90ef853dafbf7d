"""Random actions break no simulation: nothing becomes unstable, or falls out of the world.

`python tests/bench/bench_tasks.py --random-steps 100000` makes more of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.errors import SerlError
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.testing import FakeRobot, FakeTask
from serl.types import Observation
from tests.bench.task_bench import Walk, walk

NEW = (
    "bin_relocation", "cable_routing", "drawer", "handover", "object_flip", "racing_car",
    "timing_belt", "peg_insertion_6d", "connector_insertion_6d",
    "dashboard", "whip_block",
)  # fmt: skip
SLOW = ("cable_routing", "timing_belt")  # chains


def wander(name: str, steps: int, randomize: str = "none") -> Walk:
    task = make_task(resolve({"task": name, "task_config": {"randomize": randomize}}))
    with plugins.make_simulation(task) as robot:
        return walk(task, robot, steps)


@pytest.mark.parametrize("name", NEW)
def test_hundreds_of_random_steps(name: str) -> None:
    assert wander(name, 300 if name in SLOW else 1_000).faults == 0


@pytest.mark.parametrize("name", ["handover", "pick_cube", "peg_insertion"])
def test_random_steps_in_random_worlds(name: str) -> None:
    assert wander(name, 500, randomize="full").faults == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("task"))
def test_a_hundred_thousand_random_steps(name: str) -> None:
    assert wander(name, 100_000).faults == 0


class Breaking(FakeRobot):
    """Of which something breaks at a step, until it is placed anew."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.left, self.placed = kind, at, -1  # its first start is its own
        super().__init__()
        depth = np.array([-0.02 if kind == "deep" else 0.001])
        contact = type("Contact", (), {"dist": depth})
        self.data = type("Data", (), {"contact": contact})

    def reset(self, seed: int) -> Observation:
        self.placed += 1
        return super().reset(seed)

    def observe(self) -> Observation:
        reading = super().observe()
        self.left -= 1
        if self.left != 0:
            return reading
        if self.kind == "warning":
            raise SerlError("unstable")
        place = np.array((np.nan if self.kind == "nan" else 9.0, 0.0, 0.1, 0, 0, 0, 1), np.float32)
        return Observation({**reading.state, "cube_pose": place})


@pytest.mark.parametrize(
    ("kind", "found"),
    [("warning", {"warnings": 1}), ("nan", {"not_finite": 1}), ("away", {"lost": 1}), ("", {})],
)
def test_what_breaks_is_counted_and_the_scene_placed_anew(kind: str, found: dict[str, Any]) -> None:
    robot = Breaking(kind, 30 if kind else 0)
    episodes = -(-60 // FakeTask().config.max_steps)
    walked = walk(FakeTask(), robot, 60)
    assert walked == Walk(steps=60, **found)
    assert robot.placed == episodes + walked.faults


def test_what_stays_in_a_wall_is_lost() -> None:
    task = FakeTask()
    walked = walk(task, Breaking("deep", 0), round(3.5 * task.config.rate_hz))
    assert (walked.lost, walked.deepest_mm) == (3, 20.0)
