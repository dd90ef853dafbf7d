"""An actor's end of the link: records go to its log, weights come from a file.

The link process (`serl.ros.nodes.link`) tails the log and replaces the file, so nothing that the
network does ever reaches the control loop.
"""

from __future__ import annotations

import socket
from pathlib import Path
from uuid import uuid4

from serl.system.files import read_bounded, write_atomic
from serl.training.snapshots import MAX_SNAPSHOT_BYTES, decode_snapshot
from serl.specs import Spec
from serl.transport import Snapshot, is_newer
from serl.log.wire import Hello, encode_hello

HELLO = "hello.json"
HOME = "home"
_MAX_HOME_BYTES = 64


def announce(folder: Path, run: str, actor: str, epoch: int, spec: Spec) -> None:
    """Introduce a start of an actor to the link process beside it.

    Args:
        folder: where actor and link process meet; made if absent. Its file `home`, made once,
            tells it from the folder of any other actor, so that two of one name are noticed.
        run: name of the run.
        actor: name of the actor.
        epoch: identity of this start.
        spec: what its records fit.
    """
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / HOME
    if not home.exists():
        write_atomic(home, uuid4().hex.encode())
    place = f"{socket.gethostname()}:{folder.resolve()}"
    hello = Hello(run, actor, epoch, spec, read_home(folder), place)
    write_atomic(folder / HELLO, encode_hello(hello))


def read_home(folder: Path) -> str:
    """What tells the folder from all others; empty when nothing was announced in it.

    Raises:
        CorruptData: the file that says it is too large.
    """
    try:
        return read_bounded(folder / HOME, _MAX_HOME_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return ""


class WeightsFile:
    """Weights that another process replaces atomically.

    Args:
        path: of the file; may not exist yet.
        spec_digest: weights of another spec are refused.
    """

    def __init__(self, path: Path, spec_digest: str) -> None:
        self._path = path
        self._spec_digest = spec_digest
        self._seen: tuple[int, int] | None = None

    def latest(self, newer_than: int) -> Snapshot | None:
        """The weights in the file if it was replaced since the last look and they are newer.

        Raises:
            CorruptData: the file is damaged; said once.
            SpecMismatch: the weights belong to another spec; said once.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        seen = (status.st_mtime_ns, status.st_ino)
        if seen == self._seen:
            return None
        self._seen = seen
        data = read_bounded(self._path, MAX_SNAPSHOT_BYTES)
        snapshot = decode_snapshot(data, self._spec_digest)
        return snapshot if is_newer(snapshot.version, newer_than) else None
