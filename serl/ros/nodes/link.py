"""The process beside an actor that sends its log to the learner and receives weights.

A DDS call may block for a second when a peer dies: this process blocks, not the control loop.

    python -m serl.ros.nodes.link --run runs/pick_cube/2026-11-21_10-00-00 --actor actor0

While its node is not active it sends and receives nothing; records wait in the log.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from serl import plugins
from serl.errors import BadInput, CorruptData
from serl.log.compression import Compactor
from serl.log.episode_log import LogConfig
from serl.log.episode_reader import episode_name, episode_paths
from serl.log.recovery import encode_losses
from serl.log.tail import Tail
from serl.log.wire import Hello, decode_hello
from serl.ros.environment import link_name
from serl.ros.link.sender import StreamSender
from serl.ros.node import RosNode, own_arguments, run_node
from serl.ros.parameters import DescribedParameter
from serl.ros.telemetry import Stats, Value
from serl.ros.topics import WEIGHTS, from_cdr
from serl.runs.config import TrainConfig
from serl.runs.folder import CONFIG, LEARNER_LOCK, RunFolder
from serl.system.files import FileLock, checked_name, is_alive, read_bounded
from serl.system.json_fields import MAX_JSON_BYTES
from serl.system.supervisor import is_orphaned
from serl.training.link import (
    HELLO,
    MAX_SNAPSHOT_BYTES,
    PERIOD_S,
    LinkStatus,
    decode_snapshot,
    write_status,
)
from serl.training.plain_link import PlainSender, PlainWeights
from serl.transport import DDS, MAX_LEAD, ActorEnd, RunIdentity, TransportConfig, is_newer


class WeightsReceiver:
    """Subscriber that writes each newer snapshot of the weights to a file.

    Older, damaged and foreign snapshots are not written.

    Args:
        path: the file; versions that are not newer than the one in it are ignored.
        spec_digest: `Spec.digest` that the weights must be made for.
        offered: returns the last version known to be published by the learner; 0 for unknown.

    Attributes:
        version: version of the weights in the file; 0 for none.
        outdated: number of valid messages that were not newer.
        rejected: number of messages that were damaged, foreign, or could not be written.
        problem: reason of the last rejection.
    """

    def __init__(
        self,
        node: RosNode,
        path: Path,
        spec_digest: str,
        offered: Callable[[], int] = lambda: 0,
    ) -> None:
        self.outdated = self.rejected = 0
        self.problem = ""
        self._path = path
        self._spec_digest = spec_digest
        self._offered = offered
        self.version = self._version_on_disk()
        self._messages: deque[bytes] = deque(maxlen=1)  # only the newest matter, and each is large
        node.subscribe(WEIGHTS, self._messages.append, raw=True)

    def poll(self) -> bool:
        """Write the newest snapshot since the last call; return whether there are new weights."""
        before = self.version
        while self._messages:
            try:
                self._take(self._messages.popleft())
            except (BadInput, OSError) as error:  # a full disk costs these weights, not the link
                self.rejected += 1
                self.problem = str(error)
        return self.version != before

    def _take(self, message: bytes) -> None:
        data = bytes(from_cdr(message))
        version = decode_snapshot(data, self._spec_digest).version
        offered = self._offered()
        if offered and version > offered + MAX_LEAD:
            raise CorruptData(f"weights version {version}: the learner is at version {offered}")
        if not is_newer(version, self.version):
            self.outdated += 1
            return
        self._replace(data)
        self.version = version

    def _version_on_disk(self) -> int:
        try:
            data = read_bounded(self._path, MAX_SNAPSHOT_BYTES)
            return decode_snapshot(data, self._spec_digest).version
        except (OSError, BadInput):
            return 0

    def _replace(self, data: bytes) -> None:
        """Replace the file without syncing: after a power cut a damaged file fails its checksum."""
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            scratch.write_bytes(data)
            scratch.replace(self._path)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise


logger = logging.getLogger(__name__)

POLL_S = 0.01

_HELLO_PERIOD_S = 0.2
_DEAF_S = 20.0
_LONGEST_DEAF_S = 320.0


def link_folder(run_folder: Path, actor: str) -> Path:
    """Return the folder shared by an actor and its link.

    The actor writes `hello.json` there, the link `weights.safetensors`.
    """
    return run_folder / "link" / actor


class Link:
    """Sender of all epochs of an actor in order, oldest first, from the learner's cursor on.

    Args:
        transport: transport of its records; None for the topics of ROS 2.
    """

    def __init__(
        self,
        node: RosNode,
        run_folder: Path,
        actor: str,
        log: LogConfig,
        transport: TransportConfig | None = None,
    ) -> None:
        self._node = node
        self._folder = link_folder(run_folder, actor)
        self._episodes = run_folder / "episodes" / actor
        self._actor = actor
        self._sender = _sender(node, run_folder, self._folder, transport or TransportConfig())
        self._compactor = Compactor(self._episodes, log)
        self._weights: WeightsReceiver | PlainWeights | None = None
        self._waiting: deque[Hello] = deque()
        self._newest: Hello | None = None
        self._arrived = (0, 0)  # version of the weights and refused messages, at the last look
        self._looked_s = self._status_s = float("-inf")
        self._began_s = self._weights_s = time.monotonic()
        self._learner_lock = run_folder / LEARNER_LOCK
        self._idle = True
        self._stats = Stats(node, f"link {actor}", self._numbers)

    @property
    def refused(self) -> str:
        """The reason why the learner refuses this actor; empty while it accepts."""
        return self._sender.refused

    def step(self) -> bool:
        """Do all work that is due; return False if there was nothing to send."""
        if time.monotonic() - self._looked_s > _HELLO_PERIOD_S:
            self._looked_s = time.monotonic()
            self._look_for_actor()
        busy = self._sender.pump()
        if self._waiting and (self._idle or self._sender.drained):
            self._start(self._waiting.popleft())
        if self._weights is not None:
            self._weights.poll()
        if self._sender.drained or not self._sender.connected:
            self._compactor.step()
        if time.monotonic() - self._status_s > PERIOD_S:
            self._status_s = time.monotonic()
            sender = self._sender
            status = LinkStatus(sender.acknowledged, sender.in_flight, sender.connected)
            write_status(self._folder, status)
        return busy

    def is_cut_off(self, deaf_s: float) -> bool:
        """Return whether one direction has timed out (`deaf_s`) though the learner is alive.

        Killed processes may leave shared memory behind that another process keeps using (observed
        with Fast DDS 2.14.5); rejoining the network gets rid of it.
        """
        now_s = time.monotonic()
        silent = now_s - max(self._sender.received_s, self._began_s) > deaf_s
        if not self._sender.connected or self._has_newest_weights():
            self._weights_s = now_s
        weightless = now_s - self._weights_s > deaf_s
        return self._sender.cut_off or weightless or (silent and is_alive(self._learner_lock))

    def _has_newest_weights(self) -> bool:
        """Return whether the weights are the last offered, or any arrived since the last call."""
        if self._weights is None:
            return True
        arrived = (self._weights.version, self._weights.rejected)
        news, self._arrived = arrived != self._arrived, arrived
        return news or self._weights.version >= self._sender.offered

    def rest(self) -> None:
        """Restart the timeouts of `is_cut_off` while the node is inactive."""
        self._began_s = self._weights_s = time.monotonic()

    def close(self) -> None:
        """Close the sender and the compactor of the log."""
        self._sender.close()
        self._compactor.close()

    def _look_for_actor(self) -> None:
        """Queue the epoch that the actor announced, and those before it that are not queued yet."""
        try:
            hello = decode_hello(read_bounded(self._folder / HELLO, MAX_JSON_BYTES))
        except FileNotFoundError:
            return
        if hello.actor != self._actor:
            raise BadInput(f"{self._folder}: hello of {hello.actor!r}, expected {self._actor!r}")
        if self._newest is None:
            path, digest = self._folder / "weights.safetensors", hello.spec.digest
            self._weights = (
                PlainWeights(self._sender, path, digest)
                if isinstance(self._sender, PlainSender)
                else WeightsReceiver(self._node, path, digest, lambda: self._sender.offered)
            )
        known = self._newest.epoch if self._newest else -1
        if hello.epoch > known:
            epochs = {episode_name(path).epoch for path in episode_paths(self._episodes)}
            missed = sorted(epoch for epoch in epochs if known < epoch < hello.epoch)
            self._waiting.extend(hello._replace(epoch=epoch) for epoch in missed)
            self._waiting.append(hello)
            self._newest = hello

    def _start(self, hello: Hello) -> None:
        self._idle = False
        losses = partial(encode_losses, self._episodes, hello.run, self._actor, logger.warning)
        tail = partial(Tail, self._episodes, hello.epoch, losses=losses, spec=hello.spec)
        self._sender.start(hello, tail)

    def _numbers(self) -> dict[str, Value]:
        sender, weights = self._sender, self._weights
        return {
            "sent": sender.sent,
            "acknowledged": sender.acknowledged,
            "in_flight": sender.in_flight,
            "resent": sender.resent,
            "connected": float(sender.connected),
            "weights_version": weights.version if weights else 0,
            "weights_rejected": weights.rejected if weights else 0,
        }


def _sender(
    node: RosNode, run_folder: Path, folder: Path, config: TransportConfig
) -> StreamSender | PlainSender:
    """Return the actor's end of the run's transport; `folder` is that of the link."""
    if config.kind == DDS:
        return StreamSender(node, folder)
    kind = plugins.load("transport", config.kind)

    def open_end(hello: Hello) -> ActorEnd:
        end: ActorEnd = kind.actor_end(
            config, RunIdentity(run_folder, hello.run, hello.spec), hello.actor
        )
        return end

    return PlainSender(open_end, run_folder / LEARNER_LOCK)


def _settings_of(run_folder: Path) -> TrainConfig:
    """Return the settings of a run, or the defaults for a folder without a configuration."""
    return RunFolder.open(run_folder).config if (run_folder / CONFIG).exists() else TrainConfig()


def run(run_folder: Path, actor: str) -> None:
    """Link the actor until the process is asked to stop; raise `BadInput` when refused."""
    folder = link_folder(run_folder, checked_name(actor, "actor"))
    folder.mkdir(parents=True, exist_ok=True)
    deaf_s, joined_s, again = _DEAF_S, time.monotonic(), False
    with FileLock(folder / "link.lock", f"the link of actor {actor!r}"):
        while again := _join(run_folder, actor, deaf_s, again):
            logger.warning("the learner lives, but is out of reach: joining the network anew")
            lasted_s, joined_s = time.monotonic() - joined_s, time.monotonic()
            deaf_s = min(2.0 * deaf_s, _LONGEST_DEAF_S) if lasted_s < 4.0 * deaf_s else _DEAF_S


def _join(run_folder: Path, actor: str, deaf_s: float, again: bool) -> bool:
    """Run the link until asked to stop or cut off; return True if cut off, to join `again`."""
    config = _settings_of(run_folder)
    text = "actor whose records are sent to the learner"
    parameters = {"actor": DescribedParameter(actor, text)}
    with (
        RosNode(link_name(actor), run_folder, parameters=parameters, managed=True) as node,
        closing(Link(node, run_folder, actor, config.log, config.transport)) as link,
    ):
        node.handle.manage(again=again)
        while not (node.stopping or is_orphaned()):
            if not node.handle.active:
                link.rest()
                node.wait(_HELLO_PERIOD_S)
                continue
            if link.refused:
                raise BadInput(f"the learner refused actor {actor!r}: {link.refused}")
            if link.is_cut_off(deaf_s):
                return True
            if not link.step():
                node.wait(POLL_S)
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; the exit code is 2 when refused, with the reason in one line."""
    parser = argparse.ArgumentParser(prog="python -m serl.ros.nodes.link", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--actor", required=True, help="name of the actor")
    options = parser.parse_args(own_arguments(arguments))
    return run_node(lambda: run(options.run, options.actor))


if __name__ == "__main__":
    sys.exit(main())
