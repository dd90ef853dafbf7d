"""Conformance tests of policies and of `Teleop` implementations."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from serl.intervention import Event, Teleop
from serl.policy import Policy
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import contents, equal, random_observation


class PolicySuite(ABC):
    """Conformance tests of `serl.policy.Policy`."""

    @abstractmethod
    def make(self) -> tuple[Policy, ObservationSpec, ArraySpec]:
        """Return a policy and the specs of its observations and its actions."""

    def test_actions_fit_their_spec(self) -> None:
        """Check that actions fit their spec for random observations that fit theirs."""
        policy, seen, answer = self.make()
        rng = np.random.default_rng(0)
        for _ in range(20):
            answer.validate_array(policy(random_observation(seen, rng)), "action")

    def test_an_observation_is_only_read(self) -> None:
        """Check that the policy does not modify its observation."""
        policy, seen, _ = self.make()
        observation = random_observation(seen, np.random.default_rng(0))
        before = contents(observation)
        policy(observation)
        assert equal(contents(observation), before), "the policy changed its observation"

    def test_an_action_never_changes(self) -> None:
        """Check that a returned action does not change in later calls of the policy."""
        policy, seen, _ = self.make()
        rng = np.random.default_rng(0)
        action = policy(random_observation(seen, rng))
        before = action.copy()
        for _ in range(3):
            policy(random_observation(seen, rng))
        assert np.array_equal(action, before), "an earlier action changed"


class TeleopSuite(ABC):
    """Conformance tests of `serl.intervention.Teleop`, with or without operator input."""

    @abstractmethod
    def make(self) -> tuple[Teleop, ArraySpec]:
        """Return a device and the spec of its actions."""

    def test_actions_fit_their_spec(self) -> None:
        """Check that actions fit their spec or are None, in two episodes."""
        teleop, spec = self.make()
        for _ in range(2):
            teleop.begin()
            for _ in range(20):
                action = teleop()
                if action is not None:
                    spec.validate_array(action, "action")

    def test_events_are_reported_once(self) -> None:
        """Check that events are a tuple, which is empty when queried again immediately."""
        teleop, _ = self.make()
        teleop.begin()
        teleop()
        events = teleop.events()
        assert isinstance(events, tuple)
        assert all(isinstance(event, Event) for event in events)
        assert teleop.events() == (), "an event was reported twice"
