"""Faults of whole processes: they die, hang, starve or are started twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random

import psutil

from serl.log.episode_log import LogConfig
from serl.log.episode_reader import PART, episode_paths, read_episode
from serl.ros.environment import clean_shared_memory
from serl.ros.link.sender import SILENCE_S
from serl.ros.node import RosNode
from serl.ros.nodes.link import Link, link_folder
from serl.ros.testing.processes import Lateness, eventually
from serl.system.authentication import RUN_KEY
from serl.training.link import PERIOD_S, announce, read_link_status

from .registry import REGISTRY, Level, Scene
from .system import ALLOWED_GROWTH_MB, FEW, LEARNER, System, link_of, moves, running

RATE_HZ = 200.0
BACK_S = 60.0
REFUSED_S = 5.0  # 2 s on a machine that does nothing else
NOTICED_S = SILENCE_S + PERIOD_S
SLACK_S = 2.0
"""Limit that also holds on a machine that is busy with other tests."""


@contextmanager
def _two_actors(folder: Path) -> Iterator[System]:
    """Start two actors, their links and a learner; check all files at the end."""
    with running(folder, actors=2, rate_hz=40) as system:
        system.until(moves(system.accepted, FEW))
        yield system
        system.finish()
        system.check()


two_actors = Scene(_two_actors, System.check_books)


@REGISTRY.strike
def kill_learner(system: System, rng: Random) -> str:
    system.kill(LEARNER)
    return "learner killed"


@REGISTRY.strike
def kill_link(system: System, rng: Random) -> str:
    system.until(lambda: len(system.stopped) < len(system.actors))
    going = [actor for actor in system.actors if actor not in system.stopped]
    system.kill(name := link_of(rng.choice(going)))
    return f"{name} killed"


@REGISTRY.strike
def kill_actor(system: System, rng: Random) -> str:
    system.kill(name := rng.choice(system.actors))
    return f"{name} killed"


@REGISTRY.strike
def lose_link(system: System, rng: Random) -> str:
    """Interrupt an actor's link to the learner for 3 to 60 s, mostly short."""
    system.until(lambda: len(system.lost) < len(system.actors))
    actor = rng.choice([actor for actor in system.actors if actor not in system.lost])
    duration_s = 3.0 * 20.0 ** rng.random()
    system.lose(actor, duration_s)
    return f"{link_of(actor)} lost for {duration_s:.0f} s"


