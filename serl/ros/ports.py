"""The shared-memory ports that a process reads, as Linux lists them.

Fast DDS holds a lock file for each port that it reads (`_el`: a port of one reader, `_sl`: the
port of a domain, at which all its participants discover each other). Two causes leave a node that
sends and never receives (Fast DDS 2.14.5, `SharedMemGlobal::open_port_internal`):

- The node opens the port of its domain while another process holds the lock for a moment. Fast DDS
  logs "Failed init_port" and goes on without it.
- Another process mistakes a port in use for the port of a dead process, and removes it: the lock
  stays held, and later messages go to a new port of the same name.

A third cause leaves a whole domain deaf to newcomers. Fast DDS replaces the port of a domain within
seconds of the death of a reader, and the other readers move to the new port; but each keeps the
index of its status in the old one (`SharedMemManager::Listener::operator=`). The death of a reader
that has moved is therefore not noticed: its messages are never freed, and once 512 lie in the port,
the port is full for good, and no node discovers another (`full_port`, `replace_port`).

A fourth cause stops every node of the host that starts: a process that is killed between creating
a port and initialising it leaves a port for whose contents the others wait without a timeout, in
C++ (boost's `managed_open_or_create_impl`). Ports from 7000 on belong to no domain, and each node
tries them in turn (`release_ports`).

A node that leaves is in danger as well, after the death of a process that read its ports or was
sending to them: a process that is killed while it sends leaves a mutex of the port locked. The
thread of the node that reads the port then replaces it, frees the old one, and forgets the request
to end. The thread that closes the port meanwhile reads freed memory, or waits for the other for
good (`SharedMemManager::Listener::regenerate_port` and `close`; see `hold_ports`).
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from serl.errors import CorruptData
from serl.system.files import open_regular

SHARED_MEMORY = Path("/dev/shm")
_PORT = f"{SHARED_MEMORY}/fastrtps_port"
_LOCK = re.compile(rf"{_PORT}(\d+)_[es]l")
_PORTS_OF_DOMAIN = 250
_NAMES = "fastrtps_port*"
_HOLD_MS, _PLAUSIBLE_MS = 2_000, 3_600_000
_MOVE_S, _POLL_S = 2.0, 0.02  # a reader waits at most 1 s for a mutex, then 0.33 s
_DELETED = " (deleted)"

_STATUS = struct.Struct("<6I")
"""Offset of the ring, number of the port, readers, two timeouts, cells of the ring."""
_CHECKED_AT, _STATUS_AT, _FLAGS_AT, _IS_OK = 0x100, 0x110, 0x12C, 0x01
_CHECKED = struct.Struct("<q")
"""Wall time of the last look for dead readers, in ms; any process looks a second later."""
_MUTEXES_AT, _MUTEX, _SHARED = (0x5148, 0x5170), struct.Struct("<5I"), 0x80
"""Lock word, count, owner's thread, users, kind (each a pthread_mutex_t of glibc)."""
_STATE = struct.Struct("<I")  # at the beginning of a port
_INITIALISED, _DAMAGED = 2, 3
_INITIALISE_S = 1.0
"""Time after which the creator of a port is taken for dead; it needs less than a millisecond."""
_RING = struct.Struct("<3I")
"""Place of the next message, free cells, cells."""


