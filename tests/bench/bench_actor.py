"""Benchmark of an actor's step over ROS 2, compared with the same actor alone in a process.

    python tests/bench/bench_actor.py [--short] [--task TASK]

Over ROS 2 the actor writes its log, reads weights from a file and can be paused; alone, it drops
its records. Both alternate by episode with the same weights and starts in one process with an open
ROS 2 node, while a learner under full load and a link process run. Resets are not counted. The
table shows wall time and the control thread's CPU time, which other processes affect less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import datetime
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from serl import plugins
from serl.cli.training import demonstrate
from serl.clock import VirtualClock
from serl.log.episode_log import EpisodeLog
from serl.loop import EpisodeKey, Observer
from serl.report.display import Display
from serl.robot import SimulatedRobot
from serl.ros.environment import free_domain
from serl.ros.node import RosNode
from serl.ros.processes import actor_processes, learner_processes, run_processes
from serl.ros.telemetry import Stats
from serl.runs.assembly import DrivenArm, make_actor
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.system.supervisor import Supervisor, is_orphaned
from serl.testing import InProcess
from serl.training.actor import Actor
from serl.training.learned_policy import LearnedPolicy
from serl.training.link import WeightsFile, announce
from serl.transport import Snapshot
from serl.types import End, Step
from tests.support.acting import FakeSite

NAME = "actor0"
QUANTILES = (0.5, 0.9, 0.99)
LIMIT_S = 60.0
SETTINGS = {
    "demos": 3,
    "intervention": "none",
    "steps": 10_000_000,
    "agent": {"utd": 4, "batch_size": 64, "threads": 1},
    "learner": {"checkpoint_every": 10_000_000},
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer steps")
    parser.add_argument("--task", default="pick_cube")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tuned = plugins.load("task", options.task)().training_defaults()
    config = resolve({"task": options.task}, tuned, SETTINGS)
    with free_domain() as domain, tempfile.TemporaryDirectory() as folder:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        run = RunFolder.create(Path(folder), config, datetime.now())
        demonstrate(run, Display(Console(quiet=True)))
        specs = [*learner_processes(run), actor_processes(run, NAME)[0]]
        with run_processes(run, specs) as supervisor:
            measure(run, supervisor, rounds=1 if options.short else 60)


def measure(run: RunFolder, supervisor: Supervisor, rounds: int) -> None:
    """Alternate both actors, then print medians, tails and differences."""
    config, local = run.config, InProcess()
    spec, epoch = make_spec(make_task(config)), time.time_ns()
    file = WeightsFile(run.link(NAME) / "weights.safetensors", spec.digest)
    with (
        RosNode(NAME, run.path) as node,
        EpisodeLog(run.episodes(NAME), spec, run.name, NAME, epoch) as log,
    ):
        robots = [plugins.make_simulation(make_task(config)) for _ in range(2)]
        actor = make_actor(
            config, EpisodeKey(run.name, NAME, epoch, 0), local, [], DrivenArm(robots[0])
        )
        alone = Timed(actor, robots[0])
        linked = Timed(
            make_actor(
                config,
                EpisodeKey(run.name, NAME, epoch, 0),
                file,
                [log],
                DrivenArm(robots[1]),
                FakeSite(lambda: node.stopping or is_orphaned()),
            ),
            robots[1],
        )
        policy = linked.actor.policy
        Stats(node, f"actor {NAME}", lambda: {"version": policy.version})
        announce(run.link(NAME), run.name, NAME, epoch, spec)
        for turn in range(rounds + 1):
            linked.run_episode()
            snapshot = newest(policy, supervisor)
            local.publish(snapshot)
            alone.run_episode()
            if turn == 0:  # caches are warm from here on
                alone.laps_s.clear()
                linked.laps_s.clear()
        if linked.steps <= snapshot.trained.get(NAME, 0):
            print("the learner had nothing to do at times: the two had different neighbours")
        report(alone, linked)


def newest(policy: LearnedPolicy, supervisor: Supervisor) -> Snapshot:
    """Return the weights in use; wait for the first."""
    deadline_s = time.monotonic() + LIMIT_S
    while not policy.refresh() and policy.snapshot is None:
        supervisor.check()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no weights from the learner in {LIMIT_S:.0f} s")
        time.sleep(0.01)
    assert policy.snapshot is not None
    return policy.snapshot


class Timed(Observer):
    """Actor whose steps are timed from one control period to the next."""

    def __init__(self, actor: Actor, robot: SimulatedRobot) -> None:
        self.actor = actor
        self.steps = 0
        self.laps_s: list[tuple[float, float]] = []  # wall time, thread CPU time
        self._since_s: tuple[float, float] | None = None
        rate_hz = actor.task.config.rate_hz
        actor.observers = [*actor.observers, self]
        actor.clock = VirtualClock(robot.advance, rate_hz, self._lap)

    def run_episode(self) -> None:
        """Run one episode."""
        next(self.actor.episodes())

    def quantiles_ms(self) -> list[float]:
        """Return quantiles of the wall time of a step, then of its thread CPU time, ms."""
        return [float(1e3 * v) for v in np.quantile(self.laps_s, QUANTILES, axis=0).T.ravel()]

    def _lap(self) -> None:
        passed, of_thread = _now()
        if self._since_s is not None:
            self.laps_s.append((passed - self._since_s[0], of_thread - self._since_s[1]))
        self._since_s = _now()

    def on_step(self, step: Step) -> None:
        """Count a step."""
        self.steps += 1

    def on_end(self, end: End) -> None:
        """Stop timing at the end of an episode; a reset follows."""
        self._since_s = None


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def report(alone: Timed, linked: Timed) -> None:
    """Print the table."""
    base, over = alone.quantiles_ms(), linked.quantiles_ms()
    print("| control step, ms | median | p90 | p99 | of the thread: median | p90 | p99 | steps |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| alone in a process | {_cells(base, '.3f')} | {len(alone.laps_s)} |")
    print(f"| over ROS 2 | {_cells(over, '.3f')} | {len(linked.laps_s)} |")
    pairs = list(zip(over, base, strict=True))
    print(f"| difference | {_cells([one - other for one, other in pairs], '+.3f')} | |")
    print(f"| ratio | {_cells([one / other for one, other in pairs], '.2f')} | |")


def _cells(values: list[float], form: str) -> str:
    return " | ".join(format(value, form) for value in values)


if __name__ == "__main__":
    main()
