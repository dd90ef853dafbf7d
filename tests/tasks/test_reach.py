import numpy as np

from serl.sim.arm import SimArm
from serl.tasks.reach import Reach


def make() -> tuple[SimArm, Reach]:
    task = Reach()
    return SimArm(task.scene, task.config), task


def test_goals_surround_the_start() -> None:
    task = Reach()
    offsets = []
    for seed in range(200):
        placement = task.scene.place(np.random.default_rng(seed))
        offsets.append(placement.bodies["goal"][:3] - placement.tcp[:3])
    assert np.abs(offsets).max() <= 0.15
    assert np.abs(offsets).max(axis=0).min() > 0.14


def test_success_needs_two_steps_at_the_goal() -> None:
    arm, task = make()
    far = arm.reset(0)
    task.begin(far)
    near = {name: value.copy() for name, value in far.state.items()}
    near["goal_pose"] = near["tcp_pose"]
    at_goal = type(far)(state=near, stamps=far.stamps)
    assert not task.outcome(at_goal, 0).success
    assert not task.outcome(far, 1).success
    assert not task.outcome(at_goal, 2).success
    assert task.outcome(at_goal, 3).success
