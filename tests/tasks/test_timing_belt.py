from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serl.policy import Policy
from serl.robot import Truth
from serl.sim.bimanual import SimPair
from serl.tasks.parts.belt import LINKS, links, turns
from serl.tasks.timing_belt import TimingBelt, TimingBeltConfig, is_on, pulley
from serl.types import Array

from .test_handover import play

OPEN_LEFT = np.array((0, 0, 0, 1, 0, 0, 0, 0), np.float32)
OPEN_BOTH = np.array((0, 0, 0, 1, 0, 0, 0, 1), np.float32)
DOWN = np.array((0, 0, -1, -1, 0, 0, -1, -1), np.float32)


def make(**changes: Any) -> tuple[SimPair, TimingBelt]:
    task = TimingBelt(TimingBeltConfig(**changes))
    return SimPair(task.scene, task.config), task


def always(action: np.ndarray[Any, Any]) -> Policy:
    return lambda observation: action


def laid(height_m: float = 0.010, up_m: float = 0.15, **changes: float) -> dict[str, Array]:
    """Return a state with the belt as a ring around the pulleys and the grippers away."""
    angles = 2.0 * np.pi * np.arange(LINKS) / LINKS
    half_m = changes.get("half_m", 0.14)
    poses = {
        f"belt{index}_pose": (
            0.55 + 0.06 * np.cos(angle),
            changes.get("aside_m", 0.0) + half_m * np.sin(angle),
            height_m, 0.0, 0.0, 0.0, 1.0,
        )
        for index, angle in enumerate(angles)
    }  # fmt: skip
    poses["pulleys_pose"] = (0.55, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    for side, y in (("left_", 0.14), ("right_", -0.14)):
        poses[f"{side}tcp_pose"] = (0.55, y, up_m, 1.0, 0.0, 0.0, 0.0)
    truth = {name: np.array(pose, np.float32) for name, pose in poses.items()}
    for side in ("left_", "right_"):
        truth[f"{side}gripper"] = np.array([changes.get(f"{side}gripper", 1.0)], np.float32)
    return truth


def crossed() -> dict[str, Array]:
    """Return a state with the belt in a figure of eight around the pulleys."""
    truth = laid()
    angles = 2.0 * np.pi * np.arange(LINKS) / LINKS
    for index, angle in enumerate(angles):
        place = (0.55 + 0.06 * np.sin(2.0 * angle), 0.16 * np.sin(angle))
        truth[f"belt{index}_pose"][:2] = place
    return truth


@pytest.mark.parametrize(
    ("truth", "solved"),
    [
        (laid(), True),
        (laid(height_m=0.017), True),
        (laid(height_m=0.019), False),
        (laid(up_m=0.06), False),
        (laid(left_gripper=0.5), False),
        (laid(right_gripper=0.5), False),
        (laid(half_m=0.09), False),
        (laid(half_m=0.08, aside_m=0.1), False),
        (laid(half_m=0.08, aside_m=-0.1), False),
        (crossed(), False),
    ],
)
def test_success_needs_released_belt_low_around_both_pulleys(
    truth: dict[str, Array], solved: bool
) -> None:
    assert TimingBelt().is_success(truth) is solved


def test_crossed_belt_winds_once_around_each_pulley() -> None:
    truth = crossed()
    around = [turns(links(truth), pulley(truth, side)) for side in ("left_", "right_")]
    assert sorted(around) == [-1, 1]


@pytest.mark.parametrize("mess", [OPEN_LEFT, OPEN_BOTH])
def test_expert_regrasps_dropped_belt(mess: np.ndarray[Any, Any]) -> None:
    pair, task = make()
    task.begin(pair.reset(1))
    play(pair, task, always(mess), 6)
    truth = pair.truth()
    assert not any(truth[f"left_belt{index}_grasped"][0] for index in range(LINKS))
    assert not task.is_success(truth)
    assert play(pair, task, task.expert(pair.truth, 1), 100)[-1].success


def test_both_grippers_hold_belt_at_rest_at_start() -> None:
    pair, _ = make()
    for seed in range(3):
        pair.reset(seed)
        before = links(pair.truth())
        pair.advance(1.0)
        truth = pair.truth()
        assert np.abs(links(truth) - before).max() < 0.004
        for side in ("left_", "right_"):
            assert any(truth[f"{side}belt{index}_grasped"][0] for index in range(LINKS))


def test_belt_in_one_gripper_is_too_short_for_both_pulleys() -> None:
    """Check the free belt, which is nearly round, against the length both pulleys need."""
    pair, task = make()
    task.begin(pair.reset(0))
    play(pair, task, always(OPEN_LEFT), 8)
    needed_m = 2.0 * (0.10 + 0.03 + 0.003)
    assert np.ptp(links(pair.truth())[:, 1]) < needed_m - 0.01


def test_belt_dropped_onto_pulleys_is_no_success() -> None:
    pair, task = make()
    for seed in range(2):
        task.begin(pair.reset(seed))
        assert not any(outcome.success for outcome in play(pair, task, always(OPEN_BOTH), 25))
        assert not is_on(pair.truth())


def test_belt_still_held_is_no_success() -> None:
    pair, task = make()
    expert_until_low(pair, task)
    for outcome in play(pair, task, always(0.0 * DOWN), 15):
        assert not outcome.success
    assert is_on(pair.truth())
    assert not task.is_success(pair.truth())


def test_pressing_belt_down_beside_pulleys_is_no_success() -> None:
    pair, task = make(spread_m=0.0)
    task.begin(pair.reset(0))
    play(pair, task, always(np.array((1, 0, 0, -1, 1, 0, 0, -1), np.float32)), 7)
    play(pair, task, always(DOWN), 12)
    assert not any(outcome.success for outcome in play(pair, task, always(OPEN_BOTH), 6))
    up = np.array((0, 0, 1, 1, 0, 0, 1, 1), np.float32)
    assert not any(outcome.success for outcome in play(pair, task, always(up), 12))


def expert_until_low(pair: SimPair, task: TimingBelt) -> None:
    task.begin(pair.reset(2))
    expert = task.expert(pair.truth, 2)
    for _ in range(60):
        if is_on(pair.truth()):
            return
        play(pair, task, expert, 1)
    pytest.fail("the belt never was on")


def test_success_needs_three_steps() -> None:
    pair, task = make()
    task.begin(pair.reset(1))
    assert play(pair, task, task.expert(pair.truth, 1), 60)[-1].success
    there = pair.observe()
    task.begin(there)
    assert [task.outcome(there, index).success for index in range(3)] == [False, False, True]


def test_progress_grows_while_expert_acts() -> None:
    pair, task = make()
    task.begin(pair.reset(3))
    expert = task.expert(pair.truth, 3)
    seen = [task.progress(pair.truth())]
    for _ in range(60):
        outcome = play(pair, task, expert, 1)[-1]
        seen.append(task.progress(pair.truth()))
        if outcome.success:
            break
    assert min(np.diff(seen)) > -0.03
    assert seen[0] < 0.5
    assert seen[-1] > 0.95


def test_both_arms_reach_all_starts() -> None:
    task = TimingBelt()
    places = [task.scene.place(np.random.default_rng(seed)) for seed in range(200)]
    pulleys = np.stack([place.bodies["pulleys"] for place in places])
    assert np.ptp(pulleys[:, 0]) > 0.035
    assert np.ptp(pulleys[:, 1]) > 0.035
    for side, motion in (("tcp", task.config.motion), ("right_tcp", task.config.right_motion)):
        tools = np.stack([getattr(place, side)[:3] for place in places])
        assert (tools > motion.box_low_m).all()
        assert (tools < motion.box_high_m).all()


def seen(task: TimingBelt, pair: SimPair) -> Callable[[str], Array]:
    state = task.observation(pair.observe()).state
    return state.__getitem__


def test_observation_shows_belt_ends_relative_to_pulleys() -> None:
    pair, task = make(turned_rad=0.0)
    expert_until_low(pair, task)
    see = seen(task, pair)
    for side, outward in (("left_", 1.0), ("right_", -1.0)):
        assert see(f"{side}around")[0] == 1.0
        assert see(f"{side}end_from_pulley") == pytest.approx((0.0, outward * 0.042, 0.0), abs=0.01)
        assert abs(see(f"{side}end_from_tcp")[2]) == pytest.approx(0.012, abs=0.004)


@pytest.mark.parametrize(("off_m", "goes_on"), [(0.0015, True), (0.003, False)])
def test_tensioner_tolerates_pulley_error_of_1_5_mm(off_m: float, goes_on: bool) -> None:
    """Shift the expert's pulley positions along x or y until the belt is on."""
    pair, task = make(tensioner=True)
    for seed, axis in ((0, 0), (1, 1)):
        task.begin(pair.reset(seed))

        def believed(axis: int = axis) -> Truth:
            truth = dict(pair.truth())
            for name in ("pulleys_pose", "tensioner_pose"):
                truth[name] = truth[name].copy()
                truth[name][axis] += 0.0 if is_on(pair.truth()) else off_m
            return truth

        expert = task.expert(believed, seed)
        for _ in range(60):
            play(pair, task, expert, 1)
            if is_on(pair.truth()):
                break
        assert is_on(pair.truth()) == goes_on


def test_tensioner_yields_and_returns() -> None:
    pair, _ = make(tensioner=True)
    at = pair.model.jnt_qposadr[pair.model.body("tensioner").jntadr[0]]
    assert abs(pair.data.qpos[at]) < 0.001
    pair.data.xfrc_applied[pair.model.body("tensioner").id, 1] = 9.0
    pair.advance(1.0)
    assert 0.008 < pair.data.qpos[at] < 0.013
    pair.data.xfrc_applied[:] = 0.0
    pair.advance(1.0)
    assert abs(pair.data.qpos[at]) < 0.001
