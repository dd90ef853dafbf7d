"""Numbers for TensorBoard. A module of its own, since the import takes 0.3 s and 15 MB."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class EventFiles:
    """Appends to event files; a run that goes on gets another one.

    Args:
        folder: of the files; made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self._writer = EventFileWriter(str(folder), flush_secs=10)

    def add(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Add numbers by tag, as of now and `steps` environment steps."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._write(Event(step=steps, summary=Summary(value=values)))

    def restart(self, steps: int) -> None:
        """What was added for more than `steps` environment steps no longer counts."""
        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=steps + 1, session_log=start))

    def close(self) -> None:
        """Write out what is still held."""
        self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)
