"""Detection and recovery of a link that is cut off from a living learner."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest

from serl.log.episode_log import LogConfig
from serl.ros.link import receiver as transport_module
from serl.ros.link import sender as stream_sender
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes import link as link_node
from serl.ros.nodes.link import Link, WeightsReceiver
from serl.ros.testing.processes import eventually
from serl.runs.folder import LEARNER_LOCK
from serl.system.files import FileLock
from serl.transport import Snapshot

from .conftest import SPEC, Run, arrived, expected, shipped

pytestmark = pytest.mark.ros


@pytest.mark.parametrize("lost", ["_on_frame", "_on_hello"])
def test_link_without_reachable_learner_rejoins_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, run: Run, lost: str
) -> None:
    """Drop all frames or hellos until the link rejoins; the records still arrive."""
    handle = getattr(LearnerTransport, lost)
    joined: list[Link] = []

    def join(*given: Any) -> Link:
        joined.append(Link(*given))
        return joined[-1]

    monkeypatch.setattr(stream_sender, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(stream_sender, "_MOST_IN_VAIN", 12)
    monkeypatch.setattr(LearnerTransport, lost, lambda *given: len(joined) > 1 and handle(*given))
    monkeypatch.setattr(link_node, "Link", join)
    run.act("a", 1, episodes=1)
    with RosNode("learner", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        thread = Thread(target=link_node.run, args=(run.folder, "a"))
        thread.start()
        try:
            assert arrived(transport, 50) == expected("a", 1, 1)
        finally:
            monkeypatch.setattr(link_node, "is_orphaned", lambda: True)
            thread.join()
    assert len(joined) >= 2
    assert "out of reach: joining the network anew" in caplog.text


def test_link_without_actor_is_not_cut_off(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(stream_sender, "SILENCE_S", 0.5)
    with RosNode("both", run.folder) as node:
        LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())
        eventually(lambda: (link.step(), link._sender.received_s > 0)[1])
        for _ in range(200):
            link.step()
        assert not link.is_cut_off(20.0)
        link.close()


def test_link_is_cut_off_while_published_weights_do_not_arrive(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    weights = {"w": np.zeros(3, np.float32)}
    run.act("a", 1, episodes=1)
    with RosNode("both", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())

        def is_cut_off() -> bool:
            link.step()
            return link.is_cut_off(1.5)

        with monkeypatch.context() as lost:
            lost.setattr(WeightsReceiver, "_take", lambda *_: None)
            assert shipped(link, transport, 50) == expected("a", 1, 1)
            assert not is_cut_off(), "no weights were published yet"
            transport.publish(Snapshot(3, {}, weights))
            eventually(is_cut_off)
        transport.publish(Snapshot(4, {}, weights))
        eventually(lambda: not is_cut_off())
        link.close()


def test_link_is_cut_off_when_living_learner_sends_nothing(run: Run) -> None:
    run.announce("a", 1)
    with RosNode("link", run.folder) as node:
        link = Link(node, run.folder, "a", LogConfig())
        link.step()
        assert not link.is_cut_off(0.0), "no learner runs"
        with FileLock(run.folder / LEARNER_LOCK, "learner"):
            assert link.is_cut_off(0.0)
            assert not link.is_cut_off(60.0), "the silence is shorter than the limit"
        (run.folder / LEARNER_LOCK).write_text("999999999")
        assert not link.is_cut_off(0.0), "the learner died"
        link.close()


def test_link_keeps_resending_to_busy_learner(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Resend frames that the learner acknowledges as seen but does not take for a while."""
    monkeypatch.setattr(stream_sender, "_PATIENCE_S", 0.02)
    monkeypatch.setattr(stream_sender, "_LONGEST_PATIENCE_S", 0.02)
    monkeypatch.setattr(transport_module, "_NACK_PERIOD_S", 0.0)
    run.act("a", 1, episodes=1)
    with RosNode("both", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())

        def has_resent() -> bool:
            link.step()
            return transport.counts["duplicate"] > 500

        eventually(has_resent)
        assert shipped(link, transport, 50) == expected("a", 1, 1)
        link.close()
