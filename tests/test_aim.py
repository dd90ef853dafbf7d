from __future__ import annotations

import math

import numpy as np
import pytest

from serl.errors import BadInput
from serl.motion import Box, Motion, Pose, Target

MOTION = Motion(
    axes=("x", "y"),
    translation_m=0.01,
    box_low_m=(0.0, -1.0, -1.0),
    box_high_m=(1.0, 1.0, 1.0),
    gripper=True,
    gripper_interval_s=0.5,
)
START = Pose((0.5, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))


def aim(closed: bool = False) -> Target:
    made = Target(MOTION)
    made.begin(START, closed)
    return made


def move(made: Target, *values: float, now_s: float = 0.0) -> list[float]:
    action = np.array(values, np.float32)
    made.check(action)
    executed: list[float] = made.move(action, START, now_s).tolist()
    return executed


def test_actions_add_up_to_the_lead_and_what_is_executed_says_so() -> None:
    made = aim()
    reach_m = MOTION.limits.lead_m + MOTION.translation_m
    executed = [move(made, 1, 0, 0)[0] for _ in range(3)]
    assert executed == pytest.approx([1.0, 1.0, 0.0], abs=1e-6)
    assert made.target.position[0] == pytest.approx(0.5 + reach_m)


def test_the_target_stays_out_of_where_no_guard_lets_the_tool_in() -> None:
    post = Box(low_m=(0.515, -0.02, -1.0), high_m=(0.6, 0.02, 1.0))
    made = Target(MOTION, (post,))
    made.begin(START, False)
    executed = [move(made, 1, 0, -1) for _ in range(2)]
    assert executed == [[1.0, 0.0, -1.0], [0.0, 0.0, -1.0]], "what did not happen is not logged"
    assert made.target.position == pytest.approx((0.51, 0.0, 0.0))
    assert move(made, 0, 1, 0)[1] == 1.0


def test_the_gripper_switches_once_an_interval_and_anew_in_each_episode() -> None:
    made = aim()
    assert move(made, 0, 0, -1, now_s=10.0)[2] == -1.0
    assert made.closed
    assert move(made, 0, 0, 1, now_s=10.4)[2] == 0.5
    assert made.closed, "too soon"
    move(made, 0, 0, 1, now_s=10.5)
    assert not made.closed
    made.begin(START, True)
    move(made, 0, 0, 1, now_s=10.6)
    assert not made.closed, "an episode begins without a switch"


def test_to_keep_the_gripper_as_it_is_asks_nothing_of_it() -> None:
    made = aim(closed=True)
    for asked in (0, 0.5, -0.5):
        move(made, 1, 0, asked)
        assert made.closed
        assert not made.gripped
    move(made, 0, 0, -1)
    assert made.gripped, "closed though it was found to be"
    move(made, 0, 0, 0)
    assert made.gripped
    made.begin(START, True)
    assert not made.gripped, "an episode begins with what the gripper does"
    move(made, 0, 0, 1, now_s=10.0)
    made.begin(START, False)
    assert not made.gripped
    move(made, 0, 0, -1, now_s=20.0)
    move(made, 0, 0, 1, now_s=20.1)
    assert made.closed, "too soon to open again"
    assert made.gripped


@pytest.mark.parametrize("values", [(math.nan, 0, 0), (1.1, 0, 0), (0, 0)])
def test_nonsense_is_refused_before_anything_moves(values: tuple[float, ...]) -> None:
    made = aim()
    with pytest.raises(BadInput):
        move(made, *values)
    assert made.target == START
