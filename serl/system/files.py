"""Atomic writes, bounded reads and locks of files; a crash leaves the old content or the new."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

from serl.errors import BadInput, CorruptData

Buffer = bytes | memoryview

_TICK_NS = 20_000_000  # bound for a tick of the clock that stamps files; the kernel's is <= 10 ms

_FULL_BYTES = 1 << 20  # a disk with less free space than this may refuse a single write
_MAX_ID_BYTES = 32
_NAMING_S, _NAMING_PERIOD_S = 2.0, 0.01  # the owner of a lock writes its id within this time
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def checked_name(name: str, subject: str) -> str:
    """Return `name` if it can be one part of a path; raise `BadInput` otherwise."""
    if not _NAME.fullmatch(name):
        raise BadInput(
            f"{subject} {name[:80]!r}: expected 1 to 64 letters, digits, '_', '-' or '.', "
            "the first a letter or digit"
        )
    return name


def home_path(path: str | Path) -> Path:
    """Return a path, whose first part may be `~`, the home folder; an unknown `~user` stays."""
    return Path(os.path.expanduser(path))


def expand_home(name_or_path: str) -> str:
    """Return the path of a .py or .yaml file with the home folder for `~`; other text unchanged."""
    is_file = name_or_path.endswith((".py", ".yaml"))
    return os.path.expanduser(name_or_path) if is_file else name_or_path


def check_utf8(text: str | Path, kind: str = "names of files and folders") -> None:
    """Raise `BadInput` for a text that settings, logs and messages cannot hold, as it is no UTF-8.

    Such a text has surrogates in Python; see `os.fsdecode`.

    Args:
        text: the text, such as a path.
        kind: what the text is one of, in the plural.
    """
    try:
        str(text).encode()
    except UnicodeEncodeError:
        shown = str(text).encode(errors="backslashreplace").decode()
        raise BadInput(f"{shown}: {kind} must be UTF-8") from None


def open_regular(
    path: Path, max_bytes: int | None = None, mode: str = "rb", buffering: int = -1
) -> IO[Any]:
    """Open a file that must be a regular one, without waiting for a FIFO or a device.

    Args:
        path: file to open.
        max_bytes: a larger file is refused; None for no bound.
        mode: as for `open`, in bytes.
        buffering: as for `open`.

    Raises:
        CorruptData: the file is not regular, for example a FIFO or a device, or it is too large.
        OSError: the file is absent, or cannot be opened.
    """
    file = open(path, mode, buffering, opener=_open_regular)  # noqa: SIM115
    size = os.fstat(file.fileno()).st_size
    if max_bytes is not None and size > max_bytes:
        file.close()
        raise CorruptData(f"{path}: {size} bytes, allowed {max_bytes}")
    return file


def _open_regular(path: str | Path, flags: int, permissions: int = 0o666) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, permissions)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO without a reader
            raise CorruptData(f"{path}: is a socket or a FIFO, expected a regular file") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _irregular(path, mode)
    return descriptor


def _irregular(path: str | Path, mode: int) -> CorruptData:
    kind = _KINDS.get(stat.S_IFMT(mode), "something else")
    return CorruptData(f"{path}: is {kind}, expected a regular file")


def check_regular(path: Path, max_bytes: int) -> None:
    """Check a file that a library opens by its path; an absent file passes.

    The file is not opened: to close it would end the locks that this process has on it.

    Raises:
        CorruptData: the path is not that of a regular file, or the file is too large.
        OSError: the status of the file cannot be read.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        raise _irregular(path, found.st_mode)
    if found.st_size > max_bytes:
        raise CorruptData(f"{path}: {found.st_size} bytes, allowed {max_bytes}")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; raise as `open_regular` does."""
    with open_regular(path, max_bytes) as file:
        content: bytes = file.read(max_bytes)
        return content


def size_text(count: float) -> str:
    """Return a number of bytes in GB, or in MB below 1 GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def disk_full(folder: Path) -> str:
    """Describe a disk that has no space left, for an error message; empty while it has some."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return ""
    if free > _FULL_BYTES:
        return ""
    return f"the disk of {folder} is full, {free / 1e6:.1f} MB are free: free some space"


def write_all(descriptor: int, *pieces: Buffer) -> None:
    """Write every byte or raise `OSError`; the operating system may take only a part at a time."""
    written = os.writev(descriptor, pieces)
    if written < sum(map(len, pieces)):
        rest = memoryview(b"".join(pieces))[written:]
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def sync(path: Path) -> None:
    """Make the content of a file, or creations and renames in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Make a folder and its missing parents, unless it exists; all are on disk on return.

    Args:
        path: folder to make.
        mode: permissions of the folder; its parents get the usual ones.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync(path.parent)


