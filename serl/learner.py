"""A learner: receive, store, update, publish, checkpoint. It follows the robot, never drives it."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serl.agents.agent import Agent, State
from serl.errors import CorruptData
from serl.metrics import EpisodeRow, EventRow, Row, UpdateRow
from serl.replay import Replay
from serl.transport import LearnerEnd, Snapshot
from serl.types import End, Record, Source, Step

logger = logging.getLogger(__name__)

# A restarted learner counts versions on from beyond what its predecessor may have published since
# the last logged step: actors take only newer ones.
_VERSIONS_AHEAD = 1000

_MEASURED = ("critic_loss", "actor_loss", "q", "temperature", "entropy")


class LearnerConfig(BaseModel):
    """What surrounds the algorithm.

    Attributes:
        capacity: transitions that replay holds, demonstrations included.
        prior_share: share of each batch drawn from demonstrations and human steps.
        n_step: length of the returns.
        warm_up: updates on the demonstrations before the first online step.
        starts_at: online steps before the first update online.
        publish_every: online steps between publications of weights.
        checkpoint_every: online steps between checkpoints.
        metrics_every: online steps between rows of metrics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity: int = Field(200_000, ge=1)
    prior_share: float = Field(0.5, ge=0, le=1)
    n_step: int = Field(1, ge=1)
    warm_up: int = Field(0, ge=0)
    starts_at: int = Field(0, ge=0)
    publish_every: int = Field(20, ge=1)
    checkpoint_every: int = Field(1000, ge=1)
    metrics_every: int = Field(100, ge=1)


class Metrics(Protocol):
    """Takes rows of measurements; `serl.metrics.MetricsWriter` is one."""

    def write(self, steps: int, row: Row) -> None:
        """Append a row."""
        ...


@dataclass
class Progress:
    """Counters of a learner; saved with each checkpoint.

    Attributes:
        received: online steps received (policy and human).
        trained: online steps trained on, by actor.
        version: of the newest published weights.
    """

    received: int = 0
    trained: Counter[str] = field(default_factory=Counter)
    version: int = 0

    @property
    def steps(self) -> int:
        """Online steps trained on."""
        return self.trained.total()


class Learner:
    """Ties updates to environment steps: one `agent.update` per online step, in order of arrival.

    Args:
        agent: what learns.
        replay: already holds the demonstrations.
        transport: brings records, takes weights.
        config: see `LearnerConfig`.
        batch_size: transitions per critic update.
        utd: critic updates per online step, all in one `agent.update`.
        rate_hz: control rate of the task.
        metrics: takes rows.
        save: writes a checkpoint of the given arrays and information.
        progress: counters to go on from.
    """

    def __init__(
        self,
        agent: Agent,
        replay: Replay,
        transport: LearnerEnd,
        config: LearnerConfig,
        batch_size: int,
        utd: int,
        rate_hz: float,
        metrics: Metrics,
        save: Callable[[int, dict[str, State], dict[str, Any]], object],
        progress: Progress | None = None,
    ) -> None:
        self.agent = agent
        self.replay = replay
        self.progress = progress or Progress()
        self._transport = transport
        self._config = config
        self._batch_size = batch_size
        self._utd = utd
        self._metrics = metrics
        self._save = save
        self._untrained: deque[str] = deque()
        self._episodes = EpisodeTracker(metrics, rate_hz)
        self._measured: dict[str, float] = {}
        self._rate = _Rate()
        self._saved_at = self.progress.steps

    def restore(self, records: Iterable[Record]) -> None:
        """Rebuild replay from the log, in the order in which it was received.

        Steps that were logged but not yet trained on are trained on first.
        """
        seen: Counter[str] = Counter()
        for record in records:
            if isinstance(record, Step):
                newest = record.policy_version + _VERSIONS_AHEAD
                self.progress.version = max(self.progress.version, newest)
            self.replay.add(record)
            self._episodes.follow(record)
            if _online(record):
                seen[record.key.actor] += 1
                self.progress.received += 1
                if seen[record.key.actor] > self.progress.trained[record.key.actor]:
                    self._untrained.append(record.key.actor)

    def prepare(self) -> None:
        """In a fresh run: scale observations, warm up on demonstrations."""
        if not len(self.replay):
            return
        self.agent.fit_normaliser(self.replay.prior_states())
        for _ in range(self._config.warm_up):
            self.agent.update(self.replay.sample(self._utd * self._batch_size))

    def run(self, steps: int, stopping: Callable[[], bool], idle_s: float = 0.001) -> None:
        """Learn until `steps` online steps were trained on, or until told to stop."""
        self.publish()
        while self.progress.steps < steps and not stopping():
            if not self.step():
                time.sleep(idle_s)
        self.publish()
        self.checkpoint()

    def step(self) -> bool:
        """Take in what arrived and train on one online step; False when there was nothing to do."""
        arrived = self._transport.receive()
        for record in arrived:
            self._store(record)
        enough = self.progress.received >= self._config.starts_at and len(self.replay) > 0
        ready = bool(self._untrained) and enough
        if ready:
            self._train()
        return ready or bool(arrived)

    def publish(self) -> None:
        """Offer the actor's weights; weights that are not finite are never offered."""
        weights = self.agent.actor_weights()
        if not self._is_finite(weights, "weights not published"):
            return
        self.progress.version += 1
        trained = dict(self.progress.trained)
        self._transport.publish(Snapshot(self.progress.version, trained, weights))

    def checkpoint(self) -> None:
        """Save everything that continuation needs and the log does not hold.

        What is not finite is never saved: the checkpoint before it stays the newest.
        """
        if self._saved_at == self.progress.steps and self.progress.steps:
            return
        state = self.agent.state_dict()
        if not self._is_finite(state, "no checkpoint"):
            return
        arrays = {
            "agent": state,
            "actor": self.agent.actor_weights(),
            "replay": self.replay.sampler_state(),
        }
        info = {
            "trained": dict(self.progress.trained),
            "version": self.progress.version,
            "success": self._episodes.recent_success(),
        }
        self._save(self.progress.steps, arrays, info)
        self._saved_at = self.progress.steps

    def _is_finite(self, arrays: State, otherwise: str) -> bool:
        """Whether all arrays are finite; if not, an event names the first that is not."""
        broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if broken:
            text = f"{otherwise}: {broken[0]} is not finite"
            self._metrics.write(self.progress.steps, EventRow(text))
        return not broken

    def _store(self, record: Record) -> None:
        self.replay.add(record)
        self._episodes.add(record, self.progress.steps, self.progress.version)
        if _online(record):
            self.progress.received += 1
            self._untrained.append(record.key.actor)

    def _train(self) -> None:
        batch = self.replay.sample(self._utd * self._batch_size, self._config.prior_share)
        if self.progress.steps == 0 and self.replay.demonstrations == 0:
            self.agent.fit_normaliser(self.replay.states())
        measured = self.agent.update(batch)
        self.progress.trained[self._untrained.popleft()] += 1
        steps = self.progress.steps
        if steps % self._config.publish_every == 0:
            self.publish()
        self._measured.update(measured)
        if steps % self._config.metrics_every == 0:
            self._metrics.write(steps, self._update_row(steps))
        if steps % self._config.checkpoint_every == 0:
            self.checkpoint()

    def _update_row(self, steps: int) -> UpdateRow:
        measured = {name: self._measured.get(name) for name in _MEASURED}
        return UpdateRow(
            updates=steps,
            updates_per_s=self._rate.of(steps),
            utd=self._utd * steps / max(self.progress.received, 1),
            lag=len(self._untrained),
            weights_version=self.progress.version,
            **measured,
        )


