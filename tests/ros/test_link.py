"""The acknowledged stream between real processes, some of which are killed meanwhile."""

from __future__ import annotations

import shutil
import socket
import subprocess
from array import array
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from std_msgs.msg import String, UInt64MultiArray

from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import PART, EpisodeFile
from serl.log.index import Index
from serl.log.recovery import recover
from serl.log.wire import WireFrame, actor_number, encode_frame, encode_hello
from serl.ros.link import receiver as receiver_module
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes import learner as learner_module
from serl.ros.nodes.learner import LearnerNode
from serl.ros.nodes.link import Link
from serl.ros.ports import SHARED_MEMORY
from serl.ros.testing.processes import eventually
from serl.ros.topics import ACKS, ACTORS, TRANSITIONS, to_cdr
from serl.system.authentication import run_key
from serl.testing.samples import CONFIG, random_records, write_log
from serl.transport import Snapshot
from serl.types import End, Key, Step

from .conftest import LIMIT_S, SPEC, Run, arrived, expected, record, shipped

pytestmark = pytest.mark.ros


def test_learner_refuses_actor_of_another_run(run: Run) -> None:
    run.announce("a", 1)
    with RosNode("learner", run.folder) as node:
        LearnerTransport(node, SPEC, "other")
        link = run.start_link("a")
        assert "the learner's is 'other'" in _refusal(link)
        assert link.returncode == 2


def test_refusal_is_printed_in_one_line_without_control_characters(run: Run) -> None:
    run.announce("a", 1)
    with RosNode("learner", run.folder) as node:
        LearnerTransport(node, SPEC, run.folder.name, claim=lambda *_: "\x1b[2Jgone\nfor good")
        link = run.start_link("a")
        assert _refusal(link) == "the learner refused actor 'a': \\x1b[2Jgone\\nfor good\n"


def test_invalid_messages_are_counted_and_do_not_affect_the_stream(run: Run) -> None:
    run.act("a", 1, episodes=4)
    number = actor_number(run.folder.name, "a")
    good = b"".join(encode_frame(WireFrame(number, 1, 0, b"x" * 100)))
    broken = [b"", b"x", good[:-1], good[:3] + b"y" + good[4:], good + b"z"]
    with RosNode("learner", run.folder) as node, RosNode("stranger", run.folder) as stranger:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        topics = [stranger.publisher(topic) for topic in (ACTORS, TRANSITIONS, ACKS)]
        hellos, frames, acks = topics
        run.start_link("a")
        eventually(lambda: all(topic.get_subscription_count() for topic in topics))
        hellos.publish(b"\x00\x01\x00\x00\x03\x00\x00\x00\xff\xff\x00")  # not UTF-8
        for payload in broken:
            frames.publish(to_cdr(payload))
        frames.publish(to_cdr(*encode_frame(WireFrame(7, 1, 0, b"from nobody"))))
        acks.publish(b"\x00\x01\x00\x00\xff\xff\xff\x7f")
        acks.publish(UInt64MultiArray(data=array("Q", (1, 2))))
        acks.publish(UInt64MultiArray(data=array("Q", (number, 1, 1 << 60, 1 << 62, 0))))
        assert arrived(transport, 200) == expected("a", 1, 4)
        eventually(lambda: transport.counts["corrupt"] == 1 + len(broken))
        eventually(lambda: transport.counts["stranger"] == 1)
        assert transport.counts["refused"] == 0


def test_received_records_are_acknowledged_at_the_next_receive(run: Run) -> None:
    run.act("a", 1, episodes=4)
    acks: list[Any] = []
    with RosNode("learner", run.folder) as node:
        node.subscribe(ACKS, acks.append)
        transport = LearnerTransport(node, SPEC, run.folder.name)
        run.start_link("a")
        first = arrived(transport, 1)
        seen, count = len(acks), len(first)
        eventually(lambda: len(acks) > seen + 2)  # repeated acknowledgements
        assert not any(ack.data[2] for ack in acks)

        def is_acknowledged() -> bool:
            keys = [record.key for record in transport.receive()]
            first.extend((key.actor, key.epoch, key.episode, key.index) for key in keys)
            return bool(acks[-1].data[2] >= count)

        eventually(is_acknowledged)
        cursors = transport.cursors
        assert cursors == {("a", 1): len(first)}
    with RosNode("learner", run.folder) as node:
        successor = LearnerTransport(node, SPEC, run.folder.name, cursors)
        rest = arrived(successor, 200 - len(first))
    assert first + rest == expected("a", 1, 4)


def test_link_ships_all_epochs_written_between_two_steps(run: Run) -> None:
    """Start the actor twice between two steps of the link."""
    run.act("a", 1, episodes=1)
    with RosNode("both", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())
        assert shipped(link, transport, 50) == expected("a", 1, 1)
        run.act("a", 2, episodes=1)
        run.act("a", 3, episodes=1)
        assert shipped(link, transport, 100) == expected("a", 2, 1) + expected("a", 3, 1)
        link.close()


def test_link_ships_damaged_log_before_and_after_its_recovery(run: Run) -> None:
    """Emulate a power cut on the actor's host: the announcement is of the previous epoch."""
    run.announce("a", 1)
    episodes = run.folder / "episodes" / "a"
    with EpisodeLog(run.folder / "alive", SPEC, run.folder.name, "a", 1) as log:
        for index in range(10):
            log.append(_record(run, 1, index))
        (part,) = (run.folder / "alive").glob(f"*{PART}")
        episodes.mkdir(parents=True)
        (episodes / part.name).write_bytes(part.read_bytes() + bytes(4096))
    with RosNode("both", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())
        assert shipped(link, transport, 10) == expected("a", 1, 1)[:10]
        recover(episodes)
        run.act("a", 2, episodes=1)
        assert shipped(link, transport, 50) == expected("a", 2, 1)
        link.close()


