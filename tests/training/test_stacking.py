"""Frame stacking: policy and replay see the same stacks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from serl.training.frames import FrameStack
from serl.training.replay import Replay
from serl.types import ActionSource, Observation

from ..support.plans import SPEC, Plan, frame


def names(stack: NDArray[np.uint8]) -> list[int]:
    """Return the names of the stacked frames, oldest first."""
    return [int(name) for name in stack[0, 0, ::3]]


def shown(plan: Plan, frames: int) -> dict[int, list[int]]:
    """Map each newest frame's name to the stack the policy sees in the episode."""
    stack, seen = FrameStack(frames), {}
    stack.begin()
    for record in plan.records():
        images = stack(record.observation).images
        seen[int(record.observation.state["name"][0])] = names(images["wrist"])
    return seen


def test_stack_of_one_frame_returns_observation_unchanged() -> None:
    observation = frame(3)
    assert FrameStack(1)(observation) is observation
    blind = Observation(observation.state)
    assert FrameStack(3)(blind) is blind


def test_episode_start_repeats_its_first_frame() -> None:
    stack = FrameStack(3)
    seen = [names(stack(frame(name)).images["wrist"]) for name in (1, 2, 3, 4)]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    stack.begin()
    assert names(stack(frame(9)).images["wrist"]) == [9, 9, 9]


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize(("capacity", "whole"), [(15, 10), (60, 50)])
def test_replay_samples_what_the_policy_saw(frames: int, capacity: int, whole: int) -> None:
    """Check stacks across episode ends, takeovers, interleaved actors and a wrapped ring."""
    replay, seen = Replay(SPEC, capacity, 0.5, stacked=frames), dict[int, list[int]]()
    acting = [
        ActionSource.POLICY,
        ActionSource.HUMAN,
        ActionSource.HUMAN,
        ActionSource.POLICY,
        ActionSource.POLICY,
    ]
    for number in range(8):
        left = Plan(acting, "truncated", 20 * number, number, actor="a")
        right = Plan(acting, "terminated", 20 * number + 10, number, actor="b")
        seen |= shown(left, frames) | shown(right, frames)
        for pair in zip(left.records(), right.records(), strict=True):
            for record in pair:
                replay.add(record)
    batch = replay.sample(400)
    for now, after, newest in zip(
        batch.images["wrist"], batch.next_images["wrist"], batch.state[:, 0], strict=True
    ):
        assert names(now) == seen[int(newest)]
        assert names(after) == seen[int(newest) + 1]
    kept = {int(name) for name in batch.state[:, 0]}
    newest = sorted(name for name in seen if name + 1 in seen)[-whole:]
    assert kept >= set(newest), "only transitions that lost a frame are removed"


def test_demonstrations_are_stacked_and_a_gap_restarts_the_stack() -> None:
    replay = Replay(SPEC, 20, 0.5, stacked=2)
    records = list(Plan([ActionSource.SCRIPT] * 4, "terminated").records())
    for record in (records[0], records[1], records[3], records[4]):
        replay.add(record, prior=True)
    batch = replay.sample(50)
    seen = {tuple(names(image)) for image in batch.images["wrist"]}
    assert seen == {(0, 0), (3, 3)}
