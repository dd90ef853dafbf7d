from __future__ import annotations

import numpy as np
import pytest

from serl.errors import Silent
from serl.testing import FakeRobot
from serl.types import End, Observation

from .acting import Stage


def test_episodes_are_counted_and_start_where_they_are_placed() -> None:
    stage = Stage()
    stage.run(3)
    assert [r.key.episode for r in stage.records if isinstance(r, End)] == [0, 1, 2]
    assert {record.key.epoch for record in stage.records} == {9}
    firsts = [step.observation for step in stage.steps if step.key.index == 0]
    for seed, first in enumerate(firsts):
        np.testing.assert_array_equal(
            first.state["position"], FakeRobot().reset(seed).state["position"]
        )


def test_a_robot_that_is_silent_before_the_first_step_is_placed_anew() -> None:
    stage, silences = Stage(), [2]
    observe = stage.robot.observe

    def fading() -> Observation:
        if silences[0] > 0:
            silences[0] -= 1
            raise Silent("no news")
        return observe()

    stage.robot.observe = fading  # type: ignore[method-assign]
    stage.actor.place = None
    stage.run(1)
    keys = [record.key for record in stage.records]
    assert {key.episode for key in keys} == {0}, "an episode that never began has no number"
    silences[0] = 100
    with pytest.raises(Silent, match="no news"):
        stage.run(1)


def test_an_epoch_never_repeats() -> None:
    epochs = set()
    for _ in range(3):
        stage = Stage()
        stage.actor.epoch = 0
        stage.actor.__post_init__()
        epochs.add(stage.actor.epoch)
    assert len(epochs) == 3


def test_stopping_ends_the_episode_and_the_actor() -> None:
    stage = Stage()
    stage.actor.stopping = lambda: len(stage.steps) >= 40
    stage.run(9)
    assert len(stage.steps) == 41  # the one under way is the last
    assert isinstance(stage.records[-1], End)
    assert stage.records[-1].reason == "interrupted"


def test_a_held_robot_waits_before_its_episode_and_recovers() -> None:
    stage, held = Stage(place=False), [False, True, False]

    def standby() -> bool:
        if held[0]:
            assert stage.robot.stop_reason
        return held.pop(0) if len(held) > 1 else held[0]

    stage.robot.reset(0)
    stage.robot.stop("by a person")
    stage.actor.standby = standby
    stage.run(1)
    assert stage.robot.stop_reason == ""


def test_nobody_recovers_a_robot_that_no_person_held() -> None:
    stage = Stage(place=False)
    stage.robot.reset(0)
    stage.robot.stop("a fault")
    stage.run(1)
    assert stage.robot.stop_reason == "a fault"


def test_who_is_stopped_while_held_moves_no_more() -> None:
    stopping = False

    def standby() -> bool:
        nonlocal stopping
        stopping = True
        return True

    stage = Stage(stopping=lambda: stopping)
    stage.actor.standby = standby
    stage.run(3)
    assert stage.records == []
