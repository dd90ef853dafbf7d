"""The real arms of a run: their profiles, the namespaces of their drivers, and their latches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serl.arm_pair import SIDES, read_pair
from serl.arm_profile import is_real, latch_path, load_robot
from serl.guard.latch import GuardedArm
from serl.runs.folder import RunFolder
from serl.runs.guard_setup import GUARD_FOLDER, simulated_latch


class RealArm(NamedTuple):
    """A real arm: its profile, by name or file, and the absolute namespace of its driver."""

    profile: str
    namespace: str

    @property
    def guarded(self) -> GuardedArm:
        """Namespace and latch of the arm's guard; raises `BadInput` for an unknown profile."""
        latch = latch_path(self.profile, load_robot(self.profile), self.namespace)
        return GuardedArm(self.namespace, latch)

    @property
    def is_pair(self) -> bool:
        """Whether it stands for two arms, whose profiles and namespaces its file names."""
        return read_pair(self.profile) is not None

    def named(self, name: str) -> dict[str, RealArm]:
        """Return the arm by the name of its actor; those of a pair as `name/left` and `name/right`.

        Raises:
            BadInput: the file of the pair is wrong.
        """
        if (pair := read_pair(self.profile)) is None:
            return {name: self}
        sides = {side: getattr(pair, side) for side in SIDES}
        return {f"{name}/{side}": RealArm(a.profile, a.namespace) for side, a in sides.items()}


def arm_of(run: RunFolder) -> RealArm | None:
    """Return the real arm that a run drives; None without one."""
    robot = run.config.robot
    return RealArm(robot, run.config.namespace) if robot is not None and is_real(robot) else None


def arms_behind_guards(
    run: RunFolder, actors: Sequence[str], arm: RealArm | None = None
) -> dict[str, GuardedArm]:
    """Return the guarded arms by the name of the actor that drives each; see `RealArm.named`.

    They are the given real arm or the run's, driven by the first actor, or a simulated arm for each
    actor.
    """
    if (arm := arm or arm_of(run)) is not None:
        return {name: each.guarded for name, each in arm.named(actors[0]).items()}
    return {name: simulated_arm(run, name) for name in actors} if run.config.robot else {}


def simulated_arm(run: RunFolder, name: str) -> GuardedArm:
    """Return the simulated arm of an actor."""
    return GuardedArm(name, simulated_latch(run.path / GUARD_FOLDER, name))
