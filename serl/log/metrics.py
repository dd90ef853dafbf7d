"""The metrics of a run: one JSON line per row, and the same numbers for TensorBoard.

A row of `metrics.jsonl` is the fields of one of the row classes below and "kind", "time_s" and
"steps" (online environment steps of all actors so far).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, get_args

from serl.errors import CorruptData, SerlError
from serl.log.wandb_run import WandbMode, WandbRun
from serl.system.files import open_regular, write_all
from serl.system.json_fields import MAX_JSON_BYTES

FILE = "metrics.jsonl"
"""Name of the file of metrics in the folder of a run."""
MetricsRow = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One online episode.

    Attributes:
        actor: name of the actor.
        episode: number of the episode at this actor.
        length: number of steps.
        success: whether the task was solved.
        assisted: whether a human drove at least one step.
        reward: return, not discounted.
        human_steps: number of steps that a human drove.
        interventions: number of takeovers, that is segments of human steps.
        reason: why the episode ended.
        duration_s: number of steps times the control period.
        weight_age: number of versions that the actor's weights were behind at the end.
    """

    kind: ClassVar[str] = "episode"
    actor: str
    episode: int
    length: int
    success: bool
    assisted: bool
    reward: float
    human_steps: int
    interventions: int
    reason: str
    duration_s: float
    weight_age: int


@dataclass(frozen=True, slots=True)
class UpdateRow:
    """The learner's state after an update; None for a number without a value yet.

    Attributes:
        updates: outer updates so far.
        updates_per_s: rate of updates since the last row.
        utd: critic updates per online step, achieved since the start.
        critic_loss: critic loss, mean over the ensemble.
        actor_loss: actor loss of the last batch.
        q: mean value of the batch's actions.
        temperature: temperature of the entropy bonus.
        entropy: entropy of the policy, in nats.
        vice_good: success probability that a reward learned during training (VICE) predicts for
            successes, before its update.
        vice_visited: success probability that this reward predicts for observations that the policy
            visits, before its update.
        vice_reward: mean of this reward over the batch.
        feedback_loss: mean squared error of predicted evaluations of a person, over evaluated steps
            of a batch.
        feedback_reward: mean addition to the reward that these predictions make, over the batch.
        lag: online steps received and not yet trained on.
        weights_version: version of the newest published weights.
    """

    kind: ClassVar[str] = "update"
    updates: int
    updates_per_s: float
    utd: float
    critic_loss: float | None = None
    actor_loss: float | None = None
    q: float | None = None
    temperature: float | None = None
    entropy: float | None = None
    vice_good: float | None = None
    vice_visited: float | None = None
    vice_reward: float | None = None
    feedback_loss: float | None = None
    feedback_reward: float | None = None
    lag: int = 0
    weights_version: int = 0


TrialPurpose = Literal["selection", "final", "last", "clone"]


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """Unassisted trials of one checkpoint.

    Attributes:
        checkpoint: online steps of the checkpoint.
        trials: number of trials.
        successes: number of trials that solved the task.
        cycle_time_s: mean duration of the successes, as `duration_s`; None without any.
        void: number and causes of further trials that a fault ended; empty without any.
        early_end: how the trials ended if fewer than planned count; empty otherwise.
        purpose: "selection": trials to choose a checkpoint; "final": trials of the chosen one;
            "last": trials of the last checkpoint, if another one was chosen; "clone": trials of a
            policy cloned from the demonstrations alone (`baseline`). "last" and "clone" use the
            same starts as "final".
    """

    kind: ClassVar[str] = "evaluation"
    checkpoint: int
    trials: int
    successes: int
    cycle_time_s: float | None
    purpose: TrialPurpose
    void: str = ""
    early_end: str = ""


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event for the operator: a start, a resume, a restart, a warning.

    Attributes:
        text: one line.
    """

    kind: ClassVar[str] = "event"
    text: str


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request to a person, from a robot that could not restore its scene by itself.

    Attributes:
        actor: name of the actor.
        text: request shown to the person.
    """

    kind: ClassVar[str] = "request"
    actor: str
    text: str


@dataclass(frozen=True, slots=True)
class ResumeRow:
    """The resume of a learner from a checkpoint: updates after the checkpoint are repeated.

    Attributes:
        rows: number of rows when the checkpoint was saved; episodes, updates and requests after
            them and before this row are superseded.
    """

    kind: ClassVar[str] = "resume"
    rows: int


Row = EpisodeRow | UpdateRow | EvaluationRow | EventRow | RequestRow | ResumeRow
ROWS: Mapping[str, type[Row]] = {row.kind: row for row in get_args(Row)}
"""The classes of the rows by their kind."""

_MAX_BYTES = 16 << 30
_REPEATED = {EpisodeRow.kind, UpdateRow.kind, RequestRow.kind}


class Metrics(Protocol):
    """A sink for rows of measurements, for example `MetricsWriter`."""

    def write(self, steps: int, row: Row) -> None:
        """Append a row."""
        ...


