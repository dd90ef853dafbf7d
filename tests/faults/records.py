"""Records to lose: what an actor logs, without a robot."""

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
"""For logs on a disk that somebody else may have filled."""

STEPS = 49
"""Of an episode, which has an end besides."""

_TEMPLATES = 16


def episode(
    number: int, steps: int, epoch: int = 1, spec: Spec = SPEC, run: str = RUN, actor: str = ACTOR
) -> Iterator[Record]:
    """The records of a whole episode; equal arguments give equal records."""
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
    """A few random steps; to draw each one anew would cost more than to log it."""
    rng, spec = np.random.default_rng(0), Spec.model_validate_json(spec_json)
    return tuple(random_step(Key(RUN, ACTOR, 1, 0, 0), spec, rng) for _ in range(_TEMPLATES))


def write_log(
    folder: Path, episodes: int, steps: int, epoch: int = 1, spec: Spec = SPEC
) -> list[Path]:
    """Log whole episodes; returns their sealed files."""
    with EpisodeLog(folder, spec, RUN, ACTOR, epoch, ANY_DISK) as log:
        for number in range(episodes):
            for record in episode(number, steps, epoch, spec):
                log.append(record)
    return episode_paths(folder)


def keys(path: Path) -> list[Key]:
    """The keys of the records in one file."""
    found = read_episode(path, SPEC)
    records: list[Record] = [*found.steps, *([found.end] if found.end else [])]
    return [record.key for record in records]
