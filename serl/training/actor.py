"""An actor: reset, run an episode, record and ship it, swap weights, repeat."""

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
from serl.types import ActionSource, Record, Step

logger = logging.getLogger(__name__)


class ActorConfig(BaseModel):
    """How an actor behaves.

    Attributes:
        reset_attempts: failed resets before a person is asked.
        reset_time_limit_s: time for one attempt.
        home_every: episodes after which the joints are moved home, between two resets of the arm's
            own, so that they do not creep towards their limits; 0 for never.
        max_lead_steps: simulated time stands still while the learner has this many steps of this
            actor still to train on, so that the training schedule does not depend on speed.
        patience_s: a warning says so when the learner was silent for this long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    reset_attempts: int = Field(3, ge=1, le=1000)
    reset_time_limit_s: float = Field(20.0, gt=0, le=3600)
    home_every: int = Field(0, ge=0)
    max_lead_steps: int = Field(64, ge=1)
    patience_s: float = Field(60.0, gt=0, le=86_400)


@dataclass
class Actor:
    """Runs episodes and hands every record to a sink.

    Attributes:
        name: of this actor, unique within the run.
        run: of the run.
        robot: what is driven.
        task: what is learned.
        policy: what acts.
        clock: keeps the rate.
        sink: takes every record before the next action.
        config: see `ActorConfig`.
        teleop: a person who may take over, also in a reset.
        place: simulation only: puts the scene into its start for an episode number ...
        placements: ... before so many episodes; later ones begin where the reset has led.
        person: told why a person is needed; what `standby` then waits for is that the scene was
            restored. It is looked at again, and asked for again. Without one the actor ends there.
        silent: told what a robot says that stayed silent; it is tried again once `standby` returns.
            Without one the actor ends there. Told as well why a robot was stopped that no person
            held; without one it goes on as soon as its readings are sound.
        homing: a robot whose joints can be moved home; None for one that cannot.
        curriculum: simulation only: where episodes begin, between the task's starts and the goal.
        epoch: identity of this start of the actor; never repeats.
        stopping: asked at every step; True ends the episode and the actor.
        admit: called before each episode; raises when it could not be recorded.
        standby: called before each episode; returns when the robot may move, or when stopping, and
            says whether a person held it.
        resets: a script chose the actions of the newest episode: nothing is learned from it.
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
        """Run episodes until `stopping`; each result is yielded as it ends."""
        while (result := self.episode()) is not None:
            yield result

    def episode(self) -> Result | None:
        """Run one episode, after whatever the scene needs before it; None when stopping.

        A robot that falls silent before the first step is placed anew, after a control period. One
        that was stopped moves again only once nobody holds it; see `silent`.

        Raises:
            NeedsPerson: the scene could not be restored, and there is nobody to ask.
            Silent: the robot was silent more than `reset_attempts` times, and nobody is told.
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
        """What was silent may have news then; simulated time passes by nothing else."""
        self.clock.start()
        self.clock.wait()

    @property
    def _is_placed(self) -> bool:
        """The simulation places the next episode."""
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
        """Restore the scene; where that fails the robot holds, and a person is asked.

        What they leave is looked at as the scene was before: a rest of it may be done by scripts.
        """
        while True:
            try:
                return self._restore()
            except NeedsPerson as error:
                self._ask(error)
            if not self._ready():  # whoever was asked may be at it still
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
        """By scripted episodes, until the scene is ready or the actor is stopped."""
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
        """Move the joints home if it is time, from a scene that is ready, and come back to it."""
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
            self._stay(result.reason)
        self._reset()

    def _stay(self, reason: str) -> None:
        """The joints are not home: nothing goes on moving them, and the scene is what counts."""
        if reason == "time limit":
            self.robot.stop("the joint move took too long")
            self.robot.recover()
        if reason == "interrupted" or self._home_missed:
            return
        self._home_missed = True
        logger.warning(
            "the joints did not get home (%s, of %g s); episodes go on from where they are, and it "
            "is tried again every %d, which is not said again: see actor.home_every",
            reason,
            self.config.reset_time_limit_s,
            self.config.home_every,
        )

    def _approach(self) -> None:
        """Let a script go part of the way, where a curriculum says so."""
        script = self.curriculum.script() if self.curriculum is not None else None
        if self.curriculum is not None and script is not None and self._ready():
            limit_s = self.task.config.time_limit_s
            approach = Approach(self.task, limit_s, self.curriculum.reached)
            self._run(approach, script, ActionSource.SCRIPT)

    def _sink_unlearned(self, record: Record) -> None:
        """Nothing is learned from a reset, whoever drove: its reward is not that of the task."""
        self.sink(
            replace(record, source=ActionSource.SCRIPT) if isinstance(record, Step) else record
        )

    def _ready(self, placed: bool = False) -> bool:
        """Wait while a person holds the robot; False when stopping.

        One that nobody holds and that was stopped all the same met a fault: whoever is told of it
        looks first. One that is `placed` next recovers by that.
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
        self._episode += 1  # unless it never began
        return result
