"""Potential-based shaping: dense rewards that leave the best policy as it is.

A step from s to s' earns discount * potential(s') - potential(s) beside its sparse reward (Ng,
Harada and Russell 1999). Sums of it telescope: whatever a policy does from s, it earns potential(s)
less than without shaping, so that a loop never pays, however wrong the potential is. The potential
of a terminated episode is 0; see `serl.types.Outcome.shaped`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from serl.errors import SerlError, SpecMismatch
from serl.reward import NoReward, RewardedTask
from serl.task import SimulatedTask
from serl.topic_reward import TopicNumber
from serl.types import SHAPED, UNJUDGED, Episode, Observation, Outcome, Shaping, Step


class Progress(Protocol):
    """Progress of the scene towards success, from 0 to 1."""

    @property
    def provenance(self) -> str:
        """The source of the progress, which every step records."""
        ...

    def __call__(self, seen: Observation) -> float:
        """Return the progress at a policy's observation."""
        ...


class TopicProgress(TopicNumber):
    """The newest number of a topic, clipped to the range from 0 to 1."""

    @property
    def provenance(self) -> str:
        """The name of the topic."""
        return f"topic {self.config.topic}"

    def __call__(self, seen: Observation) -> float:
        """Return the newest number; raise as `number`."""
        return min(1.0, max(0.0, self.number().value))


class Shaper(NamedTuple):
    """The shaping of a run.

    Attributes:
        progress: progress of the scene.
        weight: potential of a progress of 1.
        discount: discount of the learner's returns.
    """

    progress: Progress
    weight: float
    discount: float

    @property
    def provenance(self) -> str:
        """All on which the shaping of a reward depends."""
        return f"{self.progress.provenance}, weight {self.weight:g}, discount {self.discount:g}"

    def potential(self, seen: Observation) -> float:
        """Return the potential of an observation."""
        return self.weight * float(self.progress(seen))

    def shaping(self, before: float, after: float | None) -> Shaping:
        """Return the shaping of a step between two potentials; None for an unknown one."""
        later = None if after is None else self.discount * after
        return Shaping(before, later, self.provenance)

    def shaped(self, episode: Episode) -> Episode:
        """Return an episode of sparse rewards with shaped ones.

        The last step of an episode that a crash cut is unusable: no observation follows it.
        """
        records = (*episode.steps, episode.end or episode.steps[-1])
        potentials = [self.potential(record.observation) for record in records]
        steps = (
            _shaped(step, self.shaping(*pair))
            for step, pair in zip(episode.steps, pairwise(potentials), strict=True)
        )
        return replace(episode, steps=tuple(steps))


class ShapedTask(RewardedTask):
    """A task whose rewards are shaped; success, failure and time limit are unchanged.

    Args:
        unshaped: the task with the sparse reward.
        shaper: the shaping.

    Attributes:
        shaper: the shaping.
    """

    def __init__(self, unshaped: SimulatedTask, shaper: Shaper) -> None:
        sparse = unshaped.reward if isinstance(unshaped, RewardedTask) else NoReward("truth")
        super().__init__(unshaped, sparse)
        self.shaper = shaper
        self._seen: tuple[Observation, Observation] | None = None  # a reading and its observation
        self._potential: float | None = None

    def begin(self, reading: Observation) -> None:
        """Begin an episode at this reading."""
        self.solved, self._seen, self._potential = False, None, None
        self._task.begin(reading)

    def observation(self, reading: Observation) -> Observation:
        """Return the observation of the wrapped task; the first one has the first potential.

        Raises:
            Silent: the progress is too old for an episode to begin.
        """
        seen = self._task.observation(reading)
        self._seen = reading, seen
        if self._potential is None:
            self._potential = self.shaper.potential(seen)
        return seen

    def outcome(self, reading: Observation, index: int) -> Outcome:
        """Return the outcome with its shaping; raise `SerlError` without a progress.

        A terminated episode needs no progress, unless the operator truncates it in the same step.
        """
        assert self._potential is not None
        outcome = self._task.outcome(reading, index)
        self.solved = self._task.solved if isinstance(self._task, RewardedTask) else outcome.success
        before, after = self._potential, None
        known = self._seen is not None and self._seen[0] is reading
        seen = self._seen[1] if known and self._seen else self.observation(reading)
        try:
            after = self._potential = self.shaper.potential(seen)
        except SerlError:
            if not outcome.terminated:
                raise
        return replace(outcome, shaping=self.shaper.shaping(before, after))


def is_shaped(episode: Episode, provenance: str) -> bool:
    """Return whether the rewards of an episode are shaped in this way; False if they are sparse.

    Args:
        episode: the episode.
        provenance: provenance of the shaping; empty for none.

    Raises:
        SpecMismatch: its rewards are shaped in another way.
    """
    steps = [step for step in episode.steps if step.reward_provenance != UNJUDGED]
    ways = {step.reward_provenance.partition(SHAPED)[2] for step in steps}
    if ways <= {""}:
        return False
    if ways == {provenance}:
        return True
    other = ", and ".join(f"by the progress of {way}" if way else "not at all" for way in ways)
    here = f"by that of {provenance}" if provenance else "not at all (reward.kind)"
    raise SpecMismatch(f"its rewards are shaped {other}, here {here}")


def _shaped(step: Step, shaping: Shaping) -> Step:
    sparse = Outcome(
        step.reward, step.terminated, provenance=step.reward_provenance, shaping=shaping
    )
    dense = sparse.shaped()
    return replace(step, reward=dense.reward, reward_provenance=dense.provenance)
