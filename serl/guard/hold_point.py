"""The pose at which the guard holds an arm, and the distance that a stopped arm may give way.

The measured pose is not trusted here: topics are unsigned, and a node that publishes a pose and a
force could otherwise lead a stopped arm wherever the pose drifts.
"""

from __future__ import annotations

import math

from serl.geometry import nearest_point, nearest_rotation
from serl.guard.checks import clamp_pose, is_apart, is_inside, is_kept_out
from serl.guard.config import LATCHED, GuardConfig, GuardState
from serl.guard.inputs import MeasuredArm
from serl.motion import Pose

_OVERSHOT = 1.04
"""Fraction of the lead that a profile reaches when the arm stops suddenly."""


class HoldPoint:
    """The place at which an arm is held, and the rules for changing it.

    The place settles once at the pose where the arm came to rest, if an obstacle can explain its
    distance from the setpoint. In a protective stop it gives way to a push, by `Limits.yield_m` in
    all, measured from the pose at which the setpoint came to rest. Neither leads out of the box or
    into a keep-out box, and neither happens while other nodes publish measurements. In an emergency
    stop the place does not change at all.

    Attributes:
        place: goal of the setpoint; None: the setpoint stays at its pose.
        origin: pose at which the setpoint came to rest in this stop; None outside of stops and
            before the setpoint rests.
        moved: whether the arm left its setpoint in this stop by more than a stop explains: it does
            not give way any more.
    """

    def __init__(self, config: GuardConfig, measured: MeasuredArm) -> None:
        self.place: Pose | None = None
        self.origin: Pose | None = None
        self.moved = False
        self._config, self._measured = config, measured
        self._settles = False
        self._rested_s = -math.inf

    def seed(self, pose: Pose) -> None:
        """Hold the arm at the pose at which the guard takes it over."""
        self.place, self._settles = pose, False

    def brake(self, is_idle: bool = False) -> None:
        """Forget the place while the setpoint brakes; a setpoint at rest settles no second time.

        Args:
            is_idle: whether the setpoint is at rest and the arm is not driven.
        """
        self.place = None
        self._settles |= not is_idle

    def forget(self) -> None:
        """Begin or end a stop: drop the pose at which the last stop came to rest."""
        self.origin, self.moved = None, False

    def rest(self, setpoint: Pose, state: GuardState, now_s: float) -> None:
        """Note that the setpoint came to rest at this pose."""
        self._rested_s = now_s
        if state in LATCHED and self.origin is None:
            self.origin = setpoint

    def find(self, setpoint: Pose, state: GuardState, soft: bool, now_s: float) -> Pose:
        """Return the goal of the setpoint: the place, after it has settled or given way.

        Args:
            setpoint: present pose of the setpoint.
            state: state of the guard, in which it does not drive the arm.
            soft: whether the controller of the stopped arm is soft, so that little force moves it.
            now_s: monotonic time.
        """
        pose = self._measured.fresh_pose(now_s)
        if pose is not None and not self._measured.rivals:
            may_settle = self._settles and state is not GuardState.ESTOP
            settles = may_settle and self._has_settled(pose, now_s)
            if settles or self._is_pushed(setpoint, state, soft, now_s):
                self._move(pose, setpoint)
        return self.place or setpoint

    def displacement(self, setpoint: Pose) -> str:
        """Return why a soft arm may not be released, away from its setpoint; empty if it may."""
        if not self.is_away(setpoint):
            return ""
        if not self.is_away(self.place or setpoint):
            return "the arm was moved: its setpoint is on its way there"
        most_mm = 1e3 * self._config.motion.limits.yield_m
        return f"the arm was moved by more than {most_mm:.0f} mm: push it back"

    def restored(self, pose: Pose, last: Pose | None) -> Pose | None:
        """Return the pose at which a dropped setpoint of a stop begins again; None for no setpoint.

        It is the last setpoint, or the measured pose if the arm is away from it by more than the
        lead and an obstacle can explain that, or if there was no setpoint, as in a joint move.

        Args:
            pose: measured pose of the arm.
            last: last setpoint.
        """
        if last is None:
            return None if self._measured.rivals else pose
        if not self.is_behind(pose, last):
            return None
        return pose if self.is_away(last) else last

    def is_behind(self, pose: Pose, setpoint: Pose) -> bool:
        """Return whether an arm held up by an obstacle may be at `pose` after its setpoint stops.

        Args:
            pose: measured pose of the arm.
            setpoint: pose at which the setpoint came to rest.
        """
        limits = self._config.motion.limits
        return not is_apart(
            pose,
            setpoint,
            _OVERSHOT * limits.lead_m
            + _stopping_distance(
                limits.speed_m_s, limits.stop_acceleration_m_s2, limits.stop_jerk_m_s3
            ),
            _OVERSHOT * limits.lead_rad
            + _stopping_distance(
                limits.angular_speed_rad_s,
                limits.stop_angular_acceleration_rad_s2,
                limits.stop_angular_jerk_rad_s3,
            ),
        )

    def is_away(self, place: Pose) -> bool:
        """Return whether the arm is further from `place` than a setpoint may lead it."""
        pose, limits = self._measured.pose, self._config.motion.limits
        return pose is not None and is_apart(pose, place, limits.lead_m, limits.lead_rad)

    def _is_pushed(self, setpoint: Pose, state: GuardState, soft: bool, now_s: float) -> bool:
        """Return whether the arm of a protective stop is pushed, by the present measurements."""
        if state is not GuardState.PROTECTIVE_STOP or self.moved:
            return False
        if self._measured.hindrance(now_s):
            return False
        # A small force pushes a soft spring far; it has to become stiff again near that place.
        away = soft and self.is_away(self.place or setpoint)
        return away or bool(self._measured.touch)

    def _has_settled(self, pose: Pose, now_s: float) -> bool:
        """Return whether arm and setpoint stand; in a stop, only if an obstacle explains it."""
        near = self.origin is None or self.is_behind(pose, self.origin)
        return near and self._measured.has_settled(self._rested_s, now_s)

    def _move(self, pose: Pose, setpoint: Pose) -> None:
        """Set the place to the allowed pose nearest to a measured pose, if there is one.

        Outside of the box there is none in a stop; a hold does not lead the arm back into it.
        """
        config, origin, limits = self._config, self.origin, self._config.motion.limits
        is_outside = not is_inside(origin or setpoint, config)
        place = pose if is_outside else clamp_pose(pose, config)
        if origin is not None:
            if is_outside:
                return
            place = Pose(
                nearest_point(place.position, origin.position, limits.yield_m),
                nearest_rotation(place.quaternion, origin.quaternion, limits.yield_rad),
            )
        if not is_kept_out(place, config):
            self.place, self._settles = place, False


def _stopping_distance(speed: float, peak: float, jerk: float) -> float:
    """Return the distance, or the angle, travelled during a stop from this speed."""
    return speed * (0.5 * speed / peak + 0.5 * peak / jerk)
