"""Faults of weights in transit from the learner to an actor's policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import numpy as np

from serl.agents.config import SACConfig
from serl.agents.sac import SAC
from serl.ros.node import RosNode
from serl.ros.nodes.link import WeightsReceiver
from serl.ros.topics import WEIGHTS, to_cdr
from serl.testing.samples import BLIND, random_observation
from serl.training.learned_policy import LearnedPolicy
from serl.training.link import WeightsFile, encode_snapshot
from serl.transport import Snapshot

from .cable import Cable
from .registry import REGISTRY, Level, Recipe
from .strace import KILLED, inject

SPEC = BLIND
SMALL = SACConfig(hidden=(16, 16), critics=2, batch_size=8, utd=1, device="cpu")
CALLS = ("write", "rename")


class WeightsRoute:
    """Path of weights: learner's publisher, link's receiver, weights file and actor's policy."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "weights.safetensors"
        self._cable = Cable(Random(0))
        self._publisher = self._cable.node().publisher(WEIGHTS)
        self.receiver = WeightsReceiver(cast(RosNode, self._cable.node()), self.path, SPEC.digest)
        weights = WeightsFile(self.path, SPEC.digest)
        self.policy = LearnedPolicy(SAC.create(SPEC, SMALL, seed=1), weights, exploring_share=0.0)
        self._observation = random_observation(SPEC.observation, np.random.default_rng(0))

    def send(self, data: bytes) -> None:
        """Publish and receive a message, then refresh the actor's policy."""
        self._publisher.publish(to_cdr(data))
        self._cable.deliver()
        self.receiver.poll()
        self.policy.refresh()

    def state(self) -> tuple[int, bytes, bytes]:
        """Return the policy's version and action, and the file's content."""
        action = self.policy(self._observation).tobytes()
        return self.policy.version, action, self.path.read_bytes()


def snapshot(version: int, **changes: object) -> Snapshot:
    """Return a snapshot of agent weights that differ by version."""
    agent = SAC.create(SPEC, SMALL.model_copy(update=changes), seed=version)
    return Snapshot(version, {}, agent.actor_weights())


@REGISTRY.fault(
    15,
    "Weights are damaged on their way",
    injected="cut at 200 places; one bit flipped at 200 places",
    required="the old weights remain in the file and in use; the next intact ones are accepted",
    level=Level.COMPONENT,
)
def cut_weights(folder: Path) -> None:
    rng, way = Random(15), WeightsRoute(folder)
    way.send(encode_snapshot(snapshot(1), SPEC.digest))
    before = way.state()
    data = encode_snapshot(snapshot(2), SPEC.digest)
    for _ in range(200):
        way.send(data[: rng.randrange(len(data))])
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        way.send(bytes(flipped))
        assert way.state() == before
    assert way.receiver.rejected == 400
    way.send(data)
    version, action, file = way.state()
    assert (version, file) == (2, data)
    assert action != before[1]


@REGISTRY.fault(
    15,
    "Link dies while it replaces the weights",
    injected="strace: SIGKILL at the N-th write and rename, for every N",
    required="the file holds the old weights or the new ones, completely; the next link accepts "
    "the new ones",
    level=Level.COMPONENT,
    needs=(Recipe.STRACE,),
)
def killed_while_replacing(folder: Path) -> None:
    old, new = (encode_snapshot(snapshot(version), SPEC.digest) for version in (1, 2))
    (message := folder / "message").write_bytes(new)
    kills = 0
    for call in CALLS:
        for number in range(1, 20):
            (place := folder / f"{call}{number}").mkdir()
            (path := place / "weights.safetensors").write_bytes(old)
            code = inject(
                call, f"signal=KILL:when={number}", "weights_process", [path, message]
            ).returncode
            assert path.read_bytes() in (old, new)
            way = WeightsRoute(place)
            way.send(new)
            assert way.policy.version == 2
            if code != KILLED:
                break
            kills += 1
    assert kills >= len(CALLS)


@REGISTRY.fault(
    19,
    "Weights of another network or task, or older ones",
    injected="other layers, other sizes, another spec, values that are not finite, an older and "
    "an equal version",
    required="refused with the reason; the old weights remain in use; the next valid ones are "
    "accepted",
    level=Level.COMPONENT,
)
def foreign_weights(folder: Path) -> None:
    way = WeightsRoute(folder)
    way.send(encode_snapshot(snapshot(10), SPEC.digest))
    version, action, _ = way.state()
    for data in _foreign():
        way.send(data)
        assert way.state()[:2] == (version, action)
    assert (way.receiver.rejected, way.receiver.outdated) == (2, 2)
    way.send(encode_snapshot(snapshot(30), SPEC.digest))
    assert way.policy.version == 30


def _foreign() -> Iterator[bytes]:
    yield encode_snapshot(snapshot(20), "another")
    broken = snapshot(20)
    next(iter(broken.weights.values())).flat[0] = np.nan
    yield encode_snapshot(broken, SPEC.digest)
    yield encode_snapshot(snapshot(9), SPEC.digest)
    yield encode_snapshot(snapshot(10), SPEC.digest)
    # Only the actor can detect another network that fits the spec.
    yield encode_snapshot(snapshot(21, hidden=(16, 8)), SPEC.digest)
    yield encode_snapshot(snapshot(22, layer_norm=False), SPEC.digest)
