"""Experts in the worlds of their tasks and in random ones."""

from __future__ import annotations

import pytest

from serl import plugins
from serl.runs.config import resolve
from serl.runs.task_setup import make_task
from serl.testing.samples import episode
from serl.types import End

LEVELS = ("light", "full")
TASKS = [(name, "") for name in plugins.names("task")] + [("bin_relocation", "backward")]
# Of 50; all others do 45 or more. Where joints turn hard, 3.5 Nm swing no pan in time.
# So they turn a tool; and where a tilted hole is tracked 1 mm off, the peg counts as in too early.
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
        ("bin_relocation", 5, 100),
        ("cable_routing", 2, 120),
        ("drawer", 8, 55),
        ("handover", 6, 80),
        ("reach", 20, 50),
        ("timing_belt", 6, 30),
    ],
)
def test_experts_are_sure_and_quick(name: str, trials: int, mean_steps: int) -> None:
    task = make_task(resolve({"task": name}))
    lengths = []
    with plugins.make_simulation(task) as robot:
        for seed in range(trials):
            end = episode(robot, task, task.expert(robot.truth, seed), 1000 + seed)[-1]
            assert isinstance(end, End)
            assert end.success, f"seed {seed}: {end.text}"
            lengths.append(end.key.index)
    assert sum(lengths) / trials < mean_steps


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "direction"), TASKS)
def test_the_expert_does_it_in_random_worlds(name: str, direction: str, level: str) -> None:
    assert successes(name, direction, level, 3) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "direction"), TASKS)
def test_the_expert_does_it_in_most_of_50_random_worlds(
    name: str, direction: str, level: str
) -> None:
    assert successes(name, direction, level, 50) >= LEAST.get((name, level), 45)
