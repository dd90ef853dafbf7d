"""Collects labelled images in simulation: of success, of what nearly is, and of anything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from serl.camera import image_specs
from serl.clock import VirtualClock
from serl.errors import BadInput, SerlError
from serl.evaluation import Purpose, start_seed
from serl.labels import Place, append_labels
from serl.loop import EpisodeKey, run
from serl.policy import Random
from serl.recording import EpisodeLog
from serl.reward_data import write_views
from serl.robot import SimulatedRobot
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.task import SimulatedTask
from serl.types import Action, Observation, Outcome, Source

_MOST_POSITIVES, _MOST_NEGATIVES = 4, 10
"""Of one episode: many starts with few samples each tell more than few starts with many."""

_LINGER_STEPS = 12
_NEARLY_STEPS, _NEARLY = 3, 0.9
"""So near to a success nobody could tell: such steps are left out, and no expert gives up later."""


_KINDS = ("succeeds", "gives up", "succeeds", "chance")


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
) -> Counts:
    """Record episodes until there are so many steps of success and of none, by the ground truth.

    Three kinds of episodes take turns: the expert succeeds and lingers; it gives up somewhere on
    its way, and trembles there; chance drives. Steps that a person could not tell are left out.

    Raises:
        BadInput: the task has no cameras.
        SerlError: no success was seen in fifty episodes.
    """
    if not task.config.all_views:
        raise BadInput(f"{task.name}: has no cameras to look through: give --observe pixels")
    watching = Watching(task)
    motion = task.config.motion
    spec = Spec(
        task=task.name,
        observation=watching.observation_spec,
        action=motion.action_spec,
        rate_hz=task.config.rate_hz,
        motion=motion.meaning,
    )
    write_views(folder, task.config.all_views)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    counts, episode = Counts(0, 0), 0
    name = folder.resolve().name
    with EpisodeLog(folder, spec, name, "collector", 1) as log:
        while counts.positives < wanted.positives or counts.negatives < wanted.negatives:
            if episode >= 50 and not counts.positives:
                raise SerlError(f"{task.name}: no success in {episode} episodes")
            start = start_seed(Purpose.REWARD, seed, "collector", episode)
            task.begin(robot.reset(start))
            driver = _Driver(robot, task, start, _KINDS[episode % len(_KINDS)])
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
            counts = _label(folder, episode, driver.successes, counts, wanted)
            progress(counts)
            episode += 1
    return counts


class _Driver:
    """Drives one episode of a kind, and notes the ground truth before each step."""

    def __init__(self, robot: SimulatedRobot, task: SimulatedTask, seed: int, kind: str) -> None:
        rng = np.random.default_rng(seed)
        self.successes: list[bool] = []
        self._robot, self._task, self._kind = robot, task, kind
        self._expert = task.expert(robot.truth, seed)
        self._chance = Random(robot.action_spec, seed)
        self._gives_up_at = float(rng.uniform(0.2, _NEARLY))  # of the task's progress
        self._given_up = kind == "chance"
        self._left = _LINGER_STEPS

    def __call__(self, observation: Observation) -> Action:
        truth = self._robot.truth()
        self.successes.append(self._task.is_success(truth))
        if self._kind == "gives up" and self._task.progress(truth) > self._gives_up_at:
            self._given_up = True
        if self._given_up:
            return self._tremble(observation)
        if self.successes[-1]:
            self._left -= 1
            return self._tremble(observation)
        return self._expert(self._task.observation(self._robot.observe()))

    def is_over(self) -> bool:
        """It has lingered for long enough."""
        return self._left <= 0

    def _tremble(self, observation: Observation) -> Action:
        """Small motions of the arm by chance; the gripper too, where chance drives alone."""
        if self._kind != "chance":
            self._left -= self._given_up
            action = 0.4 * self._chance(observation)
            if self._task.config.motion.gripper:
                action[-1] = 0.0
            return action
        return self._chance(observation)


def _label(
    folder: Path, episode: int, successes: Sequence[bool], counts: Counts, wanted: Counts
) -> Counts:
    """Label some steps of an episode, evenly spread, as far as samples are still wanted."""
    kinds = {
        1: ([i for i, success in enumerate(successes) if success], _MOST_POSITIVES),
        0: ([i for i in range(len(successes)) if not _is_near(successes, i)], _MOST_NEGATIVES),
    }
    left = {1: wanted.positives - counts.positives, 0: wanted.negatives - counts.negatives}
    chosen: list[tuple[Place, int]] = []
    for label, (steps, most) in kinds.items():
        number = max(0, min(len(steps), most, left[label]))
        spread = np.linspace(0, len(steps) - 1, number).round().astype(int).tolist()
        chosen += [(Place(1, episode, steps[index]), label) for index in spread]
    append_labels(folder, chosen, "script")
    positives = sum(label for _, label in chosen)
    return Counts(counts.positives + positives, counts.negatives + len(chosen) - positives)


def _is_near(successes: Sequence[bool], step: int) -> bool:
    """There is a success at a step, or a few steps away."""
    return any(successes[max(0, step - _NEARLY_STEPS) : step + _NEARLY_STEPS + 1])
