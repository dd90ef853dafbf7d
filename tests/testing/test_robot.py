"""Conformance suites for robots: a correct fake passes, broken ones are caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serl.robot import Truth
from serl.testing import (
    FakeRobot,
    SimulatedRobotSuite,
    failures,
)
from serl.types import Action, Array, Observation


class TestFakeRobot(SimulatedRobotSuite):
    def make(self) -> FakeRobot:
        return FakeRobot()


class NotANumber(FakeRobot):
    def observe(self) -> Observation:
        self.broken = True
        return super().observe()


class Unstamped(FakeRobot):
    def observe(self) -> Observation:
        return Observation(state=super().observe().state)


class Unordered(FakeRobot):
    def observe(self) -> Observation:
        reading = super().observe()
        return Observation(dict(sorted(reading.state.items(), reverse=True)), stamps=reading.stamps)


class SharesItsReading(FakeRobot):
    def observe(self) -> Observation:
        reading = super().observe()
        shared = self.__dict__.setdefault("shared", reading)
        for name, value in reading.state.items():
            shared.state[name][:] = value
        return Observation(shared.state, stamps=reading.stamps)


class SharesItsPicture(FakeRobot):
    picture = np.zeros((2, 2, 3), np.uint8)

    def observe(self) -> Observation:
        self.picture[:] = round(10 * self._time_s)
        reading = super().observe()
        return Observation(reading.state, {"front": self.picture}, reading.stamps)


class ChangesTheAction(FakeRobot):
    def act(self, action: Action) -> Action:
        executed = super().act(action)
        action *= 0.5
        return executed


class AcceptsAnything(FakeRobot):
    def act(self, action: Action) -> Action:
        fitting = np.resize(np.nan_to_num(action), self.action_spec.shape)
        return super().act(np.clip(fitting, -1, 1).astype(np.float32))


class ReportsMotionWhileStopped(FakeRobot):
    def act(self, action: Action) -> Action:
        super().act(action)
        return action.copy()


class IgnoresStops(FakeRobot):
    def stop(self, reason: str) -> None:
        pass


class NeverRecovers(FakeRobot):
    def recover(self) -> None:
        pass


class UnseededStart(FakeRobot):
    starts = 0

    def reset(self, seed: int) -> Observation:
        UnseededStart.starts += 1
        return super().reset(UnseededStart.starts)


class IgnoresSeed(FakeRobot):
    def reset(self, seed: int) -> Observation:
        return super().reset(0)


class RemembersTheLastEpisode(FakeRobot):
    def reset(self, seed: int) -> Observation:
        target = getattr(self, "_target", None)
        reading = super().reset(seed)
        self._target = self._target if target is None else target
        return reading


class MovesWithoutTime(FakeRobot):
    def observe(self) -> Observation:
        self.advance(0.01)
        return super().observe()


class TimeGoesBack(FakeRobot):
    def advance(self, dt_s: float) -> None:
        super().advance(dt_s)
        self._time_s -= 2 * dt_s


class SharesItsTruth(FakeRobot):
    def truth(self) -> Truth:
        shared: dict[str, Array] = self.__dict__.setdefault("shared", dict(super().truth()))
        shared["position"][:] = self._position
        return shared


class EntersAnotherRobot(FakeRobot):
    def __enter__(self) -> Any:
        return FakeRobot()


class WithoutRecover:
    """Robot that lacks only the method `recover`."""

    def __init__(self) -> None:
        self._robot = FakeRobot()

    def __getattr__(self, name: str) -> Any:
        if name in {"recover", "_robot"}:
            raise AttributeError(name)
        return getattr(self._robot, name)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("robot", "caught_by"),
    [
        (NotANumber, "test_readings_fit_their_spec"),
        (Unstamped, "test_readings_fit_their_spec"),
        (Unordered, "test_readings_fit_their_spec"),
        (SharesItsReading, "test_a_reading_never_changes"),
        (SharesItsPicture, "test_a_reading_never_changes"),
        (ChangesTheAction, "test_act_returns_the_executed_action"),
        (AcceptsAnything, "test_act_refuses_nonsense"),
        (ReportsMotionWhileStopped, "test_stop_keeps_actions_from_the_robot"),
        (IgnoresStops, "test_stop_keeps_actions_from_the_robot"),
        (IgnoresStops, "test_a_stopped_robot_does_not_move"),
        (NeverRecovers, "test_a_stopped_robot_does_not_move"),
        (UnseededStart, "test_equal_seeds_place_equal_starts"),
        (IgnoresSeed, "test_equal_seeds_place_equal_starts"),
        (RemembersTheLastEpisode, "test_the_same_actions_lead_to_the_same_place"),
        (MovesWithoutTime, "test_time_passes_in_advance_only"),
        (TimeGoesBack, "test_stamps_never_go_back"),
        (SharesItsTruth, "test_the_truth_is_named_arrays"),
        (EntersAnotherRobot, "test_is_a_robot"),
        (WithoutRecover, "test_is_a_robot"),
    ],
)
def test_robot_suite_catches_broken_robots(robot: Callable[[], Any], caught_by: str) -> None:
    class Suite(SimulatedRobotSuite):
        def make(self) -> Any:
            return robot()

    assert caught_by in failures(Suite())
