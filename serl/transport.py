"""Contract of the transport of steps and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from serl.plugins import PluginName
from serl.specs import Spec
from serl.types import Arrival, FrozenModel

Weights = Mapping[str, np.ndarray[Any, Any]]

DDS = "dds"
"""Kind of the transport included in serl: ROS 2 topics."""

MAX_VERSION = 10**9
"""Highest accepted version of weights: more than a learner can publish in three years."""

MAX_LEAD = 10**7
"""Lead over the learner's version beyond which a version cannot stem from that learner."""


def is_newer(version: int, current: int) -> bool:
    """Return whether weights of a version replace weights of the current version.

    A lower version replaces a current one ahead of it by more than `MAX_LEAD`; otherwise a single
    forged version would block the learner's own weights permanently.
    """
    return version > current or current > version + MAX_LEAD


class Snapshot(NamedTuple):
    """The actor weights of an agent at one moment.

    Attributes:
        version: version of the weights; counts up from 1 with each publication.
        trained: online environment steps that the learner had trained on, by actor.
        weights: arrays by name.
    """

    version: int
    trained: Mapping[str, int]
    weights: Weights


class WeightSource(Protocol):
    """A source of new weights for an actor."""

    def latest(self, newer_than: int) -> Snapshot | None:
        """Return the newest weights, or None if their version is not above `newer_than`."""
        ...


class LearnerEnd(Protocol):
    """The learner's end of a transport."""

    def receive(self) -> Sequence[Arrival]:
        """Return the records that arrived since the last call, in order per actor."""
        ...

    def publish(self, snapshot: Snapshot) -> None:
        """Publish new weights; only the newest are kept."""
        ...


class ActorEnd(WeightSource, Protocol):
    """The actor's end of a transport."""

    def send(self, records: Sequence[Arrival]) -> None:
        """Send records in order; never blocks on the learner."""
        ...


class Transport(ActorEnd, LearnerEnd, Protocol):
    """A transport with both ends: the actor's and the learner's."""


class TransportConfig(FrozenModel):
    """Settings of the transport of steps and weights.

    A transport with further settings subclasses this model as its `Config`.

    Attributes:
        kind: "dds" for ROS 2 topics; the name of a transport from an installed package; or the path
            of a .py file.
    """

    kind: PluginName = DDS


class RunIdentity(NamedTuple):
    """The identity of a run, by which the transport connects its actors to its learner.

    Attributes:
        folder: folder of the run, on the host of the calling process.
        run: name of the run.
        spec: spec of the records.
    """

    folder: Path
    run: str
    spec: Spec


class TransportKind(Protocol):
    """Factory of both ends, which run in different processes; exported as `transport`.

    Records accepted by an actor's end arrive in order. A restarted link sends all records of its
    actor again; records that the learner already has are dropped (`serl.training.plain_link`).
    An end with a method `close` is closed at the end.

    Attributes:
        Config: model of the settings `transport.*`; if absent, `kind` is the only setting.
    """

    Config: ClassVar[type[TransportConfig]]

    def actor_end(self, config: TransportConfig, meeting: RunIdentity, actor: str) -> ActorEnd:
        """Open the end of one actor; a class method if the factory is a class."""
        ...

    def learner_end(self, config: TransportConfig, meeting: RunIdentity) -> LearnerEnd:
        """Open the learner's end; a class method if the factory is a class."""
        ...
