"""Resuming a run's learner from the newest sound checkpoint and the order of the logged records.

A first start takes the same steps, without a checkpoint and records.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from serl.agent import State
from serl.agents.encoder_weights import describe_encoder
from serl.arm_profile import is_real
from serl.errors import BadInput, CorruptData, counted
from serl.log.episode_reader import count_records, episode_paths
from serl.log.index import Cursors, Index, Span, Stream
from serl.log.metrics import EventRow, MetricsWriter, ResumeRow
from serl.log.recovery import LoggedEpisode, read_logged, survey
from serl.runs.assembly import make_learner
from serl.runs.checkpoint import (
    Arrays,
    Checkpoint,
    checkpoint_paths,
    has_saved,
    load_latest,
)
from serl.runs.config import TrainConfig
from serl.runs.demonstrations import read_demonstrations, shape_for
from serl.runs.folder import RunFolder
from serl.runs.inheritance import inherit, inherited_episodes, link_episodes
from serl.runs.replica import Replica
from serl.runs.task_setup import make_spec, make_task
from serl.specs import Spec
from serl.system.database import DamagedDatabase
from serl.system.json_fields import short
from serl.training.learner import Learner
from serl.training.learner_stats import restore_progress
from serl.transport import LearnerEnd
from serl.types import Arrival, LostRecord, Record
from serl.version import __version__


@dataclass(frozen=True, slots=True)
class OpenedIndex:
    """An index that agrees with the log and the checkpoint.

    Attributes:
        index: the order of the accepted records.
        taken: number of records that the checkpoint's learner had taken, from the first.
        notices: warnings for the user.
    """

    index: Index
    taken: int
    notices: tuple[str, ...]


def open_index(path: Path, logged: Cursors, taken: Cursors | None = None) -> OpenedIndex:
    """Open the index of a run; rebuild it from the log where it is damaged or missing.

    Args:
        path: path of the database.
        logged: number of records in the log, by stream.
        taken: number of records that the checkpoint's learner had taken, by stream; None without a
            checkpoint.

    Raises:
        CorruptData: the index was made by another version of serl.
        SerlError: the disk failed.
    """
    notices = []
    held = {stream: min(cursor, logged.get(stream, 0)) for stream, cursor in (taken or {}).items()}
    problem = f"{path} was missing" if taken is not None else ""
    if path.exists():
        try:
            index = Index(path)
        except DamagedDatabase as error:
            problem = f"{error}: kept as {_move_aside(path)}"
        else:
            notices += [
                f"the log of {actor}/{epoch} lost its last {lost} records, which were accepted"
                for (actor, epoch), lost in index.cut(logged).items()
            ]
            if _begins_with(index.spans(), held):
                return OpenedIndex(index, sum(held.values()), tuple(notices))
            index.close()
            problem = f"{path} does not fit the checkpoint: kept as {_move_aside(path)}"
    index = Index(path)
    index.rebuild(held, logged)
    if problem:
        notices.append(f"{problem}; rebuilt from the log, {sum(logged.values())} records")
    return OpenedIndex(index, sum(held.values()), tuple(notices))


def accepted_records(
    spans: Sequence[Span], open_stream: Callable[[Stream], Iterator[Arrival]]
) -> Iterator[Arrival]:
    """Yield the records of the spans in order; each stream is open from its first to last span.

    Raises:
        CorruptData: a stream ends too early.
    """
    last = {span.stream: number for number, span in enumerate(spans)}
    streams: dict[Stream, Iterator[Arrival]] = {}
    for number, span in enumerate(spans):
        if span.stream not in streams:
            streams[span.stream] = open_stream(span.stream)
        for given in range(span.length):
            record = next(streams[span.stream], None)
            if record is None:
                missing = f"{span.actor}/{span.epoch} has no record {span.first + given}"
                raise CorruptData(f"log: {missing}, which was accepted")
            yield record
        if last[span.stream] == number:
            del streams[span.stream]


def _begins_with(spans: Sequence[Span], cursors: Cursors) -> bool:
    """Return whether the first records are exactly those before the cursors, in any order."""
    left, seen = sum(cursors.values()), Counter[Stream]()
    for span in spans:
        seen[span.stream] += min(span.length, left)
        left -= min(span.length, left)
    return left == 0 and seen == Counter(cursors)


def _move_aside(path: Path) -> Path:
    """Rename a database and SQLite's files beside it (-wal, -shm); return the new path."""
    for number in count(1):
        aside = path.with_name(f"{path.name}.{number}")
        if not aside.exists():
            break
    for suffix in ("-wal", "-shm", ""):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            beside.rename(aside.with_name(aside.name + suffix))
    return aside


_SETTINGS = {
    "task",
    "task_config",
    "observe",
    "seed",
    "demos",
    "demo_paths",
    "init_from",
    "agent",
    "learner",
}


