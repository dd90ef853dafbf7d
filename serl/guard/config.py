"""The configuration and the states of the guard."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Self

from pydantic import Field, field_validator, model_validator

from serl.arm_profile import ArmProfile
from serl.compliance import TaskCompliance
from serl.errors import BadInput
from serl.geometry import UnitQuaternion
from serl.motion import FARTHEST_RAD, Box, Limits, Motion
from serl.types import FrozenModel


class GuardState(StrEnum):
    """The state of the guard, which publishes nothing while it is disarmed.

    In the state "joints", the driver's trajectory controller moves the joints home: see
    `serl.guard.joint_move`.
    """

    DISARMED = "disarmed"
    HOLD = "hold"
    POLICY = "policy"
    TELEOP = "teleop"
    RESET = "reset"
    JOINTS = "joints"
    PROTECTIVE_STOP = "protective stop"
    ESTOP = "estop"


MOVING = frozenset((GuardState.POLICY, GuardState.TELEOP, GuardState.RESET))
"""States in which an actor or a person drives the arm."""
LATCHED = frozenset((GuardState.PROTECTIVE_STOP, GuardState.ESTOP))
"""States that only a person ends, and that last over restarts."""
RECOVERY_TICKS = 1000
"""Ticks of slow motion after a stop: 10 s, in which a person or a reset drives."""


class GuardConfig(FrozenModel):
    """The limits and deadlines of the guard, each with a hard bound.

    Attributes:
        motion: motion of the task: box, largest rotation, limits, minimum gripper interval.
        reference: orientation of the tool (xyzw) about which rotations are limited.
        frame: frame_id that the header of every pose must contain.
        joint_low_rad: lower limits of the joints, in the order of the joint states.
        joint_high_rad: upper limits of the joints, in the same order.
        joint_margin_rad: distance to a joint's limit below which a policy is held; below half of it
            the guard makes a protective stop, below twice of it all motion is slow.
        joint_speed_rad_s: joint speed, reached for example near a singular pose, above which the
            arm is held, and stopped if it persists; above two thirds of it all motion is slow.
        joint_names: names of the arm's joints in a message; empty for all, in the message's order.
        home_rad: joint positions to which joint moves bring the arm; empty if it takes none.
        home_speed_rad_s: top speed of the joints in such a move.
        home_error_rad: largest distance of a joint from the path of the move; beyond it the arm is
            stopped.
        keep_out: boxes that the tool must not enter.
        wrench: whether the arm measures forces; if so, it holds while they are missing.
        compliance: the task's gains and clips, which the arm's controller must have in place of
            those of its profile, and the wrench that it exerts in episodes.
        slow_speed_m_s: top speed while the arm is in contact, near a joint's limit, while holding,
            and on the way back after a stop.
        slow_angular_speed_rad_s: top angular speed in the same situations.
        heartbeat_s: age at which the actor's heartbeat is lost.
        device_s: silence of the operator's device, reported in the heartbeat, at which the arm
            holds.
        command_s: age at which a command is stale; at least 1.5 control periods.
        state_s: age at which a measurement is stale, and the arm holds.
        lost_s: age of a measurement at which the arm is stopped until a person acknowledges it.
        ahead_s: largest time by which a stamp may be in the future.
        lease_s: silence of the active actor after which another actor may replace it.
        release_s: time for which the arm is held between control by a person and by a policy.
        silent_s: silence of the actor after which the guard disarms.
        following_m: distance of the arm from its setpoint above which the arm does not follow.
        following_rad: rotation of the arm from its setpoint above which the arm does not follow.
        following_s: time for which the arm may be that far from its setpoint before it is stopped.
    """

    motion: Motion
    reference: UnitQuaternion
    frame: str = Field("base", min_length=1, max_length=128)
    joint_low_rad: tuple[float, ...] = Field(min_length=1, max_length=64)
    joint_high_rad: tuple[float, ...]
    joint_margin_rad: float = Field(0.1, gt=0, le=0.5)
    joint_speed_rad_s: float = Field(1.5, gt=0, le=2.0)
    joint_names: tuple[str, ...] = ()
    home_rad: tuple[float, ...] = ()
    home_speed_rad_s: float = Field(0.2, gt=0, le=0.3)
    home_error_rad: float = Field(0.1, gt=0, le=0.2)
    keep_out: tuple[Box, ...] = Field((), max_length=64)
    wrench: bool = True
    compliance: TaskCompliance = TaskCompliance()
    slow_speed_m_s: float = Field(0.05, gt=0, le=0.05)
    slow_angular_speed_rad_s: float = Field(0.25, gt=0, le=0.25)
    heartbeat_s: float = Field(0.1, gt=0, le=0.1)
    device_s: float = Field(0.11, gt=0, le=0.11)
    command_s: float = Field(0.15, gt=0, le=0.3)
    state_s: float = Field(0.1, gt=0, le=0.1)
    lost_s: float = Field(1.0, ge=0.2, le=2.0)
    ahead_s: float = Field(0.05, gt=0, le=0.05)
    lease_s: float = Field(1.0, ge=0.2, le=10.0)
    release_s: float = Field(0.5, ge=0.5, le=5.0)
    silent_s: float = Field(60.0, gt=0, le=600.0)
    following_m: float = Field(0.05, gt=0, le=0.05)
    following_rad: float = Field(0.3, gt=0, le=0.3)
    following_s: float = Field(0.3, gt=0, le=0.3)

    @field_validator("motion")
    @classmethod
    def _by_targets(cls, motion: Motion) -> Motion:
        if motion.action_mode == "wrench":
            raise ValueError("action_mode wrench: a guard checks targets, and sends no forces")
        return motion

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high, names = self.joint_low_rad, self.joint_high_rad, self.joint_names
        room = 4.0 * self.joint_margin_rad
        if len(low) != len(high) or not all(a + room < b for a, b in zip(low, high, strict=True)):
            raise ValueError(
                f"joint_low_rad {low} must be below joint_high_rad {high}, one for one, by more "
                f"than four times joint_margin_rad {self.joint_margin_rad}"
            )
        if max(map(abs, (*low, *high))) > FARTHEST_RAD:
            raise ValueError(f"joint_low_rad {low}, joint_high_rad {high}: expected radians")
        if names and (len(names) != len(low) or len(set(names)) != len(names)):
            raise ValueError(f"joint_names {names}: expected {len(low)} different names, or none")
        if home := self.home_rad:
            margin = self.joint_margin_rad
            if len(home) != len(low) or not names:
                raise ValueError(f"home_rad {home}: expected {len(low)} numbers, and joint_names")
            if not all(
                a + margin < q < b - margin for a, q, b in zip(low, home, high, strict=True)
            ):
                raise ValueError(f"home_rad {home}: within joint_margin_rad of a joint's limit")
        return self

    @property
    def digest(self) -> str:
        """Sixteen hex digits of a hash of all values of this configuration."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @property
    def slow(self) -> Limits:
        """The motion limits with the slow speeds."""
        limits = self.motion.limits
        speeds = {
            "speed_m_s": min(self.slow_speed_m_s, limits.speed_m_s),
            "angular_speed_rad_s": min(self.slow_angular_speed_rad_s, limits.angular_speed_rad_s),
        }
        return limits.model_copy(update=speeds)

    @property
    def worst_travel_m(self) -> float:
        """The distance that an arm at full speed travels from a fault to standstill, in 250 ms."""
        return 0.25 * self.motion.limits.speed_m_s


