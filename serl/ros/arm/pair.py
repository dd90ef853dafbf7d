"""Two arms over topics, each behind a guard of its own, as one robot in one frame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

import numpy as np

from serl.arm_pair import Mount
from serl.bimanual import LEFT, RIGHT, Pair
from serl.camera import View, image_specs
from serl.errors import SerlError
from serl.geometry import Quaternion
from serl.guard.config import LATCHED
from serl.motion import pose_from
from serl.robot import POSE
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.measurements import numbers_of
from serl.ros.arm.robot import RosArm
from serl.ros.services import Remote
from serl.specs import ObservationSpec
from serl.types import Action, ActionSource, Array, Observation

_VECTORS = ("tcp_twist", "wrench")


class MountedRosArm:
    """A `RosArm` whose readings and actions are in the frame that it shares with another arm.

    Args:
        arm: the arm, in the frame of its own base.
        mount: the place of that base.
    """

    def __init__(self, arm: RosArm, mount: Mount) -> None:
        self.arm, self._mount = arm, mount
        self.observation_spec, self.action_spec = arm.observation_spec, arm.action_spec
        self.modes = arm.modes

    @property
    def stop_reason(self) -> str | None:
        """Reason of the first stop; None while motion is allowed."""
        return self.arm.stop_reason

    @property
    def gains(self) -> str | None:
        """The mode whose gains were set last; None for those of the start."""
        return self.arm.gains

    def switch(self, gains: str | None) -> None:
        """Switch the controller to the gains of a mode, as `RosArm.switch`."""
        self.arm.switch(gains)

    def observe(self) -> Observation:
        """Return the newest reading; raise as `RosArm.observe`."""
        reading = self.arm.observe()
        state = {name: self._common(name, values) for name, values in reading.state.items()}
        return Observation(state, reading.images, reading.stamps)

    def act(self, action: Action) -> Action:
        """Send an action to the guard; return the executed part."""
        motion = self.arm.aim.motion
        own = np.array(self._mount.own_action(motion, action.tolist()), np.float32)
        executed = self.arm.act(own)
        return np.array(self._mount.common_action(motion, executed.tolist()), np.float32)

    def drive_as(self, source: ActionSource) -> None:
        """Notify the guard of a change of controller."""
        self.arm.drive_as(source)

    def stop(self, reason: str) -> None:
        """Make the guard hold the arm, until `recover`."""
        self.arm.stop(reason)

    def recover(self) -> None:
        """Allow motion again, from the arm's present pose."""
        self.arm.recover()

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target to an orientation with the next actions."""
        pose = self._mount.own_pose(pose_from((0.0, 0.0, 0.0, *orientation)))
        self.arm.turn_to(pose.quaternion)

    def begin_from(self, reading: Observation) -> None:
        """Begin an episode at the tool of a reading of this arm."""
        start = self._mount.own_pose(pose_from(reading.state["tcp_pose"]))
        self.arm.begin(start, bool(reading.state["gripper"][0] < 0.5))

    def __enter__(self) -> Self:
        self.arm.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.arm.__exit__(*error)

    def _common(self, name: str, values: Array) -> Array:
        if name.endswith("_pose"):
            return np.array(numbers_of(self._mount.common_pose(pose_from(values))), np.float32)
        if name in _VECTORS:
            a, b, c, d, e, f = values.tolist()
            turn = self._mount.to_common
            return np.array((*turn((a, b, c)), *turn((d, e, f))), np.float32)
        return values


class RosPair(Pair):
    """A `Pair` of two arms over topics; tracked bodies and shared cameras are the left arm's.

    A stop that either guard latches holds the other arm with the next heartbeat, within 20 ms of
    its report; while one guard holds its arm for another reason, the other arm stays at its pose.

    Args:
        left: the arm whose names begin with `left_`.
        right: the arm whose names begin with `right_`.
        bodies: names of the tracked bodies.
        views: views of the task, in the order of the images of a reading.
    """

    def __init__(
        self,
        left: MountedRosArm,
        right: MountedRosArm,
        bodies: Iterable[str],
        views: Mapping[str, View],
    ) -> None:
        super().__init__(left, right)
        self.mounted = (left, right)
        tracked = {f"{name}_pose": POSE for name in bodies}
        state = {
            f"{prefix}{name}": array
            for prefix, arm in ((LEFT, left), (RIGHT, right))
            for name, array in arm.observation_spec.state.items()
            if name not in tracked
        }
        self.observation_spec = ObservationSpec(state=state | tracked, images=image_specs(views))
        self.arms = (left.arm, right.arm)
        left.arm.other, right.arm.other = right.arm, left.arm
        for arm in self.arms:  # a wait for one arm must not silence the other
            arm.remote = Remote(arm.node, self.beat)

    @property
    def remote(self) -> Remote:
        """The client that calls services, and sends heartbeats of both arms meanwhile."""
        return self.arms[0].remote

    @property
    def guards(self) -> tuple[GuardClient, ...]:
        """The guards of both arms."""
        return tuple(arm.guard for arm in self.arms if arm.guard is not None)

    @property
    def silence_s(self) -> Callable[[], float]:
        """Returns the seconds since the last message of the operator's device."""
        return self.arms[0].silence_s

    @silence_s.setter
    def silence_s(self, silence_s: Callable[[], float]) -> None:
        for arm in self.arms:
            arm.silence_s = silence_s

    def observe(self) -> Observation:
        """Return the newest reading of both arms; raise as `Pair.observe`."""
        left, right = self._observe_both()
        spec = self.observation_spec
        state = {f"{LEFT}{name}": values for name, values in left.state.items()}
        state |= {f"{RIGHT}{name}": values for name, values in right.state.items()}
        bodies = {name: left.state[name] for name in spec.state if name in left.state}
        state = {name: (state | bodies)[name] for name in spec.state}
        pictures = {**left.images, **right.images}
        images = {name: pictures[name] for name in spec.images}
        stamps = {**left.stamps, **right.stamps}
        stamps["robot"] = min(left.stamps["robot"], right.stamps["robot"])
        return Observation(state, images, stamps)

    def observe_when_fresh(self, limit_s: float) -> Observation:
        """Block until there is a reading and return it; only for use between episodes.

        Raises:
            SerlError: a measurement is still missing or stale after the limit.
        """

        def is_fresh() -> bool:
            with suppress(SerlError):
                for arm in self.arms:
                    arm.observe()
                return True
            return False

        self.remote.wait(is_fresh, limit_s)
        return self.observe()

    def begin_from(self, reading: Observation) -> None:
        """Begin an episode at the tools of a reading of both arms."""
        for arm, prefix in zip(self.mounted, (LEFT, RIGHT), strict=True):
            own = {name: reading.state[f"{prefix}{name}"] for name in ("tcp_pose", "gripper")}
            arm.begin_from(Observation(own))

    def beat(self) -> None:
        """Send the heartbeats of both arms; hold both when one guard has latched a stop."""
        for arm in self.arms:
            report = arm.guard.report if arm.guard is not None else None
            if report is not None and report.state in LATCHED and self.stop_reason is None:
                self.stop(f"{arm.robot}: the guard stopped the arm: {report.cause}")
        for arm in self.arms:
            arm.beat()
