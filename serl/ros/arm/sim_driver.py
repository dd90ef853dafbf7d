"""Drivers of the simulated arm behind the topics of a robot, in real time or in lock-step.

A lock gives the simulation to one thread at a time: the callbacks' or the one that advances time.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from serl.arm_profile import ArmProfile
from serl.compliance import NO_WRENCH, Wrench
from serl.errors import BadInput, SerlError, Silent
from serl.motion import Pose
from serl.robot import ServedRobot
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE, HEARTBEAT
from serl.ros.arm.publisher import ArmPublisher, PublishedCamera, cameras_of
from serl.ros.arm.topics import EXACT, SENSOR, of_robot, topic_of
from serl.ros.conversions import gripper_of, number_of, pose_of, trajectory_of, wrench_of
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.services import serve
from serl.ros.telemetry import ScenePublisher
from serl.setpoint import PROFILE_PERIOD_S
from serl.trajectory import TrajectoryFollower

_SET_BACK_NS = 50_000_000
"""Largest step back of the wall clock that counts as trimmed; beyond, the clock was set back."""


class Stamps:
    """Source of distinct stamps in nanoseconds, from the wall clock or `speed` times as fast.

    At the speed of real time the stamps agree with other hosts, and follow a wall clock that is
    set, also backwards: receivers refuse stamps from the future. At any other speed they advance
    steadily, and agree only with nodes that use `/clock`.

    Args:
        speed: simulated seconds in a second of the wall clock.
        wall_ns: reads the wall clock.
        steady_ns: reads a monotonic clock.
    """

    def __init__(
        self,
        speed: float = 1.0,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._speed, self._wall_ns, self._steady_ns = speed, wall_ns, steady_ns
        self._began_ns, self._began_steady_ns = wall_ns(), steady_ns()
        self._last_ns = 0

    def next_ns(self) -> int:
        """Return the stamp of this instant, different from the last one."""
        now_ns = self._now_ns()
        if 0 <= self._last_ns - now_ns <= _SET_BACK_NS:
            now_ns = self._last_ns + 1
        self._last_ns = now_ns
        return now_ns

    def _now_ns(self) -> int:
        if self._speed == 1.0:
            return self._wall_ns()
        return self._began_ns + int(self._speed * (self._steady_ns() - self._began_steady_ns))


logger = logging.getLogger(__name__)

_TICK_NS = round(PROFILE_PERIOD_S * 1e9)
_TIMEOUT_S, _WRENCH_S = 0.1, 0.3
"""Ages at which a setpoint and a target wrench, which is repeated ten times a second, are stale."""
_JUMP_M = 0.05
_MOST_BEHIND_TICKS = 5

INACTIVE = "the arm's node is not active"

SEED, PERIOD = "seed", "period_s"
"""Names of the node's parameters: seed of the next `reset`, duration of each `advance`."""


class SimulationDriver:
    """Base of both modes: publishes the measurements, and resets arm and scene.

    Args:
        node: the process's node, with the parameters.
        robot: the arm's namespace.
        profile: topic names and message types of the arm.
        tracked: bodies whose pose is published.
        qos: quality of service of all published topics.

    Attributes:
        active: whether the arm follows commands; otherwise it holds, or in lock-step time stands
            still.
        counts: numbers for diagnostics.
        on_publish: called with the stamp in nanoseconds after each reading that was published.
        reveals: whether the simulation's truth is published and its reset is served.
    """

    reveals: ClassVar[bool] = True

    def __init__(
        self,
        node: RosNode,
        robot: str,
        arm: ServedRobot,
        profile: ArmProfile,
        tracked: Iterable[str],
        qos: Any,
    ) -> None:
        self.node, self.arm, self.profile = node, arm, profile
        self.lock = threading.RLock()
        self.stamp_ns, self.active = 0, True
        self.counts: dict[str, float] = {}
        self.on_publish: Callable[[int], None] = lambda stamp_ns: None
        fovy_rad, names = getattr(arm, "fovy_rad", {}), cameras_of(arm.pictures())
        cameras = {name: PublishedCamera(name, fovy_rad.get(name)) for name in names}
        self._publisher = ArmPublisher(node, robot, profile, tracked, cameras, qos, self.reveals)
        if self.reveals:
            self._scene = ScenePublisher(node, robot, arm)
            serve(node, "reset", self.reset)

    def describe(self, alone: bool) -> None:
        """Publish the arm's URDF, if it has one, and its transforms; see `ArmPublisher`."""
        if (urdf := getattr(self.arm, "urdf", None)) is not None:
            self._publisher.describe(urdf(), alone)

    def activate(self, active: bool) -> None:
        """Follow commands from now on, or hold."""
        with self.lock:
            self.active = active

    def reset(self) -> str:
        """Reset arm and scene to the start drawn from the parameter `seed`."""
        with self.lock:
            self.arm.reset(int(self._parameter(SEED)))
            self.pass_time(1)
            self.publish()
            self.publish_pictures()
            return self._where()

    def pass_time(self, ticks: int) -> None:
        """Advance the stamp by `ticks` periods of 10 ms, so that no two instants share a stamp."""
        self.stamp_ns += ticks * _TICK_NS

    def publish(self) -> None:
        """Publish the measurements of this instant."""
        if self.reveals:
            self._publisher.truth(self.arm.truth())
        self._publisher.state(self.arm.measure(), self.stamp_ns)
        self.on_publish(self.stamp_ns)

    def publish_pictures(self) -> None:
        """Publish the pictures of all cameras."""
        self._publisher.pictures(self.arm.pictures(), self.stamp_ns)

    def _parameter(self, name: str) -> Any:
        return self.node.handle.get_parameter(name).value

    def _where(self) -> str:
        """Return the answer to a service call: the present time and the arm's target, in JSON."""
        target, closed = self.arm.target
        answer = {
            "stamp_ns": self.stamp_ns,
            "time_s": float(self.arm.truth()["time_s"][0]),
            "target": [*target.position, *target.quaternion],
            "closed": closed,
        }
        return json.dumps(answer)


