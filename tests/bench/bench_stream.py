"""Benchmark of the stream from actors' logs to a learner over ROS 2, compared with ZeroMQ.

    python tests/bench/bench_stream.py [--short] [--tags]

Transitions of 98 kB (two cameras of 128 px) go from logs on the disk through real link processes to
the learner's end, which decodes each, commits it to the index and acknowledges it. ZeroMQ carries
the same bytes (PUSH/PULL) from as many processes, from memory, unchecked and not stored.
Then: what the tags under the run's key cost the stream; what a step costs the control thread, with
and without a learner; and how long weights take to four actors, and the CPU time of an idle link.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import zmq

from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.index import Index
from serl.log.wire import encode_record
from serl.ros import tags
from serl.ros.environment import environment, free_domain
from serl.ros.link.receiver import LearnerTransport
from serl.ros.node import RosNode
from serl.ros.nodes import link as link_node
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.system.supervisor import is_orphaned
from serl.testing.samples import random_step
from serl.training.link import WeightsFile, announce
from serl.transport import Snapshot
from serl.types import ActionSource, End, EndReason, Key, Record, Step

CAMERA = ArraySpec(shape=(128, 128, 3), dtype="uint8")
SPEC = Spec(
    task="bench",
    observation=ObservationSpec(
        state={"tcp_pose": ArraySpec(shape=(7,)), "rest": ArraySpec(shape=(17,))},
        images={"front": CAMERA, "wrist": CAMERA},
    ),
    action=ArraySpec(shape=(7,), low=-1, high=1),
    rate_hz=10,
)
EPOCH = 1
STEPS = 99  # steps of an episode; its end is one more record
RATE_HZ = 100.0  # rate of the steps whose cost is measured
LOG = LogConfig(min_free_bytes=0, images="raw")
LIMIT_S = 60.0
ACCEPTED = "accepted"


def add_checksum(key: bytes, message: bytes) -> bytes:
    """Return a message, padded as DDS would, followed by its CRC-32."""
    message += bytes(-len(message) % 4)
    return b"".join((message, zlib.crc32(message).to_bytes(4, "little")))


def check_checksum(key: bytes, message: bytes) -> memoryview | None:
    """Return the message before a CRC-32 that fits."""
    view = memoryview(message)
    return view[:-4] if zlib.crc32(view[:-4]) == int.from_bytes(view[-4:], "little") else None


SEALS: dict[str, dict[str, Callable[..., object]]] = {
    "tags": {},
    "checksums": {"sign": add_checksum, "verify": check_checksum},
    "nothing": {"sign": lambda key, message: message, "verify": lambda key, signed: signed},
}
"""Protection of a message: AES-256-GMAC tags (the product), CRC-32, or none."""


def main() -> None:
    """Print the tables or run as one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="fewer records")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; else the default one")
    parser.add_argument("--tags", action="store_true", help="measure the cost of tags alone")
    parser.add_argument("--sealed", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--push", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--learn", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.push:
        return push(options.push[0], int(options.push[1]))
    if options.learn:
        return learn(options.learn)
    if options.sealed:
        seal, run, actor = options.sealed
        vars(tags).update(SEALS[seal])
        return link_node.run(Path(run), actor)
    with free_domain() as domain, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        os.environ["ROS_DOMAIN_ID"] = str(domain.id)
        measure_tags(Path(folder), 1000 if options.short else 3000, 3 if options.short else 10)
        if options.tags:
            return None
        measure_rates(Path(folder), 1000 if options.short else 3000, 2 if options.short else 5)
        measure_cost(Path(folder), 500 if options.short else 2000)
        measure_weights(Path(folder) / "weights", 15 if options.short else 60)
    return None


def measure_tags(folder: Path, records: int, repeats: int) -> None:
    """Compare the stream of one actor with tags, with CRC-32 checksums and with neither, in turns.

    The CPU time is that of the link's and the learner's process together: it depends less than the
    rate on what else the machine does.
    """
    rows: dict[str, list[tuple[float, float]]] = {seal: [] for seal in SEALS}
    for turn in range(repeats):
        for seal in sorted(rows, reverse=turn % 2 == 1):
            run = folder / f"{seal}-{turn}"
            with sealed(seal):
                rows[seal].append(streamed(run, 1, records, seal))
            shutil.rmtree(run)
    print(
        "| stream of one actor with | records/s, median | best | CPU us a record, median | least |"
    )
    print("|---|---|---|---|---|")
    for seal, row in rows.items():
        rates, cpus = zip(*row, strict=True)
        numbers = float(np.median(rates)), max(rates), float(np.median(cpus)), min(cpus)
        print(f"| {seal} | {' | '.join(f'{number:.0f}' for number in numbers)} |")
    for seal in list(rows)[1:]:
        rate, cpu = np.median(np.array(rows["tags"]) / np.array(rows[seal]), axis=0)
        print(f"tags / {seal}: rate x {rate:.3f}, CPU x {cpu:.3f} (medians of {repeats})")


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU time of processes in user mode and kernel, s."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextmanager
def sealed(seal: str) -> Iterator[None]:
    """Set the protection of this process's messages within the context."""
    before = {name: vars(tags)[name] for name in ("sign", "verify")}
    vars(tags).update(SEALS[seal])
    try:
        yield
    finally:
        vars(tags).update(before)


def measure_rates(folder: Path, records: int, repeats: int) -> None:
    """Print records per second from one and four actors, alternating the two transports."""
    size = len(encode_record(next(records_of("actor0", folder.name))))
    print(f"| {size / 1e3:.1f} kB transitions, 1/s | actors | median | best | runs |")
    print("|---|---|---|---|---|")
    for actors in (1, 4):
        rates: dict[str, list[float]] = {"ZeroMQ, from memory": [], "log to index over ROS 2": []}
        for turn in range(repeats):
            run = folder / f"run{actors}-{turn}"
            rates["ZeroMQ, from memory"].append(pushed(run, actors, records))
            rates["log to index over ROS 2"].append(streamed(run, actors, records)[0])
        for name, row in rates.items():
            median, best = float(np.median(row)), max(row)
            print(f"| {name} | {actors} | {median:.0f} | {best:.0f} | {len(row)} |")
        plain, ours = (float(np.median(row)) for row in rates.values())
        print(f"| ratio | {actors} | {ours / plain:.2f} | | |", flush=True)


def streamed(run: Path, actors: int, records: int, seal: str = "tags") -> tuple[float, float]:
    """Return committed, ordered records per second once all links are up, and CPU us per record."""
    names = [f"actor{number}" for number in range(actors)]
    for name in names:
        with EpisodeLog(run / "episodes" / name, SPEC, run.name, name, EPOCH, LOG) as log:
            for _, record in zip(
                range(records // actors), records_of(name, run.name), strict=False
            ):
                log.append(record)
    with (
        links(run, names, seal) as children,
        RosNode("learner", run) as node,
        Index(run / "index.sqlite") as index,
    ):
        transport = LearnerTransport(node, SPEC, run.name, claim=index.claim)
        topic = f"{node.handle.get_namespace()}/transitions"
        until(lambda: node.handle.count_publishers(topic) == actors)
        for name in names:
            announce(run / "link" / name, run.name, name, EPOCH, SPEC)
        until(lambda: transport.counts["accepted"] > 0)
        processes = [psutil.Process(), *(psutil.Process(child.pid) for child in children)]
        start_s, start_cpu_s, received = time.perf_counter(), cpu_s(processes), 0
        while received < records // actors * actors:
            received += accept(node, transport, index)
            if time.perf_counter() - start_s > LIMIT_S:
                raise TimeoutError(f"{received} records in {LIMIT_S:.0f} s: {transport.counts}")
        rate_hz = received / (time.perf_counter() - start_s)
        return rate_hz, 1e6 * (cpu_s(processes) - start_cpu_s) / received


def accept(node: RosNode, transport: LearnerTransport, index: Index) -> int:
    """Receive and commit records; the next call acknowledges them."""
    records = transport.receive()
    index.accept(records)
    if not records:
        node.wait(0.002)
    return len(records)


def pushed(run: Path, actors: int, records: int) -> float:
    """Return the records per second through ZeroMQ."""
    with zmq.Context() as context, closing(context.socket(zmq.PULL)) as socket:
        run.mkdir(parents=True)
        address = f"ipc://{run / 'zmq'}"
        socket.bind(address)
        command = [sys.executable, __file__, "--push", address, str(records // actors)]
        processes = [subprocess.Popen(command) for _ in range(actors)]
        for _ in processes:
            socket.recv()
        start_s = time.perf_counter()
        for _ in range(records // actors * actors):
            socket.recv()
        rate_hz = records / (time.perf_counter() - start_s)
        for process in processes:
            process.wait()
    return rate_hz


def push(address: str, records: int) -> None:
    """Send a greeting and then `records` records, as a separate process."""
    data = encode_record(next(records_of("actor0", "run")))
    with zmq.Context() as context, closing(context.socket(zmq.PUSH)) as socket:
        socket.connect(address)
        socket.send(b"here")
        for _ in range(records):
            socket.send(data)


def measure_cost(folder: Path, steps: int) -> None:
    """Print the control thread's cost per step: logging and checking for new weights."""
    print(f"| a step's cost at {RATE_HZ:g} Hz, ms | p50 | p99 | max | CPU p50 |")
    print("|---|---|---|---|---|")
    for name, dies in (("learner alive", False), ("learner dead", True)):
        run = folder / f"cost-{'dead' if dies else 'alive'}"
        with links(run, ["actor0"]), learner(run) as process:
            laps_s = []
            for number, lap_s in enumerate(appended(run, steps + steps // 10)):
                if number == steps // 10:
                    until((run / ACCEPTED).exists)
                    if dies:
                        process.kill()
                laps_s.append(lap_s)
        passed, of_thread = 1e3 * np.array(laps_s[steps // 10 :]).T
        p50, p99, most = np.percentile(passed, [50, 99, 100])
        cpu = np.median(of_thread)
        print(f"| {name} | {p50:.3f} | {p99:.3f} | {most:.3f} | {cpu:.3f} |", flush=True)


def appended(run: Path, steps: int) -> Iterator[tuple[float, float]]:
    """Log steps at a fixed rate; yield wall and thread CPU time of each, s."""
    file = WeightsFile(run / "link" / "actor0" / "weights.safetensors", SPEC.digest)
    with EpisodeLog(run / "episodes" / "actor0", SPEC, run.name, "actor0", EPOCH, LOG) as log:
        announce(run / "link" / "actor0", run.name, "actor0", EPOCH, SPEC)
        due_s = time.perf_counter()
        for record in islice(records_of("actor0", run.name), steps):
            begin_s, begin_thread_s = time.perf_counter(), time.thread_time()
            log.append(record)
            file.latest(0)
            of_thread_s = time.thread_time() - begin_thread_s
            yield time.perf_counter() - begin_s, of_thread_s
            due_s = max(due_s + 1 / RATE_HZ, time.perf_counter())
            time.sleep(max(0.0, due_s - time.perf_counter()))


def measure_weights(run: Path, versions: int) -> None:
    """Print the time until the last of four actors has new weights, and an idle link's CPU."""
    names = [f"actor{number}" for number in range(4)]
    for name in names:
        announce(run / "link" / name, run.name, name, EPOCH, SPEC)
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
            f"weights, 5 MB to four actors: median {np.median(latencies_ms):.0f} ms, "
            f"best {min(latencies_ms):.0f} ms, worst {max(latencies_ms):.0f} ms"
        )
        link = psutil.Process(processes[0].pid)
        link.cpu_percent()
        time.sleep(5)
        memory_mb = link.memory_info().rss / 1e6
        print(f"idle link: {link.cpu_percent():.1f} % of a core, {memory_mb:.0f} MB")


def load(files: Sequence[WeightsFile], transport: LearnerTransport, snapshot: Snapshot) -> float:
    """Return the seconds until this thread has read and checked the weights of every file."""
    start_s = time.perf_counter()
    transport.publish(snapshot)
    for file in files:
        until(partial(file.latest, snapshot.version - 1))
    return time.perf_counter() - start_s


def learn(run: Path) -> None:
    """Accept records, as a separate process; note that there were some."""
    run.mkdir(parents=True, exist_ok=True)
    with RosNode("learner", run) as node, Index(run / "index.sqlite") as index:
        transport = LearnerTransport(node, SPEC, run.name, index.cursors, index.claim)
        while not (node.stopping or is_orphaned()):
            if accept(node, transport, index):
                (run / ACCEPTED).touch()


@contextmanager
def learner(run: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the learner's end as a separate process."""
    process = _start(run, __file__, "--learn", str(run))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def links(
    run: Path, names: Sequence[str], seal: str = "tags"
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start a link process per actor."""
    processes = [start_link(run, name, seal) for name in names]
    try:
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def start_link(run: Path, actor: str, seal: str = "tags") -> subprocess.Popen[bytes]:
    if seal != "tags":
        return _start(run, __file__, "--sealed", seal, str(run), actor)
    return _start(run, "-m", "serl.ros.nodes.link", "--run", str(run), "--actor", actor)


def _start(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environ = environment(int(os.environ["ROS_DOMAIN_ID"]), run)
    environ["SERL_PARENT"] = str(os.getpid())
    return subprocess.Popen([sys.executable, *arguments], env=environ)


def records_of(actor: str, run: str) -> Iterator[Record]:
    """Yield endless episodes that reuse a few observations."""
    rng = np.random.default_rng(0)
    some = [random_step(Key(run, actor, EPOCH, 0, 0), SPEC, rng) for _ in range(16)]
    episode = 0
    while True:
        for index in range(STEPS):
            step = some[index % len(some)]
            yield Step(
                key=Key(run, actor, EPOCH, episode, index),
                observation=step.observation,
                requested=step.requested,
                action=step.action,
                reward=0.0,
                reward_provenance="truth",
                terminated=False,
                truncated=index == STEPS - 1,
                source=ActionSource.POLICY,
                policy_version=1,
                monotonic_s=time.monotonic(),
                wall_s=time.time(),
            )
        key = Key(run, actor, EPOCH, episode, STEPS)
        yield End(
            key, some[0].observation, False, EndReason.TIME_LIMIT, time.monotonic(), time.time()
        )
        episode += 1


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {LIMIT_S:.0f} s")
        time.sleep(0.001)


if __name__ == "__main__":
    main()
