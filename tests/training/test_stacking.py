"""What a policy sees of the last frames, and that replay learns from the same."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from serl.training.frames import FrameStack
from serl.training.replay import Replay
from serl.types import ActionSource, Observation

from ..support.plans import SPEC, Plan, frame


def names(stack: NDArray[np.uint8]) -> list[int]:
    """Which frames lie behind each other."""
    return [int(name) for name in stack[0, 0, ::3]]


def shown(plan: Plan, frames: int) -> dict[int, list[int]]:
    """What a policy sees in an episode, by the name of the newest frame."""
    stack, seen = FrameStack(frames), {}
    stack.begin()
    for record in plan.records():
        images = stack(record.observation).images
        seen[int(record.observation.state["name"][0])] = names(images["wrist"])
    return seen


def test_one_frame_changes_nothing() -> None:
    observation = frame(3)
    assert FrameStack(1)(observation) is observation
    blind = Observation(observation.state)
    assert FrameStack(3)(blind) is blind


def test_an_episode_begins_as_if_its_first_frame_had_always_been_there() -> None:
    stack = FrameStack(3)
    seen = [names(stack(frame(name)).images["wrist"]) for name in (1, 2, 3, 4)]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    stack.begin()
    assert names(stack(frame(9)).images["wrist"]) == [9, 9, 9]


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize(("capacity", "whole"), [(15, 10), (60, 50)])
def test_replay_samples_what_the_policy_saw(frames: int, capacity: int, whole: int) -> None:
    """Over the ends of episodes, takeovers, actors that interleave, and more than one ring."""
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
    assert kept >= set(newest), "only what lost a frame is forgotten"


def test_demonstrations_are_stacked_and_a_gap_begins_anew() -> None:
    replay = Replay(SPEC, 20, 0.5, stacked=2)
    records = list(Plan([ActionSource.SCRIPT] * 4, "terminated").records())
    for record in (records[0], records[1], records[3], records[4]):
        replay.add(record, prior=True)
    batch = replay.sample(50)
    seen = {tuple(names(image)) for image in batch.images["wrist"]}
    assert seen == {(0, 0), (3, 3)}
