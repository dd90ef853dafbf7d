"""The actor's log: every step in an MCAP file, written before the next action.

One file for each episode, `<epoch>-<episode>.part.mcap` while it is open and `.mcap` once it is
sealed; one chunk for each record, so that a truncated file loses nothing before the cut. The files
open in Foxglove, with `rosbags` and with the `mcap` command line. `serl.log.recovery` seals files
that a crash left open, `serl.log.compression` compresses images, `serl.runs.verify` checks the
whole log.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pydantic import Field

from serl.errors import BadInput, SerlError
from serl.log.episode_reader import PART
from serl.log.episode_writer import EpisodeWriter, metadata_of
from serl.log.ros_messages import Encoding
from serl.log.wandb_run import WandbMode
from serl.log.wire import Parts, record_parts
from serl.loop import Observer
from serl.specs import Spec
from serl.system.files import FileLock, make_folder, size_text
from serl.types import ActionSource, End, FrozenModel, Key, Record, Step, place_after

logger = logging.getLogger(__name__)

_MAX_UNSEALED = 8
_PATIENCE_S = 5.0


class LogConfig(FrozenModel):
    """The settings of an actor's log.

    Attributes:
        fsync: "interval": a power cut costs at most about the last `interval_s`, and no append
            waits for the disk; "step": a power cut costs nothing, and every append waits.
        interval_s: time between two syncs of the open file.
        min_free_bytes: free disk space below which no episode is begun.
        images: encoding of images once an episode of a run's actor is over: "png" is lossless,
            "jpeg" is not. Episodes written by `serl record` stay raw.
        jpeg_quality: quality of "jpeg"; 0 to 100.
        private_views: whether to keep the views that only a classifier sees (`private_views` of the
            task), so that labels can be corrected and the classifier be trained again; they are not
            sent to learners.
        wandb: true logs the run's metrics to Weights & Biases, "offline" into files in the run's
            folder for `wandb sync`.
    """

    fsync: Literal["interval", "step"] = "interval"
    interval_s: float = Field(1.0, gt=0, le=60)
    min_free_bytes: int = Field(2_000_000_000, ge=0)
    images: Encoding = "png"
    jpeg_quality: int = Field(95, ge=0, le=100)
    private_views: bool = True
    wandb: WandbMode = False


class EpisodeLog(Observer):
    """The log of an actor's records; the operating system has a record when `append` returns.

    Episodes are counted from 0 in each epoch, steps from 0 in each episode, and an `End` follows
    the last step. When the disk refuses, the log accepts no more records: the episode ends there,
    and `recover` seals the appended records at the next start.

    Args:
        folder: folder of the actor's episodes; locked against a second actor of the same name.
        spec: spec that every record has to fit.
        epoch: number that grows with each start of the actor, for example `time.time_ns()`.
        config: see `LogConfig`; the defaults if None.

    Raises:
        BadInput: another process writes to the folder, or it is not writable; the epoch was used
            before; the disk is nearly full.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        run: str,
        actor: str,
        epoch: int,
        config: LogConfig | None = None,
    ) -> None:
        self._lock = lock_log(folder)
        self._folder = folder
        self._spec = spec
        self._config = config or LogConfig()
        self._stream = (run, actor, epoch)
        self._next = (0, 0)  # episode, index
        self._warned = False
        try:
            if any(folder.glob(f"{epoch}-*")):
                raise BadInput(f"log: {folder} already has episodes of the epoch {epoch}")
            self.admit()
        except BadInput:
            self._lock.close()
            raise
        self._file: EpisodeWriter | None = None
        in_background = self._config.fsync == "interval"
        self._disk = _DiskThread(folder, self._config.interval_s if in_background else None)

    def admit(self) -> None:
        """Check that an episode may begin; an episode that has begun is always finished.

        Raises:
            BadInput: the disk is nearly full.
        """
        disk = os.statvfs(self._folder)
        free, least = disk.f_bavail * disk.f_frsize, self._config.min_free_bytes
        if free < least:
            raise BadInput(
                f"log: {size_text(free)} free in {self._folder}, an episode is begun with "
                f"{size_text(least)} at least (log.min_free_bytes): free some space"
            )
        if free < max(2 * least, disk.f_blocks * disk.f_frsize // 10) and not self._warned:
            self._warned = True
            logger.warning(
                "log: only %s free in %s; no episode is begun below %s",
                size_text(free),
                self._folder,
                size_text(least),
            )

    def on_begin(self, chosen_by: ActionSource) -> None:
        """Check that an episode may begin; raise as `admit` does."""
        self.admit()

    def on_step(self, step: Step) -> None:
        """Write a step; raise as `append` does."""
        self.append(step)

    def on_end(self, end: End) -> None:
        """Write the end of an episode; raise as `append` does."""
        self.append(end)

    def append(self, record: Record) -> None:
        """Write one record; an `End` seals the file on a helper thread.

        Raises:
            SpecMismatch: the record does not fit the spec; nothing was written.
            BadInput: the record is not the next one of this actor, or the disk is nearly full;
                nothing was written.
            SerlError: the disk refused, now or at an earlier sync or seal.
        """
        self._disk.check()
        key = record.key
        self._check_order(key)
        self._spec.observation.validate_observation(record.observation)
        if isinstance(record, Step):
            self._spec.action.validate_array(record.requested, "requested action")
            self._spec.action.validate_array(record.action, "action")
        parts = record_parts(record)
        if key.index == 0:
            self.admit()
        try:
            self._write(parts, key, round(record.wall_s * 1e9))
        except OSError as error:
            self._disk.fail(error)
            self._disk.check()
        if not isinstance(record, Step):
            self._seal()
        self._next = place_after(record)

    def close(self) -> None:
        """Wait for seals in progress; an episode without `End` is sealed as it is.

        Raises:
            SerlError: the disk refused, now or before.
        """
        try:
            self._seal()
            self._disk.close()
            self._disk.check()
        finally:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(*([SerlError] if kind else [])):  # report the first error
            self.close()

    def _check_order(self, key: Key) -> None:
        expected = (*self._stream, *self._next)
        if (key.run, key.actor, key.epoch, key.episode, key.index) != expected:
            raise BadInput(f"log: expected the record {expected}, got {key}")

    def _write(self, parts: Parts, key: Key, time_ns: int) -> None:
        if self._file is None:
            metadata = metadata_of(key, self._spec)
            self._file = EpisodeWriter(self._folder, PART, metadata, self._spec)
            self._disk.keep_synced(self._file)
        self._file.write(parts, time_ns)
        if self._config.fsync == "step":
            self._file.sync()

    def _seal(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._disk.seal(file)


def lock_log(folder: Path) -> FileLock:
    """Lock an actor's folder for writing; the folder is made if absent.

    Raises:
        BadInput: another process holds the lock, or the folder cannot be written to.
    """
    try:
        make_folder(folder, 0o700)
        return FileLock(folder / "writer.lock", f"the log in {folder}")
    except OSError as error:
        raise BadInput(f"log: cannot write to {folder}: {error.strerror}") from error


class _DiskThread:
    """The thread that waits for the disk instead of `append`: syncs and seals files.

    Jobs run one at a time, in the order of the requests. After an error nothing more is done: files
    are left for `recover`.

    Args:
        folder: folder of the files, for messages.
        interval_s: time between two syncs; None for never.
    """

    def __init__(self, folder: Path, interval_s: float | None) -> None:
        self._folder = folder
        self._interval_s = interval_s
        self._open: EpisodeWriter | None = None
        self._finished: queue.Queue[EpisodeWriter | None] = queue.Queue(_MAX_UNSEALED)
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)
        self._thread.start()

    def keep_synced(self, file: EpisodeWriter) -> None:
        """Sync this file regularly until it is sealed."""
        self._open = file

    def seal(self, file: EpisodeWriter) -> None:
        """Queue the file for sealing; block for up to 5 s while 8 others wait to be sealed.

        Raises:
            SerlError: the queue stayed full.
        """
        self._open = None
        try:
            self._finished.put(file, timeout=_PATIENCE_S)
        except queue.Full:
            file.close()
            self.fail(f"{_MAX_UNSEALED} episodes wait to be sealed, for {_PATIENCE_S:g} s")
            self.check()

    def close(self) -> None:
        """Wait until all jobs are done."""
        self._finished.put(None)
        self._thread.join()

    def fail(self, error: Exception | str) -> None:
        """Store the first error; no further job is done after it."""
        self._error = self._error or f"log: cannot write to {self._folder}: {error}"

    def check(self) -> None:
        """Raise `SerlError` if there was an error; `recover` restores the appended records."""
        if self._error:
            raise SerlError(
                f"{self._error}; the episode ends here, what was written is kept and recovered "
                "at the next start"
            )

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            try:
                job()
            except Exception as error:  # the actor has to learn of any error
                self.fail(error)

    def _next_job(self) -> Callable[[], None] | None:
        try:
            file = self._finished.get(timeout=self._interval_s)
        except queue.Empty:
            return self._sync
        return None if file is None else partial(self._seal, file)

    def _sync(self) -> None:
        file = self._open
        if file is not None and not self._error:
            file.sync()

    def _seal(self, file: EpisodeWriter) -> None:
        if self._error:
            file.close()
        else:
            file.seal()
