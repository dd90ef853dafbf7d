"""Collects labelled images in simulation: of success, of what nearly is, and of anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serl.runs.task_setup import check_one_tool
from serl.camera import image_specs
from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError
from serl.training.evaluation import Purpose, start_seed
from serl.log.annotations import Place, append_labels
from serl.loop import EpisodeKey, run
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.runs.reward_data import write_views
from serl.datasets.reward_driver import Driver, Kind
from serl.robot import SimulatedRobot
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.task import SimulatedTask
from serl.types import Observation, Outcome, Source

_MOST_POSITIVES, _MOST_NEGATIVES = 2, 5
"""Of one episode: many starts with few samples each tell more than few starts with many."""

_NEARLY_STEPS = 3
"""So near to where a success begins or ends nobody could tell: such steps are left out."""

_KINDS = (Kind.SUCCESS, Kind.NEARLY, Kind.DROP, Kind.PRETENCE, Kind.SUCCESS, Kind.SHORT)
_CHANCE_EVERY = 10


class Watching:
    """Sees what a reward model may see, and never ends before its time.

    Args:
        task: whose cameras and time limit they are.
    """

    def __init__(self, task: SimulatedTask) -> None:
        self._max_steps = task.config.max_steps
        self.observation_spec = ObservationSpec(
            state={"tcp_pose": ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame")},
            images=image_specs(task.config.all_views),
        )

    def begin(self, reading: Observation) -> None:
        """Nothing to keep."""

    def observation(self, reading: Observation) -> Observation:
        """All images, and where the tool is."""
        state = {"tcp_pose": reading.state["tcp_pose"]}
        return Observation(state, reading.images, reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Nothing but the time limit."""
        return Outcome(truncated=index + 1 >= self._max_steps)


def collection_spec(task: SimulatedTask) -> Spec:
    """Of what a collection holds; raises `BadInput` without cameras, or without one tool."""
    check_one_tool(task)
    if not task.config.all_views:
        raise BadInput(f"{task.name}: has no cameras to look through: give --observe pixels")
    motion = task.config.motion
    return Spec(
        task=task.name,
        observation=Watching(task).observation_spec,
        action=motion.action_spec,
        rate_hz=task.config.rate_hz,
        motion=motion.meaning,
    )


class Counts(NamedTuple):
    """How many samples there are."""

    positives: int
    negatives: int


def collect(
    robot: SimulatedRobot,
    task: SimulatedTask,
    folder: Path,
    wanted: Counts,
    seed: int,
    progress: Callable[[Counts], None] = lambda counts: None,
    log_config: LogConfig | None = None,
) -> Counts:
    """Record episodes until there are so many steps of success and of none, by the ground truth.

    Episodes of several kinds take turns, see `Kind`: most of what is no success nearly is one, or
    looks like one. Steps that a person could not tell are left out.

    Raises:
        BadInput: the task has no cameras.
        SerlError: no success was seen in fifty episodes.
    """
    watching, spec = Watching(task), collection_spec(task)
    write_views(folder, task.config.all_views, task.config.renderer)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    counts, episode, place = Counts(0, 0), 0, None
    name = folder.resolve().name
    with EpisodeLog(folder, spec, name, "collector", 1, log_config) as log:
        while counts.positives < wanted.positives or counts.negatives < wanted.negatives:
            if episode >= 50 and not counts.positives:
                raise SerlError(f"{task.name}: no success in {episode} episodes")
            start = start_seed(Purpose.REWARD, seed, "collector", episode)
            task.begin(robot.reset(start))
            driver = Driver(robot, task, start, _kind(episode), place)
            key = EpisodeKey(name, "collector", 1, episode)
            run(
                robot,
                watching,
                driver,
                clock,
                key,
                log.append,
                chosen_by=Source.SCRIPT,
                interrupted=driver.is_over,
            )
            place = driver.place
            counts = _label(folder, episode, driver.successes, counts, wanted)
            progress(counts)
            episode += 1
    return counts


def _kind(episode: int) -> Kind:
    return Kind.CHANCE if episode % _CHANCE_EVERY == 3 else _KINDS[episode % len(_KINDS)]


def _label(
    folder: Path, episode: int, successes: Sequence[bool], counts: Counts, wanted: Counts
) -> Counts:
    """Label some steps of an episode, as far as samples are still wanted.

    Successes are evenly spread; of the others, which are hardest to tell near the end, more are
    late than early.
    """
    sure = [i for i, success in enumerate(successes) if _agree(successes, i, success)]
    kinds = {
        1: ([i for i in sure if successes[i]], _MOST_POSITIVES, 1.0),
        0: ([i for i in sure if not successes[i]], _MOST_NEGATIVES, 0.5),
    }
    left = {1: wanted.positives - counts.positives, 0: wanted.negatives - counts.negatives}
    chosen: list[tuple[Place, int]] = []
    for label, (steps, most, power) in kinds.items():
        number = max(0, min(len(steps), most, left[label]))
        spread = (len(steps) - 1) * np.linspace(0.0, 1.0, number) ** power
        chosen += [
            (Place(1, episode, steps[index]), label) for index in sorted(set(spread.astype(int)))
        ]
    append_labels(folder, chosen, "script")
    positives = sum(label for _, label in chosen)
    return Counts(counts.positives + positives, counts.negatives + len(chosen) - positives)


def _agree(successes: Sequence[bool], step: int, success: bool) -> bool:
    """All steps within a few of this one are as it is."""
    near = successes[max(0, step - _NEARLY_STEPS) : step + _NEARLY_STEPS + 1]
    return all(other is success for other in near)