def provenance(config: TrainConfig, spec: Spec) -> dict[str, Any]:
    """Return the inputs of training besides the records (spec, settings, code), for JSON."""
    return {
        "spec": spec.digest,
        "settings": config.model_dump(mode="json", include=_SETTINGS),
        "code": _code(config),
    }


def check_provenance(info: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Compare a checkpoint's information with the present `provenance`.

    Returns:
        A warning when the code differs, as parameters will not repeat to the bit; else "".

    Raises:
        BadInput: spec or settings differ.
    """
    if info.get("spec") != expected["spec"]:
        found = short(info.get("spec"))
        raise BadInput(f"checkpoint: made for the spec {found}, the task's is {expected['spec']!r}")
    saved = info.get("settings")
    usual = TrainConfig().model_dump(mode="json")  # of settings that were added since
    saved = saved if isinstance(saved, dict) else {}
    differences = list(_differences(saved, expected["settings"], usual))
    if differences:
        raise BadInput(f"checkpoint: made with other settings: {'; '.join(differences)}")
    # Versions before 0.1.0 was released append a digest of their sources.
    if not str(info.get("code")).startswith(expected["code"]):
        return f"checkpoint: made by serl {short(info.get('code'))}, this is {expected['code']}"
    return ""


def _code(config: TrainConfig) -> str:
    """Return the version of serl, with a digest of plug-in files, if any.

    These are the files of the task, the algorithm and the reward, on which parameters depend.
    """
    plugins = (config.task, config.agent.algorithm, config.reward.kind)
    files = [Path(plugin).read_bytes() for plugin in plugins if plugin.endswith((".py", ".yaml"))]
    digest = f"+{hashlib.sha256(b''.join(files)).hexdigest()[:12]}" if files else ""
    return f"{__version__}{digest}"


def _differences(
    saved: Mapping[str, Any], mine: Mapping[str, Any], usual: Mapping[str, Any], prefix: str = ""
) -> Iterator[str]:
    """Yield the differences of settings; those that were not saved had their usual values."""
    for name in sorted(saved.keys() | mine.keys()):
        theirs, ours = saved.get(name, usual.get(name)), mine.get(name)
        if isinstance(theirs, dict) and isinstance(ours, dict):
            yield from _differences(theirs, ours, usual.get(name) or {}, f"{prefix}{name}.")
        elif theirs != ours:
            yield f"{prefix}{name}: {short(theirs)} != {short(ours)}"


class Continuation:
    """The state of a run, read for its learner; notices are written as rows of metrics.

    Args:
        metrics: receives rows of metrics.

    Raises:
        BadInput: the checkpoint was made with another spec or other settings, or the run to start
            from does not fit.
        CorruptData: the demonstrations or all checkpoints are damaged.
        SerlError: the disk failed.
    """

    def __init__(self, folder: RunFolder, metrics: MetricsWriter) -> None:
        self.spec = make_spec(make_task(folder.config))
        self._folder = folder
        self._metrics = metrics
        self._provenance = provenance(folder.config, self.spec)
        self._checkpoint = self._load_checkpoint()
        self._logged = self._survey()
        logged = {
            stream: sum(episode.records for episode in episodes)
            for stream, episodes in self._logged.items()
        }
        taken = restore_progress(self._checkpoint.info).taken if self._checkpoint else None
        self._opened: OpenedIndex = open_index(folder.index, logged, taken)
        self.index = self._opened.index
        self._replica = Replica(folder, self.spec)
        for notice in self._opened.notices:
            self._notify(notice)

    def learner(self, transport: LearnerEnd) -> Learner:
        """Return the learner, which first takes the logged records; raise as the class does."""
        inherited = self._inherit()
        if self._checkpoint is None and not any(
            name.startswith("encoder.") for name in inherited or ()
        ):
            self._report_encoder()
        link_episodes(self._folder.config.init_from, self._folder.inherited)
        learner = make_learner(
            self._folder.config,
            transport,
            self._metrics,
            self._save,
            self._demonstrations(),
            self._checkpoint,
            accepted_records(self.index.spans(), self._read),
            self._opened.taken,
            self._accept,
            inherited,
            self._folder.path / "replay",
            self._experience(),
            self._recorded(),
        )
        fresh = self._checkpoint is None
        if inherited is not None or (fresh and self._folder.config.learner.warm_up):
            learner.checkpoint()  # to compare with at the end; and another run may be deleted now
        return learner

    def claim(self, actor: str, home: str, place: str) -> str:
        """Claim an actor's name, as `Index.claim`; start the copy of its log if it is elsewhere."""
        reason = self.index.claim(actor, home, place)
        if not reason:
            self._replica.register(actor, home)
        return reason

    def close(self) -> None:
        """Close the index and the copies of logs."""
        self._replica.close()
        self.index.close()

    def _accept(self, records: Sequence[Arrival]) -> None:
        self._replica.append(records)
        self.index.accept(records)
        for key in (each.key for each in records if isinstance(each, LostRecord) and each.last):
            self._notify(
                f"{key.actor}/{key.epoch}: episode {key.episode} was damaged in its log, "
                f"{key.index + 1} records in all, and is lost"
            )

    def _load_checkpoint(self) -> Checkpoint | None:
        checkpoint, warnings = None, []
        if has_saved(self._folder.checkpoints):
            checkpoint, warning = load_latest(self._folder.checkpoints)
            warnings = [warning, check_provenance(checkpoint.info, self._provenance)]
        elif not self._metrics.rows:
            return None
        step, rows = (checkpoint.step, checkpoint.info.get("rows")) if checkpoint else (0, 0)
        self._metrics.write(step, ResumeRow(rows if isinstance(rows, int) else 0))
        self._metrics.write(step, EventRow(f"resumed at {step:,} steps"))
        for text in filter(None, warnings):
            self._notify(text, step)
        return checkpoint

    def _notify(self, text: str, steps: int = 0) -> None:
        self._metrics.write(steps, EventRow(text))
        print(text, file=sys.stderr)  # noqa: T201

    def _report_encoder(self) -> None:
        """Report the weights that a fresh encoder starts from."""
        config, cameras = self._folder.config, self.spec.observation.images
        if line := describe_encoder(config.agent, cameras, is_real(config.robot)):
            self._notify(line)

    def _inherit(self) -> State | None:
        """Return the arrays taken from another run; None with a checkpoint or without that run."""
        config = self._folder.config
        if self._checkpoint is not None or config.init_from.run is None:
            return None
        inheritance = inherit(config)
        for line in inheritance.lines:
            self._notify(line)
        return inheritance.state

    def _save(self, step: int, arrays: Mapping[str, Arrays], info: Mapping[str, Any]) -> Path:
        info = {**info, **self._provenance, "rows": self._metrics.rows}
        return self._folder.save_checkpoint(step, arrays, info)

    def _survey(self) -> dict[Stream, list[LoggedEpisode]]:
        """Return the episodes of each stream, in order; report lost records."""
        found: dict[Stream, list[LoggedEpisode]] = {}
        for actor in self._folder.actors():
            episodes = survey(self._folder.episodes(actor), self._notify)
            for episode in episodes:
                found.setdefault((actor, episode.name.epoch), []).append(episode)
            if lost := sum(episode.records for episode in episodes if episode.path is None):
                self._notify(f"the log of {actor} has lost {lost} records; see `serl verify`")
        return found

    def _read(self, stream: Stream) -> Iterator[Arrival]:
        actor, _ = stream
        episodes = self._logged[stream]
        return read_logged(episodes, self._folder.name, actor, self.spec, self._notify)

    def _demonstrations(self) -> Iterator[Record]:
        """Yield the successful episodes of recordings and of the run in `init_from`."""
        config = self._folder.config
        recorded = (self._folder.demonstrations,) if config.demos else ()
        shape = shape_for(config)
        for folder in config.demo_paths or recorded:
            paths, kept = episode_paths(folder), 0
            if not paths:
                raise BadInput(f"{folder}: expected demonstrations, found no episode files")
            for episode in read_demonstrations(folder, config):
                if episode.end is not None and episode.success:
                    kept += 1
                    yield from shape(episode, folder).steps
                    yield episode.end
            if not kept:
                raise BadInput(f"{folder}: none of its {len(paths)} episodes is a success")
            if kept < len(paths):
                text = f"{folder}: {kept} successes demonstrate, {len(paths) - kept} others do not"
                self._notify(text)
        if config.init_from.data == "successes":
            yield from self._inherited_records("demonstrations, as successes")

    def _recorded(self) -> int:
        """Return the number of records in recordings and in the run of `init_from`."""
        own = (*self._folder.config.demo_paths, self._folder.demonstrations)
        folders = (*own, *self._folder.inherited.glob("*"))
        return sum(count_records(path) for each in folders for path in episode_paths(each))

    def _experience(self) -> Iterator[Record]:
        """Yield the episodes of another run that count as this run's."""
        if self._folder.config.init_from.data == "steps":
            yield from self._inherited_records("in replay as if they were this run's")

    def _inherited_records(self, purpose: str) -> Iterator[Record]:
        origin, episodes, steps = self._folder.config.init_from, 0, 0
        shape = shape_for(self._folder.config)
        for episode in inherited_episodes(origin, self._folder.inherited, self.spec):
            yield from shape(episode, origin.run).steps
            yield from (episode.end,) if episode.end else ()
            episodes, steps = episodes + 1, steps + len(episode.steps)
        data = f"{counted(episodes, 'episode')}, {counted(steps, 'step')}"
        self._notify(f"{data} of {origin.run} are {purpose}")


def trained_steps(run: RunFolder) -> int:
    """Return the online steps of the newest checkpoint; 0 before the first."""
    paths = checkpoint_paths(run.checkpoints)
    return int(paths[-1].name) if paths else 0
