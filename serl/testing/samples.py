"""Test data: random values that fit a spec, and the records of episodes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from serl.clock import VirtualClock
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import PART, episode_paths
from serl.log.wire import encode_record
from serl.loop import EpisodeKey, Observer, RecordCallback, run
from serl.policy import Policy
from serl.robot import SimulatedRobot
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.task import Task
from serl.types import ActionSource, Array, Batch, End, EndReason, Key, Observation, Record, Step


def random_array(spec: ArraySpec, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return random values within the bounds of `spec`; +-1 where it has none."""
    if spec.dtype == "uint8":
        return rng.integers(0, 256, spec.shape, np.uint8)
    low, high = spec.low, spec.high
    low = low if low is not None else min(-1.0, high if high is not None else 0.0)
    high = high if high is not None else max(1.0, low)
    return rng.uniform(low, high, spec.shape).astype(np.float32)


def random_observation(spec: ObservationSpec, rng: np.random.Generator) -> Observation:
    """Return a random observation that fits `spec`."""
    return Observation(
        state={name: random_array(array, rng) for name, array in spec.state.items()},
        images={name: random_array(array, rng) for name, array in spec.images.items()},
        stamps={"robot": 0.0},
    )


def random_batch(spec: Spec, rows: int, rng: np.random.Generator) -> Batch:
    """Return random transitions that fit `spec`: one in ten terminal, half from demonstrations."""

    def frames() -> dict[str, Any]:
        images = spec.observation.images.items()
        return {
            name: rng.integers(0, 256, (rows, *image.shape), np.uint8) for name, image in images
        }

    size = spec.observation.state_size
    return Batch(
        state=rng.normal(size=(rows, size)).astype(np.float32),
        action=rng.uniform(-1, 1, (rows, *spec.action.shape)).astype(np.float32),
        reward=rng.uniform(size=rows).astype(np.float32),
        discount=np.where(rng.uniform(size=rows) < 0.1, 0.0, 0.97).astype(np.float32),
        next_state=rng.normal(size=(rows, size)).astype(np.float32),
        prior=rng.uniform(size=rows) < 0.5,
        images=frames(),
        next_images=frames(),
    )


def episode(
    robot: SimulatedRobot,
    task: Task,
    policy: Policy,
    seed: int = 0,
    key: EpisodeKey | None = None,
) -> list[Record]:
    """Return the records of one episode in simulated time, from the start given by `seed`.

    An episode that the task does not end is interrupted after twice its time limit.
    """
    robot.reset(seed)
    records: list[Record] = []
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    run(
        robot,
        task,
        policy,
        clock,
        key or EpisodeKey("run", "actor", 0, 0),
        [RecordCallback(records.append)],
        interrupted=lambda: len(records) > 2 * task.config.max_steps,
    )
    return records


def deliver(record: Record, observer: Observer) -> None:
    """Pass one record to an observer, as the control loop does."""
    if isinstance(record, End):
        observer.on_end(record)
    else:
        observer.on_step(record)


def copies(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies of named arrays."""
    return {name: value.copy() for name, value in arrays.items()}


def contents(observation: Observation) -> dict[str, np.ndarray[Any, Any]]:
    """Return copies of the state arrays and images of an observation."""
    state = {f"state {name}": value.copy() for name, value in observation.state.items()}
    return state | {f"image {name}": value.copy() for name, value in observation.images.items()}


def equal(a: Mapping[str, np.ndarray[Any, Any]], b: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Return whether two sets of named arrays have equal names, types, shapes and values."""
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a
    )


def assert_refused(error: type[Exception], call: Callable[[], object], subject: str) -> None:
    """Fail unless `call` raises `error`."""
    try:
        call()
    except error:
        return
    raise AssertionError(f"{subject}: expected {error.__name__}, but it was accepted")


def failures(suite: object) -> set[str]:
    """Return the names of the tests of a suite that fail for any reason; works without pytest."""
    failed = set()
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite, name)()
            except Exception:
                failed.add(name)
    return failed


STATE = {"tcp_pose": ArraySpec(shape=(7,)), "gripper": ArraySpec(shape=(1,))}
IMAGES = {name: ArraySpec(shape=(4, 5, 3), dtype="uint8") for name in ("wrist", "front")}
SPEC = Spec(
    task="test",
    observation=ObservationSpec(state=STATE, images=IMAGES),
    action=ArraySpec(shape=(3,), low=-1, high=1),
    rate_hz=10,
)
BLIND = SPEC.model_copy(update={"observation": ObservationSpec(state=STATE)})
RUN, ACTOR = "run", "actor0"
EPOCH = 1763715240123456789
CONFIG = LogConfig(min_free_bytes=0)


def random_records(
    *lengths: int, epoch: int = EPOCH, spec: Spec = SPEC, ended: bool = True
) -> list[Record]:
    """Return records of random episodes of these lengths; equal arguments give equal records.

    Each episode has an `End` if `ended`.
    """
    rng = np.random.default_rng(sum(lengths))
    records: list[Record] = []
    for episode, length in enumerate(lengths):
        for index in range(length):
            key = Key(RUN, ACTOR, epoch, episode, index)
            step = random_step(key, spec, rng)
            wall_s = 1763715240.0 + len(records)
            records.append(replace(step, terminated=index == length - 1, wall_s=wall_s))
        if ended:
            observation = random_observation(spec.observation, rng)
            wall_s = 1763715240.0 + len(records)
            key = Key(RUN, ACTOR, epoch, episode, length)
            records.append(End(key, observation, True, EndReason.SUCCESS, length * 0.1, wall_s))
    return records


def random_step(key: Key, spec: Spec, rng: np.random.Generator) -> Step:
    """Return a random step of the policy that fits `spec`."""
    action = random_array(spec.action, rng)
    return Step(
        key=key,
        observation=random_observation(spec.observation, rng),
        requested=-action,
        action=action,
        reward=0.0,
        reward_provenance="truth",
        terminated=False,
        truncated=False,
        source=ActionSource.POLICY,
        policy_version=1,
        monotonic_s=key.index * 0.1,
        wall_s=1763715240.0,
    )


def open_log(
    folder: Path, epoch: int = EPOCH, spec: Spec = SPEC, config: LogConfig = CONFIG
) -> EpisodeLog:
    """Open the log of the actor of `random_records`."""
    return EpisodeLog(folder, spec, RUN, ACTOR, epoch, config)


def write_log(
    folder: Path, records: Iterable[Record], epoch: int = EPOCH, spec: Spec = SPEC
) -> list[Path]:
    """Write records to a log; return the sealed files."""
    with open_log(folder, epoch, spec) as log:
        for record in records:
            log.append(record)
    return [path for path in episode_paths(folder) if path.name.startswith(f"{epoch}-")]


def leave_open(
    folder: Path, records: Iterable[Record], spec: Spec = SPEC, epoch: int = EPOCH
) -> Path:
    """Return the part file left by an actor that is killed after these records of an episode."""
    with open_log(folder / "alive", epoch, spec) as log:
        for record in records:
            log.append(record)
        (part,) = (folder / "alive").glob(f"*{PART}")
        left = Path(shutil.copy(part, folder / part.name))
    shutil.rmtree(folder / "alive")
    return left


def encoded(records: Iterable[Record]) -> list[bytes]:
    """Return the records as bytes, which are equal if all values are equal."""
    return [encode_record(record) for record in records]
