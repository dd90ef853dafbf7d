"""Benchmark of logging a step in the control loop, compared with a plain write of equal bytes.

    python tests/bench/bench_log.py [--steps N] [--folder PATH]

Steps have two 128 px cameras or only state. They are logged back to back, as in the measurement of
the target, and 20 ms apart with cold caches. The loop waits for the wall time; a busy machine
distorts CPU time less.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.wire import encode_record
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import random_step
from serl.types import Key, Step

DISTINCT = 32
STATE = {
    name: ArraySpec(shape=(size,))
    for name, size in (("tcp_pose", 7), ("tcp_twist", 6), ("wrench", 6), ("gripper", 1), ("q", 7))
}
CAMERA = ArraySpec(shape=(128, 128, 3), dtype="uint8")
BLIND = Spec(
    task="bench",
    observation=ObservationSpec(state=STATE),
    action=ArraySpec(shape=(7,), low=-1, high=1),
    rate_hz=10,
)
SEEING = BLIND.model_copy(
    update={"observation": ObservationSpec(state=STATE, images={"front": CAMERA, "wrist": CAMERA})}
)
LOGS = {
    "log, synced at the seal": LogConfig(interval_s=60, min_free_bytes=0),  # a row takes 10 s
    "log, synced each second": LogConfig(min_free_bytes=0),
    "log, synced each step": LogConfig(fsync="step", min_free_bytes=0),
}
Append = Callable[[int], object]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500, help="for each row")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the default one")
    options = parser.parse_args()
    for title, spec in (("two cameras", SEEING), ("state only", BLIND)):
        steps = make_steps(spec, options.steps)
        size = len(encode_record(steps[0])) / 1000
        for pause_s, pace in ((0.0, "one after the other"), (0.02, "each 20 ms")):
            heading = f"{title}, {size:.1f} kB, {pace}; ms"
            print(f"{heading:<50}{'p50':>8}{'p99':>8}{'max':>8}{'CPU':>8}")
            with plain_file(steps, options.folder) as append:
                measure("plain write", append, len(steps), pause_s)
            for name, config in LOGS.items():
                with log(steps, spec, config, options.folder) as append:
                    measure(name, append, len(steps), pause_s)


def measure(name: str, append: Append, count: int, pause_s: float) -> None:
    """Append records and print the time taken."""
    wall_s, processor_s = [], []
    for index in range(count):
        time.sleep(pause_s)
        begin_s, begin_processor_s = time.perf_counter(), time.thread_time()
        append(index)
        processor_s.append(time.thread_time() - begin_processor_s)
        wall_s.append(time.perf_counter() - begin_s)
    p50, p99, most, cpu = 1e3 * np.array(
        [*np.percentile(wall_s, [50, 99, 100]), np.median(processor_s)]
    )
    print(f"  {name:<48}{p50:8.3f}{p99:8.3f}{most:8.3f}{cpu:8.3f}", flush=True)


@contextmanager
def plain_file(steps: Sequence[Step], folder: Path | None) -> Iterator[Append]:
    """Yield a function that appends pre-encoded steps with one write each."""
    encoded = [encode_record(step) for step in steps[:DISTINCT]]
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        yield lambda index: file.write(encoded[index % DISTINCT])


@contextmanager
def log(
    steps: Sequence[Step], spec: Spec, config: LogConfig, folder: Path | None
) -> Iterator[Append]:
    """Yield a function that logs a step as the actor does."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        EpisodeLog(Path(scratch), spec, "run", "actor", 0, config) as opened,
    ):
        yield lambda index: opened.append(steps[index])


def make_steps(spec: Spec, count: int) -> list[Step]:
    """Return consecutive steps whose observations repeat after `DISTINCT`."""
    rng = np.random.default_rng(0)
    key = Key("run", "actor", 0, 0, 0)
    distinct = [random_step(key, spec, rng) for _ in range(DISTINCT)]
    return [
        replace(distinct[index % DISTINCT], key=replace(key, index=index)) for index in range(count)
    ]


if __name__ == "__main__":
    main()
