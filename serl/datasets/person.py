"""Demonstrations by an operator, whose input begins each episode and whose labels end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serl.clock import Clock
from serl.datasets.recording_session import Recording
from serl.errors import Silent
from serl.intervention import Teleop
from serl.log.episode_log import EpisodeLog, LogConfig
from serl.loop import EpisodeKey, Observer, Result, run
from serl.policy import ZeroPolicy
from serl.robot import SimulatedRobot
from serl.runs.task_setup import make_spec
from serl.task import SimulatedTask, TaskView
from serl.teleop.human_input import HumanInput
from serl.teleop.operator import Hands
from serl.training.evaluation import Purpose, start_seed
from serl.types import ActionSource

ACTOR = "person"
"""Actor name used for a person, in topics and in records."""


@dataclass
class RecordingStation:
    """A robot and the operator's input, for recording in real time.

    Attributes:
        robot: the driven robot; a real one requires `place`.
        human_input: source of the operator's actions and events.
        clock: keeps the control rate, in real time.
        stopping: queried at every step; True ends the session.
        observers: receive readings and records, after the log.
        place: moves the robot to a start pose, given the seed of a simulated start; None to use the
            simulation's own reset.
        standby: called with `stopping`; blocks until the robot may move, or until stopping, and
            returns whether the robot was held.
        on_silence: called with the error message when the robot timed out, before the episode is
            restarted; if None, the session ends with `Silent`.
        connect: called with the task before its first episode; connects a reward from a topic.
    """

    robot: SimulatedRobot
    human_input: HumanInput
    clock: Clock
    stopping: Callable[[], bool] = lambda: False
    observers: Sequence[Observer] = ()
    place: Callable[[int], object] | None = None
    standby: Callable[[Callable[[], bool]], bool] | None = None
    on_silence: Callable[[str], object] | None = None
    connect: Callable[[SimulatedTask], object] = lambda task: None

    def begin(self, seed: int) -> None:
        """Bring the robot to the start of an episode; raises `Silent` when the robot times out."""
        if self.place is not None:
            self.place(seed)
        else:
            self.robot.reset(seed)

    def await_hands(self) -> bool:
        """Hold the robot until the operator takes over; return False when stopping.

        The input must be released first: a key still down from the last episode starts no new one.
        """
        self.clock.start()
        self.human_input.rest()
        free = False
        wait = self.standby or self.human_input.hold.wait
        while not self._ending(read=False):
            if wait(lambda: self._ending(read=True)):
                self.robot.recover()
            action, owner = self.human_input(), self.human_input.mux.owner
            if action is None:
                free = True
            elif free and owner is not None and owner.hands is Hands.ON:
                return True
            self.clock.wait()
        return False

    def _ending(self, read: bool) -> bool:
        """Execute pending stops, each before a later release; return whether the session ends."""
        self.human_input.obey_stops(read)
        return self.stopping()

    def episode(
        self, task: TaskView, key: EpisodeKey, log: EpisodeLog, teleop: Teleop | None = None
    ) -> Result:
        """Run and log one episode; without operator input the robot holds, as a script's step.

        Args:
            task: defines the observation and the end of the episode.
            key: identifies the episode.
            log: stores the records.
            teleop: input source to use instead of the human_input.
        """
        return run(
            self.robot,
            task,
            ZeroPolicy(self.robot.action_spec),
            self.clock,
            key,
            [log, *self.observers, self.human_input],
            teleop=teleop or self.human_input,
            chosen_by=ActionSource.SCRIPT,
            interrupted=lambda: self.human_input.hold.wait_paused(self.stopping),
        )


def record_person(
    stand: RecordingStation,
    task: SimulatedTask,
    recorded: Recording,
    successes: int,
    seed: int,
    progress: Callable[[Result], object] = lambda result: None,
    log_config: LogConfig | None = None,
) -> None:
    """Record an operator's demonstrations until `successes` are kept, or until stopping.

    Continues an earlier session, with starts that no earlier episode had.

    Args:
        stand: the robot and the operator's input.
        task: the demonstrated task.
        recorded: stores the episodes.
        successes: requested number of successes.
        seed: seed of the starts.
        progress: called after each episode.
        log_config: settings of the episode log; the defaults if None.

    Raises:
        Silent: the robot timed out, and the stand has no `on_silence`.
    """
    recorded.recover()
    stand.connect(task)
    spec, run_name = make_spec(task), recorded.run
    while not stand.stopping() and recorded.counts.kept < successes:
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
            if stand.on_silence is None:
                raise
            stand.on_silence(str(error))
            continue
        recorded.sort()
        progress(result)
