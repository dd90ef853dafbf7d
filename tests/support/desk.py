"""Learner with its transport, replay, metrics and checkpoints at hand, and episodes for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from serl.agent import State
from serl.log.metrics import Row
from serl.loop import EpisodeKey
from serl.policy import RandomPolicy
from serl.runs.task_setup import make_spec
from serl.testing import FakeRobot, FakeTask, InProcess, episode
from serl.training.learner import Learner, LearnerConfig
from serl.training.replay import Replay
from serl.transport import Snapshot
from serl.types import Action, ActionSource, Array, Arrival, Batch, Observation, Record, Step

BATCH, UTD = 8, 2


class CountingAgent:
    """Agent that counts its updates; its weights are the count."""

    def __init__(self) -> None:
        self.updates = 0
        self.batches: list[Batch] = []
        self.normalised: Array | None = None
        self.broken = False

    def act(self, observation: Observation, explore: bool) -> Action:
        return np.zeros(2, np.float32)

    def fit_normaliser(self, states: Array) -> None:
        self.normalised = states

    def update(self, batch: Batch) -> dict[str, float]:
        self.updates += 1
        self.batches.append(batch)
        return {"q": float(self.updates), "critic_loss": 0.5}

    def actor_weights(self) -> State:
        return {"w": np.full(1, np.nan if self.broken else self.updates, np.float32)}

    def load_actor_weights(self, weights: State) -> None:
        self.updates = int(weights["w"][0])

    def state_dict(self) -> State:
        return {"updates": np.array(self.updates), **self.actor_weights()}

    def load_state_dict(self, state: State) -> None:
        self.updates = int(state["updates"])


class MemoryMetrics:
    """Metrics writer that keeps its rows in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Row]] = []

    def write(self, steps: int, row: Row) -> None:
        self.rows.append((steps, row))

    def rows_of(self, kind: type[Row]) -> list[tuple[int, Any]]:
        return [(steps, row) for steps, row in self.rows if isinstance(row, kind)]


class RecordingTransport(InProcess):
    """Transport that keeps every published snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots: list[Snapshot] = []

    def publish(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot)
        super().publish(snapshot)


class LearnerBench:
    """Learner with its agent, replay, transport, metrics and saved checkpoints at hand."""

    def __init__(
        self,
        log: Iterable[Record] = (),
        transport: RecordingTransport | None = None,
        period_s: float = 0.0,
        **settings: Any,
    ) -> None:
        self.accepted: list[Arrival] = []
        self.agent, self.transport, self.metrics = (
            CountingAgent(),
            transport or RecordingTransport(),
            MemoryMetrics(),
        )
        clock = count(step=period_s)
        self.replay = Replay(make_spec(FakeTask()), 5000, discount=0.9)
        self.saved: list[tuple[int, dict[str, State], dict[str, Any]]] = []
        self.learner = Learner(
            self.agent,
            self.replay,
            self.transport,
            LearnerConfig(**{"publish_every": 10, "metrics_every": 20, **settings}),
            BATCH,
            UTD,
            rate_hz=10.0,
            metrics=self.metrics,
            save=lambda step, arrays, info: self.saved.append((step, arrays, info)),
            accept=self.accepted.extend,
            log=log,
            monotonic_s=lambda: next(clock),
        )

    def run(self, steps: int) -> None:
        """Train until `steps` steps have been trained on, or no more data arrive."""
        idle = 0

        def stuck() -> bool:
            nonlocal idle
            idle += 1
            return idle > 1000

        self.learner.run(steps, stuck, idle_s=0.0)

    def resume_from(self, other: LearnerBench) -> None:
        """Resume from the last checkpoint of another bench."""
        _, arrays, info = other.saved[-1]
        self.learner.resume(arrays, info, sum(count for _, _, count in info["taken"]))


def episodes(
    count: int, actor: str = "a", source: ActionSource = ActionSource.POLICY, first: int = 0
) -> Iterator[Record]:
    """Yield random episodes of an actor, each of at most 30 steps."""
    robot, task = FakeRobot(), FakeTask()
    for number in range(first, first + count):
        key = EpisodeKey("run", actor, 1, number)
        policy = RandomPolicy(robot.action_spec, number)
        for record in episode(robot, task, policy, number, key):
            if isinstance(record, Step) and source is not ActionSource.POLICY:
                record = chosen_by(record, source)
            yield record


def chosen_by(step: Step, source: ActionSource) -> Step:
    return Step(**{name: getattr(step, name) for name in Step.__slots__} | {"source": source})


def count_steps(records: Iterable[Record]) -> int:
    return sum(isinstance(record, Step) for record in records)


def states(batches: Sequence[Batch]) -> list[list[float]]:
    return [batch.state.ravel().tolist() for batch in batches]
