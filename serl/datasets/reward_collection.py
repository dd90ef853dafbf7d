"""Collection of labelled images of success, near success and failure, scripted or by a person."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from serl.camera import image_specs
from serl.clock import VirtualClock
from serl.datasets.person import ACTOR, RecordingStation
from serl.errors import BadInput, SerlError, Silent
from serl.geometry import normalize
from serl.intervention import Event
from serl.log.annotations import StepKey, append_labels, read_labels
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.log.episode_reader import episode_paths, next_epoch, run_name
from serl.log.recovery import recover
from serl.loop import EpisodeKey, Observer, run
from serl.motion import to_action_frame
from serl.policy import RandomPolicy
from serl.robot import SimulatedRobot
from serl.runs.demonstrations import COLLECTOR
from serl.runs.folder import RunFolder
from serl.runs.reward_data import write_views
from serl.runs.task_setup import check_one_tool, renderer_of
from serl.specs import ArraySpec, ObservationSpec, Spec
from serl.task import SimulatedTask
from serl.teleop.human_input import HumanInput
from serl.training.evaluation import Purpose, start_seed
from serl.types import Action, ActionSource, End, Observation, Outcome, Step

_LINGER_STEPS, _PRETENDING_STEPS = 12, 30
_HELD_STEPS = 6  # before the drop
_SHAKING = 0.4
_KEEP, _OPEN, _CLOSE = 0.0, 1.0, -1.0  # last entry of an action with a gripper

Position = np.ndarray[Any, np.dtype[np.float32]]


class Kind(StrEnum):
    """Scenario of a collection episode.

    Success: the expert succeeds and continues with noise. Short: the expert gives up part of the
    way, and noise follows there. Nearly: the same, just before the success. Drop: the gripper opens
    after a success. Pretence: the tool moves to its position at an earlier success, without doing
    the task. Chance: random actions.
    """

    SUCCESS = "success"
    SHORT = "short"
    NEARLY = "nearly"
    DROP = "drop"
    PRETENCE = "pretence"
    CHANCE = "chance"


_GIVES_UP = {Kind.SHORT: (0.2, 0.9), Kind.NEARLY: (0.75, 1.0)}  # range of the task's progress


class CollectionDriver:
    """A policy for one episode that records the ground truth before each step.

    Args:
        task: defines success.
        kind: scenario of the episode.
        place: tool position at a success of another episode, m, base frame; if None, a pretence
            becomes random actions.

    Attributes:
        successes: whether each step began in a success.
        place: tool position at the last success, m, base frame.
    """

    def __init__(
        self,
        robot: SimulatedRobot,
        task: SimulatedTask,
        seed: int,
        kind: Kind,
        place: Position | None = None,
    ) -> None:
        self.successes: list[bool] = []
        self.place = place
        self._robot, self._task, self._motion = robot, task, task.config.motion
        self._kind = Kind.CHANCE if kind is Kind.PRETENCE and place is None else kind
        self._expert = task.expert(robot.truth, seed)
        self._chance = RandomPolicy(robot.action_spec, seed)
        rng = np.random.default_rng(seed)
        self._enough = float(rng.uniform(*_GIVES_UP[kind])) if kind in _GIVES_UP else np.inf
        self._has_stopped, self._gripper = False, _KEEP
        self._still = np.zeros(self._motion.action_spec.shape, np.float32)
        self._left = _PRETENDING_STEPS if kind is Kind.PRETENCE else _LINGER_STEPS

    def __call__(self, observation: Observation) -> Action:
        """Return the next action; the observation must contain `tcp_pose`."""
        truth = self._robot.truth()
        success = self._task.is_success(truth)
        self.successes.append(success)
        if self._kind is Kind.CHANCE:
            return self._chance(observation)
        place = observation.state["tcp_pose"]
        if self._kind is Kind.PRETENCE:
            self._left -= 1
            return self._shaken(self._towards(place), _CLOSE)
        self._has_stopped |= self._task.progress(truth) > self._enough
        if self._has_stopped:
            self._left -= 1
            return self._shaken(self._still, self._gripper)
        action = self._expert(self._task.observation(self._robot.observe()))
        if not success:
            return action
        self.place, self._left = place[:3].copy(), self._left - 1
        if self._kind is Kind.DROP and self._left <= _LINGER_STEPS - _HELD_STEPS:
            self._has_stopped, self._gripper, self._left = True, _OPEN, _LINGER_STEPS
        return self._shaken(action, float(action[-1]))

    def is_over(self) -> bool:
        """Return whether the remaining steps of the scenario are used up."""
        return self._left <= 0

    def _towards(self, pose: Position) -> Action:
        """Return the action straight to the tool position of a success."""
        assert self.place is not None  # otherwise the kind is CHANCE
        x, y, z = ((self.place - pose[:3]) / self._motion.translation_m).tolist()
        shift = to_action_frame((x, y, z), normalize(pose[3:].tolist()), self._motion)
        along = dict(zip("xyz", shift, strict=True))
        entries = [along.get(axis, 0.0) for axis in self._motion.axes]
        return np.array(entries + [0.0] * self._motion.gripper, np.float32)

    def _shaken(self, action: Action, gripper: float) -> Action:
        """Return the action with random noise on the arm and the given gripper entry."""
        shaken = action + _SHAKING * self._chance(Observation({}))
        if self._motion.gripper:
            shaken[-1] = gripper
        return shaken.clip(-1.0, 1.0).astype(np.float32)


_MOST_POSITIVES, _MOST_NEGATIVES = 2, 5
"""Samples from one episode: many starts with few samples inform more than the reverse."""

_NEARLY_STEPS = 3
"""Steps around the start or end of a success that are left out as ambiguous."""

_KINDS = (Kind.SUCCESS, Kind.NEARLY, Kind.DROP, Kind.PRETENCE, Kind.SUCCESS, Kind.SHORT)
_CHANCE_EVERY = 10


class CollectionView:
    """Task view with the observation of a reward model, ended only by the time limit.

    Args:
        task: source of the cameras and the time limit.
    """

    def __init__(self, task: SimulatedTask) -> None:
        self._max_steps = task.config.max_steps
        self.observation_spec = ObservationSpec(
            state={"tcp_pose": ArraySpec(shape=(7,), unit="m, quaternion xyzw, base frame")},
            images=image_specs(task.config.all_views),
        )

    def begin(self, reading: Observation) -> None:
        """Begin an episode; this view has no state."""

    def observation(self, reading: Observation) -> Observation:
        """Return all images and the tool pose."""
        state = {"tcp_pose": reading.state["tcp_pose"]}
        return Observation(state, reading.images, reading.stamps)

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return the outcome of a step, truncated at the time limit."""
        return Outcome(truncated=index + 1 >= self._max_steps)


