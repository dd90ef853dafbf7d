"""Benchmark of resuming: seconds from a kill -9 until the learner of a long run trains again.

    python tests/bench/bench_resume.py [--steps N] [--task NAME]

The run has as many steps as a learner would have trained on: its log, its index and a checkpoint
1000 steps before the end. Real processes resume it and are killed: first the learner alone, which
its supervising command restarts, then all of them, including that command. On a busy machine the
learner's CPU time is more reliable than the wall time.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np
import psutil
from rich.console import Console

from serl import plugins
from serl.cli.training import demonstrate
from serl.log.episode_log import EpisodeLog
from serl.log.episode_reader import episode_paths, read_records
from serl.log.index import Index
from serl.log.metrics import read_metrics
from serl.report.display import Display
from serl.runs.assembly import make_agent
from serl.runs.checkpoint import checkpoint_paths
from serl.runs.config import TrainConfig, resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import provenance
from serl.runs.task_setup import make_spec, make_task
from serl.runs.verify import verify
from serl.specs import Spec
from serl.testing.samples import random_step
from serl.training.replay import Replay
from serl.types import End, EndReason, Key, Record, Step

ACTOR, EPISODE, UNSAVED, TEMPLATES = "actor0", 100, 1000, 50
LIMIT_S = 300.0
SETTINGS = {"learner": {"metrics_every": 10}}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000, help="that were trained on")
    parser.add_argument("--task", default="pick_cube")
    options = parser.parse_args()
    tuned = plugins.load("task", options.task)().training_defaults()
    asked = {"task": options.task, "steps": 2 * options.steps}
    with tempfile.TemporaryDirectory() as folder:
        run = make_run(Path(folder), resolve(tuned, asked, SETTINGS), options.steps)
        measure(run)


def make_run(root: Path, config: TrainConfig, steps: int) -> RunFolder:
    """Create a run as a learner leaves it after `steps` steps, with an untrained policy."""
    run = RunFolder.create(root, config, datetime.now())
    demonstrate(run, Display(Console(quiet=True)))
    spec, epoch = make_spec(make_task(config)), time.time_ns()
    with (
        EpisodeLog(run.episodes(ACTOR), spec, run.name, ACTOR, epoch) as log,
        Index(run.index) as index,
    ):
        for episode in episodes(spec, run.name, epoch, steps):
            for record in episode:
                log.append(record)
            index.accept(episode)
    trained = steps - UNSAVED
    demonstrations = read_records(run.demonstrations, spec)
    info = {
        "taken": [[ACTOR, epoch, trained + trained // EPISODE]],
        "trained": {ACTOR: trained},
        "version": 1,
        "demonstrations": sum(isinstance(record, Step) for record in demonstrations),
        "rows": 0,
        **provenance(config, spec),
    }
    agent = make_agent(config, spec, 0)
    sampler = Replay(spec, 2, config.agent.discount).sampler_state()
    arrays = {"agent": agent.state_dict(), "actor": agent.actor_weights(), "replay": sampler}
    run.save_checkpoint(trained, arrays, info)
    return run


def episodes(spec: Spec, run: str, epoch: int, steps: int) -> Iterator[Sequence[Record]]:
    """Yield complete episodes of reused steps; drawing each anew would cost more than logging."""
    rng = np.random.default_rng(0)
    templates = [random_step(Key(run, ACTOR, epoch, 0, 0), spec, rng) for _ in range(TEMPLATES)]
    for number in range(steps // EPISODE):
        records: list[Record] = [
            replace(templates[index % TEMPLATES], key=Key(run, ACTOR, epoch, number, index))
            for index in range(EPISODE)
        ]
        key = Key(run, ACTOR, epoch, number, EPISODE)
        last = templates[number % TEMPLATES].observation
        yield [*records, End(key, last, False, EndReason.TIME_LIMIT, 0.0, 0.0)]


def measure(run: RunFolder) -> None:
    """Start, kill the learner, kill all; print the seconds of each until training continues."""
    size_mb = sum(path.stat().st_size for path in episode_paths(run.episodes(ACTOR))) / 1e6
    print(f"{trained(run) + UNSAVED:,} steps, {size_mb:.0f} MB of log")
    command = start(run)
    until_training("nothing was running: serl train --resume", run, command, 0)
    learner_of(command).kill()
    until_training("the learner was killed: nobody did anything", run, command, 1)
    family = [command, *command.children(recursive=True)]
    for process in family:
        process.kill()
    psutil.wait_procs(family)
    command = start(run)
    until_training("all were killed: serl train --resume", run, command, 2)
    command.send_signal(signal.SIGINT)
    command.wait(LIMIT_S)
    begun_s = time.monotonic()
    print(verify(run.path))
    print(f"{'serl verify':48}{time.monotonic() - begun_s:8.1f} s")


def start(run: RunFolder) -> psutil.Popen:
    """Start `serl train --resume`."""
    words = [sys.executable, "-m", "serl.cli.main", "train", "--resume", str(run.path)]
    return psutil.Popen(words, stdout=subprocess.DEVNULL)  # errors go to stderr


def until_training(what: str, run: RunFolder, command: psutil.Popen, resumes: int) -> None:
    """Wait for updates of a learner after `resumes` resumes; print the time taken."""
    since_s = time.monotonic()

    def training() -> bool:
        rows = read_metrics(run.metrics) if run.metrics.exists() else []
        resumed = [row for row in rows if row["kind"] == "event" and "resumed at" in row["text"]]
        updated = [row["steps"] for row in rows if row["kind"] == "update"]
        return len(resumed) > resumes and updated[-1:] > [resumed[-1]["steps"]]

    wait(training, command)
    waited_s, times = time.monotonic() - since_s, learner_of(command).cpu_times()
    print(
        f"{what:48}{waited_s:8.1f} s, learner {times.user + times.system:5.1f} s of processor time"
    )


def learner_of(command: psutil.Popen) -> psutil.Process:
    """Return the learner's process."""
    (learner,) = (p for p in command.children() if "serl.ros.nodes.learner" in p.cmdline())
    return learner


def wait(condition: Callable[[], bool], command: psutil.Popen) -> None:
    """Wait until the condition holds; fail if the command ends first."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if command.poll() is not None or time.monotonic() > deadline_s:
            raise SystemExit("serl train did not go on")
        time.sleep(0.1)


def trained(run: RunFolder) -> int:
    """Return the steps of the newest checkpoint."""
    return int(checkpoint_paths(run.checkpoints)[-1].name)


if __name__ == "__main__":
    main()
