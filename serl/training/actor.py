"""Actor: resets the scene, runs episodes, records them and swaps weights between steps."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pydantic import BaseModel, ConfigDict, Field

from serl.clock import Clock
from serl.errors import NeedsPerson, Silent
from serl.intervention import Teleop
from serl.loop import EpisodeKey, Result, run
from serl.policy import Policy, ZeroPolicy
from serl.robot import Homing, Robot
from serl.task import Task
from serl.training.curriculum import Curriculum
from serl.training.learned_policy import LearnedPolicy
from serl.training.resets import Approach, Asking, ResetTask
from serl.types import ActionSource, EndReason, Record, Step

logger = logging.getLogger(__name__)


class ActorConfig(BaseModel):
    """Settings of an actor.

    Attributes:
        reset_attempts: failed resets before an operator is asked.
        reset_time_limit_s: time limit of one attempt.
        home_every: episodes after which the joints are moved home, between two scripted resets, so
            that they do not drift towards their limits; 0 for never.
        max_lead_steps: simulated time is paused while the learner has this many steps of this actor
            still to train on, so that the training schedule does not depend on speed.
        patience_s: silence of the learner after which a warning is logged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    reset_attempts: int = Field(3, ge=1, le=1000)
    reset_time_limit_s: float = Field(20.0, gt=0, le=3600)
    home_every: int = Field(0, ge=0)
    max_lead_steps: int = Field(64, ge=1)
    patience_s: float = Field(60.0, gt=0, le=86_400)


