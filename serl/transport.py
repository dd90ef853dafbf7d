"""What carries steps to a learner and weights to actors, and the implementation in one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np

from serl.types import Arrival, Record

Weights = Mapping[str, np.ndarray[Any, Any]]

MAX_VERSION = 10**9
"""Highest version of weights that is believed: more than a learner can publish in three years."""

MAX_LEAD = 10**7
"""A version so far ahead of the learner's own was not published by that learner."""


def is_newer(version: int, known: int) -> bool:
    """Whether weights of a version replace weights of a known version.

    Lower versions replace a known version that is ahead of them by more than `MAX_LEAD`: a version
    that was forged once would otherwise keep the learner's own weights out for good.
    """
    return version > known or known > version + MAX_LEAD


class Snapshot(NamedTuple):
    """The actor's part of an agent at one moment.

    Attributes:
        version: counts up from 1 with each publication.
        trained: online environment steps that the learner had trained on, by actor.
        weights: arrays by name.
    """

    version: int
    trained: Mapping[str, int]
    weights: Weights


class WeightSource(Protocol):
    """Where an actor finds new weights."""

    def latest(self, newer_than: int) -> Snapshot | None:
        """The newest weights, or None when their version is not above `newer_than`."""
        ...


class LearnerEnd(Protocol):
    """What a learner uses of a transport."""

    def receive(self) -> Sequence[Arrival]:
        """What arrived since the last call, in order per actor."""
        ...

    def publish(self, snapshot: Snapshot) -> None:
        """Offer new weights; only the newest matter."""
        ...


class Transport(WeightSource, LearnerEnd, Protocol):
    """Both directions between actors and a learner."""

    def send(self, records: Sequence[Record]) -> None:
        """Actor: hand over records in order; never blocks on the learner."""
        ...


class InProcess:
    """Actor and learner in one process; safe between threads."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._snapshot: Snapshot | None = None
        self._lock = Lock()

    def send(self, records: Sequence[Record]) -> None:
        """Append to the queue."""
        with self._lock:
            self._records.extend(records)

    def receive(self) -> Sequence[Record]:
        """Empty the queue."""
        with self._lock:
            records = list(self._records)
            self._records.clear()
        return records

    def publish(self, snapshot: Snapshot) -> None:
        """Keep the newest weights."""
        with self._lock:
            if self._snapshot is None or snapshot.version > self._snapshot.version:
                self._snapshot = snapshot

    def latest(self, newer_than: int) -> Snapshot | None:
        """The newest weights, if newer."""
        snapshot = self._snapshot
        return snapshot if snapshot is not None and snapshot.version > newer_than else None
