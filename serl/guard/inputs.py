"""Inputs of the guard: active actor, gripper, measurements of the arm, and the age of each."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from serl.guard.checks import (
    MessageInfo,
    MessageRefusal,
    check_frame,
    check_numbers,
    check_opening,
    check_pose,
    check_stamp,
    is_apart,
    parse_beat,
)
from serl.guard.config import GuardConfig, GuardState
from serl.guard.monitors import JointMonitor
from serl.motion import FARTHEST_RAD, Pose

_STILL_M, _STILL_RAD, _STILL_S = 2e-3, 0.01, 0.1
_SETTLED_S = 0.5
_FARTHEST_M = 10.0
"""Distance that no supported arm reaches: a pose beyond it is not in metres."""

_NONSENSE_S = 1.0
_LET_GO = 0.8
"""Fraction of the contact force threshold below which contact ends."""

_HAND_M_S, _HAND_RAD_S = 0.5, 2.5
"""Highest speeds at which a person moves a compliant arm by hand."""

_NOISE_M, _NOISE_RAD = 0.01, 0.05
"""Largest errors of a measured pose: noise of the sensor, and jitter of its stamp (15 ms)."""

_SPAN_S = 0.05
"""Second time span over which speed is measured, besides that between two poses.

It reveals a fast drift in many small steps.
"""

_PUSH_N, _PUSH_NM = 1.5, 0.3
"""Force and torque below which a reading is sensor noise.

The softest supported spring exerts 1.8 N at its lead.
"""


class MessageAge:
    """The age of the newest message of one kind, and the fault of the last one.

    Attributes:
        received_s: arrival time of the last valid message.
        resumed_s: arrival time of the first valid message after the last silence that was too long;
            -inf before the first message.
        stamp_s: stamp of the last valid message; NaN before the first, and for kinds whose
            repetitions are detected by other means.
        fault: why the last message was refused; empty when it was not.
    """

    def __init__(self, name: str, oldest_s: float, counts: Counter[str]) -> None:
        self.received_s = self.resumed_s = self._now_s = -math.inf
        self.stamp_s = self._new_stamp_s = math.nan
        self.fault = ""
        self._name = name
        self._oldest_s = oldest_s
        self._counts = counts

    def receiving(self, now_s: float, stamp_s: float = math.nan) -> Self:
        """Return a context manager for the checks of one message.

        A `MessageRefusal` raised in the block is counted and suppressed; a block without an error
        makes the source fresh.
        """
        self._now_s, self._new_stamp_s = now_s, stamp_s
        return self

    def is_repeated(self, stamp_s: float) -> bool:
        """Return whether the last valid message had this stamp, and count the repetition."""
        if stamp_s != self.stamp_s:
            return False
        self._counts[f"{self._name}: repeated"] += 1
        return True

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is None:
            if not self.is_fresh(self._now_s):
                self.resumed_s = self._now_s
            self.received_s, self.stamp_s, self.fault = self._now_s, self._new_stamp_s, ""
        elif isinstance(error, MessageRefusal):
            self._counts[f"{self._name}: {error.reason}"] += 1
            self.fault = str(error)
        return isinstance(error, MessageRefusal)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the last valid message is not too old."""
        return now_s - self.received_s <= self._oldest_s

    def hindrance(self, now_s: float) -> str:
        """Return why the last message cannot be acted on; empty when it can."""
        return self.fault or ("" if self.is_fresh(now_s) else f"{self._name} is stale")


class FaultCounter:
    """A counter, over the last second, of messages that no healthy sender sends.

    Args:
        most: number of messages at which the arm has to be stopped.
        subject: description of the messages, for the cause of the stop.
    """

    def __init__(self, most: int, subject: str) -> None:
        self._received_s: deque[float] = deque(maxlen=most)
        self._cause = f"{most} {subject}"

    def add(self, now_s: float) -> str:
        """Count one more message; return why the arm has to be stopped, empty below the limit."""
        self._received_s.append(now_s)
        often = len(self._received_s) == self._received_s.maxlen
        return self._cause if often and now_s - self._received_s[0] <= _NONSENSE_S else ""


