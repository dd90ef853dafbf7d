from __future__ import annotations

import numpy as np
import pytest

from serl.robot import Truth
from serl.sim.arm import SimArm
from serl.tasks.dashboard import Dashboard, in_socket, turned_rad
from serl.testing.samples import episode
from serl.types import End, Step


def make() -> tuple[SimArm, Dashboard]:
    task = Dashboard()
    return SimArm(task.scene, task.config), task


def address(arm: SimArm, body: str) -> int:
    return int(arm.model.jnt_qposadr[arm.model.body(body).jntadr[0]])


@pytest.fixture(scope="module")
def done() -> tuple[SimArm, Dashboard]:
    """Return an arm after its expert's success."""
    arm, task = make()
    end = episode(arm, task, task.expert(arm.truth, 4), 4)[-1]
    assert isinstance(end, End)
    assert end.success
    return arm, task


@pytest.mark.parametrize("part", ["switch", "lever", "card"])
def test_success_needs_every_part(done: tuple[SimArm, Dashboard], part: str) -> None:
    arm, task = done
    before, at = arm.data.qpos.copy(), address(arm, part)
    assert task.is_success(arm.truth())
    if part == "card":
        arm.data.qpos[at + 2] += 0.006
    else:
        arm.data.qpos[at] = 0.2
    arm.advance(0.01)
    assert not task.is_success(arm.truth())
    arm.data.qpos[:] = before
    arm.advance(0.01)
    assert task.is_success(arm.truth())


def test_parts_stay_in_place_after_success(done: tuple[SimArm, Dashboard]) -> None:
    arm, task = done
    for _ in range(20):
        arm.act(np.array((0.0, 0.0, 1.0, 0.0, -1.0), np.float32))
        arm.advance(0.1)
    assert task.is_success(arm.truth())


def test_parts_are_at_rest_at_start() -> None:
    arm, _ = make()
    for seed in range(3):
        arm.reset(seed)
        arm.advance(1.0)
        truth = arm.truth()
        assert abs(turned_rad(truth, "switch")) < 0.01
        assert abs(turned_rad(truth, "lever")) < 0.01
        assert in_socket(truth) == pytest.approx((-0.13, 0.0, 0.02), abs=0.001)


def test_reward_comes_only_at_end_while_progress_grows() -> None:
    arm, task = make()
    seen: list[float] = []

    def watched() -> Truth:
        truth = arm.truth()
        seen.append(task.progress(truth))
        return truth

    records = episode(arm, task, task.expert(watched, 0), 0)
    rewards = [record.reward for record in records if isinstance(record, Step)]
    assert sum(rewards) == rewards[-1] == 1.0
    quarters = [np.mean(part) for part in np.array_split(seen, 4)]
    assert (np.diff(quarters) > 0.05).all()
    assert min(np.diff(seen)) > -0.15, "below -0.15 a simulated operator would intervene"