class MetricsWriter:
    """A writer of rows to `metrics.jsonl` and to event files under `tensorboard/`.

    A row is one write of one line, so a kill costs at most the line being written; opening a run
    again drops this truncated line. Other damaged lines stay, and count as rows. Not thread-safe.

    Args:
        folder: the run folder; made if absent.
        monotonic_s: returns monotonic seconds.
        wandb: log the numbers to Weights & Biases too; see `LogConfig.wandb`.

    Attributes:
        rows: number of rows in the file.

    Raises:
        OSError: the disk refused.
    """

    def __init__(
        self,
        folder: Path,
        monotonic_s: Callable[[], float] = time.monotonic,
        wandb: WandbMode = False,
    ) -> None:
        path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        rows, end = read_rows(path)
        self.rows = len(rows)
        self._now_s = monotonic_s
        self._origin_s = monotonic_s() - (rows[-1]["time_s"] if rows else 0.0)
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, end)
        self._events = EventFiles(folder / "tensorboard")
        self._wandb = WandbRun(folder.resolve(), wandb) if wandb else None

    @property
    def time_s(self) -> float:
        """The running time of the run in seconds, summed over all its resumes."""
        return self._now_s() - self._origin_s

    def write(self, steps: int, row: Row) -> None:
        """Append a row, stamped with the present time and `steps` online environment steps.

        Raises:
            SerlError: the disk refused.
        """
        fields = {name: _finite(value) for name, value in asdict(row).items()}
        line = {"kind": row.kind, "time_s": round(self.time_s, 3), "steps": steps, **fields}
        try:
            write_all(self._file, (json.dumps(line, allow_nan=False) + "\n").encode())
        except OSError as error:
            raise SerlError(f"{self._path}: {error.strerror}") from error
        self.rows += 1
        if isinstance(row, ResumeRow):  # TensorBoard, too, drops superseded rows
            self._events.restart(steps)
            return
        scalars = {
            f"{row.kind}/{name}": value
            for name, value in fields.items()
            if isinstance(value, int | float)
        }
        if scalars:
            self._events.add(steps, scalars)
            if self._wandb is not None:
                self._wandb.add(steps, scalars)

    def close(self) -> None:
        """Close the file and the event files, and write buffered events."""
        os.close(self._file)
        self._events.close()
        if self._wandb is not None:
            self._wandb.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: Path) -> list[MetricsRow]:
    """Read the rows of a `metrics.jsonl`, in order, without superseded ones; none without a file.

    A truncated last line is left out; another invalid line is returned as an event with the error.
    """
    return without_superseded(read_rows(path)[0])


def without_superseded(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """Return all rows of a file without the superseded ones, see `ResumeRow`."""
    kept = [True] * len(rows)
    for number, row in enumerate(rows):
        if row["kind"] == ResumeRow.kind:
            for after in range(int(row["rows"]), number):
                kept[after] &= rows[after]["kind"] not in _REPEATED
    return list(compress(rows, kept))


def read_rows(path: Path, start: int = 0) -> tuple[list[MetricsRow], int]:
    """Read the rows from byte `start` on, superseded ones included, and the byte after them.

    There are no rows without a file. A last line without an end is left for the next call; another
    invalid line, or each MiB of an endless one, is returned as an event with the error.
    """
    rows: list[MetricsRow] = []
    with suppress(FileNotFoundError), open_regular(path, _MAX_BYTES) as file:
        file.seek(start)
        while line := file.readline(MAX_JSON_BYTES):
            if len(line) < MAX_JSON_BYTES and not line.endswith(b"\n"):
                break
            try:
                rows.append(_row(line, f"{path}: byte {start}"))
            except CorruptData as error:  # it counts, since a `ResumeRow` counts rows
                before = rows[-1] if rows else {"time_s": 0.0, "steps": 0}
                row = {"time_s": before["time_s"], "steps": before["steps"], "text": str(error)}
                rows.append({"kind": EventRow.kind, **row})
            start += len(line)
    return rows, start


def _row(line: bytes, where: str) -> MetricsRow:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise CorruptData(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        raise CorruptData(f'{where}: expected an object with "kind", got {line[:60]!r}')
    resumes = row["kind"] == ResumeRow.kind
    for name in ("time_s", "steps", "rows") if resumes else ("time_s", "steps"):
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:
            raise CorruptData(f"{where}: {name} must be a number from 0, got {value!r}")
    return row


def _finite(value: Any) -> Any:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Rate:
    """A meter of steps per second between two calls."""

    def __init__(self) -> None:
        self._at: tuple[int, float] | None = None

    def of(self, steps: int, now_s: float) -> float:
        """Return the steps per second since the last call; 0 at the first call."""
        before, self._at = self._at, (steps, now_s)
        return (steps - before[0]) / max(now_s - before[1], 1e-9) if before else 0.0


class EventFiles:
    """A writer of TensorBoard event files; a resumed run gets another file.

    The files are those of `torch.utils.tensorboard.SummaryWriter`, the documented writer, which
    writes through the same class; torch is too large to import for numbers.

    Args:
        folder: folder of the files; made if absent.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter  # takes 0.3 s

        self._writer = EventFileWriter(str(folder), flush_secs=10)

    def add(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Add numbers by tag, stamped with the present time and `steps` environment steps."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(step=steps, summary=Summary(value=values)))

    def restart(self, steps: int) -> None:
        """Invalidate the numbers added for more than `steps` environment steps."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=steps + 1, session_log=start))

    def close(self) -> None:
        """Write buffered events and close the file."""
        self._writer.close()

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)
