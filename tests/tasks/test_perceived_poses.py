"""Simulated perception errors: camera-based poses are late and biased, the rest is exact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from serl import plugins
from serl.errors import BadInput
from serl.loop import EpisodeKey
from serl.runs.config import resolve
from serl.runs.demonstrations import record_expert
from serl.runs.task_setup import make_task
from serl.task import SimulatedTask
from serl.tasks.peg_insertion import PegInsertionConfig
from serl.types import Array, Record, Step

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "push_block.py"
ARM_TASKS = [name for name in plugins.names("task") if name != "racing_car"]
FELT = ("velocity", "gripper", "lead", "force", "_start", "pan_from_start", "tilt")
LAB = {"bias_m": 0.003, "bias_rad": 0.035, "delay_s": 0.1, "dropout": 0.05}


def task_of(name: str, perception: dict[str, float] | None = None) -> SimulatedTask:
    given = {"task_config": {"perception": perception}} if perception else {}
    return make_task(resolve({"task": name, **given}))


@pytest.mark.parametrize("name", ARM_TASKS)
def test_perception_error_affects_only_body_poses_not_outcome(name: str) -> None:
    exact, biased = task_of(name), task_of(name, {"bias_m": 0.01, "bias_rad": 0.1})
    with plugins.make_simulation(exact) as robot:
        reading = robot.reset(3)
        for task in (exact, biased):
            task.begin(reading)
        right, wrong = (task.observation(reading).state for task in (exact, biased))
        differing = {key for key in right if not np.array_equal(right[key], wrong[key])}
        assert differing
        assert not {key for key in differing if key.endswith(FELT)}
        seen_by_cameras = set(exact.observation_spec.state)
        if exact.config.views:
            pixels = make_task(resolve({"task": name, "observe": "pixels"}))
            seen_by_cameras -= set(pixels.observation_spec.state)
        assert seen_by_cameras & differing
        assert exact.outcome(reading, 0) == biased.outcome(reading, 0)
        begun = wrong
        biased.begin(reading)
        again = biased.observation(reading).state
        assert all(np.array_equal(begun[key], again[key]) for key in begun), (
            "the same start has the same bias"
        )


def demonstrated(name: str, perception: dict[str, float] | None) -> list[Step]:
    task, records = task_of(name, perception), list[Record]()
    with plugins.make_simulation(task) as robot:
        record_expert(robot, task, records.append, 2, 5, EpisodeKey("run", "expert", 1, 0))
    return [record for record in records if isinstance(record, Step)]


def offsets(steps: list[Step], episode: int) -> Array:
    mine = (step.observation for step in steps if step.key.episode == episode)
    return np.array([seen.state["hole_from_tip"] for seen in mine])


def test_records_hold_perceived_poses_while_expert_uses_truth() -> None:
    exact, lab = demonstrated("peg_insertion", None), demonstrated("peg_insertion", LAB)
    for one, other in zip(exact, lab, strict=True):
        assert np.array_equal(one.action, other.action)
        assert one.reward == other.reward
        assert np.array_equal(one.observation.state["force"], other.observation.state["force"])
    biases = []
    for episode in range(2):
        true, seen = offsets(exact, episode), offsets(lab, episode)
        bias = seen[0] - true[0]
        assert 0.0005 < np.linalg.norm(bias) < 2 * 0.003 + 0.035 * 0.026
        late = seen[1:] - true[:-1] - bias  # poses of peg and hole one step earlier
        assert np.median(np.abs(late)) < 0.0002
        biases.append(bias)
    assert not np.allclose(*biases)


@pytest.mark.parametrize("name", ["racing_car", str(EXAMPLE)])
def test_perception_is_refused_for_task_without_perceived_bodies(name: str) -> None:
    with pytest.raises(BadInput, match=r"task_config.perception: \w+ sees no bodies through it"):
        task_of(name, {"bias_m": 0.002})


def test_perception_error_is_not_simulated_on_real_arm() -> None:
    given = {"robot": "franka", "task_config": {"perception": LAB, "depth_m": 0.02}}
    config = make_task(resolve({"task": "peg_insertion", **given})).config
    assert config.perception.bias_m == 0.0
    assert isinstance(config, PegInsertionConfig)
    assert config.depth_m == 0.02
