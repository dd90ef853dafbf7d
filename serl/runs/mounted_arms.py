"""The two arms of a pair for a task: their profiles, their places, and the room of each tool."""

from __future__ import annotations

from typing import NamedTuple

from serl.arm_pair import SIDES, ArmPair, Mount, check_turnable, mount_of, separate_boxes
from serl.arm_profile import ArmProfile, load_robot
from serl.bimanual import PairConfig
from serl.errors import BadInput
from serl.motion import Box, Motion
from serl.runs.real_arm import within_workspace
from serl.runs.task_setup import check_topics
from serl.task import SimulatedTask


class MountedArm(NamedTuple):
    """An arm of a pair.

    Attributes:
        side: "left" or "right".
        robot: name or file of its profile.
        namespace: namespace of its driver, from the root.
        profile: its profile, in the frame of its own base.
        mount: the place of its base.
        motion: its motion in the common frame, within its workspace and on its side of the plane
            that keeps both tools apart.
    """

    side: str
    robot: str
    namespace: str
    profile: ArmProfile
    mount: Mount
    motion: Motion

    @property
    def prefix(self) -> str:
        """The prefix of the arm's names in readings and actions."""
        return SIDES[self.side]

    @property
    def own_motion(self) -> Motion:
        """The arm's motion in the frame of its own base."""
        return self.mount.own_motion(self.motion)

    @property
    def keep_out(self) -> tuple[Box, ...]:
        """The boxes that its tool must not enter, in the frame of its own base."""
        place = self.profile.workspace
        return place.keep_out if place is not None else ()


def mounted_arms(task: SimulatedTask, pair: ArmPair) -> tuple[MountedArm, MountedArm]:
    """Return the left and the right arm of a pair.

    Each tool stays within the box of the task, within the workspace that its arm was taught, and
    on its side of a fixed plane. The guards keep tools out of each other's half, not arms: nothing
    else keeps elbows or held objects apart.

    Raises:
        BadInput: an arm is unknown, has no workspace or cannot do the task, or no plane separates
            both tools; one line that names the arm.
    """
    check_topics(task, pair=True)
    config = task.config
    if not isinstance(config, PairConfig):
        raise BadInput(f"{task.name}: expected a task whose settings are a PairConfig")
    left, right = (
        _mount(task, side, motion, pair)
        for side, motion in zip(SIDES, (config.motion, config.right_motion), strict=True)
    )
    motions = separate_boxes(left.motion, right.motion, pair.clearance_m)
    return left._replace(motion=motions[0]), right._replace(motion=motions[1])


def _mount(task: SimulatedTask, side: str, motion: Motion, pair: ArmPair) -> MountedArm:
    arm = getattr(pair, side)
    mount = mount_of(side, arm, task.scene.bases[SIDES[side]])
    try:
        profile = load_robot(arm.profile)
    except BadInput as error:
        raise BadInput(f"{side}: {error}") from None
    if profile.workspace is None:
        raise BadInput(
            f"{side}: {arm.profile}: has no workspace: teach it with `serl setup {profile.name}`"
        )
    check_turnable(side, motion, mount)
    try:
        within = within_workspace(mount.own_motion(motion), profile)
    except BadInput as error:
        raise BadInput(f"{side}: {error}") from None
    return MountedArm(side, arm.profile, arm.namespace, profile, mount, mount.common_motion(within))
