"""Where a run's learner goes on: the newest sound checkpoint and the order of the logged records.

A learner that starts for the first time goes on from nothing, by the same steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serl.agent import State
from serl.runs.assembly import make_learner
from serl.runs.task_setup import make_spec, make_task
from serl.runs.checkpoint import (
    Arrays,
    Checkpoint,
    checkpoint_paths,
    load_latest,
    saved_before,
)
from serl.runs.demonstrations import read_demonstrations
from serl.agents.encoder_weights import told
from serl.log.episode_reader import episode_paths
from serl.errors import BadInput
from serl.log.index import Stream
from serl.runs.inheritance import inherit, keep_episodes, kept_episodes
from serl.training.learner import Learner
from serl.training.learner_progress import restore_progress
from serl.log.metrics import EventRow, MetricsWriter, ResumeRow
from serl.runs.replica import Mirror
from serl.runs.order import Opened, accepted, open_index
from serl.runs.provenance import check_provenance, provenance
from serl.log.quarantine import Logged, read_logged, survey
from serl.runs.folder import RunFolder
from serl.transport import LearnerEnd
from serl.types import Arrival, Lost, Record


class Continuation:
    """Reads what a run holds; what a person should know of becomes rows of metrics.

    Args:
        folder: the run.
        metrics: takes rows.

    Raises:
        BadInput: the checkpoint was made with another spec or other settings, or the run to start
            from does not fit.
        CorruptData: the demonstrations or all checkpoints are damaged.
        SerlError: the disk refused.
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
        self._opened: Opened = open_index(folder.index, logged, taken)
        self.index = self._opened.index
        self._mirror = Mirror(folder, self.spec)
        for notice in self._opened.notices:
            self._tell(notice)

    def learner(self, transport: LearnerEnd) -> Learner:
        """The learner, which takes the logged records first; raises as the class."""
        inherited = self._inherited()
        if self._checkpoint is None and not any(
            name.startswith("encoder.") for name in inherited or ()
        ):
            self._tell_encoder()
        keep_episodes(self._folder.config.init_from, self._folder.inherited)
        learner = make_learner(
            self._folder.config,
            transport,
            self._metrics,
            self._save,
            self._demonstrations(),
            self._checkpoint,
            accepted(self.index.spans(), self._read),
            self._opened.taken,
            self._accept,
            inherited,
            self._folder.path / "replay",
            self._experience(),
        )
        if inherited is not None:
            learner.checkpoint()  # from here on the other run may change, or be gone
        return learner

    def claim(self, actor: str, home: str, place: str) -> str:
        """As `Index.claim`; the log of an actor that gets its name is copied if it is not here."""
        reason = self.index.claim(actor, home, place)
        if not reason:
            self._mirror.meet(actor, home)
        return reason

    def close(self) -> None:
        """Close the index, and the copies of logs."""
        self._mirror.close()
        self.index.close()

    def _accept(self, records: Sequence[Arrival]) -> None:
        self._mirror.append(records)
        self.index.accept(records)
        for key in (each.key for each in records if isinstance(each, Lost) and each.last):
            self._tell(
                f"{key.actor}/{key.epoch}: episode {key.episode} was damaged in its log, "
                f"{key.index + 1} records in all, and is lost"
            )

    def _load_checkpoint(self) -> Checkpoint | None:
        checkpoint, warnings = None, []
        if saved_before(self._folder.checkpoints):
            checkpoint, warning = load_latest(self._folder.checkpoints)
            warnings = [warning, check_provenance(checkpoint.info, self._provenance)]
        elif not self._metrics.rows:
            return None
        step, rows = (checkpoint.step, checkpoint.info.get("rows")) if checkpoint else (0, 0)
        self._metrics.write(step, ResumeRow(rows if isinstance(rows, int) else 0))
        self._metrics.write(step, EventRow(f"resumed at {step:,} steps"))
        for text in filter(None, warnings):
            self._tell(text, step)
        return checkpoint

    def _tell(self, text: str, steps: int = 0) -> None:
        self._metrics.write(steps, EventRow(text))
        print(text, file=sys.stderr)  # noqa: T201

    def _tell_encoder(self) -> None:
        """What a fresh encoder starts from."""
        if line := told(self._folder.config.agent, self.spec.observation.images):
            self._tell(line)

    def _inherited(self) -> State | None:
        """What a run starts with that has no checkpoint yet and is to start from another run."""
        config = self._folder.config
        if self._checkpoint is not None or config.init_from.run is None:
            return None
        inheritance = inherit(config)
        for line in inheritance.lines:
            self._tell(line)
        return inheritance.state

    def _save(self, step: int, arrays: Mapping[str, Arrays], info: Mapping[str, Any]) -> Path:
        info = {**info, **self._provenance, "rows": self._metrics.rows}
        return self._folder.save_checkpoint(step, arrays, info)

    def _survey(self) -> dict[Stream, list[Logged]]:
        """The episodes of each stream, in order."""
        found: dict[Stream, list[Logged]] = {}
        for actor in self._folder.actors():
            episodes = survey(self._folder.episodes(actor), self._tell)
            for episode in episodes:
                found.setdefault((actor, episode.name.epoch), []).append(episode)
            if lost := sum(episode.records for episode in episodes if episode.path is None):
                self._tell(f"the log of {actor} has lost {lost} records; see `serl verify`")
        return found

    def _read(self, stream: Stream) -> Iterator[Arrival]:
        actor, _ = stream
        episodes = self._logged[stream]
        return read_logged(episodes, self._folder.name, actor, self.spec, self._tell)

    def _demonstrations(self) -> Iterator[Record]:
        """Successful episodes, of recordings or of earlier runs; failures demonstrate nothing."""
        config = self._folder.config
        recorded = (self._folder.demonstrations,) if config.demos else ()
        for folder in config.demo_paths or recorded:
            paths, kept = episode_paths(folder), 0
            if not paths:
                raise BadInput(f"{folder}: expected demonstrations, found no episode files")
            for episode in read_demonstrations(folder, config):
                if episode.end is not None and episode.success:
                    kept += 1
                    yield from episode.steps
                    yield episode.end
            if not kept:
                raise BadInput(f"{folder}: none of its {len(paths)} episodes is a success")
            if kept < len(paths):
                text = f"{folder}: {kept} successes demonstrate, {len(paths) - kept} others do not"
                self._tell(text)
        if config.init_from.data == "successes":
            yield from self._inherited_records("demonstrations, as successes")

    def _experience(self) -> Iterator[Record]:
        """Episodes of another run that count as this one's."""
        if self._folder.config.init_from.data == "steps":
            yield from self._inherited_records("in replay as if they were this run's")

    def _inherited_records(self, what: str) -> Iterator[Record]:
        origin, episodes, steps = self._folder.config.init_from, 0, 0
        for episode in kept_episodes(origin, self._folder.inherited, self.spec):
            yield from episode.steps
            yield from (episode.end,) if episode.end else ()
            episodes, steps = episodes + 1, steps + len(episode.steps)
        self._tell(f"{episodes} episodes, {steps:,} steps of {origin.run} are {what}")


def trained_steps(run: RunFolder) -> int:
    """Online steps of the newest checkpoint; 0 before the first."""
    paths = checkpoint_paths(run.checkpoints)
    return int(paths[-1].name) if paths else 0
