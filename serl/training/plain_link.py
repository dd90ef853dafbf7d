"""The link of an actor over a plug-in transport, on the learner's host.

A plug-in transport carries records and weights only (`serl.transport.TransportKind`): a restarted
link sends all records of its epoch again, and the learner skips the duplicates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serl.errors import BadInput, SerlError
from serl.log.index import Cursors, Stream
from serl.log.tail import Tail
from serl.log.wire import Hello, decode_arrival, encode_lost, encode_record
from serl.specs import Spec
from serl.system.files import read_bounded, write_atomic
from serl.training.link import MAX_SNAPSHOT_BYTES, decode_snapshot, encode_snapshot
from serl.transport import ActorEnd, LearnerEnd, Snapshot
from serl.types import Arrival, LostRecord, place_after

_READ_BYTES = 1 << 20
_PATIENCE_S = 30.0


class PlainSender:
    """Passes an actor's log to a transport, one epoch at a time; see `serl.ros.link.sender`.

    Args:
        open_end: opens the actor's end once the actor has announced itself.
        learner_lock: file that a learner writes when it starts: all is then sent again.

    Attributes:
        end: the actor's end; None before the announcement.
        acknowledged: records of this epoch accepted by the transport.
        sent: records of all epochs accepted by the transport.
        offered: version of the newest weights, unknown with a plug-in transport.
        resent: records sent again.
        in_flight: records queued here: none.
        refused: reason why the learner refuses this actor, unknown with a plug-in transport.
        drained: True if the transport accepted all records in the log at the last read.
        cut_off: True if the learner is unreachable, unknown with a plug-in transport.
        received_s: monotonic time of the learner's last message; infinite: assumed to be present.
    """

    in_flight, offered = 0, 0
    refused, cut_off, received_s = "", False, float("inf")

    def __init__(self, open_end: Callable[[Hello], ActorEnd], learner_lock: Path) -> None:
        self.end: ActorEnd | None = None
        self.acknowledged = self.sent = self.resent = 0
        self._open_end, self._learner_lock = open_end, learner_lock
        self._open_log: Callable[[int], Tail] | None = None
        self._learner = self._learner_start_ns()
        self._log: Tail | None = None
        self._spec: Spec | None = None
        self.drained = False

    @property
    def connected(self) -> bool:
        """True once an epoch was announced."""
        return self._log is not None

    def start(self, hello: Hello, open_log: Callable[[int], Tail]) -> None:
        """Send an epoch from its first record on."""
        self.end = self.end or self._open_end(hello)
        self._spec, self._open_log = hello.spec, open_log
        self._begin()

    def pump(self) -> bool:
        """Send the next records; return False when there were none."""
        if self._log is None or self.end is None or self._spec is None:
            return False
        if (learner := self._learner_start_ns()) != self._learner:
            self._learner = learner
            self._begin()
        records = [decode_arrival(data, self._spec) for data in self._log.read(_READ_BYTES)]
        self.drained = not records
        if records:
            self.end.send(records)
        self.acknowledged += len(records)
        self.sent += len(records)
        return bool(records)

    def _begin(self) -> None:
        assert self._open_log is not None
        if self._log is not None:
            self.resent += self.acknowledged
            self._log.close()
        self._log = self._open_log(0)
        self.acknowledged, self.drained = 0, False

    def _learner_start_ns(self) -> int:
        """Return the time at which a learner was last started (ns, file stamp); 0 if never."""
        try:
            return self._learner_lock.stat().st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Close the log and the transport's end."""
        if self._log is not None:
            self._log.close()
        close_end(self.end)


