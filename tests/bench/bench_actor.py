"""What an environment step costs an actor over ROS 2, against the same actor alone in a process.

    python tests/bench/bench_actor.py [--short] [--task TASK]

Over ROS 2 the actor writes its log and reads weights from its file, while a link and a learner
(UTD 1, batches of 64) run beside it as processes. Alone, it throws its records away and the others
rest. The two take turns, with the same weights and starts, in a process whose ROS 2 node is open.
What a step waits for the learner is not counted, nor are resets. Beside the time that passed stands
the control thread's own, which neighbours on the machine hardly change.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from serl import plugins
from serl.actor import Actor
from serl.assembly import make_actor, make_spec, make_task
from serl.clock import VirtualClock
from serl.config import resolve
from serl.display import Display
from serl.link import WeightsFile, announce
from serl.recording import EpisodeLog
from serl.robot import SimulatedRobot
from serl.ros.environment import free_domain
from serl.ros.graph import actor_processes, learner_processes, started
from serl.ros.node import RosNode
from serl.ros.stats import Stats
from serl.run_folder import RunFolder
from serl.supervisor import Supervisor
from serl.train import demonstrate
from serl.transport import InProcess
from serl.types import End, Record

NAME = "actor0"
EPISODES = 3
QUANTILES = (0.5, 0.9, 0.99)
LIMIT_S = 60.0
SETTLE_S = 0.2
SETTINGS = {
    "demos": 3,
    "intervention": "none",
    "steps": 10_000_000,
    "agent": {"utd": 1, "batch_size": 64, "threads": 1},
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
        with started(run, specs) as supervisor:
            measure(run, supervisor, rounds=1 if options.short else 20)


def measure(run: RunFolder, supervisor: Supervisor, rounds: int) -> None:
    """Take turns, then print medians, tails and the differences."""
    config, local = run.config, InProcess()
    spec, epoch = make_spec(make_task(config)), time.time_ns()
    file = WeightsFile(run.link(NAME) / "weights.safetensors", spec.digest)
    with (
        RosNode(NAME, run.path) as node,
        EpisodeLog(run.episodes(NAME), spec, run.name, NAME, epoch) as log,
    ):
        alone = Timed(make_actor(config, run.name, NAME, local, drop))
        linked = Timed(make_actor(config, run.name, NAME, file, log.append, epoch=epoch))
        Stats(node, f"actor {NAME}", lambda: {"version": linked.actor.policy.version})
        announce(run.link(NAME), run.name, NAME, epoch, spec)
        for turn in range(rounds + 1):
            linked.run(EPISODES, lambda: wait(linked, supervisor, config.actor.max_lead_steps))
            wait(linked, supervisor, config.learner.publish_every)
            time.sleep(SETTLE_S)
            if (snapshot := linked.actor.policy.snapshot) is not None:
                local.publish(snapshot)
            alone.run(EPISODES)
            if turn == 0:  # everything is warm from here on
                alone.laps_s.clear()
                linked.laps_s.clear()
        report(alone, linked)


def drop(record: Record) -> None:
    """The sink of an actor that nobody listens to."""


class Timed:
    """An actor whose steps are timed, from the end of one wait for the learner to the next."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.sent = 0
        self.laps_s: list[tuple[float, float]] = []  # passed, of the thread
        self._sink = actor.sink
        self._since_s: tuple[float, float] | None = None
        self._pause: Callable[[], object] = lambda: None
        assert isinstance(actor.robot, SimulatedRobot)
        rate_hz = actor.task.config.rate_hz
        actor.sink = self._record
        actor.clock = VirtualClock(actor.robot.advance, rate_hz, self._lap)

    def run(self, episodes: int, pause: Callable[[], object] = lambda: None) -> None:
        """Run episodes, calling `pause` before each control period, untimed."""
        self._pause = pause
        for _ in islice(self.actor.episodes(), episodes):
            pass

    def quantiles_ms(self) -> list[float]:
        """Quantiles of the time that a step took, then of the thread's own time in it."""
        return [float(1e3 * v) for v in np.quantile(self.laps_s, QUANTILES, axis=0).T.ravel()]

    def _lap(self) -> None:
        if self._since_s is not None:
            passed, of_thread = _now()
            self.laps_s.append((passed - self._since_s[0], of_thread - self._since_s[1]))
        self._pause()
        self._since_s = _now()

    def _record(self, record: Record) -> None:
        self._sink(record)
        if isinstance(record, End):
            self._since_s = None  # a reset follows
        else:
            self.sent += 1


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


def wait(linked: Timed, supervisor: Supervisor, lead: int) -> None:
    """Until the learner has all but `lead` steps trained on."""
    deadline_s = time.monotonic() + LIMIT_S
    policy = linked.actor.policy
    while linked.sent - (policy.snapshot.trained.get(NAME, 0) if policy.snapshot else 0) > lead:
        if not policy.refresh():
            supervisor.check()
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no news from the learner in {LIMIT_S:.0f} s")
            time.sleep(0.001)


def report(alone: Timed, linked: Timed) -> None:
    """The table."""
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