def own_folder(path: Path) -> Path:
    """Return a private folder in a shared place, such as /tmp; make it if it is missing.

    Raises:
        BadInput: it is another user's, whose links in it could lead to files of this user.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise BadInput(f"{path}: expected a folder of this user; have it removed")
    return path


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, in hex digits; raise as `open_regular` does."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def digest_of(path: Path) -> str:
    """Return the sha256 of a file named by the user; raise `BadInput` if it cannot be read."""
    try:
        return sha256_of(path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from error


def check_destination(path: Path) -> None:
    """Raise `BadInput` unless a file can be written at `path`; its folder is made.

    Called before hours are spent on the content of the file.
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
    """Replace the file `path` atomically: a reader sees either the old content or the new."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(scratch, data)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a scratch folder with the name of `path`, which becomes `path` at the end of the block.

    An error leaves `path` as it was; so does the kill of this process, whose scratch folder the
    next call removes.

    Raises:
        BadInput: `path` cannot be written, is a file, or is a folder that is not empty.
    """
    path = path.resolve()
    try:
        if path.exists() and not path.is_dir():
            raise BadInput(f"{path}: is a file, expected a new folder")
        home = path if path.exists() else path.parent  # an empty folder can be a mounted disk
        home.mkdir(parents=True, exist_ok=True)
        for old in home.glob(f".{path.name}.*.tmp"):
            if not _is_running(old.name.split(".")[-2]):
                shutil.rmtree(old)
        if path.exists() and any(path.iterdir()):
            raise BadInput(f"{path}: is not empty, expected a new folder")
        scratch = home / f".{path.name}.{os.getpid()}.tmp"
        folder = scratch / path.name
        folder.mkdir(parents=True)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror}") from error
    try:
        yield folder
        if path.exists():
            for child in list(folder.iterdir()):
                child.rename(path / child.name)
        else:
            folder.rename(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class FolderWatch:
    """A detector of changed names in a folder, without listing them.

    Args:
        folder: folder to watch; need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest_ns = -1

    def changed(self) -> bool:
        """Return whether names may have changed since the last call; True at the first call.

        False while the folder does not exist.
        """
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if changed_ns == self._newest_ns:
            return False
        # One more change within the same tick of the clock would leave no trace.
        settled = time.time_ns() - changed_ns > _TICK_NS
        self._newest_ns = changed_ns if settled else -1
        return True


def is_alive(lock: Path) -> bool:
    """Return whether the last owner of a `FileLock` lives; it may have released the lock."""
    try:
        return _is_running(read_bounded(lock, _MAX_ID_BYTES))
    except (OSError, CorruptData):
        return False


def _is_running(process: str | bytes) -> bool:
    try:
        number = int(process)
        os.kill(number, 0)
    except PermissionError:  # a process of another user
        return True
    except (OSError, OverflowError, ValueError):
        return False
    return number > 0


class FileLock:
    """An exclusive file lock that the kernel releases when its owner dies, however it dies.

    The owner writes its process id after it has the lock. A second process that tries in between
    tries again until it gets the lock, or finds the id of a living process.

    Args:
        path: the lock file; it holds the owner's process id and is never removed.
        subject: description of the locked resource, for the error.
        sleep: waits for a number of seconds.

    Raises:
        BadInput: another process holds the lock; the line names its process id.
        CorruptData: the path is not that of a regular file.
        OSError: the file cannot be written.
    """

    def __init__(
        self, path: Path, subject: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(path, subject, sleep)
            os.ftruncate(self._descriptor, 0)
            write_all(self._descriptor, f"{os.getpid()}\n".encode())
        except BaseException:
            self.close()
            raise

    def _lock(self, path: Path, subject: str, sleep: Callable[[float], None]) -> None:
        for _ in range(round(_NAMING_S / _NAMING_PERIOD_S)):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if is_alive(path):
                    break
                sleep(_NAMING_PERIOD_S)
            else:
                return
        owner = os.pread(self._descriptor, _MAX_ID_BYTES, 0).decode(errors="replace").strip()
        raise BadInput(f"{subject} is in use by process {owner or 'unknown'} ({path})")

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
