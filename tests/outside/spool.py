"""Transport through files in a folder, for processes of one host."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from serl.errors import BadInput
from serl.log.wire import decode_arrival, encode_lost, encode_record
from serl.system.files import write_atomic
from serl.training.link import decode_snapshot, encode_snapshot
from serl.transport import RunIdentity, Snapshot, TransportConfig
from serl.types import Arrival, LostRecord


class SpoolConfig(TransportConfig):
    """Settings of the transport.

    Attributes:
        subfolder: folder of the files inside the run folder.
    """

    subfolder: str = Field("spool", pattern=r"^[a-z]+$")


class Spool:
    """Both ends of the transport; see `serl.transport.Transport`."""

    Config = SpoolConfig

    def __init__(self, config: SpoolConfig, meeting: RunIdentity) -> None:
        self._folder = meeting.folder / config.subfolder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._spec, self._digest = meeting.spec, meeting.spec.digest
        self._sent = self._looked = 0
        self._name = "actor"

    @classmethod
    def actor_end(cls, config: TransportConfig, meeting: RunIdentity, actor: str) -> Spool:
        assert isinstance(config, SpoolConfig)
        end = cls(config, meeting)
        end._name = actor
        return end

    @classmethod
    def learner_end(cls, config: TransportConfig, meeting: RunIdentity) -> Spool:
        assert isinstance(config, SpoolConfig)
        return cls(config, meeting)

    def send(self, records: Sequence[Arrival]) -> None:
        for record in records:
            self._sent += 1
            data = encode_lost(record) if isinstance(record, LostRecord) else encode_record(record)
            path = self._folder / f"{self._name}-{self._sent:012}"
            path.with_suffix(".part").write_bytes(data)
            path.with_suffix(".part").rename(path.with_suffix(".record"))

    def receive(self) -> Sequence[Arrival]:
        records = []
        for path in sorted(self._folder.glob("*.record")):
            records.append(decode_arrival(path.read_bytes(), self._spec))
            path.unlink()
        return records

    def publish(self, snapshot: Snapshot) -> None:
        before = self._read()
        if before is None or snapshot.version > before.version:
            write_atomic(self._weights, encode_snapshot(snapshot, self._digest))

    def latest(self, newer_than: int) -> Snapshot | None:
        snapshot = self._read()
        return snapshot if snapshot and snapshot.version > newer_than else None

    @property
    def _weights(self) -> Path:
        return self._folder / "weights"

    def _read(self) -> Snapshot | None:
        try:
            return decode_snapshot(self._weights.read_bytes(), self._digest)
        except (FileNotFoundError, BadInput):
            return None


transport = Spool
