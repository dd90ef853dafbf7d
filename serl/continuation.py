"""Where a run's learner goes on: the newest sound checkpoint and the order of the logged records.

A learner that starts for the first time goes on from nothing, by the same steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from serl.assembly import make_learner, make_spec, make_task
from serl.checkpoint import Arrays, Checkpoint, load_latest, saved_before
from serl.episodes import count_records, episode_name, episode_paths, read_records
from serl.errors import BadInput
from serl.index import Opened, Stream, accepted, open_index
from serl.learner import Learner, restore_progress
from serl.metrics import EventRow, MetricsWriter, ResumeRow
from serl.mirror import Mirror
from serl.provenance import check_provenance, provenance
from serl.run_folder import RunFolder
from serl.transport import LearnerEnd
from serl.types import Record


class Continuation:
    """Reads what a run holds; what a person should know of becomes rows of metrics.

    Args:
        folder: the run.
        metrics: takes rows.

    Raises:
        BadInput: the checkpoint was made with another spec or other settings.
        CorruptData: the log, the index or all checkpoints are damaged beyond repair.
        SerlError: the disk refused.
    """

    def __init__(self, folder: RunFolder, metrics: MetricsWriter) -> None:
        self.spec = make_spec(make_task(folder.config))
        self._folder = folder
        self._metrics = metrics
        self._provenance = provenance(folder.config, self.spec)
        self._checkpoint = self._load_checkpoint()
        self._files = _files(folder)
        logged = {stream: sum(map(count_records, paths)) for stream, paths in self._files.items()}
        taken = restore_progress(self._checkpoint.info).taken if self._checkpoint else None
        self._opened: Opened = open_index(folder.index, logged, taken)
        self.index = self._opened.index
        self._mirror = Mirror(folder, self.spec)
        for notice in self._opened.notices:
            self._tell(notice)

    def learner(self, transport: LearnerEnd) -> Learner:
        """The learner, which takes the logged records first; raises as the class."""
        return make_learner(
            self._folder.config,
            transport,
            self._metrics,
            self._save,
            self._demonstrations(),
            self._checkpoint,
            accepted(self.index.spans(), self._read),
            self._opened.taken,
            self._accept,
        )

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

    def _accept(self, records: Sequence[Record]) -> None:
        self._mirror.append(records)
        self.index.accept(records)

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

    def _save(self, step: int, arrays: Mapping[str, Arrays], info: Mapping[str, Any]) -> Path:
        info = {**info, **self._provenance, "rows": self._metrics.rows}
        return self._folder.save_checkpoint(step, arrays, info)

    def _read(self, stream: Stream) -> Iterator[Record]:
        return read_records(self._files[stream], self.spec)

    def _demonstrations(self) -> Iterator[Record]:
        config = self._folder.config
        recorded = (self._folder.demonstrations,) if config.demos else ()
        for path in config.demo_paths or recorded:
            if not episode_paths(path):
                raise BadInput(f"{path}: expected demonstrations, found no episode files")
            yield from read_records(path, self.spec)


def _files(folder: RunFolder) -> dict[Stream, list[Path]]:
    """The episode files of each stream, in order."""
    files: dict[Stream, list[Path]] = {}
    for actor in folder.actors():
        for path in episode_paths(folder.episodes(actor)):
            files.setdefault((actor, episode_name(path).epoch), []).append(path)
    return files
