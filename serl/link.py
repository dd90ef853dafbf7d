"""An actor's end of the link: records go to its log, weights come from a file.

The link process (`serl.ros.link_node`) tails the log and replaces the file, so nothing that the
network does ever reaches the control loop.
"""

from __future__ import annotations

from pathlib import Path

from serl.transport import Snapshot
from serl.wire import decode_snapshot


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
        snapshot = decode_snapshot(self._path.read_bytes(), self._spec_digest)
        return snapshot if snapshot.version > newer_than else None
