"""A simulated operator: corrects a policy occasionally, imperfectly, late and within a budget.

It makes training with interventions reproducible in CI and in benchmarks. It corrects a policy and
does not perform the task: it takes over when the policy makes no progress, loses progress or heads
out of its box, and hands back as soon as it has helped.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from pydantic import Field

from serl.errors import Silent
from serl.intervention import Event, PersonConfig, PersonContext, SimulationView
from serl.motion import Motion
from serl.policy import Policy
from serl.robot import SimulatedRobot, Truth
from serl.task import SimulatedTask
from serl.types import Action, Array, Observation


class ScriptedHumanConfig(PersonConfig):
    """Takeover rules, skill and budget of a simulated operator.

    Attributes:
        patience_steps: takes over after this many steps without progress.
        regress: takes over when progress falls this far below its best of the episode.
        progress_step: progress smaller than this counts as none.
        border_patience_steps: takes over after this many steps without progress at the border.
        border_m: distance of the tool to a side of its box below which it is at the border.
        border_ahead_steps: prediction horizon: a tool that reaches the border within these steps
            at its present speed counts as there already.
        reaction_steps: steps from the decision to take over to the takeover.
        gain: hands back when progress has grown by this much.
        hold_steps: shortest intervention, in steps.
        max_hold_steps: longest intervention, in steps.
        noise: standard deviation of its action error.
        share: share of the steps that it may drive at the start of training; falls linearly.
        final_share: share reached at three quarters of the planned steps.
        bucket_steps: largest unused budget, in steps.
        max_takeovers: takeovers after which an actor gets no more help; None for any number.
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
    max_takeovers: int | None = Field(None, ge=0)


class Budget:
    """A token bucket whose rate falls over training: one token is one step of the operator.

    The rate falls with the steps of all actors, so that several operators together stay within it.

    Args:
        config: shares and bucket size.
        planned_steps: online steps after which training ends.
        steps_before: online steps already done, by an actor that was restarted.
        trained: returns the online steps of all actors trained on, as far as known here.

    Attributes:
        steps: online steps so far.
        used: steps among them that the operator drove.
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
        self._tokens = 0.0 if steps_before else self._bucket()  # a restart does not refill it

    def share(self) -> float:
        """Return the share of the steps that the simulated operator may drive now."""
        done = min(1.0, max(self.steps, self._trained()) / (0.75 * self._planned_steps))
        return self._config.share + done * (self._config.final_share - self._config.share)

    def tick(self, human: bool) -> None:
        """Count one step; `human` is True if the simulated operator drove it."""
        self.steps += 1
        self.used += human
        refilled = self._tokens + self.share() - human
        self._tokens = min(refilled, self._bucket())

    def _bucket(self) -> float:
        """Return the bucket's size, which shrinks with the share to leave little for the end."""
        share = self._config.share
        return self._config.bucket_steps * self.share() / share if share else 0.0

    def allows(self, steps: int) -> bool:
        """Return whether the tokens suffice for an intervention of this length."""
        return self._tokens >= steps


