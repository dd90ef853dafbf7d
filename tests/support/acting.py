"""An actor on the fake task, and agents whose weights are their action."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from serl.agent import State
from serl.clock import VirtualClock
from serl.errors import SpecMismatch
from serl.policy import Policy
from serl.testing import FakeRobot, FakeTask, InProcess
from serl.training.actor import Actor, ActorConfig
from serl.training.learned_policy import LearnedPolicy
from serl.transport import Snapshot
from serl.types import Action, Batch, Observation, Record, Step


class Constant:
    """An agent whose weights are its action."""

    def __init__(self) -> None:
        self.action = np.zeros(2, np.float32)

    def act(self, observation: Observation, explore: bool) -> Action:
        return self.action.copy()

    def fit_normaliser(self, states: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> None:
        raise NotImplementedError

    def update(self, batch: Batch) -> dict[str, float]:
        raise NotImplementedError

    def actor_weights(self) -> State:
        return {"action": self.action}

    def load_actor_weights(self, weights: State) -> None:
        if weights.keys() != {"action"} or not np.isfinite(weights["action"]).all():
            raise SpecMismatch("weights: expected a finite action")
        self.action = np.asarray(weights["action"], np.float32)

    state_dict = actor_weights
    load_state_dict = load_actor_weights


def snapshot(version: int, value: float, trained: int = 0) -> Snapshot:
    return Snapshot(version, {"actor": trained}, {"action": np.full(2, value, np.float32)})


class Stage:
    """An actor on the fake task, and what it sent."""

    def __init__(
        self,
        place: bool = True,
        stopping: Callable[[], bool] = lambda: False,
        pace: Callable[[], None] = lambda: None,
    ) -> None:
        self.weights, self.records = InProcess(), list[Record]()
        self.robot, self.task = FakeRobot(), FakeTask()
        self.policy = LearnedPolicy(Constant(), self.weights)
        self.actor = Actor(
            name="actor",
            run="run",
            robot=self.robot,
            task=self.task,
            policy=self.policy,
            clock=VirtualClock(self.robot.advance, self.task.config.rate_hz, pace),
            sink=self.records.append,
            config=ActorConfig(reset_time_limit_s=2.0),
            place=self.robot.reset if place else None,
            epoch=9,
            stopping=stopping,
        )

    def run(self, episodes: int) -> None:
        for _, _ in zip(range(episodes), self.actor.episodes(), strict=False):
            pass

    @property
    def steps(self) -> list[Step]:
        return [record for record in self.records if isinstance(record, Step)]


class Acting(LearnedPolicy):
    """A learned policy that acts as another one does."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(Constant(), InProcess())
        self._policy = policy

    def __call__(self, observation: Observation) -> Action:
        return self._policy(observation)