def read_ports(process: int | str = "self") -> dict[int, str]:
    """List the ports that a process reads, by default this one: lock file by descriptor.

    The port's own file is open for a moment as well, while it is mapped; it does not count.
    """
    ports = {}
    for entry in os.listdir(f"/proc/{process}/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            if _LOCK.match(path := os.readlink(f"/proc/{process}/fd/{entry}")):
                ports[int(entry)] = path
    return ports


def reads_domain(ports: dict[int, str], domain_id: int) -> bool:
    """Return whether the port of a domain is among those that are read."""
    return f"{_PORT}{discovery_port(domain_id)}_sl" in ports.values()


def removed_ports(domain_id: int, locks: Iterable[str], process: int | str = "self") -> set[str]:
    """List those of a node's ports in its domain that another process has removed.

    Args:
        domain_id: domain of the node.
        locks: lock files of the ports that the node reads.
        process: process of the node.
    """
    lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    gone = {path.removesuffix(_DELETED) for path in map(_mapped, lines) if path.endswith(_DELETED)}
    first = discovery_port(domain_id)
    ports = {f"{_PORT}{number}" for number in range(first, first + _PORTS_OF_DOMAIN)}
    return {lock.rpartition("_")[0] for lock in locks} & gone & ports


def discovery_port(domain_id: int) -> int:
    """Return the multicast port of a domain (DDSI-RTPS 9.6.1), which its participants listen on."""
    return 7400 + _PORTS_OF_DOMAIN * domain_id


def full_port(domain_id: int) -> int | None:
    """Return where the full port of a domain would be written next; None unless it is full.

    A port of another version of Fast DDS, with its fields elsewhere, does not count as full.
    """
    port = discovery_port(domain_id)
    with suppress(OSError, CorruptData), _open_port(port, "rb") as file:
        return _place_if_full(file, port)
    return None


def replace_port(domain_id: int) -> None:
    """Mark a domain's full port as failed, so that its users replace it by a new one.

    Fast DDS marks so the port of a reader whose death it has noticed. Readers move to the new port
    within 0.4 s, writers with their next message; none of them has to join again.
    """
    port = discovery_port(domain_id)
    with suppress(OSError, CorruptData), _open_port(port, "r+b") as file:
        if _place_if_full(file, port) is not None:
            flags = os.pread(file.fileno(), 1, _FLAGS_AT)[0]
            os.pwrite(file.fileno(), bytes([flags & ~_IS_OK]), _FLAGS_AT)


def release_ports(limit_s: float = 0.0) -> list[str]:
    """Remove the ports of this host that their creators did not initialise; return their names.

    A port is marked as damaged before, so that the processes that wait for it try another one.

    Args:
        limit_s: longest time to wait for ports that are younger than a second.
    """
    deadline_s, released = time.monotonic() + limit_s, list[str]()
    while True:
        ports = [port for port in SHARED_MEMORY.glob(_NAMES) if port.name[-1].isdigit()]
        found = {port.name: _release(port) for port in ports}
        released += [name for name, done in found.items() if done]
        if None not in found.values() or time.monotonic() > deadline_s:
            return released
        time.sleep(_POLL_S)


def _release(port: Path) -> bool | None:
    """Remove a port that was never initialised; return whether it was, None while it is young."""
    with suppress(OSError, CorruptData), open_regular(port, mode="r+b", buffering=0) as file:
        state = os.pread(file.fileno(), _STATE.size, 0).ljust(_STATE.size, b"\0")
        if _STATE.unpack(state)[0] in (_INITIALISED, _DAMAGED):
            return False
        if abs(time.time() - os.fstat(file.fileno()).st_mtime) < _INITIALISE_S:
            return None
        os.pwrite(file.fileno(), _STATE.pack(_DAMAGED), 0)
        port.unlink()
        return True
    return False


def hold_ports(domain_id: int, locks: Iterable[str]) -> None:
    """Keep the ports that a node reads from being replaced while it closes them.

    No process looks for dead readers of these ports in the next 3 s. Where a port has failed or is
    about to, this blocks until the node has moved to the new one, at most for 2 s.

    Args:
        domain_id: domain of the node.
        locks: lock files of the ports that the node reads.
    """
    ports = {int(lock[1]) for lock in map(_LOCK.match, locks) if lock}
    deadline_s = time.monotonic() + _MOVE_S
    while not all([_hold(port) for port in ports]) or removed_ports(domain_id, locks):
        if time.monotonic() > deadline_s:
            return
        time.sleep(_POLL_S)


def _hold(port: int) -> bool:
    """Postpone the next look for dead readers of a port; return False if it has failed."""
    with suppress(OSError, CorruptData), _open_port(port, "r+b") as file:
        if _status(file, port) is None:
            return True
        now_ms = 1e3 * time.time()
        checked_ms = _CHECKED.unpack(os.pread(file.fileno(), _CHECKED.size, _CHECKED_AT))[0]
        if abs(checked_ms - now_ms) < _PLAUSIBLE_MS:
            os.pwrite(file.fileno(), _CHECKED.pack(round(now_ms + _HOLD_MS)), _CHECKED_AT)
        left = any(_is_left_locked(file, at) for at in _MUTEXES_AT)
        return bool(os.pread(file.fileno(), 1, _FLAGS_AT)[0] & _IS_OK) and not left
    return True


def _is_left_locked(file: IO[bytes], at: int) -> bool:
    """Return whether a mutex belongs to a thread that has ended without unlocking it."""
    mutex = os.pread(file.fileno(), _MUTEX.size, at).ljust(_MUTEX.size, b"\0")
    locked, _, owner, _, kind = _MUTEX.unpack(mutex)
    return bool(locked) and kind == _SHARED and not Path(f"/proc/{owner}").exists()


def _open_port(port: int, mode: str) -> IO[bytes]:
    return open_regular(Path(f"{_PORT}{port}"), mode=mode, buffering=0)


def _status(file: IO[bytes], port: int) -> tuple[int, int] | None:
    """Return the offset and the length of a port's ring; None where the fields lie elsewhere."""
    data = os.pread(file.fileno(), _STATUS.size, _STATUS_AT)
    ring_at, number, *_, cells = _STATUS.unpack(data) if len(data) == _STATUS.size else [0] * 6
    return (ring_at, cells) if number == port else None


def _place_if_full(file: IO[bytes], port: int) -> int | None:
    if (status := _status(file, port)) is None:
        return None
    ring_at, capacity = status
    ring = os.pread(file.fileno(), _RING.size, ring_at)
    if len(ring) < _RING.size:
        return None
    place, free, cells = _RING.unpack(ring)
    return place if (free, cells) == (0, capacity) and capacity else None


def _mapped(line: str) -> str:
    """Return the path in a line of `/proc/self/maps`; empty without one."""
    words = line.split(maxsplit=5)
    return words[5] if len(words) > 5 else ""
