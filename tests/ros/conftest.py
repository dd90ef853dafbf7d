"""Fixtures for real processes over real DDS, in a separate ROS domain; all end after a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import pytest

from serl.log.episode_log import EpisodeLog
from serl.ros.environment import clean_shared_memory, environment, free_domain
from serl.ros.link.receiver import LearnerTransport
from serl.ros.nodes.link import Link
from serl.ros.testing.processes import eventually
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.training.link import announce
from serl.types import ActionSource, Arrival, End, EndReason, Key, Observation, Step

from ..support.command import Command
from ..support.preloaded import SERVERS

SPEC = Spec(
    task="test",
    observation=ObservationSpec(state={"tcp": ArraySpec(shape=(7,))}),
    action=ArraySpec(shape=(4,), low=-1, high=1),
    rate_hz=10,
)
EPISODE_STEPS = 49
LIMIT_S = 120.0


@pytest.fixture(scope="session", autouse=True)
def _domain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with free_domain() as domain, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROS_DOMAIN_ID", str(domain.id))
        patch.setenv("SERL_SHARED_MEMORY", "1")  # read once per process
        yield
    clean_shared_memory()


@pytest.fixture(scope="module", autouse=True)
def _alone(_domain: None) -> Iterator[None]:
    """End leftover processes, which would join the domain of the next file's tests."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():  # nodes may end in any order
        signal.signal(number, handler)
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in SERVERS]
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, LIMIT_S)


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a starter of `serl` commands in `tmp_path`; running ones are interrupted at the end."""
    with ExitStack() as stack:
        yield lambda *words, **options: stack.enter_context(Command(tmp_path, *words, **options))


@dataclass
class Run:
    """The folder and the processes of one run."""

    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(int(os.environ["ROS_DOMAIN_ID"]), self.folder),
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def start_link(self, actor: str) -> subprocess.Popen[str]:
        return self.start("-m", "serl.ros.nodes.link", "--run", str(self.folder), "--actor", actor)

    def start_learner(self, actor: str) -> subprocess.Popen[str]:
        script = Path(__file__).parent / "support/learner_process.py"
        return self.start(
            str(script), str(self.folder), str(self.link_folder(actor) / "hello.json")
        )

    def link_folder(self, actor: str) -> Path:
        return self.folder / "link" / actor

    def announce(self, actor: str, epoch: int, spec: Spec = SPEC) -> None:
        announce(self.link_folder(actor), self.folder.name, actor, epoch, spec)

    def act(self, actor: str, epoch: int, episodes: int) -> None:
        """Act as an actor: announce the epoch, then log episodes of 50 records."""
        self.announce(actor, epoch)
        rng = np.random.default_rng(epoch)
        folder = self.folder / "episodes" / actor
        with EpisodeLog(folder, SPEC, self.folder.name, actor, epoch) as log:
            for episode in range(episodes):
                for index in range(EPISODE_STEPS + 1):
                    key = Key(self.folder.name, actor, epoch, episode, index)
                    log.append(record(key, rng))

    def end(self) -> list[str]:
        """Stop all processes; return their standard error outputs."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=LIMIT_S)[1] for process in self.processes]
        self.processes.clear()
        return outputs

    def counts(self) -> dict[str, float]:
        """Return the counters that the learner process wrote."""
        found: dict[str, float] = json.loads((self.folder / "counts.json").read_text())
        return found

    def tell(self) -> str:
        """Describe the number of received records and the exit codes of the processes."""
        codes = [process.poll() for process in self.processes]
        return f"{len(self.received())} received; exit codes {codes}"

    def received(self) -> list[tuple[str, int, int, int]]:
        """Return the keys that the learner process recorded."""
        path = self.folder / "received.txt"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [(a, int(e), int(n), int(i)) for a, e, n, i in (line.split() for line in lines)]


def record(key: Key, rng: np.random.Generator) -> Step | End:
    observation = Observation({"tcp": rng.normal(size=7).astype(np.float32)}, stamps={"robot": 1.0})
    if key.index == EPISODE_STEPS:
        return End(key, observation, False, EndReason.TIME_LIMIT, 1.0, 1.0)
    action = rng.uniform(-1, 1, 4).astype(np.float32)
    return Step(
        key=key,
        observation=observation,
        requested=action,
        action=action,
        reward=0.0,
        reward_provenance="truth",
        terminated=False,
        truncated=key.index == EPISODE_STEPS - 1,
        source=ActionSource.POLICY,
        policy_version=0,
        monotonic_s=1.0,
        wall_s=1.0,
    )


def expected(actor: str, epoch: int, episodes: int) -> list[tuple[str, int, int, int]]:
    """Return the keys that `Run.act` logs, in order."""
    return [(actor, epoch, n, i) for n in range(episodes) for i in range(EPISODE_STEPS + 1)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    folder = tmp_path / "2026-11-21_10-00-00"
    folder.mkdir()
    started = Run(folder)
    yield started
    started.end()


def arrived(transport: LearnerTransport, count: int) -> list[tuple[str, int, int, int]]:
    """Return the keys of the next records from links in other processes, at least `count`."""
    records: list[Arrival] = []

    def enough() -> bool:
        records.extend(transport.receive())
        return len(records) >= count

    eventually(enough)
    return [(r.key.actor, r.key.epoch, r.key.episode, r.key.index) for r in records]


def shipped(link: Link, transport: LearnerTransport, count: int) -> list[tuple[str, int, int, int]]:
    """Return the keys of the next records from a link in this process, at least `count`."""
    records: list[Arrival] = []

    def enough() -> bool:
        link.step()
        records.extend(transport.receive())
        return len(records) >= count

    eventually(enough, found=lambda: f"{len(records)} of {count} records")
    return [(r.key.actor, r.key.epoch, r.key.episode, r.key.index) for r in records]
