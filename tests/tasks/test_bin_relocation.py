import numpy as np
import pytest

from serl.sim.arm import SimArm
from serl.tasks.bin_relocation import BinRelocation, BinRelocationConfig
from serl.testing import SimulatedTaskSuite
from serl.testing.samples import episode

LEFT, RIGHT = (0.47, 0.12), (0.47, -0.12)


def make(direction: str = "forward") -> tuple[SimArm, BinRelocation]:
    task = BinRelocation(BinRelocationConfig.model_validate({"direction": direction}))
    return SimArm(task.scene, task.config), task


class TestBackward(SimulatedTaskSuite):
    seeds = (3, 4)

    def make(self) -> tuple[SimArm, BinRelocation]:
        return make("backward")


@pytest.mark.parametrize(("direction", "source"), [("forward", LEFT), ("backward", RIGHT)])
def test_parts_start_anywhere_in_the_source_bin(
    direction: str, source: tuple[float, float]
) -> None:
    _, task = make(direction)
    parts = [task.scene.place(np.random.default_rng(seed)).bodies["part"] for seed in range(200)]
    away = np.array(parts)[:, :2] - source
    assert away.min(axis=0) == pytest.approx([-0.06, -0.045], abs=0.005)
    assert away.max(axis=0) == pytest.approx([0.06, 0.045], abs=0.005)


def test_expert_places_part_at_observed_goal() -> None:
    """Check that demonstrations can be learned from the observation alone."""
    arm, task = make()
    spots = []
    for seed in range(3):
        arm.reset(seed)
        records = episode(arm, task, task.expert(arm.truth, seed), seed)
        first = records[0].observation.state["goal_from_tcp"]
        spot = first[:2] + arm.reset(seed).state["tcp_pose"][:2]
        last = records[-1].observation
        tool = arm.reset(seed).state["tcp_pose"][:2] + (first - last.state["goal_from_tcp"])[:2]
        assert np.abs(last.state["part_from_tcp"][:2] + tool - spot).max() < 0.012
        spots.append(spot)
    assert np.ptp(spots, axis=0).min() > 0.005, "goals do not vary"


def test_goal_depends_only_on_the_episode_seed() -> None:
    arm, task = make()
    spots = []
    for seed in (0, 1, 0):
        reading = arm.reset(seed)
        task.begin(reading)
        goal = task.observation(reading).state["goal_from_tcp"] + reading.state["tcp_pose"][:3]
        spots.append(goal)
        inside = np.abs(goal[:2] - RIGHT)
        assert inside[0] <= 0.06 + 1e-6
        assert inside[1] <= 0.045 + 1e-6
    assert np.array_equal(spots[0], spots[2])
    assert not np.array_equal(spots[0], spots[1])


def test_each_direction_has_its_own_task_name() -> None:
    assert make()[1].name == "bin_relocation_forward"
    assert make("backward")[1].name == "bin_relocation_backward"


def put(arm: SimArm, x: float, y: float, z: float = 0.02) -> None:
    address = arm.model.jnt_qposadr[arm.model.body("part").jntadr[0]]
    arm.data.qpos[address : address + 7] = (x, y, z, 1.0, 0.0, 0.0, 0.0)
    arm.data.qvel[:] = 0.0
    arm.advance(0.01)


def test_success_needs_released_part_inside_bin() -> None:
    arm, task = make()
    arm.reset(0)
    put(arm, *RIGHT)
    assert task.is_success(arm.truth())
    put(arm, *RIGHT, 0.06)
    assert not task.is_success(arm.truth()), "in the air"
    put(arm, RIGHT[0], RIGHT[1] - 0.10)
    assert not task.is_success(arm.truth()), "beside the bin"
    put(arm, *LEFT)
    assert not task.is_success(arm.truth()), "in the other bin"
    put(arm, *RIGHT)
    for gripper, height, solved in ((1.0, 0.2, True), (0.5, 0.2, False), (1.0, 0.05, False)):
        truth = arm.truth() | {"gripper": np.array([gripper], np.float32)}
        truth["tcp_pose"][2] = height
        assert task.is_success(truth) is solved


def test_part_passing_goal_is_no_success() -> None:
    arm, task = make()
    reading = arm.reset(0)
    put(arm, *RIGHT)
    there = arm.observe()
    task.begin(reading)
    assert [task.outcome(each, 0).success for each in (there, there, reading, there)] == [False] * 4
    assert not task.outcome(there, 4).success
    assert task.outcome(there, 5).success


def test_expert_takes_parts_out_of_bin_corners() -> None:
    arm, task = make()
    for dx, dy in ((-0.068, -0.053), (0.068, 0.053)):
        arm.reset(1)
        put(arm, LEFT[0] + dx, LEFT[1] + dy)
        expert = task.expert(arm.truth, 0)
        task.begin(arm.observe())
        for index in range(task.config.max_steps):
            arm.act(expert(task.observation(arm.observe())))
            arm.advance(0.1)
            outcome = task.outcome(arm.observe(), index)
            if outcome.terminated:
                break
        assert outcome.success, (dx, dy)
