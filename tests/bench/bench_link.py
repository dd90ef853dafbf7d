"""What the link over ROS 2 costs and carries: weights to four actors, records from one and four.

    python tests/bench/bench_link.py

Records are read from logs on disk by real link processes and decoded by the learner's end here.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil

from serl.link import WeightsFile, announce
from serl.recording import EpisodeLog
from serl.ros.environment import environment, free_domain
from serl.ros.node import RosNode
from serl.ros.transport import LearnerTransport
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.transport import Snapshot
from serl.types import Key, Observation, Source, Step
from serl.wire import encode_record

ACTION = ArraySpec(shape=(7,), low=-1, high=1)
STATE = {"tcp_pose": ArraySpec(shape=(7,)), "rest": ArraySpec(shape=(41,))}
CAMERA = ArraySpec(shape=(128, 128, 3), dtype="uint8")
SMALL = Spec(task="bench", observation=ObservationSpec(state=STATE), action=ACTION, rate_hz=10)
LARGE = SMALL.model_copy(
    update={"observation": ObservationSpec(state=STATE, images={"a": CAMERA, "b": CAMERA})}
)
LIMIT_S = 60.0


def main() -> None:
    with free_domain() as domain, tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        for spec, records in ((SMALL, 4000), (LARGE, 1500)):
            for actors in (1, 4):
                measure_stream(Path(folder) / f"run{records}x{actors}", spec, actors, records)
        measure_weights(Path(folder) / "weights")


def measure_stream(run: Path, spec: Spec, actors: int, records: int) -> None:
    """Records per second from logs to decoded records, once all links are up."""
    names = [f"actor{number}" for number in range(actors)]
    for name in names:
        write_log(run, name, spec, records)
    with links(run, names), RosNode("learner", run) as node:
        transport = LearnerTransport(node, spec, run.name)
        topic = f"{node.handle.get_namespace()}/transitions"
        wait_until(lambda: node.handle.count_publishers(topic) == actors)
        for name in names:
            announce(run / "link" / name, run.name, name, 1, spec)
        wait_until(lambda: transport.counts["accepted"] > 0)
        rate_hz = receive(transport, actors * records)
    size = len(encode_record(record(spec, Key("r", "a", 1, 0, 0), np.random.default_rng())))
    print(f"stream, {size / 1e3:5.1f} kB records, {actors} links: {rate_hz:6.0f} records/s")


def receive(transport: LearnerTransport, records: int) -> float:
    """Records per second until so many were received."""
    start_s, received = time.perf_counter(), 0
    while received < records:
        arrived = transport.receive()
        received += len(arrived)
        if not arrived:
            time.sleep(0.005)
        if time.perf_counter() - start_s > LIMIT_S:
            raise TimeoutError(f"{received} records in {LIMIT_S:.0f} s: {transport.counts}")
    return received / (time.perf_counter() - start_s)


def measure_weights(run: Path) -> None:
    """Time from publish until the last of four actors has loaded them; CPU of an idle link."""
    names = [f"actor{number}" for number in range(4)]
    for name in names:
        announce(run / "link" / name, run.name, name, 1, SMALL)
    files = [WeightsFile(run / "link" / n / "weights.safetensors", SMALL.digest) for n in names]
    weights = {"w": np.random.default_rng(0).normal(size=1_250_000).astype(np.float32)}
    with links(run, names) as processes, RosNode("learner", run) as node:
        transport = LearnerTransport(node, SMALL, run.name)
        load(files, transport, Snapshot(1, {}, weights))
        latencies_ms = []
        for version in range(2, 42):
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
    """Seconds until the weights were read, checked, from every file; all by this one thread."""
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
    """A link process for each actor."""
    environ = environment(int(os.environ["ROS_DOMAIN_ID"]), run)
    command = [sys.executable, "-m", "serl.ros.link_node", "--run", str(run), "--actor"]
    processes = [subprocess.Popen([*command, name], env=environ) for name in names]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def write_log(run: Path, actor: str, spec: Spec, records: int) -> None:
    rng = np.random.default_rng(0)
    with EpisodeLog(run / "episodes" / actor, spec, run.name, actor, 1) as log:
        for index in range(records):
            key = Key(run.name, actor, 1, index // 100, index % 100)
            log.append(record(spec, key, rng))


def record(spec: Spec, key: Key, rng: np.random.Generator) -> Step:
    state = {
        n: rng.normal(size=s.shape).astype(np.float32) for n, s in spec.observation.state.items()
    }
    images = {
        n: rng.integers(0, 256, s.shape, np.uint8) for n, s in spec.observation.images.items()
    }
    action = rng.uniform(-1, 1, spec.action.shape).astype(np.float32)
    return Step(
        key=key,
        observation=Observation(state, images, {"robot": 1.0}),
        requested=action,
        action=action,
        reward=0.0,
        reward_provenance="truth",
        terminated=False,
        truncated=key.index == 99,
        source=Source.POLICY,
        policy_version=1,
        monotonic_s=1.0,
        wall_s=1.0,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s")
        time.sleep(0.001)


if __name__ == "__main__":
    main()