def collection_spec(task: SimulatedTask) -> Spec:
    """Return the spec of a collection; raises `BadInput` unless it has cameras and one tool."""
    check_one_tool(task)
    if not task.config.all_views:
        raise BadInput(f"{task.name}: has no cameras to look through: give --observe pixels")
    motion = task.config.motion
    return Spec(
        task=task.name,
        observation=CollectionView(task).observation_spec,
        action=motion.action_spec,
        rate_hz=task.config.rate_hz,
        motion=motion.meaning,
    )


class LabelCounts(NamedTuple):
    """Numbers of positive and negative samples."""

    positives: int
    negatives: int


def collect(
    robot: SimulatedRobot,
    task: SimulatedTask,
    folder: Path,
    target: LabelCounts,
    seed: int,
    progress: Callable[[LabelCounts], None] = lambda counts: None,
    log_config: LogConfig | None = None,
) -> LabelCounts:
    """Record episodes until there are `target` positive and negative steps, by the ground truth.

    Episodes of several kinds alternate, see `Kind`: most negatives are near successes, or look like
    a success. Steps that a person could not classify are left out.

    Raises:
        BadInput: the task has no cameras.
        SerlError: no success was seen in fifty episodes.
    """
    watching, spec = CollectionView(task), collection_spec(task)
    write_views(folder, task.config.all_views, task.config.renderer)
    clock = VirtualClock(robot.advance, task.config.rate_hz)
    counts, episode, place = LabelCounts(0, 0), 0, None
    name = folder.resolve().name
    with EpisodeLog(folder, spec, name, COLLECTOR, 1, log_config) as log:
        while counts.positives < target.positives or counts.negatives < target.negatives:
            if episode >= 50 and not counts.positives:
                raise SerlError(f"{task.name}: no success in {episode} episodes")
            start = start_seed(Purpose.REWARD, seed, COLLECTOR, episode)
            task.begin(robot.reset(start))
            driver = CollectionDriver(robot, task, start, _kind(episode), place)
            key = EpisodeKey(name, COLLECTOR, 1, episode)
            run(
                robot,
                watching,
                driver,
                clock,
                key,
                [log],
                chosen_by=ActionSource.SCRIPT,
                interrupted=driver.is_over,
            )
            place = driver.place
            counts = _label(folder, episode, driver.successes, counts, target)
            progress(counts)
            episode += 1
    return counts


def _kind(episode: int) -> Kind:
    return Kind.CHANCE if episode % _CHANCE_EVERY == 3 else _KINDS[episode % len(_KINDS)]


