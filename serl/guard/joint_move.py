"""Moves of all joints to the arm's home, through the trajectory controller of its driver.

The guard sends the move in pieces, 20 a second. Each piece follows the path for 0.15 s and then
brakes to rest, so that the arm stands 0.35 s after the last piece: a guard that is killed, hangs or
is cut off stops the move. During a move the guard gives no setpoint and takes no command. It
watches the box and the keep-out boxes by the measured pose of the tool, the force already from
`slow_force_n` on, and the joints by their distance from the path.
"""

from __future__ import annotations

import math

from serl.guard.checks import is_inside
from serl.guard.config import GuardConfig
from serl.guard.inputs import MeasuredArm
from serl.trajectory import BRAKE_S, PIECE_S, JointPath, Trajectory

_SEND_S = 0.045  # least time between two pieces: five ticks
_SLOW = 1.0 / 3.0  # share of the speed after a stop
_REST_S = 3.0  # longest time from the end of the path until the arm is at rest

OVER = "the joint move is over"
"""Cause of the hold after a complete move, until the actor asks for something else."""


class JointMove:
    """A joint move of a guard, from its beginning until the arm is at rest again.

    Attributes:
        trajectory: trajectory to send in this tick; None for none.
        unheard: why nothing would take a trajectory; empty if a controller does.
        over: whether the move that the actor asks for is complete.
    """

    def __init__(self, config: GuardConfig, measured: MeasuredArm) -> None:
        self.trajectory: Trajectory | None = None
        self.unheard, self.over = "", False
        self._config, self._measured = config, measured
        self._path: JointPath | None = None
        self._is_stopping = self._is_braking = False
        self._began_s = self._sent_s = self._rest_s = -math.inf

    @property
    def is_active(self) -> bool:
        """Whether the driver's trajectory controller moves the arm, or has not come to rest."""
        return self._path is not None

    def hindrance(self, now_s: float) -> str:
        """Return why a move must not begin, or a complete one is not repeated; empty if it may."""
        if not self._config.home_rad:
            return "this arm takes no joint moves"
        if self.over:
            return OVER
        if self.is_active:
            return ""
        if self.unheard:
            return self.unheard
        pose = self._measured.pose
        if pose is None or not is_inside(pose, self._config):
            return "a joint move begins inside the box only"
        return "" if self._measured.is_still(now_s) else "the arm moves"

    def begin(self, now_s: float, slow: bool = False) -> None:
        """Begin a move from the measured joints; `slow` after a stop."""
        config, start = self._config, self._measured.joints.angles_rad
        speed_rad_s = (_SLOW if slow else 1.0) * config.home_speed_rad_s
        self._path = JointPath(start, config.home_rad, speed_rad_s)
        self._began_s, self._sent_s = now_s, -math.inf
        self._rest_s = now_s + self._path.duration_s
        self._is_stopping = self._is_braking = False

    def stop(self) -> None:
        """Brake with the next tick."""
        self._is_stopping = self.is_active

    def advance(self, now_s: float) -> None:
        """Determine the trajectory to send now; end the move once the arm is at rest."""
        self.trajectory = None
        if self._path is None:
            return
        time_s, unsent_s = now_s - self._began_s, now_s - self._sent_s
        if self._is_stopping and not self._is_braking:
            self._is_braking, self._rest_s = True, now_s + BRAKE_S
            if unsent_s <= PIECE_S:  # otherwise the last piece brakes already
                self.trajectory = self._path.brake(time_s)
        elif not self._is_stopping and unsent_s >= _SEND_S:
            self.trajectory, self._sent_s = self._path.piece(time_s), now_s
        if self._measured.has_settled(self._rest_s, now_s):
            self.over, self._path = not self._is_stopping, None

    def trouble(self, now_s: float) -> str:
        """Return why the arm has to be stopped; empty if it does not."""
        if self._path is None:
            return ""
        if now_s > self._rest_s + _REST_S:
            return "the arm does not come to rest after a joint move"
        if self._is_stopping:
            return ""
        pose = self._measured.pose
        if pose is None or not is_inside(pose, self._config):
            return "a joint move led the tool out of its box, or turned it too far"
        if self._measured.is_touching:
            return "the tool touches something in a joint move"
        expected, _ = self._path.at(now_s - self._began_s)
        angles = self._measured.joints.angles_rad
        errors = [abs(a - b) for a, b in zip(angles, expected, strict=True)]
        if (error := max(errors)) <= self._config.home_error_rad:
            return ""
        return f"joint {errors.index(error) + 1} is {error:.2f} rad from the path of its move"
