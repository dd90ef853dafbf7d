"""Benchmark of a run's Python interface: first load, cached load and policy actions.

    python tests/bench/bench_columns.py [--transitions N] [--length STEPS] [--folder PATH]

The steps have a state of 27 numbers, and no images, or two raw ones of 128 x 128 pixels. The parts
are those of `serl.open_run`: the table of all steps, the matrices of all transitions, and a pandas
table. The policy is one for `pick_cube` from state, loaded by `serl.load_policy` from a checkpoint
and called with one observation at a time.

The time of a million transitions is the slope between two sizes, after a load that warms up, so
that costs which do not grow are not multiplied. `loops` is processor time in units of a million
additions by Python, timed before and after: on a slow or busy machine both take longer. The limit
of 10 s is that of a core which needs 0.03 s for such a loop. The exit status is 1 if it is missed
by episodes from state, or the limit of 1 ms by an action.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
IMAGES = {name: ArraySpec(shape=(128, 128, 3), dtype="uint8", unit="RGB") for name in ("a", "b")}
PIXELS = SPEC.model_copy(
    update={"observation": SPEC.observation.model_copy(update={"images": IMAGES})}
)
MILLION_S, ACTION_MS = 10.0, 1.0
"""Limits of the processor time of loading a million transitions, and of a policy action."""
LOOP_S = 0.03
"""Time of the loop of `loop_s` on the machine to which the limit applies."""
SHARES = (0.2, 1.0)
"""Sizes that are compared, as shares of the transitions."""
FEWER = 50
"""How many times fewer transitions are recorded with images."""


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transitions", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=100, help="steps of an episode")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the default one")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        record(folder / "warm", SPEC, 1, 10 * options.length, options.length)
        read_transitions(folder / "warm")
        loads = load_times(folder, "state", SPEC, options.transitions, options.length)
        largest = folder / f"state-{len(SHARES) - 1}"
        timed("pandas, from the cache", lambda: serl.open_run(largest).steps.pandas())
        record(largest, SPEC, 2, options.length, options.length)
        timed("after one more episode", partial(read_steps, largest))
        fewer = options.transitions // FEWER
        images = load_times(folder, "images", PIXELS, fewer, options.length)
        print(f"\n{'a million transitions':<34}{'CPU s':>8}{'loops':>8}")
        for name, found in (("from state", loads), ("with two images", images)):
            print(f"{name:<34}{slope(found, 'cpu_s'):>8.1f}{slope(found, 'loops'):>8.0f}")
        scaled_s = LOOP_S * slope(loads, "loops")
        kept = [
            is_kept(f"from state, s, if a loop has {LOOP_S} s", scaled_s, MILLION_S),
            is_kept("an action, ms: median", time_policy(folder / "runs"), ACTION_MS),
        ]
    finally:
        shutil.rmtree(folder)
    return 0 if all(kept) else 1


class Load(NamedTuple):
    """A first load: transitions, processor time in seconds, and the same in loops of Python."""

    transitions: int
    cpu_s: float
    loops: float


def load_times(folder: Path, name: str, spec: Spec, transitions: int, length: int) -> list[Load]:
    """Record several sizes, each in a folder of its own; print and return its first load."""
    loads = []
    for number, share in enumerate(SHARES):
        own = folder / f"{name}-{number}"
        recorded = record(own, spec, 1, int(share * transitions), length)
        print(f"\n{recorded:,} transitions, {name}, episodes of {length} steps")
        print(f"{'':<34}{'wall s':>8}{'CPU s':>8}{'loops':>8}")
        parts = [
            timed("the first time, from the log", partial(read_steps, own)),
            timed("transitions", partial(read_transitions, own)),
        ]
        loads.append(Load(recorded, *(sum(each) for each in zip(*parts, strict=True))))
        timed("steps, from the cache", partial(read_steps, own))
    return loads


def read_steps(folder: Path) -> object:
    """Open a recording and return the table of its steps."""
    return serl.open_run(folder).steps


def read_transitions(folder: Path) -> object:
    """Open a recording and return its transitions."""
    return serl.open_run(folder).transitions()


def slope(loads: Sequence[Load], field: str) -> float:
    """Return the cost of a million further transitions, from the smallest and the largest load."""
    (few, *_, many) = loads
    more = many.transitions - few.transitions
    return 1e6 * float(getattr(many, field) - getattr(few, field)) / max(1, more)


def loop_s() -> float:
    """Return the processor time of a million additions by Python."""
    begun_s, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - begun_s


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


def record(folder: Path, spec: Spec, epoch: int, transitions: int, length: int) -> int:
    """Record episodes of random numbers, at least one; return the number of transitions."""
    rng, episodes = np.random.default_rng(0), max(1, transitions // length)
    samples = [random_step(Key("", "", 0, 0, 0), spec, rng) for _ in range(32)]
    config = LogConfig(interval_s=60, min_free_bytes=0)
    with EpisodeLog(folder, spec, "bench", "actor0", epoch, config) as log:
        for episode in range(episodes):
            for index in range(length):
                key = Key("bench", "actor0", epoch, episode, index)
                log.append(replace(samples[index % 32], key=key))
            key, seen = Key("bench", "actor0", epoch, episode, length), samples[0].observation
            log.append(End(key, seen, False, EndReason.TIME_LIMIT, 1.0, 1.0))
    return episodes * length


def timed(name: str, run: Callable[[], object]) -> tuple[float, float]:
    """Print the time of a call; return its processor time in seconds and in loops of Python."""
    before_s, wall_s, begun_s = loop_s(), time.perf_counter(), time.process_time()
    run()
    cpu_s, wall_s = time.process_time() - begun_s, time.perf_counter() - wall_s
    loops = 2 * cpu_s / (before_s + loop_s())
    print(f"{name:<34}{wall_s:>8.2f}{cpu_s:>8.2f}{loops:>8.1f}", flush=True)
    return cpu_s, loops


if __name__ == "__main__":
    sys.exit(main())
