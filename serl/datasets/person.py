"""A person demonstrates: the robot holds until hands are on, and an episode ends by their word."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from serl.clock import Clock
from serl.datasets.recording_session import Recording
from serl.errors import Silent
from serl.intervention import Teleop
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.loop import EpisodeKey, Result, run
from serl.policy import ZeroPolicy
from serl.robot import SimulatedRobot
from serl.runs.task_setup import make_spec
from serl.task import SimulatedTask, TaskView
from serl.teleop.human_input import HumanInput
from serl.teleop.operator import Hands
from serl.training.evaluation import Purpose, start_seed
from serl.types import ActionSource, Record

ACTOR = "person"
"""Name of the actor that a person is, in topics and in records."""


@dataclass
class RecordingStation:
    """Where a person drives a robot.

    Attributes:
        robot: what is driven; a real one has a `place`.
        desk: where the person is heard.
        clock: keeps the rate, in real time.
        stopping: asked at every step; True ends it all.
        told: takes every record that was logged.
        place: brings the robot to where an episode may begin, given the seed of a simulation's
            start; None for that simulation's own reset.
        standby: given `stopping`, returns once the robot may move, or when stopping, and says
            whether it was held.
        silent: told what a robot says that stayed silent, before all begins anew; without one the
            session ends there.
    """

    robot: SimulatedRobot
    desk: HumanInput
    clock: Clock
    stopping: Callable[[], bool] = lambda: False
    told: Callable[[Record], object] = lambda record: None
    place: Callable[[int], object] | None = None
    standby: Callable[[Callable[[], bool]], bool] | None = None
    silent: Callable[[str], object] | None = None

    def begin(self, seed: int) -> None:
        """Before an episode; raises `Silent` for a robot that is."""
        if self.place is not None:
            self.place(seed)
        else:
            self.robot.reset(seed)

    def await_hands(self) -> bool:
        """Hold until somebody whose hands were off takes over; False when stopping.

        A key that is still down from the last episode begins no other one.
        """
        self.clock.start()
        self.desk.rest()
        free = False
        wait = self.standby or self.desk.hold.wait
        while not self._ending():
            if wait(self._ending):
                self.robot.recover()
            action, owner = self.desk(), self.desk.owner.owner
            if action is None:
                free = True
            elif free and owner is not None and owner.hands is Hands.ON:
                return True
            self.clock.wait()
        return False

    def _ending(self) -> bool:
        """Whether it all ends; obeys stops meanwhile, each before a later release."""
        self.desk.obey_stops()
        return self.stopping()

    def episode(
        self, task: TaskView, key: EpisodeKey, log: EpisodeLog, heard: Teleop | None = None
    ) -> Result:
        """One episode; while hands are off the robot holds, and the step is a script's.

        Args:
            task: what is seen, and what counts as done.
            key: of the episode.
            log: takes it.
            heard: hears people in the desk's place.
        """

        def sink(record: Record) -> None:
            log.append(record)
            self.desk.watch(record)
            self.told(record)

        return run(
            self.robot,
            task,
            ZeroPolicy(self.robot.action_spec),
            self.clock,
            key,
            sink,
            teleop=heard or self.desk,
            chosen_by=ActionSource.SCRIPT,
            interrupted=lambda: self.desk.hold.wait_paused(self.stopping),
        )


def record_person(
    stand: RecordingStation,
    task: SimulatedTask,
    recorded: Recording,
    wanted: int,
    seed: int,
    progress: Callable[[Result], object] = lambda result: None,
    log_config: LogConfig | None = None,
) -> None:
    """Let a person demonstrate until so many successes are kept, or until stopping.

    Goes on where an earlier session ended, with starts that none of them had.

    Args:
        stand: where the person drives.
        task: what is demonstrated.
        recorded: takes the episodes.
        wanted: successes.
        seed: of the starts.
        progress: told after each episode.
        log_config: how episodes are logged; the defaults if None.

    Raises:
        Silent: the robot is, and the stand has nobody to tell.
    """
    recorded.recover()
    spec, run_name = make_spec(task), recorded.folder.resolve().name
    while not stand.stopping() and recorded.counts.kept < wanted:
        number = recorded.counts.total
        try:
            stand.begin(start_seed(Purpose.DEMONSTRATION, seed, ACTOR, number))
            if not stand.await_hands():
                return
            key = EpisodeKey(run_name, ACTOR, recorded.next_epoch(time.time_ns()), 0)
            stream = run_name, ACTOR, key.epoch
            with EpisodeLog(recorded.incoming, spec, *stream, log_config) as log:
                result = stand.episode(task, key, log)
        except Silent as error:
            if stand.silent is None:
                raise
            stand.silent(str(error))
            continue
        recorded.sort()
        progress(result)
