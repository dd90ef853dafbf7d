"""How long a training will take, in simulation and on an arm, from rates that were measured."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from serl.runs.config import TrainConfig


class Rates(BaseModel):
    """What one machine does, each measured alone.

    Attributes:
        env_steps_per_s: of one actor with its simulation, the policy's action included.
        updates_per_s: of the learner, each for one environment step.
        act_s: for one action of the policy.
        expert_steps: mean length of the expert's episodes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    env_steps_per_s: float = Field(gt=0)
    updates_per_s: float = Field(gt=0)
    act_s: float = Field(gt=0)
    expert_steps: float = Field(gt=0)


class Conditions(BaseModel):
    """What the plan is for.

    Attributes:
        rate_hz: control rate.
        max_steps: of an episode.
        processors: that actors and learner share in simulation.
        gpu: the learner needs none of them for its updates.
        reset_s: between two episodes on an arm.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rate_hz: float = Field(gt=0)
    max_steps: int = Field(ge=1)
    processors: int = Field(ge=1)
    gpu: bool = False
    reset_s: float = Field(5.0, ge=0)


class Part(NamedTuple):
    """A part of a training and how long it takes.

    Attributes:
        name: shown to people.
        amount: how much of what.
        simulation_s: in simulation.
        arm_s: on an arm.
    """

    name: str
    amount: str
    simulation_s: float
    arm_s: float


class Plan(NamedTuple):
    """The parts in their order, and what each side waits for.

    Attributes:
        parts: of the training.
        simulation_bottleneck: what makes it no faster in simulation, in words.
        arm_bottleneck: the same on an arm.
    """

    parts: tuple[Part, ...]
    simulation_bottleneck: str
    arm_bottleneck: str

    @property
    def simulation_s(self) -> float:
        """All parts in simulation."""
        return sum(part.simulation_s for part in self.parts)

    @property
    def arm_s(self) -> float:
        """All parts on an arm."""
        return sum(part.arm_s for part in self.parts)


def make_plan(config: TrainConfig, rates: Rates, conditions: Conditions) -> Plan:
    """The plan of a run; every trial and every online step counts as long as it can be.

    An arm's learner works beside it on a machine like this one; the choice of the checkpoint and
    the final trials are made in simulation on both sides.
    """
    steps, demos = config.steps, 0 if config.demo_paths else config.demos
    demo_steps = demos * rates.expert_steps
    warm_up_s = config.learner.warm_up / rates.updates_per_s
    together, simulated = _simulated_rate(config.actors, rates, conditions)
    act_hz = 1.0 / rates.act_s
    control_hz = min(conditions.rate_hz, act_hz) * config.actors
    on_arm = min(control_hz, rates.updates_per_s)
    episodes = steps / conditions.max_steps  # at least
    trials = config.trials + config.selection_trials * config.selection_checkpoints
    trial_s = trials * conditions.max_steps / rates.env_steps_per_s
    reset_s = conditions.reset_s
    arm = "the control rate of the arm"
    if rates.updates_per_s < control_hz:
        arm = "the learner's updates"
    elif act_hz < conditions.rate_hz:
        arm = "the policy, which is slower than the control rate"
    parts = (
        Part(
            "demonstrations",
            f"{demos} episodes",
            demo_steps / rates.env_steps_per_s,
            demo_steps / conditions.rate_hz + demos * reset_s,
        ),
        Part("warm-up", f"{config.learner.warm_up:,} updates", warm_up_s, warm_up_s),
        Part("training", f"{steps:,} steps", steps / together, steps / on_arm),
        Part("resets", f"{episodes:,.0f} or more", 0.0, episodes * reset_s / config.actors),
        Part("choice and trials", f"{trials} episodes", trial_s, trial_s),
    )
    return Plan(parts, simulated, arm)


def _simulated_rate(actors: int, rates: Rates, conditions: Conditions) -> tuple[float, str]:
    """Online steps a second of actors and learner together, and what they wait for.

    Each process has at most one processor, and all together no more than there are.
    """
    acting, learning = actors * rates.env_steps_per_s, rates.updates_per_s
    work_s = 1.0 / rates.env_steps_per_s + (0.0 if conditions.gpu else 1.0 / learning)
    sharing = conditions.processors / work_s
    limits = {
        "the simulation": acting,
        "the learner's updates": learning,
        f"the processors, {conditions.processors} for {actors + 1} processes": sharing,
    }
    slowest = min(limits, key=lambda name: limits[name])
    return limits[slowest], slowest
