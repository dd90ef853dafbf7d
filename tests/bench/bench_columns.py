"""Benchmark of a run's Python interface: first load, cached load and policy actions.

    python tests/bench/bench_columns.py [--transitions N] [--length STEPS] [--folder PATH]

The steps have a state of 27 numbers and no images. The parts are those of `serl.open_run`: the
table of all steps, the matrices of all transitions, and a pandas table. The policy is one for
`pick_cube` from state, called as `serl.load_policy` returns it, with one observation at a time.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import serl
from serl.api import TrainedPolicy
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.runs.assembly import make_agent
from serl.runs.config import resolve
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


def main() -> None:
    """Print the table."""
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
        timed("the first time, from the log", lambda: serl.open_run(folder).steps)
        timed("steps, from the cache", lambda: serl.open_run(folder).steps)
        timed("transitions, from the cache", lambda: serl.open_run(folder).transitions())
        timed("pandas, from the cache", lambda: serl.open_run(folder).steps.pandas())
        record(folder, 2, options.length, options.length)
        timed("after one more episode", lambda: serl.open_run(folder).steps)
        time_policy()
    finally:
        shutil.rmtree(folder)


def time_policy(calls: int = 1000) -> None:
    """Print the time of a policy action for a state observation."""
    config = resolve({"task": "pick_cube"})
    task = make_task(config)
    spec = make_spec(task)
    policy = TrainedPolicy(make_agent(config, spec, 0), task, spec, 0, 1)
    state = np.zeros(spec.observation.state_size, np.float32)
    torch.set_num_threads(1)  # as `serl.load_policy` does
    walls_s = []
    for _ in range(calls):
        begun_s = time.perf_counter()
        policy(state)
        walls_s.append(time.perf_counter() - begun_s)
    print(f"{'an action, ms: median':<34}{1e3 * np.median(walls_s):>8.3f}")


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


def timed(name: str, run: Callable[[], object]) -> None:
    """Print the time of a call."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    run()
    print(
        f"{name:<34}{time.perf_counter() - wall_s:>8.2f}{time.process_time() - cpu_s:>8.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
