from __future__ import annotations

import pytest

from serl.errors import Silent
from serl.robot import Truth
from serl.teleop.scripted import CachedView
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


def test_the_last_values_are_repeated_during_a_silence() -> None:
    robot = Fading()
    view = CachedView(robot)
    seen, known = view.observe(), view.truth()
    robot.silent = True
    assert view.observe() is seen
    assert view.truth() is known


def test_before_the_first_reading_it_raises() -> None:
    robot = Fading()
    robot.silent = True
    view = CachedView(robot)
    for look in (view.observe, view.truth):
        with pytest.raises(Silent):
            look()
