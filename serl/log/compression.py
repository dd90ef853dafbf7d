"""Compression of the images of sealed episodes, outside the process that drives the arm."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from serl.errors import BadInput, SerlError
from serl.log.episode_log import LogConfig
from serl.log.episode_reader import PART, EpisodeFile, Message, episode_name, episode_paths
from serl.log.episode_writer import EpisodeWriter
from serl.log.images import compress
from serl.log.manifest import read_entries
from serl.log.ros_messages import image_head
from serl.system.files import FileLock, FolderWatch

logger = logging.getLogger(__name__)

_SCRATCH = ".compact"
_NICENESS = 15
_RETRY_S = 60.0


def compact(path: Path, config: LogConfig) -> bool:
    """Rewrite a sealed episode with compressed images; the file is complete at every moment.

    Readers that have the file open continue with the old content, without a difference.

    Returns:
        False when the file was left unchanged, since it has no raw images.

    Raises:
        BadInput: another process is compressing this actor's episodes.
        CorruptData: the file is damaged; it is left unchanged.
        SerlError: the disk refused, or is nearly full; the file is left unchanged.
    """
    if config.images == "raw":
        return False
    lock = path.parent / "compaction.lock"
    try:
        disk = os.statvfs(path.parent)
        if disk.f_bavail * disk.f_frsize < config.min_free_bytes:
            raise SerlError(f"{path}: cannot be compressed: the disk is nearly full")
        with (
            FileLock(lock, f"the compaction of {path.parent}"),
            closing(EpisodeFile(path, checksum=True)) as source,
        ):
            return _rewrite(source, config)
    except OSError as error:
        raise SerlError(f"{path}: cannot be compressed: {error}") from error


def _rewrite(source: EpisodeFile, config: LogConfig) -> bool:
    folder = source.path.parent
    try:
        writer = _copy(source, config)
        if writer is None:
            return False
        entries = read_entries(folder).get(source.path.name, [])
        writer.seal(recovered=bool(entries) and entries[-1].recovered)
    except BaseException:
        episode_name(source.path).path(folder, _SCRATCH).unlink(missing_ok=True)
        raise
    return True


def _copy(source: EpisodeFile, config: LogConfig) -> EpisodeWriter | None:
    """Return an unsealed file with all records; None when the source has no raw images."""
    writer: EpisodeWriter | None = None
    try:
        for message in source.whole():
            if not message.images or source.metadata["images"] != "raw":
                return None
            if writer is None:
                assert source.spec is not None  # there was a message
                metadata = source.metadata | {"images": config.images}
                writer = EpisodeWriter(source.path.parent, _SCRATCH, metadata, source.spec)
            writer.copy(_compress(source, message, config))
    except BaseException:
        if writer is not None:
            writer.close()
        raise
    return writer


def _compress(source: EpisodeFile, message: Message, config: LogConfig) -> Message:
    assert source.spec is not None
    images = []
    cameras = sorted(source.spec.observation.images.items())
    for (name, spec), pixels in zip(cameras, source.parts(message).images, strict=True):
        data = compress(pixels, spec.shape, config.images, config.jpeg_quality)
        start = image_head(config.images, name, spec.shape, len(data), message.time_ns)
        images.append(memoryview(start + data))
    return message._replace(images=tuple(images))


class Compactor:
    """A background compressor of an actor's sealed episodes, the oldest first, one at a time.

    Compression runs on a thread of low priority. A damaged file is left unchanged; a file that the
    disk refuses is tried again each minute. Use one compactor per folder: it removes the scratch
    files that a killed one left.

    Args:
        folder: folder of the actor's episodes; need not exist yet.
        config: encoding and quality of the images, and minimum free space.
        monotonic_s: returns monotonic seconds.
    """

    def __init__(
        self,
        folder: Path,
        config: LogConfig,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._config = config
        self._now_s = monotonic_s
        self._waiting: deque[Path] = deque()
        self._compressed: set[Path] = set()
        self._watch = FolderWatch(folder)
        self._retry_s = float("-inf")
        self._warned = False  # whether a warning about a retried file was logged
        self._thread: threading.Thread | None = None
        with suppress(OSError):
            for scratch in folder.glob(f"*{_SCRATCH}"):
                scratch.unlink()

    def step(self) -> None:
        """Start compressing the next file, if there is one and none is in progress; never block."""
        if self._config.images == "raw" or (self._thread and self._thread.is_alive()):
            return
        if self._now_s() < self._retry_s:
            return
        if not self._waiting and self._watch.changed():
            sealed = (p for p in episode_paths(self._folder) if not p.name.endswith(PART))
            self._waiting.extend(path for path in sealed if path not in self._compressed)
        if self._waiting:
            path = self._waiting.popleft()
            self._compressed.add(path)
            self._thread = threading.Thread(target=self._compact, args=(path,), daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Wait for the file in progress."""
        if self._thread is not None:
            self._thread.join()

    def _compact(self, path: Path) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        try:
            compact(path, self._config)
        except BadInput as error:
            logger.warning("not compressed: %s", error)
        except SerlError as error:
            if path.exists():  # the file was not removed meanwhile
                if not self._warned:
                    logger.warning("not compressed yet: %s", error)
                self._warned = True
                self._retry_s = self._now_s() + _RETRY_S
                self._waiting.append(path)
        else:
            self._warned = False