class ScriptedHuman:
    """A `Teleop` that corrects a policy by a scripted expert and the simulation's true state.

    Args:
        config: takeover rules, skill and budget.
        task: provides the expert and the measure of progress.
        robot: provides readings and the true state.
        planned_steps: online steps of the whole training.
        seed: seed of the action noise.
        steps_before: online steps already done by this actor.
        takeovers_before: takeovers in these steps.
        trained: see `Budget`.
        labels: label successes, for use when no other source does.
    """

    Config = ScriptedHumanConfig

    def __init__(
        self,
        config: ScriptedHumanConfig,
        task: SimulatedTask,
        robot: SimulationView,
        planned_steps: int,
        seed: int,
        steps_before: int = 0,
        takeovers_before: int = 0,
        trained: Callable[[], int] = lambda: 0,
        labels: bool = False,
    ) -> None:
        self._labels = labels
        self.config = config
        self.budget = Budget(config, planned_steps, steps_before, trained)
        self._task = task
        self._robot = robot
        self._rng: np.random.Generator = np.random.default_rng(seed)
        self._takeovers = takeovers_before
        self.begin()

    @classmethod
    def create(cls, config: PersonConfig, training: PersonContext) -> ScriptedHuman:
        """Create a simulated operator; see `serl.intervention.Person`."""
        assert isinstance(config, ScriptedHumanConfig)
        return cls(config, **vars(training))

    def begin(self) -> None:
        """Start an episode, not in control."""
        self._expert = self._make_expert(int(self._rng.integers(2**31)))
        self._tool_before: Array | None = None
        self._best = -np.inf
        self._idle_steps = 0
        self._reacting: int | None = None
        self._driving_steps = 0
        self._start_progress = 0.0

    def __call__(self) -> Action | None:
        """Return the correction, or None while not in control."""
        truth = self._look()
        progress, leaves = self._task.progress(truth), self._leaves_box(truth)
        action = self._go_on(progress) if self._driving_steps else self._watch(progress, leaves)
        self.budget.tick(action is not None)
        return action

    def events(self) -> tuple[Event, ...]:
        """Return a success event if it labels and the task is solved, otherwise none."""
        seen = self._labels and self._task.is_success(self._robot.truth())
        return (Event.SUCCESS,) if seen else ()

    def _make_expert(self, seed: int) -> Policy:
        """Return this operator's own expert for an episode."""
        return self._task.expert(self._robot.truth, seed)

    def _look(self) -> Truth:
        """Return the state of the scene as this operator sees it; called once a step."""
        return self._robot.truth()

    def _leaves_box(self, truth: Truth) -> bool:
        """Return whether the tool is at a side of its box, or will be there soon."""
        if "tcp_pose" not in truth:
            return False
        tool = truth["tcp_pose"][:3]
        before = tool if self._tool_before is None else self._tool_before
        self._tool_before = tool
        ahead = tool + self.config.border_ahead_steps * (tool - before)
        return not _is_inside(ahead, self._task.config.motion, self.config.border_m)

    def _watch(self, progress: float, leaves: bool) -> Action | None:
        """Watch the policy, and take over after the reaction time."""
        if progress > self._best + self.config.progress_step:
            self._best, self._idle_steps, self._reacting = progress, 0, None
            return None
        self._idle_steps += 1
        if self._reacting is None:
            patience = self.config.border_patience_steps if leaves else self.config.patience_steps
            stuck = self._idle_steps >= patience
            worse = progress < self._best - self.config.regress
            most = self.config.max_takeovers
            spent = most is not None and self._takeovers >= most
            if (stuck or worse) and not spent and self.budget.allows(self.config.hold_steps):
                self._reacting = self.config.reaction_steps
        elif self._reacting > 0:
            self._reacting -= 1
        if self._reacting != 0:
            return None
        self._start_progress = progress
        self._takeovers += 1
        return self._drive()

    def _go_on(self, progress: float) -> Action | None:
        """Continue an intervention; hand back once it has helped, or at the latest by the limit."""
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


class CachedView:
    """A `SimulationView` that repeats its last values while the robot is silent.

    Args:
        robot: the observed robot; its silence is handled elsewhere.
    """

    def __init__(self, robot: SimulatedRobot) -> None:
        self._robot = robot
        self._reading: Observation | None = None
        self._truth: Truth | None = None

    def observe(self) -> Observation:
        """Return the newest reading, else the last one; raises `Silent` before the first."""
        try:
            self._reading = self._robot.observe()
        except Silent:
            if self._reading is None:
                raise
        return self._reading

    def truth(self) -> Truth:
        """Return the newest true state, else the last one; raises `Silent` before the first."""
        try:
            self._truth = self._robot.truth()
        except Silent:
            if self._truth is None:
                raise
        return self._truth
