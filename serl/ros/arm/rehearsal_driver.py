"""Driver of the rehearsal arm in real time; `serl.ros.arm.rehearsal` has the arm's faults."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, cast

from serl.arm_pair import UNMOVED_BASE, Mount
from serl.arm_profile import ArmProfile
from serl.robot import ServedRobot
from serl.ros.arm.rehearsal import RehearsalArm, RehearsalConfig
from serl.ros.arm.sim_driver import RealTimeDriver
from serl.ros.node import RosNode
from serl.ros.services import serve
from serl.setpoint import PROFILE_PERIOD_S
from serl.types import Image


class RehearsalDriver(RealTimeDriver):
    """Driver in real time of a simulation that is treated as a real arm.

    It publishes only what a real arm, its cameras and an object tracker measure, and pictures
    arrive late. Arguments are those of `RealTimeDriver`, with the settings in place of the frame
    rate, and the pose of the arm's base in the simulation. The service `restore` places the objects
    of the scene at a start, and leaves the arm.
    """

    reveals = False

    def __init__(
        self,
        node: RosNode,
        robot: str,
        arm: ServedRobot,
        profile: ArmProfile,
        tracked: Iterable[str],
        config: RehearsalConfig,
        mount: Mount = UNMOVED_BASE,
    ) -> None:
        faulty = RehearsalArm(arm, config, mount)
        super().__init__(node, robot, cast(ServedRobot, faulty), profile, tracked, config.camera_hz)
        self._faulty, self._starts = faulty, count(config.seed)
        serve(node, "restore", self.restore)
        self._latency_ticks = round(config.image_latency_s / PROFILE_PERIOD_S)
        self._late: deque[tuple[int, int, Mapping[Any, Image]]] = deque()

    def restore(self) -> str:
        """Place the objects of the scene at a new start."""
        with self.lock:
            self._faulty.restore(next(self._starts))
        return "the objects are at a start"

    def tick(self) -> None:
        """Simulate 10 ms, and publish the measurements and the pictures that are due."""
        super().tick()
        self.counts["slips"] = self._faulty.slips
        while self._late and self._late[0][0] <= self._ticks:
            _, stamp_ns, pictures = self._late.popleft()
            self._publisher.pictures(pictures, stamp_ns)

    def publish_pictures(self) -> None:
        """Take the pictures of this instant, which are published after the latency."""
        due = self._ticks + self._latency_ticks
        self._late.append((due, self.stamp_ns, self.arm.pictures()))
