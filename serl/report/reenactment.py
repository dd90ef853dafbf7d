"""Pictures of an episode that was recorded in simulation: it is simulated once more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from serl import plugins
from serl.runs.task_setup import make_spec, make_task
from serl.clock import VirtualClock
from serl.runs.config import TrainConfig
from serl.errors import SerlError
from serl.training.evaluation import Purpose, start_seed
from serl.loop import EpisodeKey, run
from serl.report.playback import RecordedHuman, RecordedPolicy
from serl.robot import SimulatedRobot
from serl.specs import Spec
from serl.task import SimulatedTask
from serl.types import Action, End, Episode, Image, Observation, Record, Source

# A policy's actions are recorded as they were asked for, and come out bit by bit; a human's as they
# were executed, and contacts enlarge what is lost by that. An angle may wrap: the mean decides.
_TOLERANCE = 0.25  # of what an array spans in the episode
_SAME_START = 1e-4


class Departed(SerlError):
    """The simulation did not go the recorded way, so its pictures would show something else."""


def reenact(
    episode: Episode, spec: Spec, config: TrainConfig, number: int, size: tuple[int, int]
) -> list[Image]:
    """One picture of the scene for each observation, the final one included.

    Args:
        episode: recorded in simulation.
        spec: of the recording.
        config: of its run.
        number: how many episodes its actor had recorded before.
        size: width and height.

    Raises:
        Departed: no start of the run gives the first observation, or the simulation goes another
            way from there, as it does when the task or the simulation have changed since.
        BadInput: the task cannot be loaded.
    """
    task = make_task(config)
    if difference := make_spec(task).difference(spec):
        raise Departed(f"the task is another one now: {difference}")
    with plugins.make_simulation(task) as robot:
        _place(robot, task, episode, config.seed, number)
        camera = plugins.make_renderer(robot, supersampling=2)
        return _film(robot, task, episode, lambda: camera.frame("front", *size))


def _place(
    robot: SimulatedRobot, task: SimulatedTask, episode: Episode, seed: int, number: int
) -> None:
    """Put the scene into the start that gives the first observation."""
    scripted = episode.count(Source.SCRIPT) > 0
    purpose = Purpose.DEMONSTRATION if scripted else Purpose.TRAINING
    actor, first = episode.steps[0].key.actor, episode.steps[0].observation
    # An expert's failures take up starts and are not recorded.
    for start in range(number, 2 * number + 11):
        reading = robot.reset(start_seed(purpose, seed, actor, start))
        task.begin(reading)
        if max(_apart(task.observation(reading), first).values()) < _SAME_START:
            return
    raise Departed("no start of its run looks like the first observation")


def _film(
    robot: SimulatedRobot, task: SimulatedTask, episode: Episode, shoot: Callable[[], Image]
) -> list[Image]:
    """The control loop with the recorded actions; a picture before each step and at the end."""
    policy, pictures = RecordedPolicy(episode), list[Image]()
    seen = [step.observation for step in episode.steps]
    spans = {
        name: max(1e-3, float(np.ptp([one.state[name] for one in seen], axis=0).max()))
        for name in seen[0].state
    }

    def look(observation: Observation) -> Action:
        apart = _apart(observation, seen[len(pictures)])
        if np.mean([min(1.0, apart[name] / spans[name]) for name in apart]) > _TOLERANCE:
            raise Departed(f"simulated again, it goes another way from step {len(pictures)} on")
        pictures.append(shoot())
        return policy(observation)

    def at_end(record: Record) -> None:
        if isinstance(record, End):
            pictures.append(shoot())

    run(
        robot,
        task,
        look,
        VirtualClock(robot.advance, task.config.rate_hz),
        EpisodeKey("reenactment", "nobody", 0, 0),
        at_end,
        teleop=RecordedHuman(episode),
        interrupted=lambda: len(pictures) == len(seen),
    )
    if len(pictures) <= len(seen):
        raise Departed(f"simulated again, it ends at step {len(pictures) - 1}")
    return pictures


def _apart(observation: Observation, recorded: Observation) -> dict[str, float]:
    """The largest difference of any entry, by state array."""
    return {
        name: float(np.abs(values - recorded.state[name]).max())
        for name, values in observation.state.items()
    }
