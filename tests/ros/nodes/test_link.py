"""Transfer of weights from a learner to real link processes."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from serl.errors import CorruptData
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes.link import WeightsReceiver
from serl.ros.testing.processes import eventually
from serl.ros.topics import WEIGHTS, to_cdr
from serl.training.link import WeightsFile, decode_snapshot, encode_snapshot
from serl.transport import MAX_LEAD, MAX_VERSION, Snapshot

from ..conftest import SPEC, Run

pytestmark = pytest.mark.ros


def test_late_links_receive_newest_weights_of_five_megabytes(run: Run) -> None:
    actors = ["actor0", "actor1"]
    for actor in actors:
        run.announce(actor, 1)
    with RosNode("learner", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        for version in (1, 2):
            transport.publish(_snapshot(version, size=1_250_000))
        for actor in actors:
            run.start_link(actor)
        eventually(lambda: all(_version(run, actor) == 2 for actor in actors))
        transport.publish(_snapshot(3, size=1_250_000))
        eventually(lambda: all(_version(run, actor) == 3 for actor in actors))


def test_restarted_receiver_keeps_version_on_disk(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with RosNode("link", run.folder) as node:
        assert WeightsReceiver(node, path, SPEC.digest).version == 0
        path.write_bytes(encode_snapshot(_snapshot(9), SPEC.digest))
        assert WeightsReceiver(node, path, SPEC.digest).version == 9
        path.write_bytes(b"damaged")
        assert WeightsReceiver(node, path, SPEC.digest).version == 0


@pytest.mark.parametrize("version", [10**15, 10**8])
def test_forged_stored_version_is_replaced_by_learner_weights(run: Run, version: int) -> None:
    """Start with stored weights that a forged message left in the folder of a resumed run."""
    path = run.link_folder("actor0") / "weights.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_snapshot(_snapshot(version), SPEC.digest))
    actors = WeightsFile(path, SPEC.digest)
    with suppress(CorruptData):
        actors.latest(0)  # the actor uses a version within bounds
    run.announce("actor0", 1)
    with RosNode("learner", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        run.start_link("actor0")
        transport.publish(_snapshot(1001))
        eventually(lambda: _stored(path) == 1001)
    snapshot = actors.latest(version if version < MAX_VERSION else 0)
    assert snapshot is not None
    assert snapshot.version == 1001


def test_weights_far_ahead_of_the_learner_are_rejected(run: Run) -> None:
    path = run.folder / "weights.safetensors"
    with RosNode("learner", run.folder) as sender, RosNode("link", run.folder) as node:
        topic = sender.publisher(WEIGHTS)
        receiver = WeightsReceiver(node, path, SPEC.digest, lambda: 7)
        eventually(lambda: topic.get_subscription_count() == 1)
        words = {8 + MAX_LEAD: "the learner is at version 7", 10**15: "expected 0-1000000000"}
        for count, (version, text) in enumerate(words.items(), start=1):
            topic.publish(to_cdr(encode_snapshot(_snapshot(version), SPEC.digest)))
            eventually(partial(_is_rejected, receiver, count))
            assert text in receiver.problem
        assert not path.exists()


def test_full_disk_loses_only_current_weights(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.link_folder("actor0") / "weights.safetensors"
    path.parent.mkdir(parents=True)
    with RosNode("learner", run.folder) as sender, RosNode("link", run.folder) as node:
        topic = sender.publisher(WEIGHTS)
        receiver = WeightsReceiver(node, path, SPEC.digest)
        eventually(lambda: topic.get_subscription_count() == 1)

        def full(path: Path, data: bytes) -> int:
            path.touch()
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", full)
            topic.publish(to_cdr(encode_snapshot(_snapshot(1), SPEC.digest)))
            eventually(lambda: receiver.poll() or receiver.rejected)
        assert "No space left on device" in receiver.problem
        assert receiver.version == 0
        assert list(path.parent.iterdir()) == []
        topic.publish(to_cdr(encode_snapshot(_snapshot(2), SPEC.digest)))
        eventually(receiver.poll)
        assert decode_snapshot(path.read_bytes(), SPEC.digest).version == 2


def _snapshot(version: int, size: int = 10) -> Snapshot:
    return Snapshot(version, {"actor0": version}, {"w": np.full(size, version, np.float32)})


def _is_rejected(receiver: WeightsReceiver, count: int) -> bool:
    assert not receiver.poll()
    return receiver.rejected == count


def _stored(path: Path) -> int:
    try:
        return decode_snapshot(path.read_bytes(), SPEC.digest).version
    except CorruptData:
        return 0


def _version(run: Run, actor: str) -> int:
    path = run.link_folder(actor) / "weights.safetensors"
    if not path.exists():
        return 0
    snapshot = decode_snapshot(path.read_bytes(), SPEC.digest)
    assert (snapshot.weights["w"] == snapshot.version).all()
    return snapshot.version