@REGISTRY.fault(
    1,
    "Learner dies",
    injected="SIGKILL at random steps, twice",
    required="the actor continues (in simulation at most 64 steps ahead of the learner); the "
    "restarted learner accepts records within 60 s (`tests/bench/bench_resume.py` measures this at "
    "50,000 steps), and its state equals, to the bit, that of an undisturbed learner; lost 0, "
    "duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def learner_dies(system: System) -> None:
    rng = Random(1)
    for _ in range(2):
        system.until(moves(system.accepted, rng.randint(FEW, 5 * FEW)))
        kill_learner(system, rng)
        system.until(moves(system.total, 5 * FEW), restart=False)
        system.until(moves(system.accepted, FEW), BACK_S)


@REGISTRY.fault(
    3,
    "Learner hangs",
    injected="SIGSTOP for 5 s, SIGCONT",
    required="the actor continues; the link reports the silence within 3 s and uses at most 50 MB "
    "more memory; afterwards the learner catches up; lost 0, duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def learner_hangs(system: System) -> None:
    _hang_learner(system, 5.0)


@REGISTRY.longer(learner_hangs, injected="SIGSTOP for 60 s, SIGCONT")
def learner_hangs_for_long(folder: Path) -> None:
    with running(folder, rate_hz=500) as system:
        _hang_learner(system, 60.0)
        system.finish()
        system.check()


def _hang_learner(system: System, duration_s: float) -> None:
    system.until(moves(system.accepted, FEW))
    link, before = system.process(link_of("actor0")), system.total()
    before_mb = _memory_mb(link)
    with Lateness() as machine:
        system.signal(LEARNER, signal.SIGSTOP)
        noticed_s = system.until(lambda: not _is_connected(system))
    system.rest(duration_s - noticed_s)
    assert system.total() > before + FEW
    assert _memory_mb(link) < before_mb + ALLOWED_GROWTH_MB
    system.signal(LEARNER, signal.SIGCONT)
    assert noticed_s < NOTICED_S + SLACK_S + 10.0 * machine.worst_s, (noticed_s, machine.worst_s)
    system.until(lambda: _is_connected(system))


def _is_connected(system: System) -> bool:
    """Return whether the link of the first actor is connected, by its status file."""
    status = read_link_status(link_folder(system.far.path, "actor0"))
    return status is not None and status.connected


@REGISTRY.fault(
    4,
    "Actor dies during an episode",
    injected="SIGKILL at random steps, three times",
    required="the episode is stored as truncated, not terminated; lost 0, duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def actor_dies(system: System) -> None:
    rng, before = Random(4), _sealed(system)
    for _ in range(3):
        system.until(moves(system.accepted, rng.randint(FEW, 3 * FEW)))
        kill_actor(system, rng)
    began = [moves(partial(system.appended, actor), 1) for actor in system.actors]
    system.until(lambda: all(has() for has in began))  # each actor has recovered its log
    episodes = [read_episode(path, system.spec) for path in _sealed(system) - before]
    cut = [found for found in episodes if found.end is None]
    assert 0 < len(cut) <= 3
    assert not any(step.terminated for found in cut for step in found.steps)


def _sealed(system: System) -> set[Path]:
    folders = map(system.run.episodes, system.actors)
    paths = [path for folder in folders for path in episode_paths(folder)]
    return {path for path in paths if not path.name.endswith(PART)}


@REGISTRY.fault(
    5,
    "Actor hangs",
    injected="SIGSTOP for 2 s during an episode",
    required="the episode continues afterwards; lost 0, duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def actor_hangs(system: System) -> None:
    system.until(lambda: system.supervisor.states()["actor0"] == "running")
    pid = system.process("actor0").pid
    system.hang("actor0", 2.0)
    system.until(moves(lambda: system.appended("actor0"), FEW))
    assert system.process("actor0").pid == pid, "the actor was restarted"


@REGISTRY.fault(
    8,
    "All processes die at once",
    injected="SIGKILL to learner, links and actors together",
    required="one restart continues the run; lost 0, duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def everything_dies(system: System) -> None:
    system.until(moves(system.accepted, 5 * FEW))
    system.kill(*system.names)
    system.until(moves(system.accepted, 5 * FEW))


@REGISTRY.fault(
    16,
    "Two actors with the same name",
    injected="a second actor and link in the same folder; a second link from another folder",
    required="the second one is refused within 2 s (5 s beside other tests), and the message names "
    "the process that uses the name; lost 0, duplicated 0",
    level=Level.PROCESSES,
    scene=two_actors,
)
def same_name(system: System) -> None:
    system.until(moves(system.accepted, FEW))
    run = system.run.path
    _refused(system, "tests.faults.actor_process", str(run), "actor0", "0")
    _refused(system, "serl.ros.nodes.link", "--run", str(run), "--actor", "actor0")
    elsewhere = run.parents[1] / "elsewhere" / run.name
    elsewhere.mkdir(parents=True)
    shutil.copy(run / RUN_KEY, elsewhere)  # as a copy of the whole run contains it
    announce(link_folder(elsewhere, "actor0"), run.name, "actor0", 1, system.spec)
    with (
        Lateness() as machine,
        RosNode("elsewhere", elsewhere) as node,
        closing(_link(node, elsewhere)) as second,
    ):
        took_s = system.until(lambda: second.step() or second.refused)
        assert str(link_folder(run, "actor0")) in second.refused, second.refused
        assert took_s < REFUSED_S + 10.0 * machine.worst_s, (took_s, machine.worst_s)


def _link(node: RosNode, run: Path) -> Link:
    return Link(node, run, "actor0", LogConfig())


def _refused(system: System, module: str, *arguments: str) -> None:
    """Check that the process ends by itself without waiting, with a one-line error.

    Its own CPU time, mostly imports, does not count, nor twice that time
    while other processes hold the cores.
    """
    begin_s, before = time.monotonic(), os.times()
    words, environ = [sys.executable, "-m", module, *arguments], dict(system.supervisor.environment)
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    after = os.times()
    computed_s = sum(after[2:4]) - sum(before[2:4])
    assert done.returncode != 0
    assert "in use by process" in done.stderr.splitlines()[-1], done.stderr
    waited_s = time.monotonic() - begin_s - 3.0 * computed_s
    assert waited_s < REFUSED_S, (waited_s, computed_s)


@REGISTRY.fault(
    25,
    "Files left in /dev/shm",
    injected="SIGKILL to the link, twice",
    required="the next start of a run removes the files of dead processes",
    level=Level.PROCESSES,
)
def shared_memory_leak(folder: Path) -> None:
    _leak(folder, kills=2)


@REGISTRY.longer(shared_memory_leak, injected="SIGKILL to the link, 100 times")
def shared_memory_leak_of_many(folder: Path) -> None:
    _leak(folder, kills=100)


def _leak(folder: Path, kills: int) -> None:
    left: set[Path] = set()
    with running(folder) as system:
        for _ in range(kills):
            system.until(lambda: _segments(system, link_of("actor0")))
            left |= (segments := _segments(system, link_of("actor0")))
            system.kill(link_of("actor0"))
            assert any(path.exists() for path in segments), "nothing leaked: the test is blind"
    for path in left:
        for file in path.parent.glob(f"*{path.name}*"):
            with suppress(FileNotFoundError):  # another run may have just removed it
                os.utime(file, (0, 0))  # young files could belong to a starting process

    def is_clean() -> bool:
        clean_shared_memory()
        return not any(path.exists() for path in left)  # another run may be about to remove it

    eventually(is_clean, 10.0)


def _segments(system: System, name: str) -> set[Path]:
    """Return the shared-memory files of this process."""
    try:
        maps = Path(f"/proc/{system.supervisor.pids()[name]}/maps").read_text()
    except OSError:  # the process is restarting
        return set()
    return set(map(Path, re.findall(r"/dev/shm/fastrtps_[0-9a-f]{16}\b", maps)))


@REGISTRY.fault(
    48,
    "CPU overloaded",
    injected="two busy processes per core for 10 s",
    required="the actor continues, at half its rate or more; lost 0, duplicated 0",
    level=Level.SOAK,
)
def starved(folder: Path) -> None:
    with running(folder, rate_hz=RATE_HZ) as system, _burners(2 * (os.cpu_count() or 1)):
        system.until(moves(system.accepted, FEW))
        before, begin_s = system.total(), time.monotonic()
        system.rest(10.0)
        made = system.total() - before
        assert made > 0.5 * RATE_HZ * (time.monotonic() - begin_s), f"{made} records"
        system.finish()
        system.check()


@contextmanager
def _burners(count: int) -> Iterator[None]:
    burn = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(burn) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@REGISTRY.fault(
    49,
    "Memory exhausted",
    injected="the learner's address space is limited to its present size; 1,500 records are "
    "logged as fast as possible",
    required="the learner may die; the link uses at most 50 MB more memory; lost 0, duplicated 0",
    level=Level.PROCESSES,
)
def memory_pressure(folder: Path) -> None:
    with running(folder, rate_hz=2000) as system:
        system.until(moves(system.accepted, FEW))
        learner, link = system.process(LEARNER), system.process(link_of("actor0"))
        before_mb = _memory_mb(link)
        learner.rlimit(psutil.RLIMIT_AS, (learner.memory_info().vms, -1))
        peak_mb = 0.0
        while system.total() < 1_500:
            system.rest(0.1)
            peak_mb = max(peak_mb, _memory_mb(link))
        system.finish()
        assert peak_mb < before_mb + ALLOWED_GROWTH_MB
        system.check()


def _memory_mb(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / 1e6
