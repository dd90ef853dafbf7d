"""The reset of two arms between two episodes: both tools return to random starts together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from serl.arm_pair import SIDES
from serl.errors import NeedsPerson
from serl.policy import Policy
from serl.reset import SceneCheck, no_check
from serl.task import Task
from serl.training.arm_reset import ArmReset
from serl.training.resets import SceneReset
from serl.types import Action, Observation


class PairReset(SceneReset):
    """Return of both tools to random starts, at the same time, within one episode.

    Args:
        arms: the reset of each arm, by its side, left first; in the frame of both.
        check: condition for the next episode.
    """

    def __init__(
        self,
        task: Task,
        arms: Mapping[str, ArmReset],
        check: SceneCheck = no_check,
    ) -> None:
        super().__init__(task, check)
        self._arms = arms

    def begin(self) -> None:
        """Draw the start of each arm's next episode."""
        for arm in self._arms.values():
            arm.begin()

    def __call__(self, reading: Observation) -> Policy | None:
        """Return a policy for both arms, or None when both are at rest and the scene is ready.

        Raises:
            NeedsPerson: one arm needs a person, or the check fails.
        """
        scripts: dict[str, Policy | None] = {}
        for side, arm in self._arms.items():
            try:
                scripts[side] = arm(side_reading(reading, SIDES[side]))
            except NeedsPerson as request:
                raise NeedsPerson(f"{side}: {request}") from None
        missing = [f"{side}: {arm.missing}" for side, arm in self._arms.items() if arm.missing]
        self.missing = "; ".join(missing)
        if any(scripts.values()):  # the attempt ends nearer to both starts than it may begin
            return _BothScripts(
                {side: script or self._arms[side].settle() for side, script in scripts.items()}
            )
        if trouble := self._check(reading):
            raise NeedsPerson(trouble)
        return None

    def confirm(self) -> None:
        """Note that a person has restored the scene."""
        for arm in self._arms.values():
            arm.confirm()

    def prepare(self) -> None:
        """Switch both arms to the gains of the reset, if they have them."""
        for arm in self._arms.values():
            arm.prepare()

    def end(self, restore_gains: bool = True) -> None:
        """End the attempt of both arms, as `SceneReset.end`."""
        for arm in self._arms.values():
            arm.end(restore_gains)


def side_reading(reading: Observation, prefix: str) -> Observation:
    """Return the reading of one arm of a pair, without its prefix and without images."""
    state = {
        name.removeprefix(prefix): values
        for name, values in reading.state.items()
        if name.startswith(prefix)
    }
    return Observation(state, {}, dict(reading.stamps))


class _BothScripts:
    """Policy of two arms from one for each."""

    def __init__(self, scripts: Mapping[str, Policy]) -> None:
        self._scripts = scripts

    def __call__(self, observation: Observation) -> Action:
        """Return the next action of both arms, given a reading."""
        parts = (
            script(side_reading(observation, SIDES[side])) for side, script in self._scripts.items()
        )
        return np.concatenate([*parts])
