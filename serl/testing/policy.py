"""Conformance of policies and of teleoperation devices."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from serl.intervention import Event, Teleop
from serl.policy import Policy
from serl.specs import ArraySpec, ObservationSpec
from serl.testing.samples import copies, equal, random_observation


class PolicySuite(ABC):
    """What `serl.policy.Policy` promises."""

    @abstractmethod
    def make(self) -> tuple[Policy, ObservationSpec, ArraySpec]:
        """A policy, what it sees, and what it answers with."""

    def test_actions_fit_their_spec(self) -> None:
        """For any observation within its spec."""
        policy, seen, answer = self.make()
        rng = np.random.default_rng(0)
        for _ in range(20):
            answer.validate_array(policy(random_observation(seen, rng)), "action")

    def test_an_observation_is_only_read(self) -> None:
        """Its arrays stay as they were."""
        policy, seen, _ = self.make()
        observation = random_observation(seen, np.random.default_rng(0))
        before = copies(observation.state)
        policy(observation)
        assert equal(observation.state, before), "the policy changed its observation"

    def test_an_action_never_changes(self) -> None:
        """What was answered stays as it was while the policy goes on."""
        policy, seen, _ = self.make()
        rng = np.random.default_rng(0)
        action = policy(random_observation(seen, rng))
        before = action.copy()
        for _ in range(3):
            policy(random_observation(seen, rng))
        assert np.array_equal(action, before), "an earlier action changed"


class TeleopSuite(ABC):
    """What `serl.intervention.Teleop` promises, with nobody or somebody at the device."""

    @abstractmethod
    def make(self) -> tuple[Teleop, ArraySpec]:
        """A device, and what its actions must fit."""

    def test_actions_fit_their_spec(self) -> None:
        """Or are None, in one episode and the next."""
        teleop, spec = self.make()
        for _ in range(2):
            teleop.begin()
            for _ in range(20):
                action = teleop()
                if action is not None:
                    spec.validate_array(action, "action")

    def test_events_are_told_once(self) -> None:
        """A tuple of events, empty when asked again at once."""
        teleop, _ = self.make()
        teleop.begin()
        teleop()
        events = teleop.events()
        assert isinstance(events, tuple)
        assert all(isinstance(event, Event) for event in events)
        assert teleop.events() == (), "an event was told twice"