@dataclass
class Actor:
    """Runs episodes and passes every record to a sink.

    Attributes:
        name: name of this actor, unique within the run.
        run: name of the run.
        robot: the robot to drive.
        task: the task to learn.
        policy: the policy that acts.
        clock: keeps the control rate.
        sink: receives every record before the next action.
        config: see `ActorConfig`.
        teleop: operator that may take over, also during a reset.
        place: simulation only: places the scene at the start of the given episode number.
        placements: number of episodes to place; later ones start from the scene left by the reset.
        person: called with the reason when the scene cannot be restored automatically. `standby`
            then blocks until it is; the scene is checked again, and the request repeated if needed.
            If None, the actor raises `NeedsPerson`.
        silent: called with the error when the robot stays silent; the episode is retried once
            `standby` returns. If None, the actor raises `Silent`. Also called with the reason when
            the robot was stopped without an operator holding it; if None, the actor continues as
            soon as the readings are sound.
        homing: a robot whose joints can be moved home; None if unsupported.
        curriculum: simulation only: starts of episodes, between the task's starts and the goal.
        epoch: identity of this start of the actor; never repeats.
        stopping: polled at every step; True ends the episode and the actor.
        admit: called before each episode; raises when the episode could not be recorded.
        standby: called before each episode; blocks until the robot may move or the actor is
            stopping; returns whether an operator held the robot.
        resets: True if a script chose the actions of the newest episode: it is not learned from.
    """

    name: str
    run: str
    robot: Robot
    task: Task
    policy: LearnedPolicy
    clock: Clock
    sink: Callable[[Record], None]
    config: ActorConfig
    teleop: Teleop | None = None
    place: Callable[[int], object] | None = None
    placements: float = math.inf
    person: Callable[[str], object] | None = None
    silent: Callable[[str], object] | None = None
    homing: Homing | None = None
    curriculum: Curriculum | None = None
    epoch: int = 0
    stopping: Callable[[], bool] = lambda: False
    admit: Callable[[], object] = lambda: None
    standby: Callable[[], bool] = lambda: False
    resets: bool = False
    _episode: int = 0
    _since_home: int = 0
    _home_missed: bool = False

    def __post_init__(self) -> None:
        self.epoch = self.epoch or time.time_ns()

    def episodes(self) -> Iterator[Result]:
        """Run episodes until `stopping`; yield each result as its episode ends."""
        while (result := self.episode()) is not None:
            yield result

    def episode(self) -> Result | None:
        """Run one episode, after the resets that the scene needs; return None when stopping.

        If the robot is silent before the first step, the start is repeated after a control period.
        A stopped robot moves again only once no operator holds it; see `silent`.

        Raises:
            NeedsPerson: the scene could not be restored, and `person` is None.
            Silent: the robot was silent more than `reset_attempts` times, and `silent` is None.
        """
        silences = 0
        while True:
            try:
                return self._attempt()
            except Silent as error:
                silences += 1
                if silences > self.config.reset_attempts:
                    if self.silent is None:
                        raise
                    self.silent(str(error))
                    silences = 0
                logger.warning("the episode does not begin: %s", error)
                self._pass_period()

    def _pass_period(self) -> None:
        """Wait one control period for new readings; this also advances simulated time."""
        self.clock.start()
        self.clock.wait()

    @property
    def _is_placed(self) -> bool:
        """True if the simulation places the next episode."""
        return self.place is not None and self.placements > 0

    def _attempt(self) -> Result | None:
        if not self._ready(self._is_placed):
            return None
        if self.place is not None and self._is_placed:
            self.place(self._episode)
        self._reset()
        self._go_home()
        self._approach()
        if not self._ready():
            return None
        self.policy.begin()
        result = self._run(self.task, self.policy, ActionSource.POLICY)
        self._since_home += 1
        if self.curriculum is not None:
            self.curriculum.tell(result.success)
        self.placements -= self.placements > 0
        return result

    def _reset(self) -> None:
        """Restore the scene; on failure hold the robot and ask an operator.

        The scene left by the operator is checked again: scripts may complete the reset.
        """
        while True:
            try:
                return self._restore()
            except NeedsPerson as error:
                self._ask(error)
            if not self._ready():  # the operator may still be at work in the scene
                return
            self.robot.recover()

    def _ask(self, request: NeedsPerson) -> None:
        self.robot.stop(str(request))
        self._run(
            Asking(self.task, request), ZeroPolicy(self.robot.action_spec), ActionSource.SCRIPT
        )
        if self.person is None:
            raise request
        self.person(str(request))

    def _restore(self) -> None:
        """Run scripted resets until the scene is ready or the actor is stopping."""
        for left in reversed(range(self.config.reset_attempts + 1)):
            script = self.task.reset(self.robot.observe())
            if script is None or not self._ready():
                return
            if left:
                self._run_reset(script)
        raise NeedsPerson(f"the reset failed {self.config.reset_attempts} times")

    def _run_reset(self, script: Policy) -> None:
        reset = ResetTask(self.task, self.config.reset_time_limit_s)
        self._run(reset, lambda observation: script(reset.reading), ActionSource.SCRIPT)

    def _go_home(self) -> None:
        """Move the joints home when due, from a ready scene, and reset the scene afterwards."""
        homing, every = self.homing, self.config.home_every
        due = every and self._since_home >= every and not self._is_placed
        if homing is None or not due or not self._ready():
            return
        self._since_home = 0
        homing.home()
        move = Approach(self.task, self.config.reset_time_limit_s, lambda: homing.is_home)
        move.name = f"joint move of {self.task.name}"
        result = self._run(move, ZeroPolicy(self.robot.action_spec), ActionSource.SCRIPT)
        if not result.success:
            self._stay(result)
        self._reset()

    def _stay(self, result: Result) -> None:
        """Continue after a failed joint move: stop the move and log a warning once."""
        if result.reason is EndReason.TIME_LIMIT:
            self.robot.stop("the joint move took too long")
            self.robot.recover()
        if result.reason is EndReason.INTERRUPTED or self._home_missed:
            return
        self._home_missed = True
        logger.warning(
            "the joints did not get home (%s, of %g s); episodes go on from where they are, and it "
            "is tried again every %d, which is not said again: see actor.home_every",
            result.text,
            self.config.reset_time_limit_s,
            self.config.home_every,
        )

    def _approach(self) -> None:
        """Let a script complete part of the task if the curriculum requires it."""
        script = self.curriculum.script() if self.curriculum is not None else None
        if self.curriculum is not None and script is not None and self._ready():
            limit_s = self.task.config.time_limit_s
            approach = Approach(self.task, limit_s, self.curriculum.reached)
            self._run(approach, script, ActionSource.SCRIPT)

    def _sink_unlearned(self, record: Record) -> None:
        """Record steps of a reset as scripted, since their reward is not that of the task."""
        self.sink(
            replace(record, source=ActionSource.SCRIPT) if isinstance(record, Step) else record
        )

    def _ready(self, placed: bool = False) -> bool:
        """Wait while an operator holds the robot; return False when stopping.

        A robot stopped without an operator holding it met a fault, which `silent` reports first.
        Placing the scene next (`placed`) recovers the robot.
        """
        held = self.standby()
        if self.silent is not None and self.robot.stop_reason and not held and not self.stopping():
            self.silent(self.robot.stop_reason)
            held = self.standby()
        if self.stopping():
            return False
        if held or (self.robot.stop_reason and not placed):
            self.robot.recover()
        return True

    def _run(self, task: Task, policy: Policy, source: ActionSource) -> Result:
        self.resets = source is ActionSource.SCRIPT
        self.admit()
        key = EpisodeKey(self.run, self.name, self.epoch, self._episode)
        result = run(
            self.robot,
            task,
            policy,
            self.clock,
            key,
            self._sink_unlearned if self.resets else self.sink,
            teleop=self.teleop,
            chosen_by=source,
            policy_version=lambda: self.policy.version,
            interrupted=self.stopping,
        )
        self._episode += 1  # not reached if the episode never began
        return result
