"""Conformance suite for agents: a correct fake passes, broken fakes are caught."""

from __future__ import annotations

import numpy as np
import pytest

from serl.agent import Agent, State
from serl.errors import SpecMismatch
from serl.specs import Spec
from serl.testing import (
    AgentSuite,
    FakeRobot,
    FakeTask,
    failures,
)
from serl.types import Action, Array, Batch, Observation

FAKE_SPEC = Spec(
    task="fake",
    observation=FakeTask.observation_spec,
    action=FakeRobot.action_spec,
    rate_hz=10.0,
)


class FakeAgent:
    """Linear policy that each update moves by noise and towards the batch's actions."""

    def __init__(self, spec: Spec) -> None:
        shape = (spec.observation.state_size, *spec.action.shape)
        self._spec = spec
        self._weight = np.zeros(shape, np.float32)
        self._scale = np.ones(1, np.float32)
        self._drawn = 0

    def fit_normaliser(self, states: Array) -> None:
        self._scale[:] = max(float(np.abs(states).max()), 1.0)

    def act(self, observation: Observation, explore: bool) -> Action:
        state = self._spec.observation.flatten(observation) / self._scale
        noise = self._draw(self._spec.action.shape) if explore else 0.0
        return np.asarray(np.tanh(state @ self._weight + noise), np.float32)

    def update(self, batch: Batch) -> dict[str, float]:
        towards: Array = batch.state.T @ batch.action / np.float32(len(batch.reward))
        change = np.float32(0.1) * (towards + self._draw(self._weight.shape))
        if np.isfinite(change).all():
            self._weight = np.asarray(self._weight + change, np.float32)
        return {"size": float(np.abs(self._weight).max())}

    def actor_weights(self) -> State:
        return {"scale": self._scale.copy(), "weight": self._weight.copy()}

    def load_actor_weights(self, weights: State) -> None:
        self._check(weights, self.actor_weights())
        self._scale, self._weight = weights["scale"].copy(), weights["weight"].copy()

    def state_dict(self) -> State:
        return {"drawn": np.array([self._drawn]), **self.actor_weights()}

    def load_state_dict(self, state: State) -> None:
        self._check(state, self.state_dict())
        self.load_actor_weights({name: state[name] for name in ("scale", "weight")})
        self._drawn = int(state["drawn"][0])

    def _check(self, found: State, own: State) -> None:
        fits = found.keys() == own.keys() and all(
            found[name].shape == own[name].shape
            and found[name].dtype == own[name].dtype
            and np.isfinite(found[name]).all()
            for name in own
        )
        if not fits:
            raise SpecMismatch("weights do not fit")

    def _draw(self, shape: tuple[int, ...]) -> Array:
        self._drawn += 1
        return np.random.default_rng(self._drawn).normal(size=shape).astype(np.float32)


class TestFakeAgent(AgentSuite):
    def make(self) -> tuple[Agent, Spec]:
        return FakeAgent(FAKE_SPEC), FAKE_SPEC


class OutOfBounds(FakeAgent):
    def act(self, observation: Observation, explore: bool) -> Action:
        return super().act(observation, explore) + 1.5


class DividesByZero(FakeAgent):
    def fit_normaliser(self, states: Array) -> None:
        self._scale[:] = states.std() or np.nan


class NeverExplores(FakeAgent):
    def act(self, observation: Observation, explore: bool) -> Action:
        return super().act(observation, False)


class AlwaysExplores(FakeAgent):
    def act(self, observation: Observation, explore: bool) -> Action:
        return super().act(observation, True)


class LearnsNothing(FakeAgent):
    def update(self, batch: Batch) -> dict[str, float]:
        return {}


class ReportsNaN(FakeAgent):
    def update(self, batch: Batch) -> dict[str, float]:
        return {**super().update(batch), "loss": float("nan")}


class WritesToBatch(FakeAgent):
    def update(self, batch: Batch) -> dict[str, float]:
        batch.reward[:] -= 1.0
        return super().update(batch)


class LearnsFromNaN(FakeAgent):
    def update(self, batch: Batch) -> dict[str, float]:
        self._weight = self._weight + batch.reward.mean()
        return super().update(batch)


class HandsOutItself(FakeAgent):
    def update(self, batch: Batch) -> dict[str, float]:
        self._weight += 0.1
        return {}

    def actor_weights(self) -> State:
        return {"scale": self._scale, "weight": self._weight}


class OwnNoise(FakeAgent):
    made = 0

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        OwnNoise.made += 1
        self._drawn = 1000 * OwnNoise.made


class ForgetsItsScale(FakeAgent):
    def load_actor_weights(self, weights: State) -> None:
        scale = self._scale
        super().load_actor_weights(weights)
        self._scale = scale


class ForgetsItsGenerator(FakeAgent):
    def load_state_dict(self, state: State) -> None:
        drawn = self._drawn
        super().load_state_dict(state)
        self._drawn = drawn


class LoadsHalf(FakeAgent):
    def load_actor_weights(self, weights: State) -> None:
        self._scale[:] = weights.get("scale", self._scale) + 1.0
        super().load_actor_weights(weights)


class LoadsAnything(FakeAgent):
    def _check(self, found: State, own: State) -> None:
        pass


@pytest.mark.parametrize(
    ("agent", "caught_by"),
    [
        (OutOfBounds, "test_actions_fit_their_spec"),
        (DividesByZero, "test_actions_fit_their_spec"),
        (NeverExplores, "test_only_exploration_is_random"),
        (AlwaysExplores, "test_only_exploration_is_random"),
        (LearnsNothing, "test_updates_change_the_actor"),
        (ReportsNaN, "test_updates_change_the_actor"),
        (WritesToBatch, "test_updates_change_the_actor"),
        (LearnsFromNaN, "test_a_batch_that_is_not_finite_changes_no_weights"),
        (HandsOutItself, "test_weights_are_copies"),
        (OwnNoise, "test_equal_agents_learn_equally"),
        (ForgetsItsScale, "test_the_actor_part_is_all_that_acting_needs"),
        (ForgetsItsGenerator, "test_a_restored_agent_continues_exactly"),
        (LoadsHalf, "test_weights_that_do_not_fit_are_refused_whole"),
        (LoadsAnything, "test_weights_that_do_not_fit_are_refused_whole"),
        (LoadsAnything, "test_a_state_that_does_not_fit_is_refused_whole"),
    ],
)
def test_agent_suite_catches_broken_agents(agent: type[FakeAgent], caught_by: str) -> None:
    class Suite(AgentSuite):
        def make(self) -> tuple[Agent, Spec]:
            return agent(FAKE_SPEC), FAKE_SPEC

    assert caught_by in failures(Suite())