def test_shared_memory_segment_is_larger_than_two_megabytes(run: Run) -> None:
    def mapped_files() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if f" {SHARED_MEMORY}/" in line}

    before = mapped_files()
    with RosNode("anybody", run.folder):
        mine = [Path(path).stat().st_size for path in mapped_files() - before - {"(deleted)"}]
    assert max(mine) > 2 << 20


def test_replayed_old_hello_does_not_end_the_stream(run: Run) -> None:
    """Replay a signed hello, which needs no key."""
    run.announce("a", 2)
    number = actor_number(run.folder.name, "a")
    with (
        RosNode("both", run.folder) as node,
        EpisodeLog(run.folder / "episodes" / "a", SPEC, run.folder.name, "a", 2) as log,
    ):
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())
        log.append(_record(run, 2, 0))
        assert shipped(link, transport, 1) == expected("a", 2, 1)[:1]
        newest = transport._streams[number].hello
        old = newest._replace(epoch=1, sent_ns=newest.sent_ns - 1)
        hellos = node.publisher(ACTORS)
        hellos.publish(String(data=encode_hello(old).decode()))
        eventually(lambda: transport.counts["replayed"] == 1)
        assert transport._streams[number].hello.epoch == 2
        hellos.publish(String(data=encode_hello(old._replace(sent_ns=newest.sent_ns + 1)).decode()))
        eventually(lambda: transport._streams[number].hello.epoch == 1)
        log.append(_record(run, 2, 1))
        assert shipped(link, transport, 1) == expected("a", 2, 1)[1:2]
        link.close()


def test_restarted_link_is_accepted_after_clock_was_set_back(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.act("a", 1, episodes=1)
    with RosNode("both", run.folder) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        link = Link(node, run.folder, "a", LogConfig())
        assert shipped(link, transport, 50) == expected("a", 1, 1)
        link.close()
        monkeypatch.setattr("serl.ros.link.sender.time.time_ns", lambda: 1)
        run.act("a", 2, episodes=1)
        link = Link(node, run.folder, "a", LogConfig())
        assert shipped(link, transport, 50) == expected("a", 2, 1)
        assert not transport.counts["replayed"]
        link.close()


def test_link_compresses_images_without_a_learner(run: Run) -> None:
    (path,) = write_log(run.folder / "episodes" / "a", random_records(2))
    with RosNode("link", run.folder) as node:
        link = Link(node, run.folder, "a", CONFIG)
        link.step()
        link.close()
    with closing(EpisodeFile(path)) as file:
        file.next_message()
        assert file.metadata["images"] == CONFIG.images != "raw"


def test_second_actor_with_same_name_is_refused_and_first_continues(run: Run) -> None:
    other = Run(run.folder.parent / "elsewhere" / run.folder.name, processes=run.processes)
    run_key(run.folder)
    shutil.copytree(run.folder, other.folder)  # with its key
    run.act("a", 1, episodes=4)
    other.act("a", 2, episodes=4)
    with RosNode("learner", run.folder) as node, Index(run.folder / "index.sqlite") as index:
        transport = LearnerTransport(node, SPEC, run.folder.name, claim=index.claim)
        run.start_link("a")
        first = arrived(transport, 1)
        second = other.start_link("a")
        line = _refusal(second)
        assert second.returncode == 2
        place = f"{socket.gethostname()}:{run.link_folder('a')}"
        refusal = f"actor 'a' of this run is at {place}; choose another --name\n"
        assert line == f"the learner refused actor 'a': {refusal}"
        assert first + arrived(transport, 200 - len(first)) == expected("a", 1, 4)
    with RosNode("learner", run.folder) as node, Index(run.folder / "index.sqlite") as index:
        LearnerTransport(node, SPEC, run.folder.name, claim=index.claim)  # restarted learner
        assert line == _refusal(other.start_link("a"))


def _record(run: Run, epoch: int, index: int) -> Step | End:
    return record(Key(run.folder.name, "a", epoch, 0, index), np.random.default_rng(index))


def _refusal(link: subprocess.Popen[str]) -> str:
    return link.communicate(timeout=LIMIT_S)[1]


def test_restarted_learner_publishes_final_weights_to_links(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr(receiver_module, "_FLUSH_S", int(LIMIT_S))
    run.act("a", 1, episodes=1)
    snapshot = Snapshot(1, {"a": 1}, {"w": np.zeros(3, np.float32)})
    with RosNode("learner", run.folder, managed=True) as node:
        learner = LearnerNode(node, cast(Any, None))
        transport = LearnerTransport(node, SPEC, run.folder.name)
        transport.publish(snapshot)
        run.start_link("a")
        learner._await_links(transport, {"a"})
        assert transport.actors == {"a"}
        assert transport.flush()
    eventually((run.link_folder("a") / "weights.safetensors").exists)


def test_learner_does_not_wait_for_ended_links(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(learner_module, "_LINKS_S", 0.2)
    with RosNode("learner", run.folder, managed=True) as node:
        transport = LearnerTransport(node, SPEC, run.folder.name)
        LearnerNode(node, cast(Any, None))._await_links(transport, {"gone"})
        assert transport.flush()
