import numpy as np

from serl.sim.arm import SimArm
from serl.tasks.drawer import Drawer, DrawerConfig, opening_m
from serl.testing.samples import episode


def make(config: DrawerConfig | None = None) -> tuple[SimArm, Drawer]:
    task = Drawer(config)
    return SimArm(task.scene, task.config), task


def test_drawer_starts_closed_wherever_cabinet_stands() -> None:
    arm, _ = make()
    seen = set()
    for seed in range(12):
        arm.reset(seed)
        assert abs(opening_m(arm.truth())) < 1e-4
        seen.add(round(float(arm.truth()["handle_pose"][0]), 3))
    assert len(seen) > 8
    assert max(seen) - min(seen) > 0.04


def test_pushing_or_pressing_handle_does_not_open_drawer() -> None:
    """Push the handle from the front and from above with full force."""
    arm, _ = make()
    for seed, push in enumerate(((1.0, 0.0, 0.0, -1.0), (0.0, 0.0, -1.0, -1.0))):
        arm.reset(seed)
        for _ in range(50):
            truth = arm.truth()
            aside = (truth["handle_pose"][:3] - truth["target_pose"][:3]) / 0.015
            action = np.array((*aside, 0.0)) * (np.array(push) == 0.0) + push
            arm.act(action.clip(-1.0, 1.0).astype(np.float32))
            arm.advance(0.1)
        assert opening_m(arm.truth()) < 0.01


def test_success_needs_drawer_to_stay_open() -> None:
    arm, task = make()
    episode(arm, task, task.expert(arm.truth, 0))
    open_ = arm.observe()
    task.begin(open_)
    assert [task.outcome(open_, index).success for index in range(3)] == [False, False, True]
    task.begin(open_)
    task.outcome(open_, 0), task.outcome(open_, 1)
    assert not task.outcome(arm.reset(1), 2).success, "closing the drawer restarts the count"
    assert not task.outcome(open_, 3).success
