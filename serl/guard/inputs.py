"""What the guard knows: who drives, what the arm measures, and how old all of it is."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from serl.guard.checks import (
    Heard,
    Refused,
    check_frame,
    check_numbers,
    check_pose,
    check_stamp,
    is_apart,
    parse_beat,
)
from serl.guard.config import GuardConfig, GuardState
from serl.guard.monitors import Joints
from serl.motion import FARTHEST_RAD, Pose

_STILL_M, _STILL_RAD, _STILL_S = 2e-3, 0.01, 0.1
_SETTLED_S = 0.5
_FARTHEST_M = 10.0
"""No arm of ours reaches this far: such a pose is not in metres."""

_NONSENSE_S = 1.0
_LET_GO = 0.8
"""A touch is over below this part of the force at which it began."""

_HAND_M_S, _HAND_RAD_S = 0.5, 2.5
"""How fast a person moves a compliant arm by hand, at most."""

_NOISE_M, _NOISE_RAD = 0.01, 0.05
"""What a measured pose may be off by: noise of the sensor, and jitter of its stamp (15 ms)."""

_PACED_S = 0.05
"""A speed is measured over this time as well: many small steps make a fast drift."""

_PUSH_N, _PUSH_NM = 1.5, 0.3
"""What is below comes of the sensor: the softest spring of ours makes 1.8 N of its lead."""


class MessageAge:
    """How old a kind of message is, and what was wrong with the last one.

    Attributes:
        heard_s: when the last good one came.
        resumed_s: when one came after a silence that was too long; -inf before the first.
        stamp_s: its stamp; NaN before the first, and of what is told apart otherwise.
        fault: why the last one was refused; empty when it was not.
    """

    def __init__(self, name: str, oldest_s: float, counts: Counter[str]) -> None:
        self.heard_s = self.resumed_s = self._now_s = -math.inf
        self.stamp_s = self._new_stamp_s = math.nan
        self.fault = ""
        self._name = name
        self._oldest_s = oldest_s
        self._counts = counts

    def hearing(self, now_s: float, stamp_s: float = math.nan) -> Self:
        """A block whose refusal is counted, and ends there; without one the source is fresh."""
        self._now_s, self._new_stamp_s = now_s, stamp_s
        return self

    def is_repeated(self, stamp_s: float) -> bool:
        """The last good one had this stamp: no news, which is counted."""
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
            self.heard_s, self.stamp_s, self.fault = self._now_s, self._new_stamp_s, ""
        elif isinstance(error, Refused):
            self._counts[f"{self._name}: {error.reason}"] += 1
            self.fault = str(error)
        return isinstance(error, Refused)

    def is_fresh(self, now_s: float) -> bool:
        """The last good one is not too old."""
        return now_s - self.heard_s <= self._oldest_s

    def hindrance(self, now_s: float) -> str:
        """Why it cannot be acted on; empty when it can."""
        return self.fault or ("" if self.is_fresh(now_s) else f"{self._name} is stale")


class Nonsense:
    """Messages that no healthy sender sends, counted within the last second.

    Args:
        most: the number of them at which the arm has to be stopped.
        what: they are, in words.
    """

    def __init__(self, most: int, what: str) -> None:
        self._heard_s: deque[float] = deque(maxlen=most)
        self._words = f"{most} {what}"

    def hear(self, now_s: float) -> str:
        """Count one more; return why the arm has to be stopped, empty below the limit."""
        self._heard_s.append(now_s)
        often = len(self._heard_s) == self._heard_s.maxlen
        return self._words if often and now_s - self._heard_s[0] <= _NONSENSE_S else ""


class Lease:
    """Who drives: one actor, until it has been silent for long enough.

    Commands do not say whose they are. So nobody drives while two actors beat, or while others
    command as well.

    Attributes:
        others: who does, in words; empty for nobody.
        mode: what the actor asks for.
        heard_s: when its last beat came.
        since_s: when its first one did.
        human_s: when its last beat in the name of a person came ...
        device_s: ... and when that person's device was heard.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.mode, self.others = GuardState.HOLD, ""
        self.human_s = self.device_s = -math.inf
        self._config = config
        self._counts = counts
        self._source = MessageAge("heartbeat", config.heartbeat_s, counts)
        self._owner, self._number, self.since_s = "", -1, -math.inf
        self._stranger_s = -math.inf

    @property
    def heard_s(self) -> float:
        """When its last beat came."""
        return self._source.heard_s

    def hear(self, text: str, heard: Heard) -> None:
        """Take a beat; one that is refused does not count as one."""
        with self._source.hearing(heard.now_s):
            beat = parse_beat(text)
            check_stamp(heard, "heartbeat", self._config.ahead_s, self._config.command_s)
            if beat.lease != self._owner:
                if heard.now_s - self.heard_s <= self._config.lease_s:
                    self._stranger_s = heard.now_s
                    raise Refused("lease", f"{beat.lease} beats while {self._owner} drives")
                self._owner, self.since_s = beat.lease, heard.now_s
            elif beat.number <= self._number:
                raise Refused("count", "heartbeat comes again")
            self._number, self.mode = beat.number, beat.mode
            if beat.mode is GuardState.TELEOP:
                self.human_s, self.device_s = heard.now_s, heard.now_s - beat.silent_s

    def is_fresh(self, now_s: float) -> bool:
        """The last beat is not too old."""
        return self._source.is_fresh(now_s)

    def hindrance(self, now_s: float) -> str:
        """Why nobody drives; empty when somebody does."""
        if not self.is_fresh(now_s):
            return "heartbeat lost"
        if now_s - self._stranger_s <= 2.0 * self._config.heartbeat_s:
            return "two actors beat"
        if self.is_device_silent(now_s):
            return "the person's device is silent"
        return self.others

    def is_device_silent(self, now_s: float) -> bool:
        """A person drives, and nothing comes from that person."""
        silent_s = now_s - self.device_s
        return self.mode is GuardState.TELEOP and silent_s > self._config.device_s


