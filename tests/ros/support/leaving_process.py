"""Nodes that end half a second after a process died while sending to their ports.

The death is emulated by a mutex that no living thread owns. Arguments: folder of the run.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from serl.ros.node import RosNode
from serl.ros.ports import _MUTEX, _MUTEXES_AT, _SHARED, read_ports

LOCKED, NOBODY = 2, 0x7FFFFFF0


def leave_locked(port: Path) -> None:
    """Lock the mutexes of a port from a thread that then ends."""
    with port.open("r+b", buffering=0) as file:
        for at in _MUTEXES_AT:
            *_, kind = _MUTEX.unpack(os.pread(file.fileno(), _MUTEX.size, at))
            assert kind == _SHARED, "the mutex lies elsewhere"
            os.pwrite(file.fileno(), _MUTEX.pack(LOCKED, 0, NOBODY, 1, kind), at)


if __name__ == "__main__":
    for _ in range(3):  # two of three crash without `hold_ports`
        with RosNode("first", Path(sys.argv[1])):
            for lock in read_ports().values():
                leave_locked(Path(lock.rpartition("_")[0]))
            time.sleep(0.5)  # readers give up waiting before the closing node
