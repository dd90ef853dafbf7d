"""Actor: resets the scene, runs episodes, records them and swaps weights between steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from pydantic import Field

from serl.clock import Clock, WallClock
from serl.errors import NeedsPerson, Silent
from serl.intervention import Teleop
from serl.loop import EpisodeKey, Observer, Result, read_robot, run
from serl.policy import Policy, ZeroPolicy
from serl.robot import Homing, Robot
from serl.task import Task
from serl.training.learned_policy import LearnedPolicy
from serl.training.resets import EpisodeStarts, ResetTask, SceneReset, ScriptedTask
from serl.types import ActionSource, End, EndReason, FrozenModel, Observation, Step

logger = logging.getLogger(__name__)

_Found = TypeVar("_Found")


class ActorConfig(FrozenModel):
    """Settings of an actor.

    Attributes:
        reset_attempts: failed resets before an operator is asked.
        reset_time_limit_s: time limit of one attempt.
        home_every: episodes after which the joints are moved home, between two scripted resets, so
            that they do not drift towards their limits; 0 for never.
        max_lead_steps: a simulation in the actor's process pauses while more of the actor's steps
            wait for training than the largest of this setting, `learner.publish_every` and the
            number of online steps before the first update.
        patience_s: silence of the learner after which a warning is logged.
        exploring_share: share of the episodes in which the policy explores; in the others it takes
            the mode, so that successes near the demonstrations remain.
    """

    reset_attempts: int = Field(3, ge=1, le=1000)
    reset_time_limit_s: float = Field(20.0, gt=0, le=3600)
    home_every: int = Field(0, ge=0)
    max_lead_steps: int = Field(64, ge=1)
    patience_s: float = Field(60.0, gt=0, le=86_400)
    exploring_share: float = Field(1.0, ge=0, le=1)


class Site:
    """The surroundings of an actor's robot: its process, its operators and its scene.

    The base class has neither operators nor an end. Subclasses override its methods.

    Attributes:
        teleop: operator input, which may take over, also during a reset.
        starts: starts of episodes in a simulation; None on a real arm.
    """

    teleop: Teleop | None = None
    starts: EpisodeStarts | None = None

    def is_stopping(self) -> bool:
        """Return whether the actor has to end; called once per step, and may block for a pause."""
        return False

    def standby(self) -> bool:
        """Block until the robot may move or the actor is stopping; return whether it was held."""
        return False

    def on_reset_failed(self, error: NeedsPerson) -> None:
        """Request an operator to restore the scene; the next `standby` blocks until it is.

        The scene is checked again, and the request repeated if needed. The base class places the
        scene of a simulation anew, and raises the error if there is none.
        """
        if self.starts is None:
            raise error
        self.starts.restore(str(error))

    def on_robot_stopped(self, reason: str) -> None:
        """Handle a robot that was stopped while no operator held it.

        Unless the next `standby` reports that it was held, the robot recovers at once.
        """

    def on_silence(self, error: Silent) -> None:
        """Handle a robot that stays silent; the episode is retried afterwards.

        Raises:
            Silent: the error, in the base class.
        """
        raise error


@dataclass
class Actor:
    """Runs episodes and passes every reading and record to its observers.

    Attributes:
        key: key of the next episode: run, name of the actor, unique epoch, and number.
        robot: the robot to drive.
        task: the task to learn.
        policy: the policy that acts.
        clock: keeps the control rate; in real time, the first episode waits for weights.
        observers: see `serl.loop.Observer`; the log comes first.
        site: operators, scene and process.
        reset: brings arm and scene to a start between two episodes; None for the task's own reset.
        evaluates: rewards and penalties of operators evaluate recent steps; see `serl.loop.run`.
    """

    key: EpisodeKey
    robot: Robot
    task: Task
    policy: LearnedPolicy
    clock: Clock
    observers: Sequence[Observer]
    site: Site
    config: ActorConfig
    reset: SceneReset | None = None
    evaluates: bool = False
    _completed: int = field(default=0, init=False)
    _since_home: int = field(default=0, init=False)
    _home_missed: bool = field(default=False, init=False)
    _is_resetting: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._scene_reset = self.reset or SceneReset(self.task)

    def episodes(self) -> Iterator[Result]:
        """Run episodes until the site is stopping; yield each result as its episode ends."""
        while (result := self.episode()) is not None:
            yield result

    def episode(self) -> Result | None:
        """Run one episode, after the resets that the scene needs; return None when stopping.

        If the robot is silent before the first step, the start is repeated after a control period.
        A stopped robot moves again only once no operator holds it.

        Raises:
            NeedsPerson: the scene could not be restored, and the site has no operator to ask.
            Silent: the robot was silent more than `reset_attempts` times, and the site raised it.
        """
        return self._retry(self._attempt)

    def bring_to_start(self) -> bool:
        """Bring arm and scene to a start, without an episode; return False when stopping.

        Raises:
            NeedsPerson: as `episode`.
            Silent: as `episode`.
        """
        return self._retry(self._begin)

    def _retry(self, attempt: Callable[[], _Found]) -> _Found:
        """Repeat an attempt after each silence of the robot; see `episode`."""
        silences, self._is_resetting = 0, False
        while True:
            try:
                return attempt()
            except Silent as error:
                silences += 1
                if silences > self.config.reset_attempts:
                    self.site.on_silence(error)
                    silences = 0
                logger.warning("the episode does not begin: %s", error)
                self.clock.start()
                self.clock.wait()  # for new readings; this also advances simulated time

    def _attempt(self) -> Result | None:
        if isinstance(self.clock, WallClock):
            self.policy.wait(partial(self._is_stopping, self.clock))
        if not self._begin():
            return None
        self.policy.begin()
        result = self._run(self.task, self.policy, ActionSource.POLICY)
        self._since_home += 1
        self._completed += 1
        starts = self.site.starts
        if starts is not None and starts.curriculum is not None:
            starts.curriculum.add(result.success)
        return result

    def _is_stopping(self, clock: WallClock) -> bool:
        """Send a heartbeat while weights are awaited: a guard disarms after a minute of silence."""
        clock.beat()
        return self.site.is_stopping()

    def _begin(self) -> bool:
        """Reset arm and scene for the next episode; return False when stopping.

        After a silence the reset continues: it knows whether it has put a part back.
        """
        starts = self.site.starts
        placed = starts is not None and self._completed < starts.placements
        if not self._ready(placed):
            return False
        if starts is not None and placed:
            starts.place(self.key.episode)
        elif starts is not None:
            starts.vary(self.key.episode)
        if placed or not self._is_resetting:
            self._scene_reset.begin()
        self._is_resetting = True
        self._reset()
        if not placed:
            self._go_home()
        self._approach()
        if not self._ready():
            return False
        self._scene_reset.end()
        self._is_resetting = False
        return True

    def _reset(self) -> None:
        """Restore the scene; on failure hold the robot and ask an operator.

        The scene left by the operator is checked again: scripts may complete the reset.
        """
        while True:
            try:
                return self._restore()
            except NeedsPerson as error:
                self._request_person(error)
            if not self._ready():  # the operator may still be at work in the scene
                return
            self.robot.recover()
            self._scene_reset.confirm()

    def _request_person(self, request: NeedsPerson) -> None:
        """Stop the robot and request an operator, in an episode of one step that is logged."""

        def fail(reading: Observation) -> bool:
            raise request

        self.robot.stop(str(request))
        self._hold_still(ScriptedTask("request", self.task, 0.0, fail))
        self.site.on_reset_failed(request)

    def _restore(self) -> None:
        """Run scripted resets until the scene is ready or the actor is stopping."""
        for left in reversed(range(self.config.reset_attempts + 1)):
            if not self._ready():  # first: a person may move the arm meanwhile
                return
            script = self._scene_reset(read_robot(self.robot, self.observers))
            if script is None:
                return
            if left:
                self._run_reset(script)
        failed = f"the reset failed {self.config.reset_attempts} times"
        missing = self._scene_reset.missing
        raise NeedsPerson(f"{failed}: {missing}" if missing else failed)

    def _run_reset(self, script: Policy) -> None:
        """Run an episode of a reset; a stopped arm keeps the gains of the reset until released."""
        self._scene_reset.prepare()
        reset = ResetTask(self.task, self._scene_reset, self.config.reset_time_limit_s)
        self._run(reset, lambda observation: script(reset.reading), ActionSource.SCRIPT)
        self._scene_reset.end(restore_gains=not self.robot.stop_reason)

    def _go_home(self) -> None:
        """Move the joints home when due, from a ready scene, and reset the scene afterwards."""
        robot, every = self.robot, self.config.home_every
        due = every and self._since_home >= every
        if not due or not isinstance(robot, Homing) or not self._ready():
            return
        self._since_home = 0
        robot.home()
        limit_s = self.config.reset_time_limit_s
        move = ScriptedTask("joint move", self.task, limit_s, lambda reading: robot.is_home)
        result = self._hold_still(move)
        if not result.success:
            self._abort_move(result)
        self._scene_reset.confirm()  # a first attempt follows, with the gains of resets
        self._reset()

    def _abort_move(self, result: Result) -> None:
        """Stop a joint move that failed, and log a warning once."""
        if result.reason is EndReason.TIME_LIMIT:
            self.robot.stop("the joint move took too long")
            self.robot.recover()
        if result.reason is EndReason.INTERRUPTED or self._home_missed:
            return
        self._home_missed = True
        logger.warning(
            "the joints did not get home (%s, limit %g s); episodes continue from the present "
            "posture, and the move is repeated every %d episodes (actor.home_every) without "
            "another warning",
            result.text,
            self.config.reset_time_limit_s,
            self.config.home_every,
        )

    def _approach(self) -> None:
        """Let a script complete part of the task if the curriculum requires it."""
        curriculum = self.site.starts.curriculum if self.site.starts else None
        script = curriculum.script() if curriculum is not None else None
        if curriculum is not None and script is not None and self._ready():
            limit_s, has_reached = self.task.config.time_limit_s, curriculum.has_reached
            approach = ScriptedTask("approach", self.task, limit_s, lambda reading: has_reached())
            self._run(approach, script, ActionSource.SCRIPT)

    def _ready(self, placed: bool = False) -> bool:
        """Wait while an operator holds the robot; return False when stopping.

        A robot that was stopped without an operator holding it met a fault, which the site handles
        first. Placing the scene next (`placed`) recovers the robot.
        """
        site = self.site
        held = site.standby()
        if self.robot.stop_reason and not held and not site.is_stopping():
            site.on_robot_stopped(self.robot.stop_reason)
            held = site.standby()
        if site.is_stopping():
            return False
        if held or (self.robot.stop_reason and not placed):
            self.robot.recover()
        return True

    def _hold_still(self, task: Task) -> Result:
        return self._run(task, ZeroPolicy(self.robot.action_spec), ActionSource.SCRIPT)

    def _run(self, task: Task, policy: Policy, source: ActionSource) -> Result:
        scripted = source is ActionSource.SCRIPT
        result = run(
            self.robot,
            task,
            policy,
            self.clock,
            self.key,
            [_ScriptedSteps(self.observers)] if scripted else self.observers,
            teleop=self.site.teleop,
            chosen_by=source,
            policy_version=lambda: self.policy.version,
            interrupted=self.site.is_stopping,
            evaluates=self.evaluates,
        )
        # An episode that never began has no number.
        self.key = replace(self.key, episode=self.key.episode + 1)
        return result


class _ScriptedSteps(Observer):
    """Passes on all steps of a reset as scripted, since their reward is not that of the task."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def on_begin(self, chosen_by: ActionSource) -> None:
        for observer in self._observers:
            observer.on_begin(chosen_by)

    def on_reading(self, reading: Observation) -> None:
        for observer in self._observers:
            observer.on_reading(reading)

    def on_step(self, step: Step) -> None:
        scripted = replace(step, source=ActionSource.SCRIPT)
        for observer in self._observers:
            observer.on_step(scripted)

    def on_end(self, end: End) -> None:
        for observer in self._observers:
            observer.on_end(end)