class MeasuredArm:
    """What the arm says of itself; what has the stamp of the one before is not news.

    Attributes:
        pose: of the tool in the base frame; None before the first.
        touch: the force or torque at which all motion has to stop, in words; empty below it.
        is_touching: the force asks for slow motion.
        is_pushing: there is a force at all, or a torque.
        joints: how near to their limits they are, and how fast.
        error: what the arm reports of itself, in words; empty when it is well.
        unwatched: why nobody knows whether it is; empty when somebody does.
        rivals: which nodes publish measurements beside the arm's driver, in words; empty for none.
            Nothing that is measured is trusted then.
        jumps: why the arm has to be stopped for poses that jump; empty when it does not.
    """

    def __init__(self, config: GuardConfig, counts: Counter[str]) -> None:
        self.pose: Pose | None = None
        self.touch = self.error = self.unwatched = self.rivals = self.jumps = ""
        self.is_touching = self.is_pushing = False
        self.joints = Joints(config)
        self._config = config
        self._jumping = Nonsense(5, "jumps of the measured pose")
        self._paced: tuple[float, Pose] | None = None  # a stamp 50 ms ago or less, and its pose
        self._still: Pose | None = None
        self._still_s = math.inf  # since when it has been near that pose
        names = ["pose", "joints", *(["wrench"] if config.wrench else [])]
        self._sources = {name: MessageAge(name, config.state_s, counts) for name in names}

    def hear_pose(self, values: Sequence[float], heard: Heard) -> None:
        """Take a measured base_T_tcp."""
        source, config = self._sources["pose"], self._config
        self.jumps = ""
        if source.is_repeated(heard.stamp_s):
            return
        with source.hearing(heard.now_s, heard.stamp_s):
            check_frame(heard, "pose", config.frame)
            check_stamp(heard, "pose", config.ahead_s, config.state_s)
            pose = check_pose(values, "pose")
            if (far_m := math.hypot(*pose.position)) > _FARTHEST_M:
                raise Refused("units", f"pose is {far_m:.0f} m away: expected metres")
            self._check_speed(pose, heard)
            self.pose = pose
            if self._still is None or is_apart(pose, self._still, _STILL_M, _STILL_RAD):
                self._still, self._still_s = pose, heard.now_s

    def hear_joints(self, values: Sequence[float], heard: Heard) -> None:
        """Take the measured angles of the joints (rad)."""
        source, config = self._sources["joints"], self._config
        if source.is_repeated(heard.stamp_s):
            return
        with source.hearing(heard.now_s, heard.stamp_s):
            self._check("joints", values, len(config.joint_low_rad), heard)
            if max(map(abs, values)) > FARTHEST_RAD:
                raise Refused("units", f"joints turned to {max(values, key=abs):.0f}: expected rad")
            self.joints.hear(values, heard.stamp_s, heard.now_s)

    def hear_wrench(self, values: Sequence[float], heard: Heard) -> None:
        """Take what the surroundings exert on the tool, forces (N) then torques (Nm)."""
        source, limits = self._sources.get("wrench"), self._config.motion.limits
        if source is None or source.is_repeated(heard.stamp_s):
            return
        with source.hearing(heard.now_s, heard.stamp_s):
            self._check("wrench", values, 6, heard)
            force, torque = math.hypot(*values[:3]), math.hypot(*values[3:])
            begun = _LET_GO if self.is_touching else 1.0
            self.is_pushing = force >= _PUSH_N or torque >= _PUSH_NM
            self.is_touching = force >= begun * limits.slow_force_n
            self.touch = ""
            if force >= limits.stop_force_n:
                self.touch = f"force {force:.0f} N"
            elif torque >= limits.stop_torque_nm:
                self.touch = f"torque {torque:.1f} Nm"

    def fresh_pose(self, now_s: float) -> Pose | None:
        """The measured pose unless it is stale."""
        return self.pose if self._sources["pose"].is_fresh(now_s) else None

    def hindrance(self, now_s: float) -> str:
        """Why what is known of the arm does not do for moving it; empty when it does."""
        for source in self._sources.values():
            if hindrance := source.hindrance(now_s):
                return hindrance
        return self.unwatched or self.joints.running

    def heard_s(self) -> float:
        """When the oldest of its last good measurements came."""
        return min(source.heard_s for source in self._sources.values())

    def trouble(self, now_s: float) -> str:
        """Why it may not be left alone with its brakes off: it is ill, unknown or not at rest."""
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
        return "" if now_s - self._still_s >= _STILL_S else "the arm moves"

    def has_settled(self, since_s: float, now_s: float) -> bool:
        """It stands, and its setpoint has for longer than it takes the arm to get there."""
        return now_s - max(since_s, self._still_s) >= _SETTLED_S

    def is_resumed(self, name: str, now_s: float, within_s: float) -> bool:
        """Whether a kind of measurement is missing, or was until at most so long ago."""
        source = self._sources.get(name)
        if source is None or not source.is_fresh(now_s):
            return True
        return now_s - source.resumed_s <= within_s

    def _check_speed(self, pose: Pose, heard: Heard) -> None:
        """Refuse a pose that no arm reaches from those before, not even if a person pushes it.

        By the stamps: messages that wait come in bursts. Whatever the stamps say, a pose is no
        farther than `following_m` from the last one. After a silence any pose is taken.
        """
        config, limits = self._config, self._config.motion.limits
        before = self.fresh_pose(heard.now_s)
        if before is None or self._paced is None:
            self._paced = heard.stamp_s, pose
            return
        for then_s, place in ((self._sources["pose"].stamp_s, before), self._paced):
            span_s = max(0.0, heard.stamp_s - then_s)
            most_m = _NOISE_M + (limits.speed_m_s + _HAND_M_S) * span_s
            most_rad = _NOISE_RAD + (limits.angular_speed_rad_s + _HAND_RAD_S) * span_s
            most_m, most_rad = min(most_m, config.following_m), min(most_rad, config.following_rad)
            if is_apart(pose, place, most_m, most_rad):
                self.jumps = self._jumping.hear(heard.now_s)
                raise Refused("jump", "pose jumped")
        if not 0.0 <= heard.stamp_s - self._paced[0] < _PACED_S:
            self._paced = heard.stamp_s, pose

    def _check(self, name: str, values: Sequence[float], size: int, heard: Heard) -> None:
        check_stamp(heard, name, self._config.ahead_s, self._config.state_s)
        check_numbers(values, size, name)
