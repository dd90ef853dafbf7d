"""Random records as an actor logs them, without a robot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import episode_paths, read_episode
from serl.specs import ArraySpec, Spec
from serl.testing.samples import ACTOR, BLIND, RUN, random_step
from serl.types import End, EndReason, Key, Record, Step

SPEC = BLIND
LARGE = SPEC.model_copy(
    update={
        "observation": SPEC.observation.model_copy(
            update={"images": {"wrist": ArraySpec(shape=(64, 64, 3), dtype="uint8")}}
        )
    }
)
ANY_DISK = LogConfig(min_free_bytes=0)
"""Log settings that ignore free space, for disks filled by other processes."""

STEPS = 49
"""Number of steps of an episode, not counting its end record."""

_TEMPLATES = 16


def episode(
    number: int, steps: int, epoch: int = 1, spec: Spec = SPEC, run: str = RUN, actor: str = ACTOR
) -> Iterator[Record]:
    """Return the records of a complete episode; equal arguments give equal records."""
    templates = _templates(spec.model_dump_json())
    for index in range(steps):
        step = templates[(number + index) % _TEMPLATES]
        key = Key(run, actor, epoch, number, index)
        yield replace(step, key=key, truncated=index == steps - 1)
    observation = templates[number % _TEMPLATES].observation
    yield End(
        Key(run, actor, epoch, number, steps), observation, False, EndReason.TIME_LIMIT, 1.0, 1.0
    )


@cache
def _templates(spec_json: str) -> tuple[Step, ...]:
    """Return a few random steps for reuse; drawing each anew would cost more than logging it."""
    rng, spec = np.random.default_rng(0), Spec.model_validate_json(spec_json)
    return tuple(random_step(Key(RUN, ACTOR, 1, 0, 0), spec, rng) for _ in range(_TEMPLATES))


def write_log(
    folder: Path, episodes: int, steps: int, epoch: int = 1, spec: Spec = SPEC
) -> list[Path]:
    """Log complete episodes; return their sealed files."""
    with EpisodeLog(folder, spec, RUN, ACTOR, epoch, ANY_DISK) as log:
        for number in range(episodes):
            for record in episode(number, steps, epoch, spec):
                log.append(record)
    return episode_paths(folder)


def records_of(path: Path) -> list[Record]:
    """Return the records in one file."""
    found = read_episode(path, SPEC)
    return [*found.steps, *([found.end] if found.end else [])]


def keys(path: Path) -> list[Key]:
    """Return the keys of the records in one file."""
    return [record.key for record in records_of(path)]
