"""Recording demonstrations with a scripted expert: successes are kept, failures counted apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError, SpecMismatch
from serl.log.episode_reader import count_records, episode_paths, read_episode, read_spec
from serl.loop import EpisodeKey, Result, run
from serl.robot import SimulatedRobot
from serl.runs.config import TrainConfig
from serl.runs.task_setup import for_recording, make_spec, make_task
from serl.specs import Spec
from serl.task import Demonstrated, SimulatedTask
from serl.training.evaluation import Purpose, start_seed
from serl.types import ActionSource, Episode, Record

EXPERT = "expert"
"""Name of the actor that a scripted expert is, in records."""


def record_expert(
    robot: SimulatedRobot,
    task: SimulatedTask,
    sink: Callable[[Record], None],
    count: int,
    seed: int,
    key: EpisodeKey,
    progress: Callable[[int, int], None] = lambda kept, failed: None,
) -> int:
    """Record `count` successful episodes of the task's expert; returns the number of failures.

    Args:
        robot: simulated robot, placed anew for each episode.
        task: what is demonstrated.
        sink: takes the records of successful episodes.
        count: successes to record.
        seed: of the run; starts are those of demonstrations and coincide with no others.
        key: identity of the first episode.
        progress: told successes and failures after each episode.

    Raises:
        SerlError: the expert fails more often than it succeeds.
    """
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    kept, failed = 0, 0
    while kept < count:
        start = start_seed(Purpose.DEMONSTRATION, seed, key.actor, kept + failed)
        robot.reset(start)
        records: list[Record] = []
        result = _demonstrate(robot, task, clock, records, start, key, kept)
        if result.success:
            for record in records:
                sink(record)
        kept, failed = kept + result.success, failed + (not result.success)
        progress(kept, failed)
        if failed > max(10, kept):
            raise SerlError(f"{task.name}: the expert failed {failed} of {kept + failed} times")
    return failed


def mean_duration_s(folders: Iterable[Path]) -> float:
    """Mean task time of demonstrations; NaN where there are none.

    Raises:
        CorruptData: a file is damaged.
    """
    paths = [path for folder in folders for path in episode_paths(folder)]
    spec = next(filter(None, map(read_spec, paths)), None)
    if spec is None:
        return math.nan
    return statistics.mean(count_records(path) - 1 for path in paths) / spec.rate_hz


def read_demonstrations(folder: Path, config: TrainConfig) -> Iterator[Episode]:
    """All episodes of a recording but resets, as the task of this configuration sees them.

    Raises:
        CorruptData: an episode is damaged.
        SpecMismatch: one is of something else.
    """
    task, specs = make_task(config), specs_of(config)
    for path in episode_paths(folder):
        episode = _read(path, specs)
        if _is_reset(episode):
            continue
        if isinstance(task, Demonstrated) and episode.success and _is_wider(path, specs):
            episode = task.retold(episode)
        yield episode


def defined_by(config: TrainConfig) -> Mapping[str, Any]:
    """Settings of the task that the first success of its recordings defines; of most tasks none.

    Raises:
        BadInput: it cannot, or a later one could not; the line names the file.
        CorruptData: one is damaged.
    """
    task = make_task(config)
    if not isinstance(task, Demonstrated):
        return {}
    specs = specs_of(config)
    defined: Mapping[str, Any] | None = None
    for path in (path for folder in config.demo_paths for path in episode_paths(folder)):
        if defined is not None and _is_wider(path, specs):
            continue  # can be retold
        episode = _read(path, specs)
        if episode.success and not _is_reset(episode):
            try:
                made = task.defined_by(episode)
            except BadInput as error:
                raise BadInput(f"{path}: {error}") from None
            defined = made if defined is None else defined
    return defined or {}


def specs_of(config: TrainConfig) -> tuple[Spec, Spec]:
    """What a run learns from, and what a recording for it holds, which may be more."""
    spec, wider = (make_spec(make_task(each)) for each in (config, for_recording(config)))
    return spec, wider


def _read(path: Path, specs: tuple[Spec, Spec]) -> Episode:
    spec, wider = specs
    return read_episode(path, wider if _is_wider(path, specs) else spec)


def _is_reset(episode: Episode) -> bool:
    """Of an actor: its scripts restore the scene or go to a start, and succeed in that alone."""
    scripted = episode.count(ActionSource.SCRIPT) == len(episode.steps)
    return scripted and bool(episode.steps) and episode.steps[0].key.actor != EXPERT


def _is_wider(path: Path, specs: tuple[Spec, Spec]) -> bool:
    """It holds all that recordings for the task do: what defines the task as well."""
    found, (_, wider) = read_spec(path), specs
    return found is not None and found.observation.state.keys() == wider.observation.state.keys()


def check_recordings(folders: Iterable[Path], *specs: Spec) -> None:
    """See that recordings can demonstrate, each fits one of the specs, before a run is made.

    Raises:
        BadInput: one holds no episodes.
        SpecMismatch: one is of something else; the line says which, and what differs.
    """
    for folder in folders:
        paths = episode_paths(folder)
        if not paths:
            raise BadInput(f"{folder}: expected demonstrations, found no episode files")
        found = next(filter(None, map(read_spec, paths)), None)
        if found is None:
            continue
        cameras = specs[0].observation.images
        limited = found.limited_to(name for name in found.observation.images if name in cameras)
        differences = [limited.difference(spec) for spec in specs]
        if all(differences):
            raise SpecMismatch(f"{folder}: demonstrates something else: {differences[0]}")


def _demonstrate(
    robot: SimulatedRobot,
    task: SimulatedTask,
    clock: VirtualClock,
    records: list[Record],
    start: int,
    key: EpisodeKey,
    episode: int,
) -> Result:
    expert = task.expert(robot.truth, start)
    numbered = EpisodeKey(key.run, key.actor, key.epoch, episode)
    return run(robot, task, expert, clock, numbered, records.append, chosen_by=ActionSource.SCRIPT)
