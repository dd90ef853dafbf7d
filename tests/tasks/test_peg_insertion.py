import math

import numpy as np
import pytest

from serl import plugins
from serl.policy import Policy
from serl.sim.arm import SimArm
from serl.tasks.connector_insertion import ConnectorInsertion
from serl.tasks.parts.insertion import Insertion
from serl.tasks.peg_insertion import PegInsertion, PegInsertionConfig
from serl.types import Outcome

from ..support.pushing import check_walls_keep_out, misled_expert_inserts


def make(config: PegInsertionConfig | None = None) -> tuple[SimArm, PegInsertion]:
    task = PegInsertion(config)
    return SimArm(task.scene, task.config), task


def play(arm: SimArm, task: PegInsertion, policy: Policy, steps: int) -> tuple[Outcome, int]:
    """Drive on from the current state; return the last outcome and the number of steps."""
    for index in range(steps):
        arm.act(policy(task.observation(arm.observe())))
        arm.advance(0.1)
        outcome = task.outcome(arm.observe(), index)
        if outcome.terminated or outcome.truncated:
            break
    return outcome, index + 1


@pytest.mark.parametrize("clearance_m", [0.0005, 0.001])
def test_expert_inserts_peg_within_clearance(clearance_m: float) -> None:
    arm, task = make(PegInsertionConfig(clearance_m=clearance_m))
    lengths = []
    for seed in range(5):
        arm.reset(1000 + seed)
        outcome, steps = play(arm, task, task.expert(arm.truth, seed), 100)
        assert outcome.success, f"seed {seed}"
        lengths.append(steps)
        x, y, _ = task.hole_from_tip(arm.truth())
        assert max(abs(x), abs(y)) < math.sqrt(2.0) * (clearance_m + 0.0003)
    assert np.mean(lengths) < 40


def test_peg_starts_in_gripper_above_hole() -> None:
    arm, task = make()
    heights, turns = [], []
    for seed in range(20):
        reading = arm.reset(seed)
        assert arm.truth()["peg_grasped"][0] == 1.0
        seen = task.observation(reading).state
        x, y, z = seen["hole_from_tip"]
        assert max(abs(x), abs(y)) < 0.031
        heights.append(-z)
        turns.append(abs(seen["hole_yaw"][0]))
        assert np.abs(seen["force"]).max() < 0.5
    assert 0.018 < min(heights) < max(heights) < 0.062
    assert max(turns) < 0.16


@pytest.mark.parametrize("outside_m", [0.0007, 0.0025])
def test_force_does_not_push_peg_through_wall(outside_m: float) -> None:
    """Push straight down beside the hole with full force.

    This near to the hole the peg may slip in, but it must not enter a wall.
    """
    check_walls_keep_out(*make(), outside_m, gives_m=0.0003, slips_m=0.001)


def test_expert_with_wrong_hole_pose_rarely_inserts_peg() -> None:
    """Shift the expert's hole by little more than the clearance; allow 1 insertion of 8."""
    arm, task = make()
    outside_m = task.config.clearance_m + 0.0007
    entered = [
        misled_expert_inserts(arm, task, outside_m, 0.5 * math.pi * seed, seed) for seed in range(8)
    ]
    assert sum(entered) <= 1


def test_fallen_peg_ends_episode_as_failure() -> None:
    arm, task = make()
    arm.reset(0)
    address = arm.model.jnt_qposadr[arm.model.body("peg").jntadr[0]]
    arm.data.qpos[address] += 0.2
    arm.advance(0.1)
    outcome = task.outcome(arm.observe(), 0)
    assert (outcome.terminated, outcome.success, outcome.reward) == (True, False, 0.0)


def test_observation_contains_only_relative_values() -> None:
    arm, task = make()
    reading = arm.reset(0)
    first = task.observation_spec.flatten(task.observation(reading))
    shifted = {name: value.copy() for name, value in reading.state.items()}
    for name in ("tcp_pose", "target_pose", "peg_pose", "hole_pose"):
        shifted[name][:2] += 0.05
    second = task.observation_spec.flatten(
        task.observation(type(reading)(state=shifted, stamps=reading.stamps))
    )
    assert second == pytest.approx(first, abs=1e-6)
    assert first.shape == (13,)


@pytest.mark.parametrize(
    ("task", "deeper_m"), [(PegInsertion(), 0.002), (ConnectorInsertion(), 0.0014)]
)
def test_classifier_height_covers_inserted_peg_that_slipped(
    task: Insertion, deeper_m: float
) -> None:
    """Check that the queried depth exceeds success by a slip, and that pressing reaches it."""
    *_, high_m = task.training_defaults()["reward"]["tool_high_m"]
    depth_m = task.fit.rim_m + task.fit.peg_m[2] + task.fit.below_tcp_m - high_m
    assert depth_m - task.config.depth_m == pytest.approx(deeper_m)
    with plugins.make_simulation(task) as arm:
        task.begin(arm.reset(0))
        expert, deep = task.expert(arm.truth, 0), 0
        for _ in range(task.config.max_steps):
            arm.act(expert(task.observation(arm.observe())))
            arm.advance(1.0 / task.config.rate_hz)
            deep += task.is_success(arm.truth()) and float(arm.truth()["tcp_pose"][2]) <= high_m
        assert deep >= 5, "the classifier is queried long enough"
