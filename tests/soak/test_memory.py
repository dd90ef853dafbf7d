"""Memory of a long run with a full replay: learner, link and actor processes over ROS 2.

SERL_SOAK_MINUTES=30 pytest -m slow tests/soak
"""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from serl.ros.processes import all_processes, run_processes
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import trained_steps
from serl.system.supervisor import Supervisor

pytestmark = [pytest.mark.slow, pytest.mark.ros]

DURATION_S = 60.0 * float(os.environ.get("SERL_SOAK_MINUTES", "30"))
WARM_UP = 0.1  # share of the duration before the first measurement
WINDOW = 0.1  # share of the duration of each of the two measurements
PERIOD_S = 1.0
START_LIMIT_S = 180.0
CAPACITY = 500
GROWTH = 1.05
MOST_MB = {"learner": 1000.0, "actor0": 600.0}  # the learner's replay here is below 1 MB
SETTINGS = {
    "steps": 100_000_000,
    "demos": 0,
    "agent": {"utd": 1, "batch_size": 64},
    "learner": {"capacity": CAPACITY, "checkpoint_every": CAPACITY},
}


def test_process_memory_is_constant_once_replay_is_full() -> None:
    with TemporaryDirectory(prefix="serl-soak-") as folder:
        run = RunFolder.create(Path(folder), resolve(SETTINGS), datetime.now())
        with run_processes(run, all_processes(run)) as supervisor:
            pids = supervisor.pids()
            _wait_until_full(run, supervisor)
            first_steps = trained_steps(run)
            _sample_mb(supervisor, WARM_UP * DURATION_S)
            before_mb = _sample_mb(supervisor, WINDOW * DURATION_S)
            _sample_mb(supervisor, (1.0 - WARM_UP - 2.0 * WINDOW) * DURATION_S)
            after_mb = _sample_mb(supervisor, WINDOW * DURATION_S)
            assert supervisor.pids() == pids, supervisor.events  # a restart would hide growth
            steps = trained_steps(run) - first_steps
    lines = [f"{n} {before_mb[n]:.0f} MB, then {after_mb[n]:.0f} MB" for n in before_mb]
    print(f"{'; '.join(lines)}; {steps:,} steps trained meanwhile")  # noqa: T201
    assert steps >= CAPACITY
    assert {name for name in before_mb if after_mb[name] > GROWTH * before_mb[name]} == set()
    assert {name for name, most_mb in MOST_MB.items() if after_mb[name] > most_mb} == set()


def _wait_until_full(run: RunFolder, supervisor: Supervisor) -> None:
    deadline_s = time.monotonic() + START_LIMIT_S
    while trained_steps(run) < 2 * CAPACITY:
        supervisor.check()
        assert time.monotonic() < deadline_s, f"{trained_steps(run)} steps in {START_LIMIT_S:g} s"
        time.sleep(PERIOD_S)


def _sample_mb(supervisor: Supervisor, duration_s: float) -> dict[str, float]:
    """Return the median resident memory of each process over a time, at least one sample."""
    samples = defaultdict(list)
    deadline_s = time.monotonic() + duration_s
    while True:
        supervisor.check()
        for name, pid in supervisor.pids().items():
            samples[name].append(psutil.Process(pid).memory_info().rss / 1e6)
        if time.monotonic() >= deadline_s:
            return {name: statistics.median(values) for name, values in samples.items()}
        time.sleep(PERIOD_S)
