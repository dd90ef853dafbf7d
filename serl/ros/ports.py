"""The shared-memory ports that this process reads, as Linux lists them.

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
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO

from serl.errors import CorruptData
from serl.system.files import open_regular

_PORT = "/dev/shm/fastrtps_port"
_PORTS_OF_DOMAIN = 250
_DELETED = " (deleted)"

_STATUS = struct.Struct("<6I")
"""Offset of the ring, number of the port, readers, two timeouts, cells of the ring."""
_STATUS_AT, _FLAGS_AT, _IS_OK = 0x110, 0x12C, 0x01
_RING = struct.Struct("<3I")
"""Place of the next message, free cells, cells."""


def read_ports() -> dict[int, str]:
    """List the ports that this process reads: lock file by descriptor."""
    ports = {}
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since it was listed
            if (path := os.readlink(f"/proc/self/fd/{entry}")).startswith(_PORT):
                ports[int(entry)] = path
    return ports


def reads_domain(ports: dict[int, str], domain_id: int) -> bool:
    """Return whether the port of a domain is among those that are read."""
    return f"{_PORT}{discovery_port(domain_id)}_sl" in ports.values()


def removed_ports(domain_id: int, locks: Iterable[str]) -> set[str]:
    """List those of a node's ports in its domain that another process has removed.

    Args:
        domain_id: domain of the node.
        locks: lock files of the ports that the node reads.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
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
    with suppress(OSError, CorruptData), _open_port(domain_id, "rb") as file:
        return _place_if_full(file, domain_id)
    return None


def replace_port(domain_id: int) -> None:
    """Mark a domain's full port as failed, so that its users replace it by a new one.

    Fast DDS marks so the port of a reader whose death it has noticed. Readers move to the new port
    within 0.4 s, writers with their next message; none of them has to join again.
    """
    with suppress(OSError, CorruptData), _open_port(domain_id, "r+b") as file:
        if _place_if_full(file, domain_id) is not None:
            flags = os.pread(file.fileno(), 1, _FLAGS_AT)[0]
            os.pwrite(file.fileno(), bytes([flags & ~_IS_OK]), _FLAGS_AT)


def _open_port(domain_id: int, mode: str) -> IO[bytes]:
    return open_regular(Path(f"{_PORT}{discovery_port(domain_id)}"), mode=mode, buffering=0)


def _place_if_full(file: IO[bytes], domain_id: int) -> int | None:
    status = os.pread(file.fileno(), _STATUS.size, _STATUS_AT)
    if len(status) < _STATUS.size:
        return None
    ring_at, port, *_, capacity = _STATUS.unpack(status)
    ring = os.pread(file.fileno(), _RING.size, ring_at)
    if port != discovery_port(domain_id) or len(ring) < _RING.size:
        return None
    place, free, cells = _RING.unpack(ring)
    return place if (free, cells) == (0, capacity) and capacity else None


def _mapped(line: str) -> str:
    """Return the path in a line of `/proc/self/maps`; empty without one."""
    words = line.split(maxsplit=5)
    return words[5] if len(words) > 5 else ""
