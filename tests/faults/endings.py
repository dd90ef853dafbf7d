"""Faults of shutdown: a process of a real training is stopped at an inconvenient moment."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from pathlib import Path

from serl.log.episode_reader import PART, episode_paths, read_episode
from serl.ros.processes import all_processes, run_processes
from serl.ros.testing.processes import Lateness, eventually
from serl.runs.checkpoint import load_latest
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.task_setup import make_spec, make_task
from serl.runs.verify import verify
from serl.system.supervisor import Supervisor

from .books import count_accepted
from .registry import REGISTRY, Level
from .system import FEW

ACTOR = "actor0"
ALLOWED_S = 5.0
START_LIMIT_S = 240.0
SETTINGS = {
    "task": "reach",
    "demos": 0,
    "log": {"min_free_bytes": 0},
    "agent": {"hidden": [16, 16], "batch_size": 16, "utd": 1, "device": "cpu"},
}


@REGISTRY.fault(
    60,
    "SIGTERM, Ctrl-C",
    injected="SIGTERM to actor, link and learner of a training; in a second start SIGINT",
    required="each process ends with exit code 0 within 5 s; the episode is sealed; a checkpoint "
    "is written; lost 0, duplicated 0",
    level=Level.PROCESSES,
)
def told_to_stop(folder: Path) -> None:
    run = RunFolder.create(folder, resolve(SETTINGS), datetime.now())
    spec = make_spec(make_task(run.config))
    for number in (signal.SIGTERM, signal.SIGINT):
        with run_processes(run, all_processes(run)) as supervisor:
            _until_accepted(run, supervisor, count_accepted(run.index) + FEW)
            for name in (ACTOR, f"link-{ACTOR}", "learner"):
                _end(supervisor, name, number)
        assert not list(run.episodes(ACTOR).glob(f"*{PART}"))
        last = read_episode(episode_paths(run.episodes(ACTOR))[-1], spec)
        assert last.end is not None
        # An episode that ends by itself in the step of the signal keeps its own end reason.
        assert last.end.text in ("interrupted", "time limit", "success"), last.end
        assert last.steps[-1].truncated or last.end.success
        assert load_latest(run.checkpoints)[1] == ""
        report = verify(run.path)
        assert report.sound, report


def _until_accepted(run: RunFolder, supervisor: Supervisor, count: int) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while count_accepted(run.index) < count:
        assert set(supervisor.states().values()) == {"running"}, supervisor.states()
        assert time.monotonic() < deadline_s, (
            f"{count_accepted(run.index)} of {count} records accepted"
        )
        time.sleep(0.1)


def _end(supervisor: Supervisor, name: str, number: signal.Signals) -> None:
    with Lateness() as machine:
        os.kill(supervisor.pids()[name], number)
        begin_s = time.monotonic()
        eventually(lambda: supervisor.states()[name] != "running", found=lambda: name)
        took_s = time.monotonic() - begin_s
    assert took_s < ALLOWED_S + 10.0 * machine.worst_s, f"{name}: {took_s} s after {number.name}"
    assert supervisor.finished(name), supervisor.states()
