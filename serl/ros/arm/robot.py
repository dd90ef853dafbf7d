"""An arm reached over topics: the simulated arm's node, or any driver that a profile describes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Self

import numpy as np
from std_msgs.msg import Header

from serl.arm_profile import ArmProfile
from serl.errors import BadInput, SerlError, Silent
from serl.geometry import Quaternion
from serl.guard.config import GuardState
from serl.guard.monitors import GripperMonitor
from serl.motion import Pose, Target, check_targets, pose_from
from serl.robot import reading_spec
from serl.ros.arm.controller import SettledController, switch_gains
from serl.ros.arm.guard_client import GuardClient
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE, HEARTBEAT, publisher_topic
from serl.ros.arm.measurements import Measurements, numbers_of
from serl.ros.arm.topics import EXACT, check_types, of_robot
from serl.ros.conversions import opening_message, pose_message, stamp_of
from serl.ros.feed import Feed, Sample
from serl.ros.node import RosNode
from serl.ros.services import Remote, serve
from serl.task import TaskConfig
from serl.types import Action, ActionSource, Observation
from serl.workspace import CellCamera

logger = logging.getLogger(__name__)

Mode = Literal["policy", "teleop", "reset", "hold"]
_MODES: dict[ActionSource, Mode] = {
    ActionSource.POLICY: "policy",
    ActionSource.HUMAN: "teleop",
    ActionSource.SCRIPT: "reset",
}

_READY_S, _LONGEST_S = 30.0, 99.0  # the latter: longest time that a heartbeat reports
_ROUND_S = 0.008  # between two rounds of the node's executor
_PAUSE_PERIODS = 1.3  # without a target; below the guard's own limit
_RELEASE_S = 0.5  # least time that a guard rests the arm after a takeover
_HOMING_S = 0.5  # without a target, after which a joint move is paused
_HOME_RAD = 0.02  # largest distance of a joint from home after a joint move
_BEGIN_S = 0.3  # longest time until a guard resumes that only waited for targets


class RosArm:
    """A `serl.robot.Robot` over topics. It commands the guard, never the arm.

    A reading has the names of `serl.robot`, and is of one instant as far as its cameras allow:
    see `serl.ros.arm.measurements`. Commands are always computed from the newest pose.

    Args:
        robot: the arm's namespace within the run.
        profile: profile of the arm's family.
        config: settings of the task.
        tracked: bodies whose pose an object tracker publishes.
        lease: unique name of the controller in heartbeats, without spaces.
        lockstep: time passes on request only, so that samples never become stale and no message is
            lost.
        guarded: a guard is between this process and the arm; readings fail while it has stopped
            the arm.

    Attributes:
        stop_reason: reason of the first stop; None while motion is allowed.
        mode: kind of the active controller, as reported to the guard.
        gains: mode whose gains the controller was given last; None for those of the start.
        modes: gains of the profile's controller by mode.
        silence_s: returns the seconds since the last message of the operator's device; called at
            each heartbeat in teleop, as a device may time out between two actions.
        other: the other arm of a pair; while its guard holds it, this arm stays at its pose. Their
            readings are of one instant.

    Raises:
        BadInput: a message package that the profile needs is not installed, or the task's actions
            do not move a target.
    """

    still_pictures = False
    """Whether equal pictures in a row are accepted."""

    def __init__(
        self,
        node: RosNode,
        robot: str,
        profile: ArmProfile,
        config: TaskConfig,
        tracked: Sequence[str] = (),
        lease: str = "actor",
        lockstep: bool = False,
        guarded: bool = False,
    ) -> None:
        check_types(profile)
        check_targets(f"arm {robot or profile.name}", config.motion)
        self.stop_reason: str | None = None
        self.mode: Mode = "policy"
        self.gains: str | None = None
        self.silence_s: Callable[[], float] = lambda: 0.0
        self.other: RosArm | None = None
        self.node, self.robot, self.profile = node, robot, profile
        self.remote = Remote(node, None if lockstep else self.beat)
        place = profile.workspace
        self.aim = Target(config.motion, place.keep_out if place is not None else ())
        self.guard = GuardClient(node, robot, self.remote) if guarded else None
        self.modes = profile.controller.modes
        self.action_spec = config.motion.action_spec
        self.observation_spec = reading_spec(len(profile.joints), tracked, config.all_views)
        self._cameras = dict.fromkeys(view.camera for view in config.all_views.values())
        self._period_s = 1.0 / config.rate_hz
        self._lease, self._beats = lease, time.time_ns() // 1_000_000
        self._lockstep, self._begun, self._is_homing = lockstep, False, False
        self._fault = ""  # reason why `act` failed
        self._acted_s = self._begun_s = -math.inf  # last target; first one after a pause
        self._person_s = -math.inf  # the last heartbeat in teleop
        self._gripper_monitor = GripperMonitor()
        self._controller = SettledController(node, robot, profile)
        self._measured = Measurements(
            node, robot, profile, config, tracked, lockstep, self.still_pictures
        )
        self._target, self._grip, self._beat = (
            node.publisher(
                of_robot(topic, robot, EXACT)
                if lockstep
                else of_robot(publisher_topic(topic), robot)
            )
            for topic in (COMMAND_POSE, COMMAND_GRIPPER, HEARTBEAT)
        )

    @property
    def cameras(self) -> dict[str, CellCamera | None]:
        """The profile's entries of the cameras that the task sees; None for one without."""
        return {name: self.profile.cameras.get(name) for name in self._cameras}

    @property
    def feeds(self) -> Iterable[Feed[Any]]:
        """All feeds that a reading needs."""
        return self._measured.feeds

    def __enter__(self) -> Self:
        """Set the controller's parameters, and wait for the first message of every topic.

        A stop of the guard does not matter yet: the operator may end it later.

        Raises:
            SerlError: a topic has no message, or the controller refuses its gains.
        """
        if not self._lockstep:
            self.node.begin_real_time(_ROUND_S)
        self.settle()
        self.remote.wait(lambda: all(feed.is_fresh for feed in self.feeds), _READY_S)
        for feed in self.feeds:
            feed.newest()
        return self

    def settle(self) -> None:
        """Set the controller's parameters from the profile; blocks half a second if gains change.

        Raises:
            SerlError: the controller refuses a parameter, has another value afterwards, or does not
                answer.
        """
        self._controller.settle(self.remote)
        self.gains = None

    @property
    def restart_problem(self) -> str:
        """The reason why the disarmed guard refuses the arm, if `settle` can end it; else empty.

        It can end the mismatch of parameters of a controller that was restarted.
        """
        report = self.guard.report if self.guard is not None else None
        if report is None or report.state is not GuardState.DISARMED:
            return ""
        return self._controller.restart_problem(report.not_now)

    def __exit__(self, *error: object) -> None:
        """Send a last heartbeat that asks the guard to hold the arm."""
        self.mode = "hold"
        self.beat()

    def observe(self) -> Observation:
        """Return the newest reading without blocking.

        Raises:
            Silent: a measurement is missing or stale, or was when `act` needed it, or the guard has
                stopped the arm; the message is one line.
        """
        if self.guard is not None:
            self.guard.check()
        if self._fault:
            raise Silent(self._fault)
        pose = self._begin_once()
        self._check_gripper(self._measured.opening(), pose.taken_s)
        other_s = None if self.other is None else self.other._measured.pictured_s
        numbers, images, stamps = self._measured.read(other_s)
        numbers["target_pose"] = numbers_of(self.aim.target)
        state = {name: np.array(numbers[name], np.float32) for name in self.observation_spec.state}
        return Observation(state, images, stamps)

    def observe_when_fresh(self, limit_s: float) -> Observation:
        """Block until there is a reading and return it; only for use between episodes.

        Raises:
            SerlError: a measurement is still missing or stale after the limit.
        """
        found: list[Observation] = []

        def read() -> bool:
            with suppress(SerlError):
                found.append(self.observe())
            return bool(found)

        self.remote.wait(read, limit_s)
        return found[0] if found else self.observe()

    def act(self, action: Action) -> Action:
        """Send the target moved by `action` to the guard; return the executed part of the action.

        Returns zeros while the arm is stopped, or if its pose is stale (the next reading then
        fails). Returns zeros as well while the guard holds the arm: the target stays at its pose.
        """
        self.aim.check(action)
        if self.stop_reason is not None or self._fault:
            return np.zeros_like(action)
        try:
            pose = self._begin_once()
        except Silent as error:
            self._fault = str(error)
            return np.zeros_like(action)
        now_s = self._now_s(pose.taken_s)
        if self._is_paused:
            self._begun_s = time.monotonic()
        if self._is_held or (self.other is not None and self.other._is_held):
            self.aim.target, executed = pose.value, np.zeros_like(action)
        else:
            executed = self.aim.move(action, pose.value, now_s)
        stamp_ns = self.node.handle.get_clock().now().nanoseconds
        values, frame = numbers_of(self.aim.target), self.profile.base_frame
        self._target.publish(pose_message(values, frame, stamp_ns))
        self._acted_s = time.monotonic()
        if self.aim.gripped:  # repeated with each target: messages may be lost
            self._grip.publish(opening_message(0.0 if self.aim.closed else 1.0, stamp_ns))
        if self.profile.gripper is not None:
            with suppress(Silent):  # the next reading fails then
                self._gripper_monitor.command(self.aim.closed, self._measured.opening(), now_s)
        return executed

    def drive_as(self, source: ActionSource) -> None:
        """Notify the guard of a change of controller, before its first target."""
        if self.mode != (mode := _MODES[source]):
            self.mode = mode
            self.beat()

    def stop(self, reason: str) -> None:
        """Make the guard hold the arm at its present pose, until `recover`."""
        self._is_homing = False
        if self.stop_reason is None:
            self.stop_reason = reason
            self.beat()

    def recover(self) -> None:
        """Allow motion again, from the arm's present pose; a stop latched by the guard remains.

        Raises:
            Silent: the arm's pose is missing or stale.
        """
        if self.stop_reason is not None or self._fault:
            self.aim.target = self._measured.pose.newest().value
            self.stop_reason, self._fault = None, ""
            self._gripper_monitor.begin(self.aim.closed)
            self.beat()

    def home(self) -> None:
        """Ask the guard to move the joints home once a script drives, until `stop` or an episode.

        A takeover or a pause ends the move; afterwards it begins again from there.
        """
        self._is_homing = True

    @property
    def is_home(self) -> bool:
        """Whether no joint move is going on, and all joints are at the profile's `home_rad`.

        Raises:
            Silent: the joints' angles are missing or stale.
        """
        pairs = zip(self._measured.joints(), self.profile.home_rad, strict=True)
        return not self._is_homing and all(abs(a - b) < _HOME_RAD for a, b in pairs)

    def turn_to(self, orientation: Quaternion) -> None:
        """Turn the target with the next actions, also about axes that actions do not turn."""
        self.aim.turn_to(orientation)

    def switch(self, gains: str | None) -> None:
        """Switch the controller to the gains of a mode of the profile; blocks for half a second.

        Args:
            gains: name of the mode; None for the gains of the start.

        Raises:
            BadInput: the profile does not have this mode.
            SerlError: the controller refuses the gains, or has others afterwards; the arm is then
                stopped.
        """
        try:
            switch_gains(self.remote, self.robot, self.profile, gains)
            self.gains = gains
        except BadInput:
            raise
        except SerlError as error:
            self.stop(str(error))
            raise

    def begin(self, start: Pose, closed: bool) -> None:
        """Begin an episode with the target at `start`, the pose of the tool."""
        self.aim.begin(start, closed)
        self._measured.begin()
        self._begun, self._fault, self._acted_s = True, "", -math.inf
        self._is_homing = False
        self._gripper_monitor.begin(closed)

    def begin_from(self, reading: Observation) -> None:
        """Begin an episode at the tool of a reading."""
        state = reading.state
        self.begin(pose_from(state["tcp_pose"]), bool(state["gripper"][0] < 0.5))

    @property
    def guards(self) -> tuple[GuardClient, ...]:
        """The guard of the arm; empty without one."""
        return () if self.guard is None else (self.guard,)

    def beat(self) -> None:
        """Send a heartbeat to the guard; called in each slice of the control loop's waiting.

        While an episode is over or paused, teleop is reported as "hold": the guard would otherwise
        treat the end of targets as a lost operator.
        """
        self._beats += 1
        paused = self.mode == "teleop" and self._is_paused
        mode: str = "hold" if paused or self.stop_reason is not None else self.mode
        if self._is_homing and self.guard is not None and self.guard.has_homed:
            self._is_homing = False
        if self._is_homing and mode == "reset" and time.monotonic() - self._acted_s < _HOMING_S:
            mode = "joints"
        words = f"{self._lease} {mode} {self._beats}"
        if mode == "teleop":
            self._person_s = time.monotonic()
            words += f" {1e3 * min(self.silence_s(), _LONGEST_S):.0f}"
        message = Header(frame_id=words)
        message.stamp = stamp_of(self.node.handle.get_clock().now().nanoseconds)
        self._beat.publish(message)

    @property
    def _is_paused(self) -> bool:
        """Whether targets have ended or not yet begun."""
        return time.monotonic() - self._acted_s > _PAUSE_PERIODS * self._period_s

    @property
    def _is_held(self) -> bool:
        """Whether the guard does not move the arm, whatever the target.

        A guard that only waits moves the arm with the first targets of an episode, or those after
        a late one. After a takeover the guard rests the arm, and reports this only after the next
        controller's first target.
        """
        if self.guard is None:
            return False
        now_s = time.monotonic()
        if self.mode != "teleop" and now_s - self._person_s < _RELEASE_S:
            return True
        begins = (self._is_paused or now_s - self._begun_s < _BEGIN_S) and self.guard.waits
        return not (begins or self.guard.allows_motion)

    def _begin_once(self) -> Sample[Pose]:
        """Return the newest pose, and begin an episode there unless begun; raise `Silent`."""
        pose = self._measured.pose.newest()
        if not self._begun:
            self.begin(pose.value, self._measured.opening() < 0.5)
        return pose

    def _now_s(self, taken_s: float) -> float:
        """Return the monotonic time in seconds; in lock-step, that of the last measurement."""
        return taken_s if self._lockstep else time.monotonic()

    def _check_gripper(self, opening: float, taken_s: float) -> None:
        """Raise `Silent` when the gripper does not begin to follow its command."""
        now_s = self._now_s(taken_s)
        if self.stop_reason is not None or (
            self.guard is not None and not self.guard.allows_motion
        ):
            self._gripper_monitor.wait(now_s)
        if trouble := self._gripper_monitor.trouble(opening, now_s):
            raise Silent(trouble)