def _label(
    folder: Path, episode: int, successes: Sequence[bool], counts: LabelCounts, target: LabelCounts
) -> LabelCounts:
    """Label some steps of an episode, as long as samples are wanted, and return the new counts.

    Successes are evenly spread; negatives, which are hardest to classify near the end, are denser
    there.
    """
    sure = [i for i, success in enumerate(successes) if _agree(successes, i, success)]
    kinds = {
        1: ([i for i in sure if successes[i]], _MOST_POSITIVES, 1.0),
        0: ([i for i in sure if not successes[i]], _MOST_NEGATIVES, 0.5),
    }
    left = {1: target.positives - counts.positives, 0: target.negatives - counts.negatives}
    chosen: list[tuple[StepKey, int]] = []
    for label, (steps, most, power) in kinds.items():
        number = max(0, min(len(steps), most, left[label]))
        spread = (len(steps) - 1) * np.linspace(0.0, 1.0, number) ** power
        chosen += [
            (StepKey(1, episode, steps[index]), label) for index in sorted(set(spread.astype(int)))
        ]
    append_labels(folder, chosen, "script")
    positives = sum(label for _, label in chosen)
    return LabelCounts(counts.positives + positives, counts.negatives + len(chosen) - positives)


def _agree(successes: Sequence[bool], step: int, success: bool) -> bool:
    """Return whether all steps within `_NEARLY_STEPS` of this one have the same truth."""
    near = successes[max(0, step - _NEARLY_STEPS) : step + _NEARLY_STEPS + 1]
    return all(other is success for other in near)


_MEANING = {Event.SUCCESS: 1, Event.FAILURE: 0}


class Marks(Observer):
    """Live labels of the current step; a key held down labels each step once.

    Args:
        run: the labelled collection.
    """

    def __init__(self, run: RunFolder) -> None:
        self._folder = run.path
        self._labels = read_labels(self._folder)
        self._newest: StepKey | None = None

    @property
    def counts(self) -> LabelCounts:
        """The numbers of labelled steps."""
        labels = list(self._labels.values())  # other threads add labels meanwhile
        positives = sum(label > 0 for label in labels)
        return LabelCounts(positives, len(labels) - positives)

    def on_step(self, step: Step) -> None:
        """Make a logged step the one that a label applies to."""
        self._newest = StepKey(step.key.epoch, step.key.episode, step.key.index)

    def on_end(self, end: End) -> None:
        """Accept no label until the next step."""
        self._newest = None

    def mark(self, label: int) -> str:
        """Label the newest step and return the counts; raises `SerlError` without a current step.

        Repeating a label changes nothing; of different labels for a step, the last one counts.
        """
        place = self._newest
        if place is None:
            raise SerlError("nothing to mark: the episode begins when you drive")
        if self._labels.get(place) != label:
            append_labels(self._folder, [(place, label)], "the operator")
            self._labels[place] = label
        positives, negatives = self.counts
        return f"{positives} positives, {negatives} negatives"


class _LabellingInput:
    """Operator input whose success and failure events label the current step and end no episode."""

    def __init__(self, human_input: HumanInput, marks: Marks) -> None:
        self._human_input, self._marks = human_input, marks

    def begin(self) -> None:
        self._human_input.begin()

    def __call__(self) -> Action | None:
        return self._human_input()

    def events(self) -> tuple[Event, ...]:
        events = self._human_input.events()
        for event in events:
            if event in _MEANING:
                with suppress(SerlError):  # no step has passed yet
                    self._marks.mark(_MEANING[event])
        return tuple(event for event in events if event not in _MEANING)


def collect_person(
    stand: RecordingStation,
    task: SimulatedTask,
    run: RunFolder,
    marks: Marks,
    target: LabelCounts,
    seed: int,
    progress: Callable[[LabelCounts], object] = lambda counts: None,
) -> LabelCounts:
    """Record a person's driving and labels until enough of both kinds are labelled, or stopping.

    The device's success and failure buttons label the current step as well.

    Raises:
        BadInput: the task has no cameras.
        Silent: the robot timed out, and the stand has no `on_silence`.
    """
    spec = collection_spec(task)
    write_views(run.path, task.config.all_views, renderer_of(run.config))
    recover(run.path)

    def enough() -> bool:
        return marks.counts.positives >= target.positives and (
            marks.counts.negatives >= target.negatives
        )

    stopping = stand.stopping
    stand.observers = [*stand.observers, marks]
    stand.stopping = lambda: enough() or stopping()
    name = run_name(run.path)
    while not stand.stopping():
        epoch = next_epoch(run.path, time.time_ns)
        number = len(episode_paths(run.path))
        try:
            stand.begin(start_seed(Purpose.REWARD, seed, ACTOR, number))
            if not stand.await_hands():
                break
            with EpisodeLog(run.path, spec, name, ACTOR, epoch, run.config.log) as log:
                key = EpisodeKey(name, ACTOR, epoch, 0)
                stand.episode(
                    CollectionView(task), key, log, _LabellingInput(stand.human_input, marks)
                )
        except Silent as error:
            if stand.on_silence is None:
                raise
            stand.on_silence(str(error))
            continue
        progress(marks.counts)
    return marks.counts
