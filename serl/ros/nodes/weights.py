"""The actor's end of the weights: the newest valid snapshot as one file, replaced whole."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from serl.errors import BadInput, CorruptData
from serl.system.files import read_bounded
from serl.ros.node import RosNode
from serl.ros.topics import WEIGHTS, from_cdr
from serl.training.snapshots import MAX_SNAPSHOT_BYTES, decode_snapshot
from serl.transport import MAX_LEAD, is_newer


class WeightsReceiver:
    """Writes each newer snapshot to a file; anything older, damaged or foreign is not written.

    Args:
        node: the process's node.
        path: the file; versions that are not newer than the one in it are ignored.
        spec_digest: `Spec.digest` that the weights must be made for.
        offered: version that the learner published last, as far as it was heard; 0 for unknown.

    Attributes:
        version: of the weights in the file; 0 for none.
        outdated: sound messages that were not newer.
        rejected: messages that were damaged or foreign, or that the disk did not take.
        problem: why the last one of them was rejected.
    """

    def __init__(
        self,
        node: RosNode,
        path: Path,
        spec_digest: str,
        offered: Callable[[], int] = lambda: 0,
    ) -> None:
        self.outdated = self.rejected = 0
        self.problem = ""
        self._path = path
        self._spec_digest = spec_digest
        self._offered = offered
        self.version = self._version_on_disk()
        self._messages: deque[bytes] = deque(maxlen=1)  # only the newest matter, and each is large
        node.subscribe(WEIGHTS, self._messages.append, raw=True)

    def poll(self) -> bool:
        """Write what arrived since the last call; True when there are new weights."""
        before = self.version
        while self._messages:
            try:
                self._take(self._messages.popleft())
            except (BadInput, OSError) as error:  # a full disk costs these weights, not the link
                self.rejected += 1
                self.problem = str(error)
        return self.version != before

    def _take(self, message: bytes) -> None:
        data = bytes(from_cdr(message))
        version = decode_snapshot(data, self._spec_digest).version
        offered = self._offered()
        if offered and version > offered + MAX_LEAD:
            raise CorruptData(f"weights version {version}: the learner is at version {offered}")
        if not is_newer(version, self.version):
            self.outdated += 1
            return
        self._replace(data)
        self.version = version

    def _version_on_disk(self) -> int:
        try:
            data = read_bounded(self._path, MAX_SNAPSHOT_BYTES)
            return decode_snapshot(data, self._spec_digest).version
        except (OSError, BadInput):
            return 0

    def _replace(self, data: bytes) -> None:
        """Not synced to the disk: a file that a power cut damaged fails its checksum."""
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            scratch.write_bytes(data)
            scratch.replace(self._path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
