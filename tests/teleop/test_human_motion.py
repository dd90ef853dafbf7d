from __future__ import annotations

import numpy as np
import pytest

from serl.errors import BadInput
from serl.policy import Policy
from serl.task import SimulatedTask
from serl.tasks.object_flip import ObjectFlip
from serl.tasks.pick_cube import PickCube
from serl.tasks.racing_car import RacingCar
from serl.tasks.timing_belt import TimingBelt
from serl.teleop.human_motion import HumanMotion
from serl.types import Action, Observation

SEEN = Observation({})
ALL_AXES = np.array([1.0, -1.0, 0.8, 0.5, -1.0], np.float32)  # four axes and the gripper


def always(action: Action) -> Policy:
    return lambda observation: action


def expert_action_for(way: np.ndarray) -> Action:
    """Return an expert's action for a displacement in units of full-speed steps."""
    return np.asarray(way / max(1.0, np.abs(way).max()), np.float32)


def sample_motions(seed: int, wish: Action = ALL_AXES, steps: int = 200) -> np.ndarray:
    hand = HumanMotion(always(wish), PickCube(), seed)
    return np.array([hand(SEEN) for _ in range(steps)])


def mean_moving_axes(moved: np.ndarray) -> float:
    """Return the mean number of axes along which the tool moves in one step."""
    return float((np.abs(moved[:, :4]) > 0.2).sum(1).mean())


def test_human_motion_has_about_half_speed_of_expert() -> None:
    ahead = np.array([1, 0, 0, 0, -1], np.float32)
    speeds = [np.median(sample_motions(seed, ahead, 2000)[:, 0]) for seed in range(20)]
    assert 0.37 < min(speeds) < 0.45
    assert 0.55 < max(speeds) < 0.63


def test_human_motion_depends_only_on_seed() -> None:
    assert np.array_equal(sample_motions(3), sample_motions(3))
    assert not np.array_equal(sample_motions(3), sample_motions(4))


def test_some_seeds_move_along_one_axis_at_a_time() -> None:
    axes = [mean_moving_axes(sample_motions(seed)) for seed in range(30)]
    one, all_axes = [n for n in axes if n < 1.5], [n for n in axes if n > 2.0]
    assert len(one) + len(all_axes) == len(axes)
    assert min(len(one), len(all_axes)) > 8


def test_human_motion_noise_is_correlated_in_time() -> None:
    seed = next(seed for seed in range(20) if mean_moving_axes(sample_motions(seed)) > 2.0)
    moved = sample_motions(seed, steps=4000)[20:, 0]
    moved = moved[np.abs(moved) > 0.1]  # without pauses
    deviation = moved - moved.mean()
    assert np.mean(deviation[1:] * deviation[:-1]) > 0.5 * np.var(moved)


def test_human_motion_pauses_for_tenths_of_second() -> None:
    still = np.concatenate([(sample_motions(seed)[:, :4] == 0.0).all(1) for seed in range(10)])
    ends = np.flatnonzero(np.diff(np.r_[0, still, 0]))
    lengths = ends[1::2] - ends[::2]
    assert 15 < len(lengths) < 60  # in 200 s
    assert set(lengths) <= set(range(2, 10))


def test_human_motion_overshoots_target_and_returns() -> None:
    overshoots = []
    for seed in range(10):
        ways = np.zeros((81, 5))
        ways[0, 0] = 10.0
        left = iter(ways)
        hand = HumanMotion(lambda seen, left=left: expert_action_for(next(left)), PickCube(), seed)
        for step in range(80):
            ways[step + 1, :4] = ways[step, :4] - hand(SEEN)[:4]
        overshoots.append(-ways.min())
        assert np.abs(ways[-1]).max() < 0.2, "the target was not reached"
    assert np.median(overshoots) > 0.05


def test_human_motion_passes_gripper_commands_of_expert_unchanged() -> None:
    assert (sample_motions(0)[:, 4] == -1.0).all()
    hand = HumanMotion(always(np.array([0, 0, 0, -1, 0, 0, 0, 1], np.float32)), TimingBelt(), 0)
    moved = np.array([hand(SEEN) for _ in range(50)])
    assert (moved[:, [3, 7]] == [-1.0, 1.0]).all()


@pytest.mark.parametrize("task", [ObjectFlip(), RacingCar()])
def test_human_motion_refuses_wrench_and_car_tasks(task: SimulatedTask) -> None:
    with pytest.raises(BadInput, match="moves tools only"):
        HumanMotion(always(ALL_AXES), task, 0)
