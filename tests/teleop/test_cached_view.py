from __future__ import annotations

import pytest

from serl.errors import Silent
from serl.robot import Truth
from serl.teleop.scripted import CachedView
from serl.testing import FakeRobot
from serl.types import Observation


class SilencedRobot(FakeRobot):
    """Robot that raises `Silent` while `silent` is set."""

    silent = False

    def observe(self) -> Observation:
        if self.silent:
            raise Silent("nothing new")
        return super().observe()

    def truth(self) -> Truth:
        if self.silent:
            raise Silent("nothing new")
        return super().truth()


def test_cached_view_repeats_last_values_while_robot_is_silent() -> None:
    robot = SilencedRobot()
    view = CachedView(robot)
    seen, known = view.observe(), view.truth()
    robot.silent = True
    assert view.observe() is seen
    assert view.truth() is known


def test_cached_view_raises_before_first_reading() -> None:
    robot = SilencedRobot()
    robot.silent = True
    view = CachedView(robot)
    for look in (view.observe, view.truth):
        with pytest.raises(Silent):
            look()
