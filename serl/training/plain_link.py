"""The link of an actor over a transport from outside, on the learner's host.

Such a transport is handed records and weights, and nothing else (`serl.transport.TransportKind`):
a link that starts anew sends all records of its epoch again, and the learner leaves out those that
it has.
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
from serl.types import Arrival, Lost, place_after

_READ_BYTES = 1 << 20
_PATIENCE_S = 30.0


class PlainSender:
    """Hands an actor's log to a transport, one epoch at a time; see `serl.ros.link.sender`.

    Args:
        open_end: opens the actor's end once the actor has introduced itself.
        learner_lock: the file that a learner writes when it starts: after that all is sent again.

    Attributes:
        end: the actor's end; None before.
        acknowledged: records of this epoch that the transport took.
        sent: records that it took of all epochs.
        offered: version of the newest weights, which such a transport does not tell.
        resent: records sent again.
        in_flight: records that wait here: none.
        refused: why the learner does not take this actor, which such a transport does not tell.
        cut_off: the learner is out of reach, which such a transport does not tell.
        heard_s: when the learner was heard last, monotonic: it is taken to be there.
    """

    in_flight, offered = 0, 0
    refused, cut_off, heard_s = "", False, float("inf")

    def __init__(self, open_end: Callable[[Hello], ActorEnd], learner_lock: Path) -> None:
        self.end: ActorEnd | None = None
        self.acknowledged = self.sent = self.resent = 0
        self._open_end, self._learner_lock = open_end, learner_lock
        self._open_log: Callable[[int], Tail] | None = None
        self._learner = self._started()
        self._log: Tail | None = None
        self._spec: Spec | None = None
        self._log_ended = False

    @property
    def connected(self) -> bool:
        """An epoch was introduced."""
        return self._log is not None

    @property
    def drained(self) -> bool:
        """The transport took all that was in the log at the last look."""
        return self._log_ended

    def start(self, hello: Hello, open_log: Callable[[int], Tail]) -> None:
        """Send an epoch from its first record on."""
        self.end = self.end or self._open_end(hello)
        self._spec, self._open_log = hello.spec, open_log
        self._begin()

    def pump(self) -> bool:
        """Hand over the next records; False when there was none."""
        if self._log is None or self.end is None or self._spec is None:
            return False
        if (learner := self._started()) != self._learner:
            self._learner = learner
            self._begin()
        records = [decode_arrival(data, self._spec) for data in self._log.read(_READ_BYTES)]
        self._log_ended = not records
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
        self.acknowledged, self._log_ended = 0, False

    def _started(self) -> int:
        """When a learner was started last, as the disk says it; 0 before there was one."""
        try:
            return self._learner_lock.stat().st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Let go of the log and of the transport's end."""
        if self._log is not None:
            self._log.close()
        close_end(self.end)


class PlainWeights:
    """Writes each newer snapshot to a file; see `serl.ros.nodes.link`.

    Args:
        sender: has the end that weights come from.
        path: of the file.
        spec_digest: `Spec.digest` that the weights are made for.

    Attributes:
        version: of the weights in the file; 0 for none.
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
        """Write newer weights; True when there are."""
        snapshot = self._sender.end.latest(self.version) if self._sender.end else None
        if snapshot is None:
            return False
        try:
            data = encode_snapshot(snapshot, self._spec_digest)
            decode_snapshot(data, self._spec_digest)  # also that its values are finite
            write_atomic(self._path, data)
        except (OSError, BadInput):
            self.rejected += 1
            return False
        self.version = snapshot.version
        return True


class Once:
    """A learner's end that gives each record once, in order, and refuses what is missing.

    Args:
        end: the transport's end.
        spec: what records are to fit.
        run: name of the run.
        cursors: how many records of each stream the learner has ...
        places: ... and episode and index of the next one, as far as they are known.
        admit: why an actor is not let in; empty when it is.
        now_s: monotonic.

    Attributes:
        counts: records by fate: accepted, duplicate, gap (not taken, as one before is missing).
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
        """The records that the learner does not have yet.

        Raises:
            SerlError: those before them are missing for long, or an actor is not let in. All of
                them are in the log: the run can be resumed.
            BadInput: one does not fit the spec.
        """
        return [
            record for record in map(self._checked, self._end.receive()) if self._is_next(record)
        ]

    def publish(self, snapshot: Snapshot) -> None:
        """Offer new weights."""
        self._end.publish(snapshot)

    def flush(self) -> bool:
        """Nothing waits here."""
        return True

    def close(self) -> None:
        """Let go of the transport's end."""
        close_end(self._end)

    def _checked(self, record: Arrival) -> Arrival:
        """The record as the wire format would bring it: within bounds, and fitting the spec."""
        data = encode_lost(record) if isinstance(record, Lost) else encode_record(record)
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
        if self._behind.get(stream):  # counted alone, as it is sent from its first record on
            self._behind[stream] -= 1
            self._places[stream] = place_after(record)
            self.counts["duplicate"] += 1
            return False
        expected = self._places.get(stream, (0, 0))
        if found < expected:
            self.counts["duplicate"] += 1
            return False
        if found > expected:  # left in the transport by an earlier learner: all comes again
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
    """Close an end that has a method for that."""
    getattr(end, "close", lambda: None)()
