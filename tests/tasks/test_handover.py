from typing import Any

import numpy as np
import pytest

from serl.agents.hybrid import Grippers
from serl.datasets.reward_collection import collection_spec
from serl.errors import BadInput
from serl.policy import Policy
from serl.runs.config import resolve
from serl.runs.task_setup import make_spec, make_task
from serl.sim.bimanual import SimPair
from serl.task import Task
from serl.tasks.handover import Handover, HandoverConfig
from serl.types import Action, Observation, Outcome

CARRY_STEPS = 120
ON_THE_RIGHT_M = (0.66, 0.0, 0.02)


def make(**changes: Any) -> tuple[SimPair, Handover]:
    task = Handover(HandoverConfig(**changes))
    return SimPair(task.scene, task.config), task


def put(pair: SimPair, place_m: tuple[float, float, float]) -> None:
    """Place the bar, level and along x, at a position in metres."""
    address = pair.model.jnt_qposadr[pair.model.body("bar").jntadr[0]]
    pair.data.qpos[address : address + 7] = (*place_m, 1.0, 0.0, 0.0, 0.0)
    pair.data.qvel[pair.model.body("bar").dofadr[0] :][:6] = 0.0
    pair.advance(0.1)


def play(pair: SimPair, task: Task, policy: Policy, steps: int) -> list[Outcome]:
    """Drive on from the current state until success or for `steps` steps."""
    outcomes = []
    for index in range(steps):
        pair.act(policy(task.observation(pair.observe())))
        pair.advance(0.1)
        outcomes.append(task.outcome(pair.observe(), index))
        if outcomes[-1].success:
            break
    return outcomes


def until_both_hold(pair: SimPair, task: Handover, seed: int = 0) -> None:
    task.begin(pair.reset(seed))
    expert = task.expert(pair.truth, seed)
    for _ in range(CARRY_STEPS):
        play(pair, task, expert, 1)
        truth = pair.truth()
        if truth["left_bar_grasped"][0] and truth["right_bar_grasped"][0]:
            return
    pytest.fail("the bar never was in both hands")


def still(left: float = 0.0, right: float = 0.0) -> Policy:
    """Return a policy that moves only the grippers."""
    action = np.array((0, 0, 0, 0, left, 0, 0, 0, 0, right), np.float32)
    return lambda observation: action


class RightAlone:
    """Policy that picks up the bar with the right arm alone and lifts it."""

    def __init__(self, pair: SimPair, task: Handover) -> None:
        self._pair, self._expert = pair, task.expert(pair.truth, 0)

    def __call__(self, observation: Observation) -> Action:
        truth, expert = self._pair.truth(), self._expert
        action = np.zeros(10, np.float32)
        if truth["right_bar_grasped"][0]:
            action[7:] = (1.0, 0.0, -1.0)
            return action
        goal = expert._grasp(truth, "right_")  # type: ignore[attr-defined]
        action[5:8] = (goal.shift_m / 0.015).clip(-1.0, 1.0)
        action[9] = goal.gripper
        return action


def test_expert_recovers_from_displaced_arms_and_dropped_bar() -> None:
    """Start with closed, displaced grippers, then drop the bar on the way."""
    pair, task = make()
    task.begin(pair.reset(5))
    away = np.array((-0.5, 0.5, -0.5, 0.5, -1, 0.5, -0.5, -1, 0.5, -1), np.float32)
    play(pair, task, lambda observation: away, 15)
    expert = task.expert(pair.truth, 0)
    for _ in range(CARRY_STEPS):
        play(pair, task, expert, 1)
        if pair.truth()["bar_pose"][2] > 0.06:
            break
    play(pair, task, still(left=1.0), 6)
    assert pair.truth()["bar_pose"][2] < 0.03, "the bar fell"
    assert play(pair, task, expert, 2 * CARRY_STEPS)[-1].success


