"""Learner: receives and stores records, updates the agent, publishes weights, saves checkpoints."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from serl.agent import Agent, State
from serl.errors import CorruptData, SerlError
from serl.log.metrics import EventRow, Metrics, Rate, UpdateRow
from serl.training.learner_stats import EpisodeTracker, LearnerProgress, restore_progress
from serl.training.replay import Prefetch, Replay
from serl.transport import MAX_LEAD, MAX_VERSION, LearnerEnd, Snapshot
from serl.types import Arrival, FrozenModel, LostRecord, Step, is_online

# A restarted learner continues from beyond any version that its predecessor may have published
# since the checkpoint: actors accept only newer ones.
_VERSIONS_AHEAD = 1000

_MAX_PENDING = 256
_RECEIVE_PERIOD_S = 0.05  # while records are pending: each batch costs a commit of the index
_MAX_SKIPPED = 3

_MEASURED = (
    *("critic_loss", "actor_loss", "q", "temperature", "entropy"),
    *("vice_good", "vice_visited", "vice_reward"),
    *("feedback_loss", "feedback_reward"),
)


class LearnerConfig(FrozenModel):
    """Settings of the learner around the algorithm.

    Attributes:
        capacity: transitions that replay holds, demonstrations included.
        image_bytes: limit of the bytes of replay's images; reduces the capacity if necessary.
        memory_bytes: size of the images above which they are stored in a file in the run's folder.
        prior_share: share of each batch drawn from demonstrations, human steps and imitated
            successes; the rest is drawn from all steps taken online.
        time_limit_terminates: a time limit counts as a failure: the critics expect nothing after
            it, as in HIL-SERL. Otherwise they expect what they would without the limit.
        imitate_successes: successful episodes of the policy alone join the demonstrations when they
            end: they are cloned, and drawn as such (self-imitation).
        n_step: largest length of the returns, which end where a takeover begins or ends.
        crop_px: largest random shift of the images of a batch, in pixels.
        prefetch: draw the next batch while an update runs, from the same records as otherwise; None
            to enable it where it helps: with a GPU.
        warm_up: updates on demonstrations and inherited steps before the first online step.
        starts_at: online steps before the first update online.
        publish_every: online steps between publications of weights.
        checkpoint_every: online steps between checkpoints.
        metrics_every: online steps between rows of metrics.
    """

    capacity: int = Field(200_000, ge=1, le=100_000_000)
    image_bytes: int = Field(64 << 30, ge=1)
    memory_bytes: int = Field(6 << 30, ge=0)
    prior_share: float = Field(0.5, ge=0, le=1)
    imitate_successes: bool = False
    time_limit_terminates: bool = False
    n_step: int = Field(1, ge=1, le=100)
    crop_px: int = Field(4, ge=0, le=7)
    prefetch: bool | None = None
    warm_up: int = Field(0, ge=0)
    starts_at: int = Field(0, ge=0)
    publish_every: int = Field(20, ge=1)
    checkpoint_every: int = Field(1000, ge=1)
    metrics_every: int = Field(100, ge=1)


class Learner:
    """Takes one record at a time; trains once on an online step before taking the next record.

    The update of a step therefore uses the records up to it and no others: parameters depend on the
    seed and the order of the records, never on timing. A learner that is killed and resumed from a
    checkpoint, with the same order of records, ends with the same parameters.

    Args:
        replay: the replay, which already holds the demonstrations.
        transport: delivers records and accepts weights.
        batch_size: transitions per critic update.
        utd: critic updates per online step, all in one `agent.update`.
        rate_hz: control rate of the task.
        metrics: receives rows of metrics.
        save: writes a checkpoint of the given arrays and information.
        accept: makes received records durable; the transport acknowledges them afterwards.
        log: records that were accepted before, in order; they precede new ones.
        monotonic_s: monotonic clock in seconds.
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
        accept: Callable[[Sequence[Arrival]], object] = lambda records: None,
        log: Iterable[Arrival] = (),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agent = agent
        self.replay = replay
        self.progress = LearnerProgress()
        self._transport = transport
        self._config = config
        self._batch_size = batch_size
        self._utd = utd
        self._metrics = metrics
        self._save = save
        self._accept = accept
        self._log = iter(log)
        self._now_s = monotonic_s
        self._pending: deque[Arrival] = deque()
        self._received_s = float("-inf")
        self._ahead: deque[Arrival] = deque()  # already in replay for the next batch, not yet taken
        self._batches = Prefetch(replay, utd * batch_size, config.prior_share)
        self._untrained: deque[str] = deque()  # actors of the steps taken and not yet trained on
        self._episodes = EpisodeTracker(metrics, rate_hz)
        self._measured: dict[str, float] = {}
        self._rate = Rate()
        self._scaled = False  # whether the scale of observations is set
        self._sound = FiniteState(0, agent.state_dict())
        self._saved_at: int | None = None
        self._rolled_back_at: int | None = None

    def prepare(self, inherited: State | None = None) -> None:
        """Prepare a fresh run: set the scale of observations and warm up on demonstrations.

        An inherited scale is kept, and inherited critics skip the warm-up.

        Args:
            inherited: arrays of another run's agent state, by name.

        Raises:
            SpecMismatch: the arrays belong to a different agent.
        """
        inherited, replay = inherited or {}, self.replay
        self.agent.load_state_dict({**self.agent.state_dict(), **inherited})
        scaled = any(name.startswith("normaliser.") for name in inherited)
        self._scaled = scaled or len(replay) > 0
        if self._scaled and not scaled:
            demonstrated = replay.demonstrations > 0
            self.agent.fit_normaliser(replay.prior_states() if demonstrated else replay.states())
        trained = any(name.startswith("critic.") for name in inherited)
        rows, prior_share = self._utd * self._batch_size, self._config.prior_share
        for _ in range(self._config.warm_up if len(replay) and not trained else 0):
            self.agent.update(replay.sample(rows, prior_share))
        self._sound = FiniteState(0, self.agent.state_dict())

    def resume(self, arrays: Mapping[str, State], info: Mapping[str, Any], taken: int) -> None:
        """Resume from a checkpoint; replay is rebuilt from the first `taken` records of the log.

        Raises:
            CorruptData: the information is damaged, or the demonstrations differ.
            SpecMismatch: the arrays belong to a different agent.
        """
        saved = restore_progress(info)
        if info.get("demonstrations") != self.replay.demonstrations:
            found = self.replay.demonstrations
            raise CorruptData(
                f"checkpoint: made with {info.get('demonstrations')} transitions of "
                f"demonstrations, found {found}"
            )
        self.agent.load_state_dict(arrays["agent"])
        self.progress = LearnerProgress(trained=saved.trained)
        self._scaled = bool(info.get("scaled", True))
        self._count_on_from(saved.version)
        for record in islice(self._log, taken):
            self._enter(record)
            if not isinstance(record, LostRecord):
                self._episodes.follow(record)
        for _ in range(min(self.progress.steps, len(self._untrained))):
            self._untrained.popleft()
        self.replay.load_sampler_state(arrays["replay"])
        self._sound = FiniteState(self.progress.steps, self.agent.state_dict())
        self._saved_at = self.progress.steps

    def run(self, steps: int, stopping: Callable[[], bool], idle_s: float = 0.001) -> None:
        """Train until `steps` online steps were trained on, or until stopping."""
        self.publish()
        while self.progress.steps < steps and not stopping():
            if not self.step():
                time.sleep(idle_s)
        self.publish()
        self.checkpoint()

    def step(self) -> bool:
        """Take a record and train if it is an online step; return False when none is available.

        The steps from before `starts_at` are all trained on before the next record is taken.
        """
        if not self._can_train():
            stored = bool(self._ahead)
            record = self._ahead.popleft() if stored else self._next()
            if record is None:
                return False
            self._enter(record, stored)
            if not isinstance(record, LostRecord):
                self._episodes.add(record, self.progress.steps, self.progress.version)
        if self._can_train():
            self._train()
        return True

    def receive(self) -> None:
        """Make arrived records durable, to be taken later; skip while too many are pending."""
        if len(self._pending) < _MAX_PENDING:
            self._received_s = self._now_s()
            arrived = self._transport.receive()
            self._accept(arrived)
            self._pending.extend(arrived)

    def publish(self) -> None:
        """Publish the actor's weights, unless a value is not finite."""
        weights = self.agent.actor_weights()
        if not self._is_finite(weights, "weights not published"):
            return
        self.progress.version += 1
        trained = dict(self.progress.trained)
        self._transport.publish(Snapshot(self.progress.version, trained, weights))

    def checkpoint(self) -> None:
        """Save all state needed to resume that is not in the log.

        Values that are not finite are never saved: the previous checkpoint stays the newest.
        """
        steps = self.progress.steps
        if self._saved_at == steps:
            return
        state = self.agent.state_dict()
        if not self._is_finite(state, "no checkpoint"):
            return
        arrays = {
            "agent": state,
            "actor": self.agent.actor_weights(),
            "replay": self._batches.state(),
        }
        info = {
            **self.progress.info(),
            "demonstrations": self.replay.demonstrations,
            "scaled": self._scaled,
            "success": self._episodes.recent_success(),
        }
        self._save(steps, arrays, info)
        self._sound, self._saved_at = FiniteState(steps, state), steps

    def _is_finite(self, arrays: State, otherwise: str) -> bool:
        """Return whether all arrays are finite; otherwise log the name of the first that is not."""
        broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
        if broken:
            text = f"{otherwise}: {broken[0]} is not finite"
            self._metrics.write(self.progress.steps, EventRow(text))
        return not broken

    def _next(self) -> Arrival | None:
        """Return the next record: from the log, then from the transport through a bounded queue."""
        logged = next(self._log, None)
        if logged is not None:
            return logged
        now_s = self._now_s()
        late = now_s - self._received_s > _RECEIVE_PERIOD_S and len(self._pending) < _MAX_PENDING
        if late or not self._pending:
            self.receive()
        return self._pending.popleft() if self._pending else None

    def _enter(self, record: Arrival, stored: bool = False) -> None:
        """Take a record; `stored` if it is in replay already."""
        progress = self.progress
        progress.taken[record.key.actor, record.key.epoch] += 1
        if isinstance(record, LostRecord):
            return
        if not stored:
            self.replay.add(record)
        if isinstance(record, Step):
            lead = record.policy_version - progress.version
            if 0 < lead <= MAX_LEAD:  # a larger lead cannot stem from a predecessor
                self._count_on_from(record.policy_version)
        if is_online(record):
            progress.received += 1
            self._untrained.append(record.key.actor)

    def _count_on_from(self, version: int) -> None:
        """Continue counting after a version that a predecessor published."""
        if version > MAX_VERSION - MAX_LEAD:  # forged: higher ones would be refused
            version = MAX_VERSION // 2
        self.progress.version = version + _VERSIONS_AHEAD
        self._episodes.first_version = self.progress.version

    def _can_train(self) -> bool:
        enough = self.progress.received >= self._config.starts_at and len(self.replay) > 0
        return bool(self._untrained) and enough

    def _train(self) -> None:
        batch = self._batches.take()
        if not self._scaled:
            self._scaled = True
            self.agent.fit_normaliser(self.replay.states())
        if self._config.prefetch:
            self._look_ahead()
        measured = self.agent.update(batch)
        self.progress.trained[self._untrained.popleft()] += 1
        if measured.get("skipped", 0) >= _MAX_SKIPPED:
            self._roll_back(round(measured["skipped"]))
        steps = self.progress.steps
        if steps % self._config.publish_every == 0:
            self.publish()
        self._measured.update(measured)
        if steps % self._config.metrics_every == 0:
            self._metrics.write(steps, self._update_row(steps))
        if steps % self._config.checkpoint_every == 0:
            self.checkpoint()

    def _look_ahead(self) -> None:
        """Start drawing the next batch if the step that it is for has arrived.

        The records up to it are stored now and taken in their turn.
        """
        known = len(self._untrained) > 1  # steps to train on; the first is the current one
        while not known and (record := self._next()) is not None:
            self._ahead.append(record)
            if not isinstance(record, LostRecord):
                self.replay.add(record)
            known = is_online(record)
        if known:
            self._batches.begin()

    def _roll_back(self, skipped: int) -> None:
        """Restore the parameters saved last; fail if they were already restored before.

        Raises:
            SerlError: the same parameters had already been restored.
        """
        text = f"the last {skipped} updates were not finite"
        if self._rolled_back_at == self._sound.steps:
            raise SerlError(f"{text}, also from the parameters of step {self._sound.steps:,}")
        self._metrics.write(
            self.progress.steps,
            EventRow(f"{text}: going on with the parameters of step {self._sound.steps:,}"),
        )
        self.agent.load_state_dict(self._sound.state)
        self._rolled_back_at = self._sound.steps

    def _update_row(self, steps: int) -> UpdateRow:
        measured = {name: self._measured.get(name) for name in _MEASURED}
        arrived = self.progress.received + sum(map(is_online, chain(self._ahead, self._pending)))
        return UpdateRow(
            updates=steps,
            updates_per_s=self._rate.of(steps, self._now_s()),
            utd=self._utd * steps / max(arrived, 1),
            lag=arrived - steps,
            weights_version=self.progress.version,
            **measured,
        )


class FiniteState(NamedTuple):
    """An agent state known to be finite, and the online steps it was trained on."""

    steps: int
    state: State