class Lease:
    """The right of one actor to drive, until its heartbeat has been silent for long enough.

    Commands carry no sender. So the arm holds while two actors send heartbeats, or while other
    nodes publish commands as well.

    Attributes:
        others: description of other nodes that publish commands; empty for none.
        mode: mode that the actor asks for.
        received_s: arrival time of the actor's last heartbeat.
        since_s: arrival time of the actor's first heartbeat.
        human_s: arrival time of the last heartbeat with the mode of teleoperation.
        device_s: time of the last input from the operator's device, by that heartbeat.
        lost_human: whether heartbeats, commands or the device ended while a person drove.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.mode, self.others = GuardState.HOLD, ""
        self.human_s = self.device_s = -math.inf
        self.lost_human = False
        self._config = config
        self._counts = counts
        self._source = MessageAge("heartbeat", config.heartbeat_s, counts)
        self._owner, self._number, self.since_s = "", -1, -math.inf
        self._stranger_s = -math.inf

    @property
    def received_s(self) -> float:
        """The arrival time of the actor's last heartbeat."""
        return self._source.received_s

    def receive(self, text: str, info: MessageInfo) -> None:
        """Take a heartbeat; a refused one is counted as a refusal and otherwise ignored."""
        with self._source.receiving(info.now_s):
            beat = parse_beat(text)
            check_stamp(info, "heartbeat", self._config.ahead_s, self._config.command_s)
            if beat.lease != self._owner:
                if info.now_s - self.received_s <= self._config.lease_s:
                    self._stranger_s = info.now_s
                    raise MessageRefusal("lease", f"{self._owner} drives, not {beat.lease}")
                self._owner, self.since_s = beat.lease, info.now_s
            elif beat.number <= self._number:
                raise MessageRefusal("count", "heartbeat is repeated")
            self._number, self.mode = beat.number, beat.mode
            if beat.mode is GuardState.TELEOP:
                self.human_s, self.device_s = info.now_s, info.now_s - beat.silent_s

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the last heartbeat is not too old."""
        return self._source.is_fresh(now_s)

    def hindrance(self, now_s: float) -> str:
        """Return why no actor may drive; empty when one may."""
        if not self.is_fresh(now_s):
            return "heartbeat lost"
        if now_s - self._stranger_s <= 2.0 * self._config.heartbeat_s:
            return "two actors send heartbeats"
        if self.is_device_silent(now_s):
            return "the person's device is silent"
        return self.others

    def release(self, now_s: float) -> str:
        """Return why only a person may drive, after a person did; empty if any mode may.

        After a release the arm rests for 0.5 s. After a loss (heartbeats, commands or the device
        ended) it rests until a person takes over again, or `disarm` and `arm` are called.
        """
        if self.mode is GuardState.TELEOP:
            return ""
        if self.lost_human:
            return "a person was lost: take over again, or disarm and arm"
        is_recent = now_s - self.human_s < self._config.release_s
        return "the operator released the controls" if is_recent else ""

    def has_person(self, now_s: float) -> bool:
        """Return whether a person drives now."""
        return self.mode is GuardState.TELEOP and self.is_fresh(now_s)

    def is_device_silent(self, now_s: float) -> bool:
        """Return whether the mode is teleoperation and the operator's device is silent."""
        silent_s = now_s - self.device_s
        return self.mode is GuardState.TELEOP and silent_s > self._config.device_s


