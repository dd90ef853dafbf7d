"""A simulated person: corrects a policy now and then, imperfectly, late, and within a budget.

It makes training with interventions run in CI and in benchmarks, reproducibly. It corrects, it
does not do the task: it takes over when the policy makes no progress, loses what it had or heads
out of its box, and hands back as soon as it has helped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field

from serl.errors import Silent
from serl.intervention import Event, PersonConfig, PersonContext, Seen, Teleop
from serl.motion import Motion
from serl.robot import SimulatedRobot, Truth
from serl.task import SimulatedTask
from serl.types import Action, Array, Observation


class ScriptedHumanConfig(PersonConfig):
    """When a simulated person takes over, how well it drives, and how much it may.

    Attributes:
        patience_steps: takes over after this many steps without progress.
        regress: takes over when progress falls this far below its best of the episode.
        progress_step: progress smaller than this counts as none.
        border_patience_steps: takes over after this many steps without progress at the border ...
        border_m: ... that is with the tool this near to a side of its box, or soon to be ...
        border_ahead_steps: ... at its present speed in this many steps.
        reaction_steps: steps from the wish to take over to hands on.
        gain: hands back when progress has grown by this much ...
        hold_steps: ... but not before this many steps ...
        max_hold_steps: ... and at the latest after this many.
        noise: standard deviation of its action error.
        share: share of the steps that it may drive at the start of training; falls linearly ...
        final_share: ... to this share at three quarters of the planned steps.
        bucket_steps: unused budget is kept up to this many steps.
    """

    patience_steps: int = Field(15, ge=1)
    regress: float = Field(0.15, gt=0, le=1000)
    progress_step: float = Field(0.02, gt=0, le=1000)
    border_patience_steps: int = Field(5, ge=1)
    border_m: float = Field(0.01, ge=0, le=1)
    border_ahead_steps: int = Field(5, ge=0)
    reaction_steps: int = Field(2, ge=0)
    gain: float = Field(0.2, gt=0, le=1000)
    hold_steps: int = Field(5, ge=1)
    max_hold_steps: int = Field(15, ge=1)
    noise: float = Field(0.2, ge=0, le=10)
    share: float = Field(0.5, ge=0, le=1)
    final_share: float = Field(0.02, ge=0, le=1)
    bucket_steps: int = Field(60, ge=1)


class Budget:
    """A token bucket whose rate falls over training: one token is one step of the human.

    The rate falls with the steps of all actors, so that several humans together stay within it.

    Args:
        config: shares and bucket size.
        planned_steps: online steps after which training ends.
        steps_before: online steps already done, by an actor that was restarted.

    Attributes:
        steps: online steps so far.
        used: those of them that the human drove.
        trained: says how many of all actors were trained on, as far as it is known here.
    """

    def __init__(
        self,
        config: ScriptedHumanConfig,
        planned_steps: int,
        steps_before: int = 0,
        trained: Callable[[], int] = lambda: 0,
    ) -> None:
        self._config = config
        self._planned_steps = max(planned_steps, 1)
        self.steps = steps_before
        self.used = 0
        self._trained = trained
        self._tokens = 0.0 if steps_before else self._bucket()  # a restart refills nothing

    def share(self) -> float:
        """Share of the steps that the human may drive now."""
        done = min(1.0, max(self.steps, self._trained()) / (0.75 * self._planned_steps))
        return self._config.share + done * (self._config.final_share - self._config.share)

    def tick(self, human: bool) -> None:
        """One step passed; `human` says who drove."""
        self.steps += 1
        self.used += human
        refilled = self._tokens + self.share() - human
        self._tokens = min(refilled, self._bucket())

    def _bucket(self) -> float:
        """The bucket shrinks with the share, so that little is left for the end."""
        share = self._config.share
        return self._config.bucket_steps * self.share() / share if share else 0.0

    def allows(self, steps: int) -> bool:
        """There are tokens for an intervention of this length."""
        return self._tokens >= steps


class ScriptedHuman:
    """A `Teleop` that sees the simulation's truth and knows an expert's way.

    Args:
        config: habits.
        task: has the expert that it imitates, and the progress that it watches.
        robot: shows its truth.
        planned_steps: online steps of the whole training.
        seed: of its noise.
        steps_before: online steps already done by this actor.
        trained: as of `Budget`.
        labels: says of a success that it is one, when nothing else does.
    """

    Config = ScriptedHumanConfig

    def __init__(
        self,
        config: ScriptedHumanConfig,
        task: SimulatedTask,
        robot: Seen,
        planned_steps: int,
        seed: int,
        steps_before: int = 0,
        trained: Callable[[], int] = lambda: 0,
        labels: bool = False,
    ) -> None:
        self._labels = labels
        self.config = config
        self.budget = Budget(config, planned_steps, steps_before, trained)
        self._task = task
        self._robot = robot
        self._rng: np.random.Generator = np.random.default_rng(seed)
        self.begin()

    @classmethod
    def create(cls, config: PersonConfig, training: PersonContext) -> ScriptedHuman:
        """See `serl.intervention.Person`."""
        assert isinstance(config, ScriptedHumanConfig)
        return cls(config, **vars(training))

    def begin(self) -> None:
        """An episode starts: hands off."""
        self._expert = self._task.expert(self._robot.truth, int(self._rng.integers(2**31)))
        self._tool_before: Array | None = None
        self._best = -np.inf
        self._idle_steps = 0
        self._reacting: int | None = None
        self._driving_steps = 0
        self._start_progress = 0.0

    def __call__(self) -> Action | None:
        """The correction, or None while hands are off."""
        truth = self._robot.truth()
        progress, leaves = self._task.progress(truth), self._leaves_box(truth)
        action = self._go_on(progress) if self._driving_steps else self._watch(progress, leaves)
        self.budget.tick(action is not None)
        return action

    def events(self) -> tuple[Event, ...]:
        """Success, where it is asked to see it; else none."""
        seen = self._labels and self._task.is_success(self._robot.truth())
        return (Event.SUCCESS,) if seen else ()

    def _leaves_box(self, truth: Truth) -> bool:
        """The tool is at a side of its box, or will be there soon."""
        if "tcp_pose" not in truth:
            return False
        tool = truth["tcp_pose"][:3]
        before = tool if self._tool_before is None else self._tool_before
        self._tool_before = tool
        ahead = tool + self.config.border_ahead_steps * (tool - before)
        return not _is_inside(ahead, self._task.config.motion, self.config.border_m)

    def _watch(self, progress: float, leaves: bool) -> Action | None:
        """Hands off: judge the policy, and take over after the reaction time."""
        if progress > self._best + self.config.progress_step:
            self._best, self._idle_steps, self._reacting = progress, 0, None
            return None
        self._idle_steps += 1
        if self._reacting is None:
            patience = self.config.border_patience_steps if leaves else self.config.patience_steps
            stuck = self._idle_steps >= patience
            worse = progress < self._best - self.config.regress
            if (stuck or worse) and self.budget.allows(self.config.hold_steps):
                self._reacting = self.config.reaction_steps
        elif self._reacting > 0:
            self._reacting -= 1
        if self._reacting != 0:
            return None
        self._start_progress = progress
        return self._drive()

    def _go_on(self, progress: float) -> Action | None:
        """Hands on: hand back once it has helped, or after a while in any case."""
        helped = progress >= self._start_progress + self.config.gain
        enough = self._driving_steps >= self.config.hold_steps and helped
        broke = not self.budget.allows(1)
        if enough or broke or self._driving_steps >= self.config.max_hold_steps:
            self._driving_steps, self._idle_steps, self._reacting = 0, 0, None
            self._best = progress
            return None
        return self._drive()

    def _drive(self) -> Action:
        self._driving_steps += 1
        action = self._expert(self._task.observation(self._robot.observe()))
        noise = self._rng.normal(0.0, self.config.noise, action.shape).astype(np.float32)
        noisy: Action = np.clip(action + noise, -1.0, 1.0)
        return noisy


def _is_inside(position: Array, motion: Motion, margin_m: float) -> bool:
    low, high = motion.box_low_m, motion.box_high_m
    return all(
        low[axis] + margin_m <= value <= high[axis] - margin_m
        for axis, value in enumerate(position.tolist())
    )


person = ScriptedHuman


class Onlooker:
    """Readings and truth of a robot for somebody who may never fail.

    Args:
        robot: is looked at; another one notices when it is silent.
    """

    def __init__(self, robot: SimulatedRobot) -> None:
        self._robot = robot
        self._seen: Observation | None = None
        self._known: Truth | None = None

    def observe(self) -> Observation:
        """The newest reading, or the last one; raises `Silent` before the first."""
        try:
            self._seen = self._robot.observe()
        except Silent:
            if self._seen is None:
                raise
        return self._seen

    def truth(self) -> Truth:
        """The newest truth, or the last one; raises `Silent` before the first."""
        try:
            self._known = self._robot.truth()
        except Silent:
            if self._known is None:
                raise
        return self._known


class Resting:
    """A `Teleop` whose hands are off in resets, and who does not notice them.

    Args:
        person: in all other episodes.
        resets: the scene is being reset now.
    """

    def __init__(self, person: Teleop, resets: Callable[[], bool]) -> None:
        self._person, self._resets = person, resets

    def begin(self) -> None:
        """An episode starts; one that is none of the task's is not told."""
        if not self._resets():
            self._person.begin()

    def __call__(self) -> Action | None:
        """The person's action, or None."""
        return None if self._resets() else self._person()

    def events(self) -> tuple[Event, ...]:
        """What the person said since the last call."""
        return () if self._resets() else self._person.events()