class PlainWeights:
    """Writes each newer snapshot to a file; see `serl.ros.nodes.link`.

    Args:
        sender: holds the end that receives weights.
        path: the file to write.
        spec_digest: `Spec.digest` that the weights are made for.

    Attributes:
        version: version of the weights in the file; 0 for none.
        rejected: snapshots that could not be written.
    """

    def __init__(self, sender: PlainSender, path: Path, spec_digest: str) -> None:
        self.rejected = 0
        self._sender, self._path, self._spec_digest = sender, path, spec_digest
        try:
            data = read_bounded(path, MAX_SNAPSHOT_BYTES)
            self.version = decode_snapshot(data, spec_digest).version
        except (OSError, BadInput):
            self.version = 0

    def poll(self) -> bool:
        """Write newer weights; return whether there were any."""
        snapshot = self._sender.end.latest(self.version) if self._sender.end else None
        if snapshot is None:
            return False
        try:
            data = encode_snapshot(snapshot, self._spec_digest)
            decode_snapshot(data, self._spec_digest)  # also checks that its values are finite
            write_atomic(self._path, data)
        except (OSError, BadInput):
            self.rejected += 1
            return False
        self.version = snapshot.version
        return True


class ExactlyOnce:
    """A filter of a learner's end: each record once, in order, and none after a gap.

    Args:
        cursors: number of records of each stream that the learner has.
        places: episode and index of the next record of each stream, as far as known.
        admit: returns why an actor is refused; empty when it is admitted.
        now_s: monotonic clock in seconds.

    Attributes:
        counts: records by fate: accepted, duplicate, gap (not taken, as an earlier one is missing).
    """

    def __init__(
        self,
        end: LearnerEnd,
        spec: Spec,
        run: str,
        cursors: Cursors,
        places: Mapping[Stream, tuple[int, int]],
        admit: Callable[[str], str],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter(accepted=0, duplicate=0, gap=0)
        self._now_s = now_s
        self._missing_s: dict[Stream, float] = {}
        self._end, self._spec, self._run, self._admit = end, spec, run, admit
        self._places = dict(places)
        self._admitted = {actor for actor, _ in places}
        self._behind = {stream: cursors[stream] for stream in cursors.keys() - places.keys()}

    def receive(self) -> Sequence[Arrival]:
        """Return the records that the learner does not have yet.

        Raises:
            SerlError: earlier records have been missing for too long, or an actor is refused. All
                records are in the log: the run can be resumed.
            BadInput: a record does not fit the spec.
        """
        return [record for record in map(self._check, self._end.receive()) if self._is_next(record)]

    def publish(self, snapshot: Snapshot) -> None:
        """Publish new weights."""
        self._end.publish(snapshot)

    def flush(self) -> bool:
        """Return True: no data is queued here."""
        return True

    def close(self) -> None:
        """Close the transport's end."""
        close_end(self._end)

    def _check(self, record: Arrival) -> Arrival:
        """Check a record by the wire format: its bounds, and that it fits the spec."""
        data = encode_lost(record) if isinstance(record, LostRecord) else encode_record(record)
        return decode_arrival(data, self._spec)

    def _is_next(self, record: Arrival) -> bool:
        key = record.key
        stream, found = (key.actor, key.epoch), (key.episode, key.index)
        if key.run != self._run:
            raise SerlError(f"transport: a record of the run {key.run!r}, expected {self._run!r}")
        if key.actor not in self._admitted:
            if reason := self._admit(key.actor):
                raise SerlError(f"transport: {reason}")
            self._admitted.add(key.actor)
        if self._behind.get(stream):  # only counted, as all is sent from the first record on
            self._behind[stream] -= 1
            self._places[stream] = place_after(record)
            self.counts["duplicate"] += 1
            return False
        expected = self._places.get(stream, (0, 0))
        if found < expected:
            self.counts["duplicate"] += 1
            return False
        if found > expected:  # left in the transport by an earlier learner: it will be sent again
            self.counts["gap"] += 1
            if self._now_s() - self._missing_s.setdefault(stream, self._now_s()) > _PATIENCE_S:
                raise SerlError(
                    f"transport: {key.actor}: records are missing: expected {expected} (episode, "
                    f"index), got {found}; the log has them, serl train --resume sends them again"
                )
            return False
        self._missing_s.pop(stream, None)
        self._places[stream] = place_after(record)
        self.counts["accepted"] += 1
        return True


def close_end(end: object) -> None:
    """Close an end that has a `close` method."""
    getattr(end, "close", lambda: None)()