class GripperCommand:
    """The commanded opening of a gripper, which has a minimum interval between changes.

    Attributes:
        opening: 1 open, 0 closed; None before the first command.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.opening: float | None = None
        self._motion, self._config = config.motion, config
        self._source = MessageAge("gripper", math.inf, counts)
        self._switched_s = -math.inf

    def receive(self, values: Sequence[float], info: MessageInfo, moves: bool) -> None:
        """Accept a command, or count the reason of its refusal.

        Args:
            values: one number, from 0 (close) to 1 (open).
            info: arrival of the command.
            moves: whether an actor drives the arm, so that the gripper may move.
        """
        with self._source.receiving(info.now_s):
            opening = check_opening(values, info, self._config)
            if not self._motion.gripper:
                raise MessageRefusal("none", "gripper: the task moves none")
            if not moves:
                raise MessageRefusal("holding", "gripper: the arm holds")
            if opening != self.opening:
                if info.now_s - self._switched_s < self._motion.gripper_interval_s:
                    raise MessageRefusal("too soon", "gripper: switches too often")
                self.opening, self._switched_s = opening, info.now_s


class MeasuredArm:
    """The measurements and errors of the arm; a message with the stamp of the last one is ignored.

    Attributes:
        pose: pose of the tool in the base frame; None before the first message.
        touch: description of a force or torque at which all motion has to stop; empty below it.
        is_touching: whether the force requires slow motion.
        is_pushing: whether there is any force or torque above the sensor's noise.
        joints: distance of the joints to their limits, and their speed.
        error: error that the arm reports; empty for none.
        unwatched: why it is unknown whether the arm has an error; empty when it is known.
        rivals: description of nodes that publish measurements beside the arm's driver; empty for
            none. No measurement is trusted while there are any.
        jumps: why the arm has to be stopped for poses that jump; empty when it does not.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.pose: Pose | None = None
        self.touch = self.error = self.unwatched = self.rivals = self.jumps = ""
        self.is_touching = self.is_pushing = False
        self.joints = JointMonitor(config)
        self._config = config
        self._jumping = FaultCounter(5, "jumps of the measured pose")
        self._span_start: tuple[float, Pose] | None = None  # stamp of up to 50 ms ago, and its pose
        self._still: Pose | None = None
        self._still_s = math.inf  # time since which the arm has been near that pose
        names = ["pose", "joints", *(["wrench"] if config.wrench else [])]
        self._sources = {name: MessageAge(name, config.state_s, counts) for name in names}

    def receive_pose(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take a measured base_T_tcp."""
        source, config = self._sources["pose"], self._config
        self.jumps = ""
        if source.is_repeated(info.stamp_s):
            return
        with source.receiving(info.now_s, info.stamp_s):
            check_frame(info, "pose", config.frame)
            check_stamp(info, "pose", config.ahead_s, config.state_s)
            pose = check_pose(values, "pose")
            if (far_m := math.hypot(*pose.position)) > _FARTHEST_M:
                raise MessageRefusal("units", f"pose is {far_m:.0f} m away: expected metres")
            self._check_speed(pose, info)
            self.pose = pose
            if self._still is None or is_apart(pose, self._still, _STILL_M, _STILL_RAD):
                self._still, self._still_s = pose, info.now_s

    def receive_joints(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the measured angles of the joints (rad)."""
        source, config = self._sources["joints"], self._config
        if source.is_repeated(info.stamp_s):
            return
        with source.receiving(info.now_s, info.stamp_s):
            self._check("joints", values, len(config.joint_low_rad), info)
            if max(map(abs, values)) > FARTHEST_RAD:
                raise MessageRefusal(
                    "units", f"joints turned to {max(values, key=abs):.0f}: expected rad"
                )
            self.joints.receive(values, info.stamp_s, info.now_s)

    def receive_wrench(self, values: Sequence[float], info: MessageInfo) -> None:
        """Take the wrench of the surroundings on the tool, forces (N) then torques (Nm)."""
        source, limits = self._sources.get("wrench"), self._config.motion.limits
        if source is None or source.is_repeated(info.stamp_s):
            return
        with source.receiving(info.now_s, info.stamp_s):
            self._check("wrench", values, 6, info)
            force, torque = math.hypot(*values[:3]), math.hypot(*values[3:])
            begun = _LET_GO if self.is_touching else 1.0
            self.is_pushing = force >= _PUSH_N or torque >= _PUSH_NM
            self.is_touching = force >= begun * limits.slow_force_n
            self.touch = ""
            if force >= limits.stop_force_n:
                self.touch = f"force {force:.0f} N"
            elif torque >= limits.stop_torque_nm:
                self.touch = f"torque {torque:.1f} Nm"

    @property
    def is_slow(self) -> bool:
        """Whether force or joints require slow motion."""
        return self.is_touching or self.joints.slow

    def fresh_pose(self, now_s: float) -> Pose | None:
        """Return the measured pose; None when it is stale."""
        return self.pose if self._sources["pose"].is_fresh(now_s) else None

    def hindrance(self, now_s: float) -> str:
        """Return why the measurements do not allow motion of the arm; empty when they do."""
        for source in self._sources.values():
            if hindrance := source.hindrance(now_s):
                return hindrance
        return self.unwatched or self.joints.running

    def received_s(self) -> float:
        """Return the arrival time of the oldest among the last valid measurements of each kind."""
        return min(source.received_s for source in self._sources.values())

    def trouble(self, now_s: float) -> str:
        """Return why the guard may not be armed or reset: an error, unknown state, or motion.

        Empty when the arm is without error, known and at rest.
        """
        if self.error:
            return f"the arm reports {self.error}"
        if self.rivals:
            return self.rivals
        if hindrance := self.hindrance(now_s):
            return hindrance
        if self.touch:
            return self.touch
        if self.joints.danger:
            return self.joints.danger
        return "" if self.is_still(now_s) else "the arm moves"

    def is_still(self, now_s: float) -> bool:
        """Return whether the tool has been at rest for 0.1 s."""
        return now_s - self._still_s >= _STILL_S

    def has_settled(self, since_s: float, now_s: float) -> bool:
        """Return whether the arm and its setpoint have been at rest for 0.5 s.

        The arm takes less than this time to reach a resting setpoint.
        """
        return now_s - max(since_s, self._still_s) >= _SETTLED_S

    def is_resumed(self, name: str, now_s: float, within_s: float) -> bool:
        """Return whether a kind of measurement is missing, or was missing until recently.

        Args:
            name: kind of the measurement.
            now_s: monotonic time.
            within_s: time since the measurements resumed that counts as recent.
        """
        source = self._sources.get(name)
        if source is None or not source.is_fresh(now_s):
            return True
        return now_s - source.resumed_s <= within_s

    def _check_speed(self, pose: Pose, info: MessageInfo) -> None:
        """Refuse a pose that the arm cannot have reached, even pushed by a person.

        Time is measured by the stamps, since delayed messages arrive in bursts. Independently of
        the stamps, a pose is no farther than `following_m` from the last one. After a silence any
        pose is accepted.
        """
        config, limits = self._config, self._config.motion.limits
        before = self.fresh_pose(info.now_s)
        if before is None or self._span_start is None:
            self._span_start = info.stamp_s, pose
            return
        for then_s, place in ((self._sources["pose"].stamp_s, before), self._span_start):
            span_s = max(0.0, info.stamp_s - then_s)
            most_m = _NOISE_M + (limits.speed_m_s + _HAND_M_S) * span_s
            most_rad = _NOISE_RAD + (limits.angular_speed_rad_s + _HAND_RAD_S) * span_s
            most_m, most_rad = min(most_m, config.following_m), min(most_rad, config.following_rad)
            if is_apart(pose, place, most_m, most_rad):
                self.jumps = self._jumping.add(info.now_s)
                raise MessageRefusal("jump", "pose jumped")
        if not 0.0 <= info.stamp_s - self._span_start[0] < _SPAN_S:
            self._span_start = info.stamp_s, pose

    def _check(self, name: str, values: Sequence[float], size: int, info: MessageInfo) -> None:
        check_stamp(info, name, self._config.ahead_s, self._config.state_s)
        check_numbers(values, size, name)
