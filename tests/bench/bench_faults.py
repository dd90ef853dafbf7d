"""Benchmark of the control step while the learner is alive, hung, dead or slow, over ROS 2.

    python tests/bench/bench_faults.py [--short] [--rate-hz RATE]

One actor, in this process, drives the simulated arm in real time: it writes its log, looks for new
weights and can be paused, while a link and a learner that trains run beside it. Episodes take
turns: the learner is left alone, stopped (SIGSTOP), killed, or held up nine tenths of the time. A
step's time is from the beginning of its period to when it waits for the next, without the physics.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch

from serl import plugins
from serl.clock import WallClock
from serl.log.episode_log import EpisodeLog
from serl.loop import EpisodeKey
from serl.robot import SimulatedRobot
from serl.ros.environment import free_domain
from serl.ros.node import RosNode
from serl.ros.processes import actor_processes, learner_processes, run_processes
from serl.runs.assembly import DrivenArm, make_actor
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.system.supervisor import Supervisor, is_orphaned
from serl.training.link import WeightsFile, announce, read_link_status
from tests.support.acting import FakeSite

NAME = "actor0"
QUANTILES = (0.5, 0.99)
LIMIT_S = 120.0
FOREVER = 1_000_000  # restarts
SETTINGS = {
    "task": "reach",
    "demos": 0,
    "intervention": "none",
    "steps": 10_000_000,
    "task_config": {"time_limit_s": 2.0, "hold_steps": 1000},  # all episodes are of equal length
    "agent": {"utd": 1, "batch_size": 64, "threads": 1},
    "log": {"min_free_bytes": 0},
}


def main() -> None:
    """Print the table, or be the process that holds the learner up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    parser.add_argument("--rate-hz", type=float, default=50.0)
    parser.add_argument("--hold-up", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold_up:
        hold_up(options.hold_up)
    torch.set_num_threads(1)
    config = resolve(SETTINGS, {"task_config": {"rate_hz": options.rate_hz}})
    with free_domain() as domain, tempfile.TemporaryDirectory() as folder:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        run = RunFolder.create(Path(folder), config, datetime.now())
        specs = [*learner_processes(run), actor_processes(run, NAME)[0]]
        with run_processes(run, [replace(spec, restarts=FOREVER) for spec in specs]) as supervisor:
            measure(run, supervisor, rounds=1 if options.short else 20)


def hold_up(pid: int) -> None:
    """Let a process run a tenth of the time; print a line at the start."""
    print(flush=True)
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.09)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)


@dataclass
class Laps(WallClock):
    """Wall clock for a simulated arm that records the duration of each step."""

    robot: SimulatedRobot
    rate_hz: float
    times_s: list[tuple[float, float]] = field(default_factory=list)  # wall time, thread CPU time

    def __post_init__(self) -> None:
        super().__init__(self.rate_hz)
        self._begin_s = _now()

    def start(self) -> None:
        """Begin the first period."""
        super().start()
        self._begin_s = _now()

    def wait(self) -> None:
        """End a step, wait, begin the next."""
        self.times_s.append(_since(self._begin_s))
        self.robot.advance(1.0 / self.rate_hz)
        super().wait()
        self._begin_s = _now()


def measure(run: RunFolder, supervisor: Supervisor, rounds: int) -> None:
    """Alternate the learner's conditions by episode, then print the table."""
    config = run.config
    spec, epoch = make_spec(make_task(config)), time.time_ns()
    with (
        RosNode(NAME, run.path, local=True) as node,
        EpisodeLog(run.episodes(NAME), spec, run.name, NAME, epoch, config.log) as log,
    ):
        task = make_task(config)
        robot = plugins.make_simulation(task)
        actor = make_actor(
            config,
            EpisodeKey(run.name, NAME, epoch, 0),
            WeightsFile(run.link(NAME) / "weights.safetensors", spec.digest),
            [log],
            DrivenArm(robot),
            FakeSite(lambda: node.stopping or is_orphaned()),
        )
        announce(run.link(NAME), run.name, NAME, epoch, spec)
        wait_for(supervisor, actor.policy.refresh)
        clocks = {name: Laps(robot, task.config.rate_hz) for name in STATES}
        for turn in range(rounds + 1):
            for name, state in STATES.items():
                wait_for(supervisor, partial(is_connected, run))
                with state(supervisor):
                    actor.clock = clocks[name]
                    next(actor.episodes())
                if turn == 0:  # caches are warm from here on
                    clocks[name].times_s.clear()
                    clocks[name].overruns = 0
        report(clocks)


def is_connected(run: RunFolder) -> bool:
    """Return whether the link is connected to the learner."""
    status = read_link_status(run.link(NAME))
    return status is not None and status.connected


def wait_for(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    """Restart ended processes until the condition holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        supervisor.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s: {supervisor.states()}")
        time.sleep(0.05)


@contextmanager
def alive(supervisor: Supervisor) -> Iterator[None]:
    """Leave the learner alone."""
    yield


@contextmanager
def hung(supervisor: Supervisor) -> Iterator[None]:
    """Stop the learner."""
    pid = supervisor.pids()["learner"]
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


@contextmanager
def dead(supervisor: Supervisor) -> Iterator[None]:
    """Kill the learner; `wait_for` starts it again."""
    os.kill(supervisor.pids()["learner"], signal.SIGKILL)
    yield


@contextmanager
def slow(supervisor: Supervisor) -> Iterator[None]:
    """Hold the learner up."""
    pid = supervisor.pids()["learner"]
    command = [sys.executable, __file__, "--hold-up", str(pid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holding:
        assert holding.stdout is not None
        holding.stdout.readline()  # wait for the start, which costs more than the rest
        yield
        holding.kill()
    os.kill(pid, signal.SIGCONT)


STATES = {"alive": alive, "hung": hung, "dead": dead, "slow": slow}


def report(clocks: dict[str, Laps]) -> None:
    """Print the table with ratios to the undisturbed learner."""
    print("| learner | step, ms: median | p99 | of the thread: median | p99 | overruns | steps |")
    print("|---|---|---|---|---|---|---|")
    base = quantiles_ms(clocks["alive"])
    for name, clock in clocks.items():
        pairs = zip(quantiles_ms(clock), base, strict=True)
        cells = " | ".join(f"{here:.3f} (x{here / there:.2f})" for here, there in pairs)
        print(f"| {name} | {cells} | {clock.overruns} | {len(clock.times_s)} |")


def quantiles_ms(clock: Laps) -> list[float]:
    """Return quantiles of the wall time of a step, then of its thread CPU time, ms."""
    return [float(1e3 * v) for v in np.quantile(clock.times_s, QUANTILES, axis=0).T.ravel()]


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def _since(begin: tuple[float, float]) -> tuple[float, float]:
    passed, of_thread = _now()
    return passed - begin[0], of_thread - begin[1]


if __name__ == "__main__":
    main()
