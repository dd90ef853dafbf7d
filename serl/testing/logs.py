"""Logs to test with: random episodes, written as an actor does or left as a killed one would."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from serl.log.episode_reader import PART, episode_paths
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.testing.samples import random_array, random_observation
from serl.types import End, Key, Record, Source, Step
from serl.log.wire import encode_record

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
    """Episodes of so many random steps, each with an end; equal arguments give equal records."""
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
            records.append(End(key, observation, True, "success", length * 0.1, wall_s))
    return records


def random_step(key: Key, spec: Spec, rng: np.random.Generator) -> Step:
    """A step of the policy that fits `spec`."""
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
        source=Source.POLICY,
        policy_version=1,
        monotonic_s=key.index * 0.1,
        wall_s=1763715240.0,
    )


def open_log(
    folder: Path, epoch: int = EPOCH, spec: Spec = SPEC, config: LogConfig = CONFIG
) -> EpisodeLog:
    """The log of the actor of `random_records`."""
    return EpisodeLog(folder, spec, RUN, ACTOR, epoch, config)


def write_log(
    folder: Path, records: Iterable[Record], epoch: int = EPOCH, spec: Spec = SPEC
) -> list[Path]:
    """Log records; returns the sealed files."""
    with open_log(folder, epoch, spec) as log:
        for record in records:
            log.append(record)
    return [path for path in episode_paths(folder) if path.name.startswith(f"{epoch}-")]


def leave_open(
    folder: Path, records: Iterable[Record], spec: Spec = SPEC, epoch: int = EPOCH
) -> Path:
    """The part file that an actor leaves when it is killed after so many records of an episode."""
    with open_log(folder / "alive", epoch, spec) as log:
        for record in records:
            log.append(record)
        (part,) = (folder / "alive").glob(f"*{PART}")
        left = Path(shutil.copy(part, folder / part.name))
    shutil.rmtree(folder / "alive")
    return left


def encoded(records: Iterable[Record]) -> list[bytes]:
    """The records as bytes, which are equal where all their values are."""
    return [encode_record(record) for record in records]
