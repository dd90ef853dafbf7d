"""Benchmark of a run's Python interface: first load, cached load and policy actions.

    python tests/bench/bench_columns.py [--transitions N] [--length STEPS] [--folder PATH]

The steps have a state of 27 numbers and no images. The parts are those of `serl.open_run`: the
table of all steps, the matrices of all transitions, and a pandas table. The policy is one for
`pick_cube` from state, loaded by `serl.load_policy` from a checkpoint and called with one
observation at a time. The exit status is 1 if a limit is missed: 10 s of processor time for the
first load of a million transitions, extrapolated from those recorded, and 1 ms for an action.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

import serl
import serl.datasets.tables  # not to be part of the first load
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.resume import provenance
from serl.runs.task_setup import make_spec, make_task
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import random_step
from serl.types import End, EndReason, Key

SIZES = {"tcp_pose": 7, "tcp_twist": 6, "wrench": 6, "gripper": 1, "q": 7}
SPEC = Spec(
    task="bench",
    observation=ObservationSpec(state={n: ArraySpec(shape=(s,)) for n, s in SIZES.items()}),
    action=ArraySpec(shape=(7,), low=-1, high=1),
    rate_hz=10,
)
MILLION_S, ACTION_MS = 10.0, 1.0
"""Limits of the processor time of loading a million transitions, and of a policy action."""


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=100, help="steps of an episode")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the default one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        record(folder, 1, options.transitions, options.length)
        print(f"{options.transitions:,} transitions, episodes of {options.length} steps")
        print(f"{'':<34}{'wall s':>8}{'CPU s':>8}")
        first_s = timed("the first time, from the log", lambda: serl.open_run(folder).steps)
        timed("steps, from the cache", lambda: serl.open_run(folder).steps)
        first_s += timed("transitions, from the cache", lambda: serl.open_run(folder).transitions())
        timed("pandas, from the cache", lambda: serl.open_run(folder).steps.pandas())
        record(folder, 2, options.length, options.length)
        timed("after one more episode", lambda: serl.open_run(folder).steps)
        million_s = first_s * 1e6 / options.transitions
        kept = [
            is_kept("a million transitions, CPU s", million_s, MILLION_S),
            is_kept("an action, ms: median", time_policy(folder / "runs"), ACTION_MS),
        ]
    finally:
        shutil.rmtree(folder)
    return 0 if all(kept) else 1


def is_kept(name: str, value: float, limit: float) -> bool:
    """Print a value, its limit and the verdict; return whether the limit is kept."""
    verdict = "pass" if value < limit else "fail"
    print(f"{name:<34}{value:>8.3f}  {verdict}: limit {limit:g}")
    return value < limit


def time_policy(folder: Path, calls: int = 1000) -> float:
    """Return the median time of a policy action for a state observation, ms."""
    config = resolve({"task": "pick_cube"})
    spec = make_spec(make_task(config))
    run = RunFolder.create(folder, config, datetime.now())
    weights = make_agent(config, spec, 0).actor_weights()
    run.save_checkpoint(1, {"actor": weights}, provenance(config, spec))
    policy = serl.load_policy(run.path)
    state = np.zeros(spec.observation.state_size, np.float32)
    walls_s = []
    for _ in range(calls):
        begun_s = time.perf_counter()
        policy(state)
        walls_s.append(time.perf_counter() - begun_s)
    return float(1e3 * np.median(walls_s))


def record(folder: Path, epoch: int, transitions: int, length: int) -> None:
    """Record episodes of random numbers."""
    rng = np.random.default_rng(0)
    samples = [random_step(Key("", "", 0, 0, 0), SPEC, rng) for _ in range(32)]
    config = LogConfig(interval_s=60, min_free_bytes=0)
    with EpisodeLog(folder, SPEC, "bench", "actor0", epoch, config) as log:
        for episode in range(max(1, transitions // length)):
            for index in range(length):
                key = Key("bench", "actor0", epoch, episode, index)
                log.append(replace(samples[index % 32], key=key))
            key, seen = Key("bench", "actor0", epoch, episode, length), samples[0].observation
            log.append(End(key, seen, False, EndReason.TIME_LIMIT, 1.0, 1.0))


def timed(name: str, run: Callable[[], object]) -> float:
    """Print the time of a call; return its processor time, s."""
    wall_s, begun_s = time.perf_counter(), time.process_time()
    run()
    cpu_s = time.process_time() - begun_s
    print(f"{name:<34}{time.perf_counter() - wall_s:>8.2f}{cpu_s:>8.2f}", flush=True)
    return cpu_s


if __name__ == "__main__":
    sys.exit(main())