def test_bar_starts_out_of_reach_of_right_arm() -> None:
    """Check reach with a 1 cm finger margin; the left arm reaches every grasp point."""
    task = Handover()
    half_m = 0.10
    for seed in range(300):
        bar = task.scene.place(np.random.default_rng(seed)).bodies["bar"]
        yaw = 2.0 * np.arctan2(bar[5], bar[6])
        assert bar[0] + half_m * np.cos(yaw) + 0.01 < task.config.right_motion.box_low_m[0]
        assert bar[0] - 0.065 * np.cos(yaw) > task.config.motion.box_low_m[0]


def test_bar_is_no_success_until_right_gripper_alone_has_carried_it() -> None:
    """Hold the bar with both grippers, open the left one around it, then drop it."""
    pair, task = make()
    until_both_hold(pair, task)
    drop = np.array((-1, 0, 1, 0, 1, 1, 0, 1, 0, 1), np.float32)
    for policy, steps, held in ((still(), 20, (1, 1)), (still(left=1.0), 20, (0, 1))):
        assert not any(outcome.success for outcome in play(pair, task, policy, steps))
        truth = pair.truth()
        assert (truth["left_bar_grasped"][0], truth["right_bar_grasped"][0]) == held
        assert not task.is_success(truth)
    assert not any(outcome.success for outcome in play(pair, task, lambda _: drop, 30))
    assert not task.is_success(pair.truth())


def test_bar_picked_from_table_by_right_arm_is_no_success() -> None:
    pair, task = make()
    pair.reset(0)
    put(pair, ON_THE_RIGHT_M)
    task.begin(pair.observe())
    outcomes = play(pair, task, RightAlone(pair, task), 90)
    assert pair.truth()["right_bar_grasped"][0]
    assert pair.truth()["bar_pose"][2] > 0.15, "only the right gripper lifted the bar"
    assert not any(outcome.success for outcome in outcomes)
    assert not task.is_success(pair.truth())


def test_success_needs_five_steps_after_both_held_bar() -> None:
    pair, task = make()
    task.begin(pair.reset(1))
    play(pair, task, task.expert(pair.truth, 1), CARRY_STEPS)
    handed = pair.observe()
    task._held = 0
    assert [task.outcome(handed, index).success for index in range(5)] == [False] * 4 + [True]
    task.begin(handed)
    assert not any(task.outcome(handed, index).success for index in range(10)), (
        "the bar was never held by both grippers"
    )


def test_progress_grows_while_expert_acts() -> None:
    pair, task = make()
    expert = task.expert(pair.truth, 2)
    task.begin(pair.reset(2))
    seen = [task.progress(pair.truth())]
    for _ in range(CARRY_STEPS):
        outcome = play(pair, task, expert, 1)[-1]
        seen.append(task.progress(pair.truth()))
        if outcome.success:
            break
    assert min(np.diff(seen)) > -0.02
    assert seen[0] < 0.2
    assert seen[-1] > 0.95


def test_hybrid_agent_has_nine_grasp_choices() -> None:
    task = make_task(resolve({"task": "handover"}))
    grippers = Grippers.of(make_spec(task))
    assert grippers.choices == 9
    assert grippers.places == (4, 9)
    assert len(grippers.openings) == 2


def test_classifier_reward_is_refused_for_two_arms() -> None:
    task = make_task(resolve({"task": "handover", "observe": "pixels"}))
    with pytest.raises(BadInput, match="expected a task of one arm"):
        collection_spec(task)


def test_imprecise_grasp_is_no_success() -> None:
    pair, task = make()
    task.begin(pair.reset(2))
    assert play(pair, task, task.expert(pair.truth, 2), 150)[-1].success
    for limits, good in (
        ({"grip_m": 0.01}, True),
        ({"grip_m": 0.0003}, False),
        ({"level_rad": 0.0005}, False),
    ):
        other = Handover(HandoverConfig(**limits))
        other._passed = True
        assert other.is_success(pair.truth()) == good


def test_bar_that_stands_is_judged_despite_rounding() -> None:
    half = float(np.nextafter(np.float32(0.5**0.5), np.float32(1.0)))
    stands = np.array((0.6, 0.0, 0.2, 0.0, -half, 0.0, half), np.float32)
    state = {"bar_pose": stands, "right_tcp_pose": stands}
    assert Handover()._is_precise(state)
    assert not Handover(HandoverConfig(level_rad=0.03))._is_precise(state)
