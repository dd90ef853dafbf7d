"""Conformance suite for transports: a correct one passes, broken ones are caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from serl.testing import (
    InProcess,
    TransportSuite,
    failures,
)
from serl.transport import Snapshot, Transport
from serl.types import End, Observation, Record, Step


class TestInProcess(TransportSuite):
    def make(self) -> tuple[Transport, Transport]:
        link = InProcess()
        return link, link


class LosesRecords(InProcess):
    def send(self, records: Any) -> None:
        super().send(records[:-1] if len(records) > 1 else records)


class DuplicatesRecords(InProcess):
    def send(self, records: Any) -> None:
        super().send([*records, *records])


class ReversesRecords(InProcess):
    def send(self, records: Any) -> None:
        super().send(list(reversed(records)))


class RoundsObservations(InProcess):
    def send(self, records: Any) -> None:
        super().send([self._rounded(record) for record in records])

    def _rounded(self, record: Record) -> Record:
        state = {
            name: value.astype(np.float16).astype(np.float32)
            for name, value in record.observation.state.items()
        }
        seen = Observation(state, stamps=record.observation.stamps)
        if isinstance(record, End):
            return record
        fields = {name: getattr(record, name) for name in Step.__slots__}
        return Step(**{**fields, "observation": seen})


class DropsWhenFull(InProcess):
    def send(self, records: Any) -> None:
        if len(self._records) < 500:
            super().send(records)


class OldestWins(InProcess):
    def publish(self, snapshot: Snapshot) -> None:
        self._snapshot = self._snapshot or snapshot


class LastWins(InProcess):
    def publish(self, snapshot: Snapshot) -> None:
        if snapshot.version != 3:
            self._snapshot = snapshot


class RepeatsSnapshot(InProcess):
    def latest(self, newer_than: int) -> Snapshot | None:
        return super().latest(0)


class StartsWithEmptySnapshot(InProcess):
    def latest(self, newer_than: int) -> Snapshot | None:
        return super().latest(newer_than) or Snapshot(newer_than + 1, {}, {})


class HalfPrecision(InProcess):
    def publish(self, snapshot: Snapshot) -> None:
        weights = {name: value.astype(np.float16) for name, value in snapshot.weights.items()}
        super().publish(snapshot._replace(weights=weights))


@pytest.mark.parametrize(
    ("link", "caught_by"),
    [
        (LosesRecords, "test_records_arrive_once_in_order_and_whole"),
        (DuplicatesRecords, "test_records_arrive_once_in_order_and_whole"),
        (ReversesRecords, "test_records_arrive_once_in_order_and_whole"),
        (RoundsObservations, "test_records_arrive_once_in_order_and_whole"),
        (DropsWhenFull, "test_sending_does_not_wait_for_the_learner"),
        (OldestWins, "test_the_newest_weights_win"),
        (LastWins, "test_older_weights_do_not_come_back"),
        (RepeatsSnapshot, "test_the_newest_weights_win"),
        (StartsWithEmptySnapshot, "test_there_are_no_weights_before_the_first"),
        (HalfPrecision, "test_the_newest_weights_win"),
    ],
)
def test_transport_suite_catches_broken_transports(link: type[InProcess], caught_by: str) -> None:
    class Suite(TransportSuite):
        patience_s = 0.05

        def make(self) -> tuple[Transport, Transport]:
            both = link()
            return both, both

    assert caught_by in failures(Suite())
