"""Test scripted collection episodes: successes, near misses and false appearances of success."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from serl import plugins
from serl.clock import VirtualClock
from serl.datasets.reward_collection import CollectionDriver, CollectionView, Kind, Position
from serl.loop import EpisodeKey, RecordCallback, run
from serl.robot import SimulatedRobot
from serl.task import SimulatedTask
from serl.tasks.peg_insertion import PegInsertion
from serl.tasks.pick_cube import PickCube
from serl.types import Record, Step

HIGH_M = 0.12
"""Height of the tool in m when the cube is lifted by 10 cm."""


@pytest.fixture(scope="module")
def cube() -> Iterator[tuple[SimulatedRobot, SimulatedTask]]:
    task = PickCube()
    with plugins.make_simulation(task) as robot:
        yield robot, task


def drive_episode(
    cube: tuple[SimulatedRobot, SimulatedTask],
    kind: Kind,
    place: Position | None = None,
    seed: int = 1,
) -> tuple[CollectionDriver, list[Step]]:
    """Run one episode to its end; the robot stays in its final state."""
    robot, task = cube
    task.begin(robot.reset(seed))
    driver = CollectionDriver(robot, task, seed, kind, place)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    records: list[Record] = []
    run(
        robot,
        CollectionView(task),
        driver,
        clock,
        EpisodeKey("r", "c", 1, 0),
        [RecordCallback(records.append)],
        interrupted=driver.is_over,
    )
    steps = [record for record in records if isinstance(record, Step)]
    assert len(driver.successes) == len(steps)
    return driver, steps


def test_success_episode_keeps_success_while_tool_shakes(
    cube: tuple[SimulatedRobot, SimulatedTask],
) -> None:
    driver, steps = drive_episode(cube, Kind.SUCCESS)
    assert sum(driver.successes) == 12
    assert len(steps) < 100
    assert driver.place is not None
    assert driver.place[2] > HIGH_M
    lingering = np.array([step.requested for step in steps])[driver.successes]
    assert lingering[:, :3].std(0).min() > 0.1
    assert (lingering[:, -1] == -1.0).all()


@pytest.mark.parametrize(("kind", "least"), [(Kind.SHORT, 0.2), (Kind.NEARLY, 0.75)])
def test_failure_episode_approaches_goal_then_makes_small_motions(
    kind: Kind, least: float, cube: tuple[SimulatedRobot, SimulatedTask]
) -> None:
    robot, task = cube
    driver, steps = drive_episode(cube, kind, seed=3)
    assert task.progress(robot.truth()) > least - 0.1
    assert not any(driver.successes[:-12])
    last = np.array([step.requested for step in steps[-11:]])
    assert np.abs(last[:, :-1]).max() <= 0.4
    assert (last[:, -1] == 0.0).all(), "the gripper does not move"


def test_drop_episode_leaves_cube_below_high_tool(
    cube: tuple[SimulatedRobot, SimulatedTask],
) -> None:
    driver, steps = drive_episode(cube, Kind.DROP)
    assert any(driver.successes)
    assert not any(driver.successes[-6:])
    truth = cube[0].truth()
    assert truth["cube_pose"][2] < 0.05
    assert truth["tcp_pose"][2] > HIGH_M - 0.03
    assert steps[-1].requested[-1] == 1.0


def test_pretence_episode_shows_success_pose_with_empty_gripper(
    cube: tuple[SimulatedRobot, SimulatedTask],
) -> None:
    robot, task = cube
    start = task.scene.place(np.random.default_rng(1)).bodies["cube"]
    place = np.array((start[0], -start[1], 0.16), np.float32)
    driver, _ = drive_episode(cube, Kind.PRETENCE, place)
    truth = robot.truth()
    assert not any(driver.successes)
    np.testing.assert_allclose(truth["tcp_pose"][:3], place, atol=0.02)
    assert truth["gripper"][0] < 0.2
    assert truth["cube_pose"][2] < 0.05


def test_pretence_without_place_acts_randomly(
    cube: tuple[SimulatedRobot, SimulatedTask],
) -> None:
    _, steps = drive_episode(cube, Kind.PRETENCE)
    assert len(steps) == 100
    assert np.abs([step.requested for step in steps]).max() > 0.9


@pytest.mark.parametrize("kind", [Kind.PRETENCE, Kind.NEARLY, Kind.DROP])
def test_driver_works_without_gripper(kind: Kind) -> None:
    task = PegInsertion()
    with plugins.make_simulation(task) as robot:
        _, steps = drive_episode((robot, task), kind, np.array((0.5, 0.0, 0.06), np.float32))
    assert steps[-1].requested.shape == (4,)