def limits_of(limits: Limits, profile: ArmProfile) -> Limits:
    """Return the limits, lowered to the speeds and errors that the arm's controller can take.

    The lead is at most the default where the controller does not clip its error: a task's longer
    lead would be a larger force there, 40 N with 20 mm and a spring of 2000 N/m. The speeds are at
    most those above which the controller scales commands down. `yield_m` is the profile's, if set.
    """
    controller, lower = profile.controller, {}
    if controller.error_clip is None:
        lower["lead_m"] = Limits().lead_m
    if controller.fastest_m_s is not None:
        lower["speed_m_s"] = controller.fastest_m_s
    if controller.fastest_rad_s is not None:
        lower["angular_speed_rad_s"] = controller.fastest_rad_s
    update = {name: min(getattr(limits, name), most) for name, most in lower.items()}
    if profile.yield_m is not None:
        update["yield_m"] = profile.yield_m
    return limits.model_copy(update=update)


def check_fits(config: GuardConfig, profile: ArmProfile) -> None:
    """Raise `BadInput`, naming the key, unless the guard's configuration fits the arm."""
    count, names = len(config.joint_low_rad), config.joint_names
    if config.frame != profile.base_frame:
        wrong = f"frame: {config.frame!r}, but its base frame is {profile.base_frame!r}"
    elif count != len(profile.joints):
        wrong = f"joint_low_rad: limits of {count} joints, but it has {len(profile.joints)}"
    elif names and set(names) != set(profile.joints):
        wrong = f"joint_names: {', '.join(names)}, but its joints are {', '.join(profile.joints)}"
    elif config.wrench and profile.wrench is None:
        wrong = (
            "wrench: true, but it publishes none: set wrench: false, without detection of contacts"
        )
    elif config.home_rad and profile.trajectory is None:
        wrong = "home_rad: a home of the joints, but it takes no joint trajectories"
    elif too_fast := _too_fast(config.motion.limits, profile):
        wrong = too_fast
    else:
        check_wrench(config, profile)
        return
    raise BadInput(f"the guard's configuration does not fit the arm {profile.name}: {wrong}")


def check_wrench(config: GuardConfig, profile: ArmProfile) -> None:
    """Raise `BadInput` unless the arm can exert the wrench of the task, if it has one.

    Args:
        config: configuration of the guard.
        profile: profile of the arm, with the task's gains and clips.
    """
    limits, compliance = config.motion.limits, config.compliance
    if not compliance.wrench:
        return
    try:
        if profile.target_wrench is None:
            raise BadInput("compliance.wrench: its controller takes no target wrench")
        compliance.check_wrench(profile.controller.most_wrench(limits.lead_m, limits.lead_rad))
    except BadInput as error:
        raise BadInput(f"arm {profile.name}: {error}") from None


def _too_fast(limits: Limits, profile: ArmProfile) -> str:
    """Return which speed limit exceeds the speed of the arm's controller; empty if none does."""
    able = limits_of(limits, profile)
    for name in ("speed_m_s", "angular_speed_rad_s"):
        requested, allowed = getattr(limits, name), getattr(able, name)
        if requested > allowed:
            value = f"motion.limits.{name}: {requested:g}"
            return f"{value}, but its controller follows {allowed:g} at most"
    return ""