class EpisodeTracker:
    """Turns the stream of records into one row of metrics per episode."""

    def __init__(self, metrics: Metrics, rate_hz: float) -> None:
        self._metrics = metrics
        self._rate_hz = rate_hz
        self._open: dict[str, list[Step]] = {}
        self._successes: deque[bool] = deque(maxlen=20)

    def recent_success(self) -> float:
        """Success rate of the last 20 episodes."""
        return float(np.mean(self._successes)) if self._successes else 0.0

    def add(self, record: Record, steps: int, version: int) -> None:
        """Take a record; an `End` closes its episode and writes a row."""
        episode = self.follow(record)
        if isinstance(record, End) and episode:
            self._metrics.write(steps, self._row(episode, record, version))

    def follow(self, record: Record) -> list[Step]:
        """Take a record without a row for it; an `End` returns its episode unless scripted."""
        if isinstance(record, Step):
            if record.key.index == 0:
                self._open[record.key.actor] = []
            self._open.setdefault(record.key.actor, []).append(record)
            return []
        episode = self._open.pop(record.key.actor, [])
        if all(step.source is Source.SCRIPT for step in episode):
            return []
        self._successes.append(record.success)
        return episode

    def _row(self, steps: list[Step], end: End, version: int) -> EpisodeRow:
        human = [step.source is Source.HUMAN for step in steps]
        before = [False, *human[:-1]]
        return EpisodeRow(
            actor=end.key.actor,
            episode=end.key.episode,
            length=len(steps),
            success=end.success,
            assisted=any(human),
            reward=sum(step.reward for step in steps),
            human_steps=sum(human),
            interventions=sum(now and not was for was, now in zip(before, human, strict=True)),
            reason=end.reason,
            duration_s=len(steps) / self._rate_hz,
            weight_age=max(0, version - steps[-1].policy_version),  # a resumed one counts anew
        )


class _Rate:
    """Steps per second between two calls."""

    def __init__(self) -> None:
        self._at: tuple[int, float] | None = None

    def of(self, steps: int) -> float:
        now_s = time.monotonic()
        before, self._at = self._at, (steps, now_s)
        return (steps - before[0]) / max(now_s - before[1], 1e-9) if before else 0.0


def _online(record: Record) -> bool:
    """Steps of the policy and of a human enter replay and the update budget."""
    return isinstance(record, Step) and record.source is not Source.SCRIPT


def restore_progress(info: dict[str, Any]) -> Progress:
    """Counters from a checkpoint's information; raises `CorruptData` when they are damaged."""
    trained, version = info.get("trained"), info.get("version")
    if not isinstance(trained, dict) or not isinstance(version, int):
        raise CorruptData("checkpoint information: expected counters `trained` and `version`")
    return Progress(trained=Counter({str(k): int(v) for k, v in trained.items()}), version=version)