class GainServices:
    """Services `~/gains/<mode>`, one per mode of the arm's profile; `~/gains/<side>/<mode>` of two.

    They answer at once; the switch is done within a second. If it fails the arm is stopped, as by
    `RosArm.switch`.

    Args:
        arm: the arm whose controller is switched.
        side: "left" or "right" for an arm of a pair.
    """

    def __init__(self, node: RosNode, arm: RosArm, side: str = "") -> None:
        self._arm = arm
        self._remote = Remote(node, lambda: None)  # the control loop sends heartbeats
        self._switching: threading.Thread | None = None
        own = node.handle.get_fully_qualified_name()
        for mode in arm.profile.controller.modes:
            name = "/".join(filter(None, (own, "gains", side, mode)))
            serve(node, name, partial(self._begin, mode))

    def _begin(self, mode: str) -> str:
        """Start a switch in a thread: the executor's stays free for the controller's answers."""
        if self._switching is not None and self._switching.is_alive():
            raise BadInput("not now: the gains are being switched")
        self._switching = threading.Thread(target=self._switch, args=(mode,), daemon=True)
        self._switching.start()
        return f"gains go to {mode} over half a second"

    def _switch(self, mode: str) -> None:
        arm = self._arm
        try:
            switch_gains(self._remote, arm.robot, arm.profile, mode)
            arm.gains = mode
            logger.info("%s: gains are those of %s", arm.robot, mode)
        except SerlError as error:
            logger.warning("%s: gains: %s", arm.robot, error)
            arm.stop(f"gains: {error}")
