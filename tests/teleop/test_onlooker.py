from __future__ import annotations

import pytest

from serl.errors import Silent
from serl.robot import Truth
from serl.teleop.scripted import Onlooker
from serl.testing import FakeRobot
from serl.types import Observation


class Fading(FakeRobot):
    """A robot that falls silent."""

    silent = False

    def observe(self) -> Observation:
        if self.silent:
            raise Silent("nothing new")
        return super().observe()

    def truth(self) -> Truth:
        if self.silent:
            raise Silent("nothing new")
        return super().truth()


def test_the_last_is_seen_when_there_is_nothing_new() -> None:
    robot = Fading()
    onlooker = Onlooker(robot)
    seen, known = onlooker.observe(), onlooker.truth()
    robot.silent = True
    assert onlooker.observe() is seen
    assert onlooker.truth() is known


def test_before_the_first_there_is_nothing_to_see() -> None:
    robot = Fading()
    robot.silent = True
    onlooker = Onlooker(robot)
    for look in (onlooker.observe, onlooker.truth):
        with pytest.raises(Silent):
            look()
