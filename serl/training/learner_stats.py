"""Rows of metrics per episode, from the interleaved records of several actors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serl.errors import CorruptData
from serl.log.metrics import EpisodeRow, Metrics, RequestRow
from serl.system.json_fields import check_fields
from serl.types import ActionSource, End, EndReason, Record, Step, is_online

if TYPE_CHECKING:  # it imports sqlite3, which the settings of a run do not need
    from serl.log.index import Stream


@dataclass
class _Tally:
    """Counters of the steps of one episode, for its row of metrics."""

    length: int = 0
    online: int = 0
    human_steps: int = 0
    interventions: int = 0
    reward: float = 0.0
    newest_version: int = 0
    human: bool = False  # a human drove the last step

    def add(self, step: Step) -> None:
        human = step.source is ActionSource.HUMAN
        self.length += 1
        self.online += is_online(step)
        self.human_steps += human
        self.interventions += human and not self.human
        self.reward += step.reward
        self.newest_version = step.policy_version
        self.human = human


class EpisodeTracker:
    """Turns the stream of records into one row of metrics per episode.

    Attributes:
        first_version: first weight version of this learner; the age of its predecessor's versions
            is counted from here.
    """

    def __init__(self, metrics: Metrics, rate_hz: float) -> None:
        self.first_version = 0
        self._metrics = metrics
        self._rate_hz = rate_hz
        self._open: dict[str, _Tally] = {}
        self._successes: deque[bool] = deque(maxlen=20)

    def recent_success(self) -> float:
        """Return the success rate of the last 20 episodes."""
        return sum(self._successes) / max(len(self._successes), 1)

    def add(self, record: Record, steps: int, version: int) -> None:
        """Process a record; an `End` closes its episode, or is a request, and writes a row."""
        episode = self.follow(record)
        if isinstance(record, End) and record.reason is EndReason.NEEDS_PERSON:
            self._metrics.write(steps, RequestRow(record.key.actor, record.text))
        if isinstance(record, End) and episode:
            self._metrics.write(steps, self._row(episode, record, version))

    def follow(self, record: Record) -> _Tally | None:
        """Process a record without writing a row; an `End` returns its episode.

        Scripted and discarded episodes are left out: they carry no information about the policy.
        """
        actor = record.key.actor
        if isinstance(record, Step):
            if record.key.index == 0:
                self._open[actor] = _Tally()
            self._open.setdefault(actor, _Tally()).add(record)
            return None
        episode = self._open.pop(actor, _Tally())
        if not episode.online or record.reason is EndReason.DISCARDED:
            return None
        self._successes.append(record.success)
        return episode

    def _row(self, episode: _Tally, end: End, version: int) -> EpisodeRow:
        return EpisodeRow(
            actor=end.key.actor,
            episode=end.key.episode,
            length=episode.length,
            success=end.success,
            assisted=episode.human_steps > 0,
            reward=episode.reward,
            human_steps=episode.human_steps,
            interventions=episode.interventions,
            reason=end.text,
            duration_s=episode.length / self._rate_hz,
            weight_age=max(0, version - max(episode.newest_version, self.first_version)),
        )


_TAKEN_FIELDS = {"actor": str, "epoch": int, "records": int}


@dataclass
class LearnerProgress:
    """Counters of a learner; saved with each checkpoint.

    Attributes:
        taken: records taken, including scripted and lost ones, by actor and epoch.
        received: online steps among them (of policy and human).
        trained: online steps trained on, by actor.
        version: version of the newest published weights.
    """

    taken: Counter[Stream] = field(default_factory=Counter)
    received: int = 0
    trained: Counter[str] = field(default_factory=Counter)
    version: int = 0

    def info(self) -> dict[str, Any]:
        """Return the counters saved in a checkpoint; see `restore_progress`."""
        return {
            "taken": [[*stream, count] for stream, count in sorted(self.taken.items())],
            "trained": dict(self.trained),
            "version": self.version,
        }

    @property
    def steps(self) -> int:
        """The number of online steps trained on."""
        return self.trained.total()


def restore_progress(info: Mapping[str, Any]) -> LearnerProgress:
    """Restore the counters of a checkpoint; raises `CorruptData` when they are damaged."""
    try:
        taken = [dict(zip(_TAKEN_FIELDS, entry, strict=True)) for entry in info["taken"]]
        trained, version = info["trained"], info["version"]
        actors = dict.fromkeys(trained, int)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptData("checkpoint: expected the counters taken, trained, version") from error
    for entry in taken:
        check_fields(entry, _TAKEN_FIELDS, "checkpoint: taken")
    check_fields(trained, actors, "checkpoint: trained")
    check_fields({"version": version}, {"version": int}, "checkpoint:")
    return LearnerProgress(
        taken=Counter({(entry["actor"], entry["epoch"]): entry["records"] for entry in taken}),
        trained=Counter(trained),
        version=version,
    )
