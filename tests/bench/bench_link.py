"""Benchmark of weights sent over ROS 2 links to four actors, and of an idle link's CPU time.

python tests/bench/bench_link.py [--short]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from serl.ros.environment import environment, free_domain
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.training.link import WeightsFile, announce
from serl.transport import Snapshot

ACTION = ArraySpec(shape=(7,), low=-1, high=1)
STATE = {"tcp_pose": ArraySpec(shape=(7,)), "rest": ArraySpec(shape=(41,))}
SPEC = Spec(task="bench", observation=ObservationSpec(state=STATE), action=ACTION, rate_hz=10)
LIMIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer versions")
    options = parser.parse_args()
    with free_domain() as domain, tempfile.TemporaryDirectory() as folder:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        measure_weights(Path(folder) / "weights", 15 if options.short else 60)


def measure_weights(run: Path, versions: int) -> None:
    """Measure the time until the last of four actors has new weights, and an idle link's CPU."""
    names = [f"actor{number}" for number in range(4)]
    for name in names:
        announce(run / "link" / name, run.name, name, 1, SPEC)
    files = [WeightsFile(run / "link" / n / "weights.safetensors", SPEC.digest) for n in names]
    weights = {"w": np.random.default_rng(0).normal(size=1_250_000).astype(np.float32)}
    with links(run, names) as processes, RosNode("learner", run) as node:
        transport = LearnerTransport(node, SPEC, run.name)
        load(files, transport, Snapshot(1, {}, weights))
        latencies_ms = []
        for version in range(2, 2 + versions):
            latencies_ms.append(1e3 * load(files, transport, Snapshot(version, {}, weights)))
            time.sleep(0.2)
        print(
            f"weights, 5 MB to four actors: median {statistics.median(latencies_ms):.0f} ms, "
            f"best {min(latencies_ms):.0f} ms, worst {max(latencies_ms):.0f} ms"
        )
        link = psutil.Process(processes[0].pid)
        link.cpu_percent()
        time.sleep(5)
        memory_mb = link.memory_info().rss / 1e6
        print(f"idle link: {link.cpu_percent():.1f} % of a core, {memory_mb:.0f} MB")


def load(files: list[WeightsFile], transport: LearnerTransport, snapshot: Snapshot) -> float:
    """Return the seconds until this thread has read and checked the weights of every file."""
    start_s, waiting = time.perf_counter(), list(files)
    transport.publish(snapshot)
    while waiting:
        waiting = [file for file in waiting if file.latest(snapshot.version - 1) is None]
        time.sleep(0.001)
        if time.perf_counter() - start_s > LIMIT_S:
            raise TimeoutError(f"{len(waiting)} actors without weights in {LIMIT_S:.0f} s")
    return time.perf_counter() - start_s


@contextmanager
def links(run: Path, names: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a link process per actor."""
    environ = environment(int(os.environ["ROS_DOMAIN_ID"]), run)
    command = [sys.executable, "-m", "serl.ros.nodes.link", "--run", str(run), "--actor"]
    processes = [subprocess.Popen([*command, name], env=environ) for name in names]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


if __name__ == "__main__":
    main()
