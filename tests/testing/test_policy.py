"""Conformance suites for policies and devices: correct ones pass, broken ones are caught."""

from __future__ import annotations

import numpy as np
import pytest

from serl.intervention import Event, NoOperator, Teleop
from serl.policy import Policy, RandomPolicy, ZeroPolicy
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing import (
    FakeRobot,
    FakeTask,
    PolicySuite,
    TeleopSuite,
    failures,
)
from serl.types import Action, Observation

FAKE_SPEC = Spec(
    task="fake",
    observation=FakeTask.observation_spec,
    action=FakeRobot.action_spec,
    rate_hz=10.0,
)


class TestHold(PolicySuite):
    def make(self) -> tuple[Policy, ObservationSpec, ArraySpec]:
        return ZeroPolicy(FAKE_SPEC.action), FAKE_SPEC.observation, FAKE_SPEC.action


class TestRandom(PolicySuite):
    def make(self) -> tuple[Policy, ObservationSpec, ArraySpec]:
        return RandomPolicy(FAKE_SPEC.action, seed=0), FAKE_SPEC.observation, FAKE_SPEC.action


class TestNoOperator(TeleopSuite):
    def make(self) -> tuple[Teleop, ArraySpec]:
        return NoOperator(), FAKE_SPEC.action


class ReusesActionArray(RandomPolicy):
    def __call__(self, observation: Observation) -> Action:
        action = super().__call__(observation)
        shared: Action = self.__dict__.setdefault("shared", action)
        shared[:] = action
        return shared


class ExceedsBounds(RandomPolicy):
    def __call__(self, observation: Observation) -> Action:
        return super().__call__(observation) * 3.0


class WritesToObservation(RandomPolicy):
    def __call__(self, observation: Observation) -> Action:
        observation.state["position"][:] = 0.0
        return super().__call__(observation)


@pytest.mark.parametrize(
    ("policy", "caught_by"),
    [
        (ReusesActionArray, "test_an_action_never_changes"),
        (ExceedsBounds, "test_actions_fit_their_spec"),
        (WritesToObservation, "test_an_observation_is_only_read"),
    ],
)
def test_policy_suite_catches_broken_policies(policy: type[RandomPolicy], caught_by: str) -> None:
    class Suite(PolicySuite):
        def make(self) -> tuple[Policy, ObservationSpec, ArraySpec]:
            return policy(FAKE_SPEC.action, 0), FAKE_SPEC.observation, FAKE_SPEC.action

    assert caught_by in failures(Suite())


class RepeatsEvents(NoOperator):
    def events(self) -> tuple[Event, ...]:
        return (Event.SUCCESS,)


class ExceedsActionBounds(NoOperator):
    def __call__(self) -> Action | None:
        return np.full(2, 2.0, np.float32)


@pytest.mark.parametrize(
    ("teleop", "caught_by"),
    [
        (RepeatsEvents, "test_events_are_reported_once"),
        (ExceedsActionBounds, "test_actions_fit_their_spec"),
    ],
)
def test_teleop_suite_catches_broken_devices(teleop: type[NoOperator], caught_by: str) -> None:
    class Suite(TeleopSuite):
        def make(self) -> tuple[Teleop, ArraySpec]:
            return teleop(), FAKE_SPEC.action

    assert caught_by in failures(Suite())
