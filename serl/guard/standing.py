"""Where the guard holds an arm that it does not drive, and how far a stopped arm may give way.

The measured pose is not trusted here: topics are unsigned, and whoever publishes a pose and a force
would otherwise lead a stopped arm wherever the pose drifts.
"""

from __future__ import annotations

import math

from serl.geometry import nearest_point, nearest_rotation
from serl.guard.checks import bounded, is_apart, is_inside, is_kept_out
from serl.guard.config import LATCHED, GuardConfig, GuardState
from serl.guard.inputs import MeasuredArm
from serl.motion import Pose

_OVERSHOT = 1.04
"""Of the lead: how far a profile goes beyond it when the arm stops all of a sudden."""


class Standing:
    """The place at which an arm is held, and how it may change.

    It changes in two ways. It settles once, at the place where the arm came to rest, when that is
    near enough to be a place at which the arm was held up. And in a protective stop it gives way to
    a push, by `Limits.yield_m` in all, measured from where the setpoint of the stop came to rest.
    Neither leads out of the box or into a keep-out box, and neither happens while the measurements
    are doubted. An emergency stop does not give way.

    Attributes:
        place: where the setpoint goes; None: it stays where it is.
        origin: where the setpoint came to rest in this stop; None outside of stops and before.
        moved: the arm left its setpoint in this stop by more than a stop explains: it does not give
            way any more.
    """

    def __init__(self, config: GuardConfig, measured: MeasuredArm) -> None:
        self.place: Pose | None = None
        self.origin: Pose | None = None
        self.moved = False
        self._config, self._measured = config, measured
        self._settles = False
        self._stood_s = -math.inf

    def seed(self, pose: Pose) -> None:
        """Hold the arm at the pose at which it was taken."""
        self.place, self._settles = pose, False

    def brake(self, stands: bool = False) -> None:
        """Forget the place, as the setpoint brakes; one that already stood settles no second time.

        Args:
            stands: the setpoint is at rest, and nobody drives.
        """
        self.place = None
        self._settles |= not stands

    def forget(self) -> None:
        """Begin a stop, or end it: where the last one came to rest counts no more."""
        self.origin, self.moved = None, False

    def rest(self, setpoint: Pose, state: GuardState, now_s: float) -> None:
        """Note that the setpoint came to rest."""
        self._stood_s = now_s
        if state in LATCHED and self.origin is None:
            self.origin = setpoint

    def find(self, setpoint: Pose, state: GuardState, soft: bool, now_s: float) -> Pose:
        """Where the setpoint is to go: the place, after it has settled or given way.

        Args:
            setpoint: the present one.
            state: of the guard, not one in which it drives.
            soft: the controller of the stopped arm is soft, so that little force moves the arm.
            now_s: monotonic time.
        """
        pose = self._measured.fresh_pose(now_s)
        if pose is not None and not self._measured.rivals:
            settles = self._settles and self._has_settled(pose, now_s)
            if settles or self._gives_way(setpoint, state, soft, now_s):
                self._move(pose)
        return self.place or setpoint

    def displacement(self, setpoint: Pose) -> str:
        """Why a soft arm is not let go of: it is away from its setpoint; empty when it is not."""
        if not self._is_away(setpoint):
            return ""
        if not self._is_away(self.place or setpoint):
            return "the arm was moved: its setpoint is on its way there"
        most_mm = 1e3 * self._config.motion.limits.yield_m
        return f"the arm was moved by more than {most_mm:.0f} mm: push it back"

    def is_behind(self, pose: Pose, setpoint: Pose) -> bool:
        """Whether an arm that is held up may be there when its setpoint has come to rest."""
        limits = self._config.motion.limits
        return not is_apart(
            pose,
            setpoint,
            _OVERSHOT * limits.lead_m
            + _way(limits.speed_m_s, limits.stop_acceleration_m_s2, limits.stop_jerk_m_s3),
            _OVERSHOT * limits.lead_rad
            + _way(
                limits.angular_speed_rad_s,
                limits.stop_angular_acceleration_rad_s2,
                limits.stop_angular_jerk_rad_s3,
            ),
        )

    def _is_away(self, place: Pose) -> bool:
        """Whether the arm is further from there than a setpoint may be ahead of it."""
        pose, limits = self._measured.pose, self._config.motion.limits
        return pose is not None and is_apart(pose, place, limits.lead_m, limits.lead_rad)

    def _gives_way(self, setpoint: Pose, state: GuardState, soft: bool, now_s: float) -> bool:
        """Whether something pushes the arm of a protective stop, by what is measured now."""
        if state is not GuardState.PROTECTIVE_STOP or self.moved:
            return False
        if self._measured.hindrance(now_s):
            return False
        # A soft spring lets itself be pushed far by little, and is to get stiff again near there.
        away = soft and self._is_away(self.place or setpoint)
        return away or bool(self._measured.touch)

    def _has_settled(self, pose: Pose, now_s: float) -> bool:
        """Whether arm and setpoint stand; in a stop, only where an arm that is held up may be."""
        near = self.origin is None or self.is_behind(pose, self.origin)
        return near and self._measured.has_settled(self._stood_s, now_s)

    def _move(self, pose: Pose) -> None:
        """Take the allowed place that is nearest to a measured pose, if there is one."""
        config, origin, limits = self._config, self.origin, self._config.motion.limits
        place = bounded(pose, config)
        if origin is not None:
            if not is_inside(origin, config):
                return
            place = Pose(
                nearest_point(place.position, origin.position, limits.yield_m),
                nearest_rotation(place.quaternion, origin.quaternion, limits.yield_rad),
            )
        if not is_kept_out(place, config):
            self.place, self._settles = place, False


def _way(speed: float, peak: float, jerk: float) -> float:
    """How far a stop from this speed goes."""
    return speed * (0.5 * speed / peak + 0.5 * peak / jerk)
