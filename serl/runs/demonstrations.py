"""Demonstrations: recording them with a scripted expert, and reading recordings for a run."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError, SpecMismatch
from serl.log.columns import read_columns
from serl.log.episode_reader import PART, episode_paths, read_episode, read_spec
from serl.loop import EpisodeKey, RecordCallback, run
from serl.robot import SimulatedRobot
from serl.runs.config import TrainConfig
from serl.runs.task_setup import for_recording, make_shaper, make_spec, make_task
from serl.shaping import is_shaped
from serl.specs import Spec
from serl.task import DemonstrationTask, SimulatedTask
from serl.teleop.human_motion import HumanMotion
from serl.training.evaluation import Purpose, start_seed
from serl.types import ActionSource, Episode, Record

EXPERT = "expert"
"""Name of the scripted expert as an actor, in records."""
COLLECTOR = "collector"
"""Name of the script that collects images for a reward model as an actor, in records."""
IMPORT = "import"
"""Name of an import as an actor, in records."""
DEMONSTRATORS = (EXPERT, COLLECTOR, IMPORT)
"""Actors whose scripted steps are no reset."""


def record_expert(
    robot: SimulatedRobot,
    task: SimulatedTask,
    sink: Callable[[Record], None],
    count: int,
    seed: int,
    key: EpisodeKey,
    progress: Callable[[int, int], None] = lambda kept, failed: None,
    by_hand: bool = False,
) -> int:
    """Record `count` successful episodes of the task's expert; return the number of failures.

    Args:
        robot: simulated robot, placed anew for each episode.
        task: task to demonstrate.
        sink: called with the records of successful episodes; failures are only counted.
        count: successes to record.
        seed: seed of the run; the starts of demonstrations differ from all other starts.
        key: identity of the first episode.
        progress: called with the numbers of successes and failures after each episode.
        by_hand: the expert moves the arm as a person does; see `HumanMotion`.

    Raises:
        SerlError: the expert fails more often than it succeeds.
    """
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    kept, failed = 0, 0
    while kept < count:
        start = start_seed(Purpose.DEMONSTRATION, seed, key.actor, kept + failed)
        robot.reset(start)
        records: list[Record] = []
        expert = task.expert(robot.truth, start)
        policy = HumanMotion(expert, task, start) if by_hand else expert
        numbered = EpisodeKey(key.run, key.actor, key.epoch, kept)
        result = run(
            robot,
            task,
            policy,
            clock,
            numbered,
            [RecordCallback(records.append)],
            chosen_by=ActionSource.SCRIPT,
        )
        if result.success:
            for record in records:
                sink(record)
        kept, failed = kept + result.success, failed + (not result.success)
        progress(kept, failed)
        if failed > max(10, kept):
            raise SerlError(f"{task.name}: the expert failed {failed} of {kept + failed} times")
    return failed


def mean_duration_s(folders: Iterable[Path]) -> float:
    """Return the mean task time of the successes that demonstrate a task, s; NaN without any.

    Raises:
        CorruptData: a file is damaged.
    """
    paths = (path for folder in folders for path in episode_paths(folder))
    times_s = [
        recorded.key.index / recorded.spec.rate_hz
        for recorded in (read_columns(path) for path in paths if not path.name.endswith(PART))
        if recorded.success
        and (
            recorded.key.actor in DEMONSTRATORS
            or (recorded.scalars["source"] != ActionSource.SCRIPT).any()  # else a reset
        )
    ]
    return statistics.mean(times_s) if times_s else math.nan


def read_demonstrations(folder: Path, config: TrainConfig) -> Iterator[Episode]:
    """Yield all episodes of a recording except resets, as observed by the configured task.

    Raises:
        CorruptData: an episode is damaged.
        SpecMismatch: an episode fits neither spec of `specs_of`.
    """
    task, specs = make_task(config), specs_of(config)
    for path in episode_paths(folder):
        episode = _read(path, specs)
        if is_reset(episode):
            continue
        if isinstance(task, DemonstrationTask) and episode.success and _is_wider(path, specs):
            episode = task.relabel(episode)
        yield episode


def shape_for(config: TrainConfig) -> Callable[[Episode, object], Episode]:
    """Return the function that gives a recorded episode the rewards that a run learns from.

    With the reward "progress" a time-to-go model shapes sparse rewards; rewards that were shaped in
    the same way when they were recorded stay. The kind "vice" uses no recorded reward. The second
    argument names the recording in errors. The function raises `SpecMismatch` for rewards that were
    shaped in another way.

    Raises:
        BadInput: see `make_shaper`.
    """
    shaper = make_shaper(config)

    def shape(episode: Episode, source: object) -> Episode:
        if config.reward.kind == "vice":
            return episode
        try:
            done = is_shaped(episode, shaper.provenance if shaper else "")
        except SpecMismatch as error:
            raise SpecMismatch(f"{source}: {error}") from None
        if shaper is None or done:
            return episode
        if config.reward.topic is not None:
            raise SpecMismatch(
                f"{source}: holds no progress of {config.reward.topic}, which shapes the reward: "
                f"expected a recording with {shaper.provenance} (serl record, with the same "
                "reward.* and agent.discount)"
            )
        return shaper.shaped(episode)

    return shape


def check_rewards(config: TrainConfig) -> None:
    """Check, before a run is made, that rewards of its demonstrations fit; raise as `shape_for`."""
    shape, specs = shape_for(config), specs_of(config)
    for folder in config.demo_paths:
        for path in episode_paths(folder)[:1]:
            shape(_read(path, specs), folder)
    of_topic = config.reward.kind == "progress" and config.reward.topic is not None
    if config.demos and not config.demo_paths and of_topic:
        raise BadInput(
            f"demos: {config.demos}: no script publishes {config.reward.topic}, which shapes the "
            "reward: expected recordings made with it (serl record), or --demos 0"
        )


def demonstrated_settings(config: TrainConfig) -> Mapping[str, Any]:
    """Return the task settings that the first recorded success defines; most tasks have none.

    Raises:
        BadInput: a success cannot define the task; the message names the file.
        CorruptData: an episode is damaged.
    """
    task = make_task(config)
    if not isinstance(task, DemonstrationTask):
        return {}
    specs = specs_of(config)
    defined: Mapping[str, Any] | None = None
    for path in (path for folder in config.demo_paths for path in episode_paths(folder)):
        if defined is not None and _is_wider(path, specs):
            continue  # can be converted by `DemonstrationTask.relabel`
        episode = _read(path, specs)
        if episode.success and not is_reset(episode):
            try:
                made = task.defined_by(episode)
            except BadInput as error:
                raise BadInput(f"{path}: {error}") from None
            defined = made if defined is None else defined
    return defined or {}


def specs_of(config: TrainConfig) -> tuple[Spec, Spec]:
    """Return the spec that a run learns from, and that of recordings for it, which may be wider."""
    spec, wider = (make_spec(make_task(each)) for each in (config, for_recording(config)))
    return spec, wider


def is_reset(episode: Episode) -> bool:
    """Return whether an episode is a scripted reset: all its steps are a script's, of an actor.

    Scripts of actors restore the scene or go to a start; their success demonstrates no task. The
    scripted expert demonstrates it, also in an import: `serl export` leaves resets out.
    """
    scripted = episode.count(ActionSource.SCRIPT) == len(episode.steps)
    actor = episode.steps[0].key.actor if episode.steps else EXPERT
    return scripted and actor not in DEMONSTRATORS


def _read(path: Path, specs: tuple[Spec, Spec]) -> Episode:
    spec, wider = specs
    return read_episode(path, wider if _is_wider(path, specs) else spec)


def _is_wider(path: Path, specs: tuple[Spec, Spec]) -> bool:
    """Return whether a file has the state arrays of the wider spec, which can define the task."""
    found, (_, wider) = read_spec(path), specs
    return found is not None and found.observation.state.keys() == wider.observation.state.keys()


def _missing_demonstrations(path: Path) -> str:
    """Return the error for a path without episodes, and the remedy."""
    if path.suffix == ".pkl":
        command = f"serl demos import {shlex.quote(str(path))} --task TASK"
        return f"expected a folder of episodes; to convert it: {command}"
    if not path.exists():
        return "no such folder; expected a number of demonstrations, or a folder of them"
    if episode_paths(path / "failures"):
        return "expected a successful demonstration, found only failures (in its folder failures)"
    return "expected demonstrations, found no episode files"


def check_recordings(folders: Iterable[Path], *specs: Spec) -> None:
    """Check, before a run is made, that each recording fits one of the specs and has a success.

    Raises:
        BadInput: a recording holds no episodes, or none that demonstrates a task.
        CorruptData: an episode before the first success is damaged.
        SpecMismatch: a recording fits no spec; the message names it and the difference.
    """
    for folder in folders:
        paths = episode_paths(folder)
        if not paths:
            raise BadInput(f"{folder}: {_missing_demonstrations(folder)}")
        found = next(filter(None, map(read_spec, paths)), None)
        if found is None:
            continue
        cameras = specs[0].observation.images
        limited = found.with_images(name for name in found.observation.images if name in cameras)
        differences = [limited.difference(spec) for spec in specs]
        if all(differences):
            raise SpecMismatch(f"{folder}: demonstrates something else: {differences[0]}")
        if not any(map(_demonstrates, paths)):
            raise BadInput(f"{folder}: none of its {len(paths)} episodes is a success")


def _demonstrates(path: Path) -> bool:
    """Return whether the episode of a file is a success, and no reset."""
    spec = read_spec(path)
    episode = Episode((), None) if spec is None else read_episode(path, spec)
    return episode.success and not is_reset(episode)
