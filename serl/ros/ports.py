"""The shared-memory ports that this process reads, as Linux lists them.

Fast DDS holds a lock file for each port that it reads (`_el`: a port of one reader, `_sl`: the
port of a domain, at which all its participants discover each other). Two causes leave a node that
sends and never receives (Fast DDS 2.14.5, `SharedMemGlobal::open_port_internal`):

- The node opens the port of its domain while another process holds the lock for a moment. Fast DDS
  logs "Failed init_port" and goes on without it.
- Another process mistakes a port in use for the port of a dead process, and removes it: the lock
  stays held, and later messages go to a new port of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PORT = "/dev/shm/fastrtps_port"
_PORTS_OF_DOMAIN = 250
_DELETED = " (deleted)"


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


def _mapped(line: str) -> str:
    """Return the path in a line of `/proc/self/maps`; empty without one."""
    words = line.split(maxsplit=5)
    return words[5] if len(words) > 5 else ""
