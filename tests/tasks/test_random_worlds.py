"""Experts and random actions in nominal and random worlds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serl import plugins
from serl.errors import BadInput, SerlError
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.testing import FakeRobot, FakeTask
from serl.testing.samples import episode
from serl.types import End, Observation
from tests.bench.task_bench import Walk, walk

TASKS = [(name, "") for name in plugins.names("task")] + [("bin_relocation", "backward")]
# Successes of 50; all others reach 45. With stiff joints, 3.5 Nm do not swing a pan in time
# or turn a tool, and with a tracking error of 1 mm a tilted hole reports insertion too early.
LEAST = {
    ("object_flip", "full"): 38,
    ("peg_insertion_6d", "light"): 42,
    ("connector_insertion_6d", "full"): 41,
}


def successes(name: str, direction: str, level: str, trials: int) -> int:
    settings = {"randomize": level, "renderer": "none"}
    if direction:
        settings["direction"] = direction
    task = make_task(resolve({"task": name, "task_config": settings}))
    won = 0
    with plugins.make_simulation(task) as robot:
        for seed in range(trials):
            end = episode(robot, task, task.expert(robot.truth, seed), 20_000 + seed)[-1]
            assert isinstance(end, End)
            won += end.success and task.is_success(robot.truth())
    return won


@pytest.mark.parametrize(
    ("name", "trials", "mean_steps"),
    [
        ("bin_relocation", 3, 100),
        ("cable_routing", 1, 120),
        ("drawer", 3, 55),
        ("handover", 3, 80),
        ("reach", 6, 50),
        ("timing_belt", 3, 30),
    ],
)
def test_experts_succeed_quickly(name: str, trials: int, mean_steps: int) -> None:
    task = make_task(resolve({"task": name}))
    lengths = []
    with plugins.make_simulation(task) as robot:
        for seed in range(trials):
            end = episode(robot, task, task.expert(robot.truth, seed), 1000 + seed)[-1]
            assert isinstance(end, End)
            assert end.success, f"seed {seed}: {end.text}"
            lengths.append(end.key.index)
    assert sum(lengths) / trials < mean_steps


@pytest.mark.parametrize(("name", "direction"), TASKS)
def test_expert_succeeds_in_random_worlds(name: str, direction: str) -> None:
    assert successes(name, direction, "full", 3) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("level", ["light", "full"])
@pytest.mark.parametrize(("name", "direction"), TASKS)
def test_expert_succeeds_in_most_of_50_random_worlds(name: str, direction: str, level: str) -> None:
    assert successes(name, direction, level, 50) >= LEAST.get((name, level), 45)


@pytest.mark.parametrize(
    ("name", "seed", "action", "steps"),
    [
        ("connector_insertion_6d", 3, (0.2, 0.1, 1.0, 0.3, -0.3, 0.2), 12),
        ("dashboard", 5, (0.3, -0.2, -1.0, 0.5, -1.0), 15),
        ("drawer", 5, (0.4, 0.2, -1.0, -1.0), 15),
    ],
)
def test_expert_recovers_from_displaced_tool(
    name: str, seed: int, action: tuple[float, ...], steps: int
) -> None:
    """Check that the expert succeeds after another policy moved the tool and closed the hand."""
    task = make_task(resolve({"task": name}))
    with plugins.make_simulation(task) as robot:
        robot.reset(seed)
        for _ in range(steps):
            robot.act(np.array(action, np.float32))
            robot.advance(1.0 / task.config.rate_hz)
        assert not task.is_success(robot.truth())
        expert = task.expert(robot.truth, 0)
        for index in range(task.config.max_steps):
            robot.act(expert(task.observation(robot.observe())))
            robot.advance(1.0 / task.config.rate_hz)
            if task.outcome(robot.observe(), index).success:
                return
    pytest.fail("not solved")


@pytest.mark.parametrize(
    ("name", "motion", "line"),
    [
        ("reach", {"frame": "tool"}, "x y z yaw in the base frame, not x y z in the tool frame"),
        ("peg_insertion", {"axes": ["yaw", "x", "y", "z"]}, "not yaw x y z in the base frame"),
        ("handover", {"axes": ["x", "y", "z", "roll"]}, "not x y z roll in the base frame"),
        ("peg_insertion_6d", {"frame": "base"}, "x y z roll pitch yaw in the tool frame"),
    ],
)
def test_expert_refuses_actions_that_it_does_not_make(
    name: str, motion: dict[str, Any], line: str
) -> None:
    task = make_task(resolve({"task": name, "task_config": {"motion": motion}}))
    with plugins.make_simulation(task) as robot, pytest.raises(BadInput, match=f"motion: .*{line}"):
        episode(robot, task, task.expert(robot.truth, 0), 0)


def test_expert_of_two_arms_may_lack_the_yaw_of_one() -> None:
    motion = {"axes": ["x", "y", "z"]}
    task = make_task(resolve({"task": "handover", "task_config": {"motion": motion}}))
    with plugins.make_simulation(task) as robot:
        action = task.expert(robot.truth, 0)(robot.reset(0))
    assert action.shape == robot.action_spec.shape == (9,)


@pytest.mark.parametrize("name", plugins.names("task"))
def test_worlds_of_every_task_differ_and_survive_random_steps(name: str) -> None:
    task = make_task(resolve({"task": name, "task_config": {"randomize": "full"}}))
    robot: Any = plugins.make_simulation(task)
    robot.reset(1)
    colors = robot.model.geom_rgba.copy()
    robot.reset(2)
    assert not np.array_equal(robot.model.geom_rgba, colors)
    assert walk(task, robot, 300).faults == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("task"))
def test_simulation_survives_100_000_random_steps(name: str) -> None:
    task = make_task(resolve({"task": name}))
    assert walk(task, plugins.make_simulation(task), 100_000).faults == 0


class Breaking(FakeRobot):
    """Fake robot with a fault at one step, until the next reset."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.left, self.placed = kind, at, -1  # the constructor resets once
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
def test_walk_counts_faults_and_resets_scene(kind: str, found: dict[str, Any]) -> None:
    robot = Breaking(kind, 30 if kind else 0)
    episodes = -(-60 // FakeTask().config.max_steps)
    walked = walk(FakeTask(), robot, 60)
    assert walked == Walk(steps=60, **found)
    assert robot.placed == episodes + walked.faults


def test_body_staying_inside_a_wall_counts_as_lost() -> None:
    task = FakeTask()
    walked = walk(task, Breaking("deep", 0), round(3.5 * task.config.rate_hz))
    assert (walked.lost, walked.deepest_mm) == (3, 20.0)
