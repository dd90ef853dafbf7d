import math

import numpy as np
import pytest

from serl.sim.arm import SimArm
from serl.tasks.connector_insertion import ConnectorInsertion

from ..support.pushing import check_walls_keep_out, misled_expert_inserts


def make() -> tuple[SimArm, ConnectorInsertion]:
    task = ConnectorInsertion()
    return SimArm(task.scene, task.config), task


def test_expert_pushes_connector_through_latch_resistance() -> None:
    """Check that success comes with a contact force above half the latch's resistance."""
    arm, task = make()
    for seed in range(5):
        arm.reset(1000 + seed)
        expert = task.expert(arm.truth, seed)
        forces = []
        for index in range(task.config.max_steps):
            arm.act(expert(task.observation(arm.observe())))
            arm.advance(0.1)
            seen = task.observation(arm.observe())
            forces.append(float(seen.state["force"][2]))
            outcome = task.outcome(arm.observe(), index)
            if outcome.terminated or outcome.truncated:
                break
        assert outcome.success, f"seed {seed}"
        assert max(forces) > 0.5 * task.fit.latch_n, f"seed {seed}: {max(forces):.1f} N"


def test_push_below_latch_force_is_no_success() -> None:
    arm, task = make()
    arm.reset(0)
    expert = task.expert(arm.truth, 0)
    for _ in range(task.config.max_steps):
        action = expert(task.observation(arm.observe()))
        if task.hole_from_tip(arm.truth())[2] > 0.003:  # a lead of 2 mm presses with 4 N
            truth = arm.truth()
            ahead = truth["tcp_pose"][2] - 0.002 - truth["target_pose"][2]
            action = np.array((0.0, 0.0, ahead / 0.015, 0.0), np.float32).clip(-1.0, 1.0)
        arm.act(action)
        arm.advance(0.1)
        assert not task.is_success(arm.truth())
    assert task.hole_from_tip(arm.truth())[2] > 0.0135, "the connector reached the latch"


@pytest.mark.parametrize("outside_m", [0.0007, 0.003])
def test_force_does_not_push_connector_through_wall(outside_m: float) -> None:
    """Press down beside the socket; the connector may slip in only where slopes lead in."""
    check_walls_keep_out(*make(), outside_m, gives_m=0.00035, slips_m=0.002)


def test_expert_with_wrong_socket_pose_enters_only_over_slopes() -> None:
    """Allow 1 of 8 entries at the ends, which have no slopes, as for a peg."""
    arm, task = make()
    outside_m = task.config.clearance_m + 0.0007
    ends = [misled_expert_inserts(arm, task, outside_m, math.pi * seed, seed) for seed in range(8)]
    assert sum(ends) <= 1
    sides = [
        misled_expert_inserts(arm, task, outside_m, math.pi * (seed + 0.5), seed)
        for seed in range(4)
    ]
    assert all(sides), "slopes of 2 mm lead in"