class LockStep(SimulationDriver):
    """Driver in lock-step: time passes in the service `advance` only, by the parameter `period_s`.

    It takes the actor's own targets; a heartbeat with the mode "hold" stops the arm, as a guard
    would.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        arm: ServedRobot,
        profile: ArmProfile,
        tracked: Iterable[str],
    ) -> None:
        super().__init__(node, robot, arm, profile, tracked, EXACT)
        takers = (
            (COMMAND_POSE, self._on_target),
            (COMMAND_GRIPPER, self._on_gripper),
            (HEARTBEAT, self._on_beat),
        )
        self._taken = 0
        for topic, take in takers:
            node.subscribe(of_robot(topic, robot, EXACT), self._counted(take))
        serve(node, "advance", self.advance)
        serve(node, "taken", lambda: str(self._taken))

    def advance(self) -> str:
        """Simulate a period; the caller makes sure that its commands were taken before."""
        with self.lock:
            if not self.active:
                raise SerlError(INACTIVE)
            period_s = float(self._parameter(PERIOD))
            self.arm.advance(period_s)
            self.pass_time(round(period_s / PROFILE_PERIOD_S))
            self.publish()
            self.publish_pictures()
            return self._where()

    def _counted(self, take: Callable[[Any], None]) -> Callable[[Any], None]:
        def counted(message: Any) -> None:
            take(message)
            self._taken += 1

        return counted

    def _on_target(self, message: Any) -> None:
        try:
            pose = pose_of(message, self.profile.base_frame)
        except BadInput as error:
            logger.warning("command refused: %s", error)
            return
        with self.lock:
            self.arm.aim(pose, self.arm.target[1])

    def _on_gripper(self, message: Any) -> None:
        try:
            opening = gripper_of(message, None)
        except BadInput as error:
            logger.warning("command refused: %s", error)
            return
        with self.lock:
            self.arm.aim(self.arm.target[0], opening is not None and opening < 0.5)

    def _on_beat(self, message: Any) -> None:
        with self.lock:
            if " hold " in message.frame_id:
                self.arm.stop("the actor holds")
            else:
                self.arm.recover()


class RealTimeDriver(SimulationDriver):
    """Driver in real time: the arm follows setpoints, and holds when they stop.

    Its joints follow a trajectory from its arrival until the next setpoint.

    Attributes:
        timeouts: number of times that setpoints stopped for 100 ms.
        jumps: number of setpoints refused for being too far from the tool.
        lost_ticks: number of periods without physics, because the machine was busy.
    """

    def __init__(
        self,
        node: RosNode,
        robot: str,
        arm: ServedRobot,
        profile: ArmProfile,
        tracked: Iterable[str],
        camera_hz: float,
    ) -> None:
        super().__init__(node, robot, arm, profile, tracked, SENSOR)
        self._stamps = Stamps()
        self.timeouts = self.jumps = self.lost_ticks = 0
        self._hold: Pose | None = arm.target[0]
        self._closed = arm.target[1]
        self._ticks = 0
        self._camera_ticks = max(1, round(1.0 / (camera_hz * PROFILE_PERIOD_S)))
        frame = profile.base_frame
        self._setpoints: Feed[Pose] = Feed(
            node,
            topic_of(profile.target, robot, SENSOR),
            lambda message: pose_of(message, frame),
            _TIMEOUT_S,
        )
        self._exerted = NO_WRENCH
        self._wrenches: Feed[Wrench] | None = None
        if profile.target_wrench is not None:
            topic, tool = topic_of(profile.target_wrench, robot, SENSOR), profile.tool_frame
            self._wrenches = Feed(
                node, topic, lambda message: tuple(wrench_of(message, (tool,))), _WRENCH_S
            )
        self._trajectory = TrajectoryFollower()
        if profile.trajectory is not None:
            node.subscribe(topic_of(profile.trajectory, robot, SENSOR), self._on_trajectory)
        if profile.gripper is not None:
            node.subscribe(topic_of(profile.gripper.command, robot, SENSOR), self._on_gripper)

    def reset(self) -> str:
        """Reset arm and scene as in lock-step; discard the commands received before."""
        with self.lock:
            answer = super().reset()
            self._setpoints.forget()
            self._trajectory.end()
            self._exerted = NO_WRENCH  # as after every reset
            self._hold, self._closed = self.arm.target
            return answer

    def run(
        self, stopping: Callable[[], bool], speed: float = 1.0, *others: RealTimeDriver
    ) -> None:
        """Tick until stopping, `speed` times as fast as the wall clock; blocks.

        Drivers of other arms of the same simulation tick after this one.
        """
        period_s = PROFILE_PERIOD_S / speed
        self.node.begin_real_time()
        for driver in (self, *others):
            driver._stamps = Stamps(speed)
        due_s = time.monotonic()
        while not stopping():
            due_s += period_s
            early_s = due_s - time.monotonic()
            if early_s > 0.0:
                time.sleep(early_s)
            elif early_s < -_MOST_BEHIND_TICKS * period_s:
                lost = int(-early_s / period_s)
                self.lost_ticks += lost
                due_s += lost * period_s
            for driver in (self, *others):
                driver.tick()

    def tick(self) -> None:
        """Simulate 10 ms and publish the arm's measurements."""
        with self.lock:
            if self._closed != self.arm.target[1]:
                self.arm.grip(self._closed)
            if (wrench := self._wrench()) != self._exerted:
                self.arm.exert(wrench)
                self._exerted = wrench
            self._follow()
            self.pass_time(1)
            self._ticks += 1
            self.counts = {
                "lost ticks": self.lost_ticks,
                "timeouts": self.timeouts,
                "jumps": self.jumps,
            }
            self.publish()
            if self._ticks % self._camera_ticks == 0:
                self.publish_pictures()

    def pass_time(self, ticks: int) -> None:
        """Take the next stamp, from the wall clock or `speed` times as fast since the start."""
        self.stamp_ns = self._stamps.next_ns()

    def _follow(self) -> None:
        """Follow the trajectory of the joints, or the setpoint if it is newer."""
        if not self.active or self._setpoints.is_fresh:
            self._trajectory.end()
        if not self._trajectory.is_active:
            self.arm.follow(self._setpoint())
            return
        self._hold = None
        joints, _ = self._trajectory.at(time.monotonic())
        self.arm.follow_joints(joints)

    def _setpoint(self) -> Pose:
        """Return the newest setpoint, or the tool's pose at the time when setpoints stopped."""
        measured = self._measured()
        try:
            setpoint = self._setpoints.newest().value if self.active else None
        except Silent:
            setpoint = None
        if setpoint is not None and math.dist(setpoint.position, measured.position) > _JUMP_M:
            self.jumps += 1
            setpoint = None
        if setpoint is not None:
            self._hold = None
            return setpoint
        if self._hold is None:
            self.timeouts += 1
            self._hold = measured
        return self._hold

    def _wrench(self) -> Wrench:
        """Return the newest target wrench; zeros without a recent one."""
        if self._wrenches is not None and self.active:
            with suppress(Silent):
                return self._wrenches.newest().value
        return NO_WRENCH

    def _measured(self) -> Pose:
        x, y, z, qx, qy, qz, qw = self.arm.measure()["tcp_pose"]
        return Pose((x, y, z), (qx, qy, qz, qw))

    def _on_trajectory(self, message: Any) -> None:
        """Begin to follow a trajectory; setpoints that were stamped before it count no more."""
        try:
            trajectory = trajectory_of(message, self.profile.joints)
        except BadInput as error:
            logger.warning("command refused: %s", error)
            return
        with self.lock:
            self._setpoints.forget(self.node.handle.get_clock().now().nanoseconds)
            self._trajectory.begin(trajectory, self.arm.measure()["q"], time.monotonic())

    def _on_gripper(self, message: Any) -> None:
        gripper = self.profile.gripper
        assert gripper is not None
        try:
            self._closed = gripper.opening(number_of(message)) < 0.5
        except BadInput as error:
            logger.warning("command refused: %s", error)
