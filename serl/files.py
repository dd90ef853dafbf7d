"""Files: written so that a crash leaves the old content or the new, read within bounds, locked."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from serl.errors import BadInput, CorruptData

Buffer = bytes | memoryview

_TICK_NS = 20_000_000  # of the clock that stamps files; the kernel's is 10 ms at most

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def checked_name(name: str, what: str) -> str:
    """`name` itself when it can be one part of a path; raises `BadInput` otherwise."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{what} {name[:80]!r}: expected 1 to 64 letters, digits, '_', '-' or '.', "
            "the first a letter or digit"
        )
    return name


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The content of a file.

    Raises:
        CorruptData: it is larger; nothing was read.
        OSError: it is absent, or cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise CorruptData(f"{path}: {size} bytes, allowed {max_bytes}")
        return file.read(max_bytes)


def write_all(descriptor: int, *pieces: Buffer) -> None:
    """Write every byte or raise `OSError`; the operating system may take only a part at a time."""
    written = os.writev(descriptor, pieces)
    if written < sum(map(len, pieces)):
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make creations and renames inside `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder, and those above it that are missing, unless it is there; on the disk at once.

    Args:
        path: of the folder.
        mode: its permissions; those above it have the usual ones.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex digits; raises `OSError` when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(path: Path) -> str:
    """The sha256 of a file that a person named; raises `BadInput` when it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error


def check_destination(path: Path) -> None:
    """Raise `BadInput` unless a file can be written there, before hours go into what it will hold.

    Its folder is made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
    if path.is_dir():
        raise BadInput(f"{path}: is a folder, expected a file to write")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadInput(f"{path}: cannot be written")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path`: at every moment a reader sees the old content or the new, whole."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(scratch, data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


class FolderWatch:
    """Notices that names in a folder changed, without listing them.

    Args:
        folder: need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen_ns = -1

    def changed(self) -> bool:
        """Names may have changed since the last call; at the first one they have."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._seen_ns:
            return False
        # One more change within the same tick of the clock would leave no trace.
        settled = time.time_ns() - changed_ns > _TICK_NS
        self._seen_ns = changed_ns if settled else -1
        return True


def is_alive(lock: Path) -> bool:
    """Whether the process lives that took a `FileLock` last; it may have given it back."""
    try:
        os.kill(int(lock.read_text()), 0)
    except (OSError, ValueError, OverflowError):
        return False
    return True


class FileLock:
    """An exclusive lock that the kernel gives back when its owner dies, however it dies.

    Args:
        path: the lock file; it holds the owner's process id and is never removed.
        what: what is locked, in words, for the refusal.

    Raises:
        BadInput: another process holds it; the line names its process id.
        OSError: the file cannot be written.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise BadInput(f"{what} is in use by process {owner or 'unknown'} ({path})") from None
        try:
            os.ftruncate(self._descriptor, 0)
            write_all(self._descriptor, f"{os.getpid()}\n".encode())
        except OSError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Give the lock back; a second call does nothing."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
