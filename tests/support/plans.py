"""Episodes with distinguishable observations, and a replay filled with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.training.replay import Replay
from serl.types import ActionSource, End, Key, Observation, Record, Step, parse_reason

GAMMA = 0.5
SPEC = Spec(
    task="test",
    observation=ObservationSpec(
        state={"name": ArraySpec(shape=(2,)), "echo": ArraySpec(shape=(1,))},
        images={"wrist": ArraySpec(shape=(2, 2, 3), dtype="uint8")},
    ),
    action=ArraySpec(shape=(1,), low=-1.0, high=1.0),
    rate_hz=10.0,
)

FAULT = "camera wrist: gone"
REASONS = {"terminated": "success", "truncated": "time limit"}


def frame(name: int) -> Observation:
    """Return an observation that differs from those of all other names."""
    return Observation(
        state={
            "name": np.array([name, -name], np.float32),
            "echo": np.array([2 * name], np.float32),
        },
        images={"wrist": np.full((2, 2, 3), name % 256, np.uint8)},
    )


@dataclass
class Plan:
    """Plan of an episode: the action source of each step, and the ending."""

    sources: list[ActionSource]
    ending: str
    first: int = 0
    number: int = 0
    actor: str = "a"
    epoch: int = 0

    def records(self) -> Iterator[Record]:
        """Yield steps and, unless the stream breaks off, the End; step i observes `first + i`.

        The learned action equals the frame number: requested for a policy, executed otherwise.
        """
        size = len(self.sources)
        for index, source in enumerate(self.sources):
            name, last = self.first + index, index == size - 1
            value = np.array([name], np.float32)
            yield Step(
                key=self.key(index),
                observation=frame(name),
                requested=value if source is ActionSource.POLICY else -value,
                action=-value if source is ActionSource.POLICY else value,
                reward=float(name),
                reward_provenance="truth",
                terminated=last and self.ending == "terminated",
                truncated=last and self.ending in ("truncated", FAULT),
                source=source,
                policy_version=0,
                monotonic_s=0.0,
                wall_s=0.0,
            )
        if self.ending != "broken off":
            seen = size - (
                self.ending == FAULT
            )  # after a fault the End repeats the last observation
            reason, fault = parse_reason(REASONS.get(self.ending, self.ending))
            success = self.ending == "terminated"
            yield End(self.key(size), frame(self.first + seen), success, reason, 0.0, 0.0, fault)

    def key(self, index: int) -> Key:
        return Key("run", self.actor, self.epoch, self.number, index)


def plan(
    *sources: ActionSource,
    ending: str = "truncated",
    first: int = 0,
    number: int = 0,
    epoch: int = 0,
) -> Plan:
    return Plan(list(sources), ending, first, number, epoch=epoch)


def fill(replay: Replay, *plans: Plan, prior: bool = False) -> Replay:
    for each in plans:
        for record in each.records():
            replay.add(record, prior)
    return replay
