from dataclasses import replace

import numpy as np
import pytest

from serl.errors import NeedsPerson
from serl.policy import Policy
from serl.sim.arm import SimArm
from serl.tasks.object_flip import ObjectFlip, ObjectFlipConfig, is_lost
from serl.testing.samples import episode
from serl.types import End


def make(config: ObjectFlipConfig | None = None) -> tuple[SimArm, ObjectFlip]:
    task = ObjectFlip(config)
    return SimArm(task.scene, task.config), task


def put(arm: SimArm, place: tuple[float, float, float], upside_down: bool) -> None:
    """Place the patty at rest at a position in metres."""
    turned = (0.0, 1.0, 0.0, 0.0) if upside_down else (1.0, 0.0, 0.0, 0.0)  # wxyz
    address = arm.model.jnt_qposadr[arm.model.body("patty").jntadr[0]]
    arm.data.qpos[address : address + 7] = (*place, *turned)
    arm.data.qvel[-6:] = 0.0
    arm.advance(0.05)


def successes(seeds: range) -> int:
    arm, task = make()
    ends = [episode(arm, task, task.expert(arm.truth, seed), 1000 + seed)[-1] for seed in seeds]
    return sum(isinstance(end, End) and end.success for end in ends)


@pytest.mark.slow
def test_expert_flips_object_in_80_of_100_episodes() -> None:
    assert successes(range(100)) >= 80


def test_flipped_patty_counts_only_in_the_pan() -> None:
    arm, task = make()
    for place, solved in (((0.60, 0.0, 0.334), True), ((0.60, 0.2, 0.009), False)):
        task.begin(arm.reset(0))
        put(arm, place, upside_down=True)
        assert task.is_success(arm.truth()) == solved
        put(arm, place, upside_down=False)
        assert not task.is_success(arm.truth())


def test_patty_above_the_pan_is_no_success() -> None:
    arm, task = make()
    task.begin(arm.reset(0))
    put(arm, (0.60, 0.0, 0.40), upside_down=True)  # the patty is falling
    assert not task.is_success(arm.truth())


def test_success_needs_flip_to_last() -> None:
    arm, task = make()
    start = arm.reset(0)
    task.begin(start)
    put(arm, (0.60, 0.0, 0.334), upside_down=True)
    flipped = arm.observe()
    held = [task.outcome(flipped, index).success for index in range(task.config.hold_steps)]
    assert held == [False] * (task.config.hold_steps - 1) + [True]
    task.begin(start)
    task.outcome(flipped, 0)
    task.outcome(start, 1)
    assert not task.outcome(flipped, 2).success, "turning back restarts the count"


def test_flip_is_judged_relative_to_starting_side() -> None:
    arm, task = make()
    arm.reset(0)
    put(arm, (0.60, 0.0, 0.334), upside_down=True)
    task.begin(arm.observe())
    assert not task.is_success(arm.truth())
    put(arm, (0.60, 0.0, 0.334), upside_down=False)
    assert task.is_success(arm.truth())


def test_lost_patty_ends_episode_without_reward() -> None:
    arm, task = make()
    task.begin(arm.reset(0))
    put(arm, (0.60, 0.2, 0.02), upside_down=True)
    outcome = task.outcome(arm.observe(), 0)
    assert (outcome.terminated, outcome.success, outcome.reward) == (True, False, 0.0)


def drive(arm: SimArm, task: ObjectFlip, policy: Policy, steps: int) -> None:
    for _ in range(steps):
        arm.act(policy(arm.observe()))
        arm.advance(1.0 / task.config.rate_hz)
        task.observation(arm.observe())


def test_task_resets_itself_while_patty_is_in_the_pan() -> None:
    arm, task = make(ObjectFlipConfig(auto_reset=True))
    arm.reset(0)
    task.begin(arm.observe())
    assert task.reset(arm.observe()) is None
    drive(arm, task, lambda reading: np.array((0.2, 0.5, -0.8), np.float32), 8)
    script = task.reset(arm.observe())
    assert script is not None
    drive(arm, task, script, 80)
    assert not is_lost(arm.observe().state)
    assert task.reset(arm.observe()) is None
    put(arm, (0.60, 0.2, 0.02), upside_down=False)
    with pytest.raises(NeedsPerson, match="not in the pan"):
        task.reset(arm.observe())


def test_reset_script_noise_depends_on_starting_pose() -> None:
    arm, task = make(ObjectFlipConfig(auto_reset=True))
    arm.reset(0)
    drive(arm, task, lambda reading: np.array((0.0, 0.0, -0.3), np.float32), 20)
    here = arm.observe()
    pose = here.state["tcp_pose"] + np.float32(1e-6)
    there = replace(here, state={**here.state, "tcp_pose": pose})
    first, again, elsewhere = (task.reset(each) for each in (here, here, there))
    assert first is not None
    assert again is not None
    assert elsewhere is not None
    action = first(here)
    assert np.array_equal(again(here), action)
    assert np.abs(elsewhere(here) - action).max() > 1e-3, "the same reading gives different noise"


def test_sliding_patty_is_not_ready() -> None:
    arm, task = make(ObjectFlipConfig(auto_reset=True))
    task.begin(arm.reset(0))
    task.observation(arm.observe())
    still = np.zeros(3, np.float32)
    arm.data.qvel[-6] = 0.3
    slides = []
    for _ in range(20):
        arm.act(still)
        arm.advance(0.05)
        task.observation(arm.observe())
        slides.append(task.reset(arm.observe()) is not None)
    assert slides[0], "a moving patty in a level pan needs a reset"
    assert not slides[-1]
    task.observation(arm.reset(1))
    assert task.reset(arm.observe()) is None, "motion before the start is ignored"
