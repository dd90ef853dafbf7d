"""Conformance tests of agents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np

from serl.agent import Agent, State
from serl.errors import SpecMismatch
from serl.specs import Spec
from serl.testing.samples import assert_refused, contents, equal, random_batch, random_observation
from serl.types import Batch, Observation


class AgentSuite(ABC):
    """Conformance tests of `serl.agent.Agent`.

    Attributes:
        rows: number of transitions in the batch of one `update`.
    """

    rows = 64

    @abstractmethod
    def make(self) -> tuple[Agent, Spec]:
        """Return a new agent, equal to the earlier ones, and its spec."""

    def test_actions_fit_their_spec(self) -> None:
        """Check that actions fit, exploring or not, and that observations are not modified.

        Actions also fit after `fit_normaliser` with states that never change.
        """
        agent, spec = self.make()
        for explore in (False, True):
            for seed in range(5):
                observation = _observation(spec, seed)
                before = contents(observation)
                spec.action.validate_array(agent.act(observation, explore), "action")
                assert equal(contents(observation), before), "act changed its observation"
        agent.fit_normaliser(np.ones((4, spec.observation.state_size), np.float32))
        spec.action.validate_array(
            agent.act(_observation(spec), False), "action after constant states"
        )

    def test_only_exploration_is_random(self) -> None:
        """Check that the mode is deterministic and samples are not."""
        agent, spec = self.make()
        seen = _observation(spec)
        assert np.array_equal(agent.act(seen, False), agent.act(seen, False))
        assert not np.array_equal(agent.act(seen, True), agent.act(seen, True))

    def test_updates_change_the_actor(self) -> None:
        """Check that updates change the actor, report only finite metrics and keep the batch."""
        agent, spec = self.make()
        before = agent.actor_weights()
        batch = self._batch(spec, 0)
        kept = deepcopy(batch)
        for _ in range(3):
            metrics = agent.update(batch)
            assert all(np.isfinite(value) for value in metrics.values()), metrics
        assert not equal(agent.actor_weights(), before), "the actor did not change"
        for name in ("state", "action", "reward", "discount", "next_state"):
            same = np.array_equal(getattr(batch, name), getattr(kept, name))
            assert same, f"update changed {name} of the batch"
        assert equal(batch.images, kept.images), "update changed images of the batch"

    def test_a_batch_that_is_not_finite_changes_no_weights(self) -> None:
        """Check that a non-finite batch changes no weights, and the next finite one does."""
        agent, spec = self.make()
        agent.update(self._batch(spec, 0))
        before = agent.actor_weights()
        poisoned = self._batch(spec, 1)
        for values in (poisoned.state, poisoned.next_state, poisoned.action, poisoned.reward):
            values[:] = np.nan
        agent.update(poisoned)
        assert equal(agent.actor_weights(), before), "it learned from NaN"
        agent.update(self._batch(spec, 2))
        after = agent.actor_weights()
        assert all(np.isfinite(value).all() for value in after.values()), "NaN stayed"
        assert not equal(after, before), "it stopped learning"

    def test_weights_are_copies(self) -> None:
        """Check that returned weights do not change while the agent continues to learn."""
        agent, spec = self.make()
        for given in (agent.actor_weights(), agent.state_dict()):
            before = {name: value.copy() for name, value in given.items()}
            agent.update(self._batch(spec, 0))
            assert equal(given, before), "weights that were handed out changed"

    def test_equal_agents_learn_equally(self) -> None:
        """Check that equal agents have bitwise equal states after equal batches."""
        (agent, spec), (other, _) = self.make(), self.make()
        for seed in range(3):
            agent.update(self._batch(spec, seed))
            other.update(self._batch(spec, seed))
        assert equal(agent.state_dict(), other.state_dict())

    def test_the_actor_part_is_all_that_acting_needs(self) -> None:
        """Check that loaded actor weights, including the normaliser, give equal actions."""
        (agent, spec), (other, _) = self.make(), self.make()
        agent.fit_normaliser(5.0 * self._batch(spec, 0).state + 3.0)
        agent.update(self._batch(spec, 0))
        other.load_actor_weights(agent.actor_weights())
        assert equal(agent.actor_weights(), other.actor_weights())
        assert _modes(agent, spec) == _modes(other, spec)

    def test_a_restored_agent_continues_exactly(self) -> None:
        """Check that the next updates and samples equal those of the original agent."""
        (agent, spec), (other, _) = self.make(), self.make()
        agent.update(self._batch(spec, 0))
        agent.act(_observation(spec), True)
        other.load_state_dict(agent.state_dict())
        for each in (agent, other):
            each.update(self._batch(spec, 1))
        assert equal(agent.state_dict(), other.state_dict())
        seen = _observation(spec)
        assert np.array_equal(agent.act(seen, True), other.act(seen, True))

    def test_weights_that_do_not_fit_are_refused_whole(self) -> None:
        """Check that a missing, foreign, misshapen or non-finite array raises `SpecMismatch`."""
        agent, spec = self.make()
        donor, _ = self.make()
        donor.update(self._batch(spec, 0))
        self._refuses(agent, agent.load_actor_weights, donor.actor_weights(), finite=True)

    def test_a_state_that_does_not_fit_is_refused_whole(self) -> None:
        """Check that a missing, foreign or misshapen array raises `SpecMismatch`."""
        agent, spec = self.make()
        donor, _ = self.make()
        donor.update(self._batch(spec, 0))
        self._refuses(agent, agent.load_state_dict, donor.state_dict(), finite=False)

    def _refuses(
        self, agent: Agent, load: Callable[[State], None], state: State, finite: bool
    ) -> None:
        """Check that a state with its last array damaged is rejected without loading the others."""
        before = agent.state_dict()
        name = next(name for name in reversed(list(state)) if state[name].dtype == np.float32)
        rest = {other: value for other, value in state.items() if other != name}
        damaged: dict[str, State] = {
            f"without {name}": rest,
            "with a foreign name": {**state, "foreign": np.zeros(1, np.float32)},
            f"with {name} of another shape": {**state, name: np.zeros((3, 5, 7), np.float32)},
            f"with {name} of another type": {**state, name: state[name].astype(np.float64)},
        }
        if finite:
            damaged["with NaN"] = {**state, name: np.full_like(state[name], np.nan)}
        for fault, bad in damaged.items():
            assert_refused(SpecMismatch, partial(load, bad), f"weights {fault}")
            assert equal(agent.state_dict(), before), f"weights {fault} were half loaded"

    def _batch(self, spec: Spec, seed: int) -> Batch:
        return random_batch(spec, self.rows, np.random.default_rng(seed))


def _observation(spec: Spec, seed: int = 0) -> Observation:
    return random_observation(spec.observation, np.random.default_rng(seed))


def _modes(agent: Agent, spec: Spec) -> list[list[float]]:
    return [agent.act(_observation(spec, seed), False).tolist() for seed in range(5)]
