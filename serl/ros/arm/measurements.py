"""Measurements of an arm and its cameras at one instant, as the numbers of `serl.robot`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from serl.arm_profile import ArmProfile
from serl.errors import Silent
from serl.motion import Pose
from serl.ros.arm.camera import cell_camera
from serl.ros.arm.topics import EXACT, NEWEST, SENSOR, topic_of, tracked_pose
from serl.ros.conversions import (
    gripper_of,
    joints_of,
    pose_of,
    rotate_to_base,
    twist_between,
    twist_of,
    wrench_of,
)
from serl.ros.feed import Feed, Sample
from serl.ros.node import RosNode
from serl.task import TaskConfig
from serl.types import Image

_STATE_AGE_S = 0.1
IMAGE_AGE_S = 0.2
"""Age from which an image is refused."""
_ZERO_S = 0.2
_KEEP = 512
"""Samples kept of each feed: the age limit of an image plus 100 ms to average, at 1 kHz."""


class Measurements:
    """The feeds of an arm, of the bodies tracked beside it, and of its cameras.

    A camera's picture arrives tens of milliseconds after the arm's numbers of the same instant. So
    the numbers of a reading are those nearest in time to its newest picture, by their stamps: a
    policy gets picture and state of one instant, both as old as the fastest camera's picture. A
    picture of a slower camera is older than the state; the difference is checked, as it is between
    cameras (`serl.guard.camera_monitor`). Without cameras, the numbers are the newest ones. The
    same holds in lock-step: there a reading is the simulation's, including pictures delayed on
    purpose.

    Args:
        robot: the arm's namespace within the run.
        profile: profile of the arm's family.
        config: settings of the task.
        tracked: bodies whose pose an object tracker publishes.
        lockstep: samples never become stale, and no message is lost.
        still: whether equal pictures in a row are accepted, as from a simulation.

    Attributes:
        pose: feed of the TCP pose; commands are computed from its newest sample.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        config: TaskConfig,
        tracked: Sequence[str] = (),
        lockstep: bool = False,
        still: bool = False,
    ) -> None:
        frame, gripper = profile.base_frame, profile.gripper
        qos = EXACT if lockstep else SENSOR
        age_s = None if lockstep else _STATE_AGE_S
        self._profile, self._lockstep = profile, lockstep
        self._period_s = 1.0 / config.rate_hz
        self._zeroes, self._bias = config.zero_wrench and not lockstep, [0.0] * 6

        def feed(channel: Any, decode: Any) -> Feed[Any]:
            return Feed(node, topic_of(channel, robot, qos), decode, age_s, _KEEP)

        def pose(message: Any) -> Pose:
            return pose_of(message, frame)

        def joints(message: Any) -> tuple[list[float], list[float]] | None:
            return joints_of(message, profile.joints)

        def twist(message: Any) -> list[float]:
            return twist_of(message, profile.twist_headers)

        def wrench(message: Any) -> list[float]:
            values = wrench_of(message, profile.wrench_headers)
            return [-value for value in values] if profile.wrench_reversed else values

        self.pose: Feed[Pose] = feed(profile.pose, pose)
        self._twist = feed(profile.twist, twist) if profile.twist else None
        self._wrench = feed(profile.wrench, wrench) if profile.wrench else None
        self._joints: Feed[tuple[list[float], list[float]]] = feed(profile.joint_states, joints)
        self._gripper = (
            feed(gripper.state, lambda message: gripper_of(message, gripper.joint))
            if gripper
            else None
        )
        self._tracked: dict[str, Feed[Pose]] = {
            name: Feed(node, tracked_pose(robot, name, qos), pose, age_s, _KEEP) for name in tracked
        }
        views = config.all_views
        image_age_s = None if lockstep else IMAGE_AGE_S
        self._views = list(views)
        self._cameras = [
            cell_camera(
                node,
                robot,
                camera,
                {name: view for name, view in views.items() if view.camera == camera},
                image_age_s,
                profile.cameras.get(camera),
                EXACT if lockstep else NEWEST,
                still,
            )
            for camera in dict.fromkeys(view.camera for view in views.values())
        ]

    @property
    def feeds(self) -> Iterable[Feed[Any]]:
        """All feeds that a reading needs."""
        maybe = (self._twist, self._wrench, self._gripper)
        found = (feed for feed in maybe if feed is not None)
        cameras = (camera.feed for camera in self._cameras)
        return (self.pose, self._joints, *found, *self._tracked.values(), *cameras)

    def begin(self) -> None:
        """Begin an episode: the bias of the wrench is its mean over the last 0.2 s, if configured.

        The bias is subtracted in the frame of the sensor. Without a fresh wrench it stays.
        """
        if self._wrench is not None and self._zeroes:
            with suppress(Silent):
                self._bias = _mean(self._wrench.recent(_ZERO_S))

    def opening(self) -> float:
        """Return the gripper's opening, 0 to 1; 1 without a gripper. Raises `Silent`."""
        return self._opening(None)

    def joints(self) -> list[float]:
        """Return the newest angles of the joints. Raises `Silent`."""
        return self._joints.newest().value[0]

    @property
    def pictured_s(self) -> float | None:
        """Time of the newest picture; None without cameras. Raises `Silent`."""
        return max((camera.feed.newest().taken_s for camera in self._cameras), default=None)

    def read(
        self, other_s: float | None = None
    ) -> tuple[dict[str, list[float]], dict[str, Image], dict[str, float]]:
        """Return numbers by name, images by view, and the times at which they were measured.

        Times are those of this process's monotonic clock, "robot" is that of the pose. The wrench
        is the mean over the preceding control period, like that of the simulated arm.

        Args:
            other_s: time of the newest picture of another arm's cameras in the same reading.

        Raises:
            SerlError: a measurement is missing, stale or damaged; the message is one line.
        """
        images, stamps = self._images()
        times_s = [*stamps.values(), *([] if other_s is None else [other_s])]
        then_s = max(times_s) if times_s and not self._lockstep else None
        pose, (q, dq) = self.pose.at(then_s), self._joints.at(then_s).value
        numbers = {
            "tcp_pose": numbers_of(pose.value),
            "tcp_twist": self._measured_twist(then_s),
            "wrench": self._mean_wrench(pose.value, then_s),
            "gripper": [self._opening(then_s)],
            "q": q,
            "dq": dq,
        }
        tracked = self._tracked.items()
        numbers |= {f"{name}_pose": numbers_of(feed.at(then_s).value) for name, feed in tracked}
        return numbers, images, {"robot": pose.taken_s, **stamps}

    def _opening(self, then_s: float | None) -> float:
        gripper = self._profile.gripper
        if gripper is None or self._gripper is None:
            return 1.0
        return gripper.opening(self._gripper.at(then_s).value)

    def _measured_twist(self, then_s: float | None) -> list[float]:
        if self._twist is not None:
            twist: list[float] = self._twist.at(then_s).value
            return twist
        recent = self.pose.recent(0.5 * self._period_s, then_s)
        if len(recent) == 1:  # poses arrive less often
            recent = self.pose.recent(_STATE_AGE_S, then_s)[-2:]
        first, last = recent[0], recent[-1]
        dt_s = 1e-9 * (last.stamp_ns - first.stamp_ns)
        return twist_between(first.value, last.value, dt_s) if dt_s > 0.0 else [0.0] * 6

    def _mean_wrench(self, pose: Pose, then_s: float | None) -> list[float]:
        if self._wrench is None:
            return [0.0] * 6
        mean = _mean(self._wrench.recent(self._period_s, then_s))
        mean = [value - bias for value, bias in zip(mean, self._bias, strict=True)]
        return rotate_to_base(mean, pose) if self._profile.wrench_frame == "tool" else mean

    def _images(self) -> tuple[dict[str, Image], dict[str, float]]:
        found: dict[str, Image] = {}
        stamps: dict[str, float] = {}
        for camera in self._cameras:
            images, taken_s = camera.images()
            found |= images
            stamps |= dict.fromkeys(images, taken_s)
        return {name: found[name] for name in self._views}, stamps


def _mean(samples: Sequence[Sample[list[float]]]) -> list[float]:
    """Return the mean of the samples, number by number."""
    columns = zip(*(sample.value for sample in samples), strict=True)
    return [sum(column) / len(samples) for column in columns]


def numbers_of(pose: Pose) -> list[float]:
    """Return position and orientation (quaternion xyzw) in one row."""
    return [*pose.position, *pose.quaternion]
