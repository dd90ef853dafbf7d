"""The reset of an arm between two episodes: its tool returns to a random start.

It is an episode of a script, within the same limits and under the same takeover and stops as any
other; see `serl.training.actor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from serl.compliance import RESET
from serl.errors import NeedsPerson
from serl.geometry import (
    Quaternion,
    Vector,
    from_rotation_vector,
    is_in_box,
    multiply,
    normalize,
    rotation_between,
)
from serl.motion import Box, Motion, Pose, to_action_frame
from serl.policy import Policy
from serl.reset import ResetConfig, SceneCheck, no_check
from serl.robot import TurningRobot
from serl.task import Task
from serl.training.resets import SceneReset
from serl.types import Action, Observation

PRECISION = "precision"
"""Mode of a controller for resets, if the settings name none and the task has no table."""

_ARRIVED_M, _PASSED_M, _REST_M_S = 0.001, 0.01, 0.01
_CORRECTED_M, _CORRECTION = 0.015, 0.5
_TURNED_RAD = 0.06
_GRIP_S = 1.0
_OPENED = 0.9
_DRAWS = 100
_UNDERWAY, _SETTLED = 0.5, 0.8
"""Shares of the tolerance that end an attempt and a reset, as the tool may settle afterwards."""


class ArmReset(SceneReset):
    """Return of the tool to a random start, based on the arm's readings alone.

    The gripper opens or keeps its part, and the tool is lifted and moves straight to the start
    drawn by `begin`. With a taught path, a part in the hand is first put back along that path.

    Args:
        robot: the arm; a `TurningRobot` turns to the orientation of the start, and an
            `AdjustableRobot` with a mode for resets has its gains meanwhile.
        config: settings of the reset.
        motion: meaning and limits of actions, with the box of the arm.
        home: mean start of the tool.
        rng: draws the starts.
        check: condition for the next episode.
        keep_out: boxes that no start is in.

    Attributes:
        start: the drawn start of the next episode.
    """

    def __init__(
        self,
        task: Task,
        robot: Any,
        config: ResetConfig,
        motion: Motion,
        home: Pose,
        rng: np.random.Generator,
        check: SceneCheck = no_check,
        keep_out: Sequence[Box] = (),
    ) -> None:
        own = (RESET, PRECISION) if config.gains is None else (config.gains,)
        super().__init__(task, check, robot, own)
        self._config, self._motion, self._home = config, motion, home
        self._rng, self._keep_out = rng, keep_out
        self._path = config.path if config.kind == "path" else ()
        self._opens = config.gripper == "open" and motion.gripper and not self._path
        self._is_laid = self._is_released = False
        self._slipped = self._tried = self._underway = False
        self.start = home

    def begin(self) -> None:
        """Draw the start of the next episode."""
        config, home = self._config, self._home
        yaw_rad = config.yaw_rad if "yaw" in self._motion.axes else 0.0
        turn_rad = self._rng.uniform(-yaw_rad, yaw_rad)
        turn = from_rotation_vector((0.0, 0.0, turn_rad))
        self.start = Pose(self._draw_position(), multiply(turn, home.quaternion))
        self._is_laid, self._is_released = not self._path, False
        self._slipped = self._tried = False

    def __call__(self, reading: Observation) -> Policy | None:
        """Return a policy to the drawn start, or None when the tool is there and the scene ready.

        Raises:
            NeedsPerson: the hand lost the part that it had to keep or to put back, or the check
                fails.
        """
        self._find_part(float(reading.state["gripper"][0]))
        self.missing = self._distance(reading)
        if self.missing or not self._is_laid:
            return self._script(self._legs(reading))
        if trouble := self._check(reading):
            raise NeedsPerson(trouble)
        return None

    def settle(self) -> Policy:
        """Return a policy that moves the tool, which is near the drawn start, exactly there."""
        return self._script([self._last_leg()])

    def confirm(self) -> None:
        """Note that a person has put the part in its place, unless the hand is to keep it."""
        self._is_laid, self._slipped, self._tried = True, False, False

    def prepare(self) -> None:
        """Switch to the gains of the reset, once after each `begin`, if the arm has them.

        A second attempt has the gains of episodes, with which the tool may rest elsewhere.
        """
        if not self._tried:
            super().prepare()
        self._tried = self._underway = True

    def end(self, restore_gains: bool = True) -> None:
        """End an attempt, as `SceneReset.end`."""
        self._underway = False
        super().end(restore_gains)

    def _draw_position(self) -> Vector:
        """Return a random position within the box and the range of the home, outside `keep_out`."""
        reach, home = self._config.range_m, self._home.position
        aside, limits = (reach, reach, 0.0), (self._motion.box_low_m, self._motion.box_high_m)
        low = np.clip(np.subtract(home, aside), *limits)
        high = np.clip(np.add(home, aside), *limits)
        for _ in range(_DRAWS):
            x, y = self._rng.uniform(low[:2], high[:2]).tolist()
            start = x, y, float(low[2])
            if not any(is_in_box(start, box.low_m, box.high_m) for box in self._keep_out):
                return start
        return home

    def _legs(self, reading: Observation) -> list[_Leg]:
        """Return the legs to the start; the last one is exact.

        A reset that was interrupted while the hand let go of the part continues from there.
        """
        lift = _Leg(lift_m=self._config.lift_m)
        before = [_Leg(closed=False), lift] if self._opens else [lift]
        if not self._is_laid:
            taught = [
                _Leg(each.position_m, orientation=each.orientation, closed=each.closed)
                for each in self._path
            ]
            before = [lift, *taught, lift]
            if self._is_released:
                closed = [leg.closed for leg in taught]
                first = next(i for i in range(len(closed)) if _lets_go(closed[i:]))
                place = self._path[first].position_m
                away_m = math.dist(reading.state["tcp_pose"][:3].tolist(), place)
                del before[1 : 1 + first]
                if away_m <= self._config.lift_m:
                    del before[0]
        return [*before, self._last_leg()]

    def _last_leg(self) -> _Leg:
        return _Leg(self.start.position, orientation=self.start.quaternion, exact=True)

    def _script(self, legs: list[_Leg]) -> Policy:
        return _LegScript(
            self._robot,
            self._motion,
            legs,
            not (self._is_laid or self._is_released),
            round(_GRIP_S * self._task.config.rate_hz),
            self._config.held,
            self._notice,
        )

    def _notice(self, event: _PathEvent) -> None:
        """Note what happened to the part on the path."""
        self._is_released |= event == "released"
        self._is_laid |= event == "laid"
        self._slipped |= event == "lost"

    def _find_part(self, opening: float) -> None:
        """Raise `NeedsPerson` if the part that the hand is to keep or to put back is not in it."""
        held = self._config.held <= opening < _OPENED
        if self._slipped:
            raise NeedsPerson("the part slipped out of the gripper while it was put back")
        if not self._path and self._config.gripper == "keep" and not held:
            raise NeedsPerson(
                f"the gripper holds nothing (opening {opening:.2f}): the part slipped or was let go"
            )
        is_empty = not (self._underway or held)
        if is_empty and not (self._is_laid or self._is_released):  # nothing to put back
            if self._config.check == "none":
                raise NeedsPerson(
                    "the gripper holds nothing to put back, and reset.check looks for no part"
                )
            self._is_laid = True

    def _distance(self, reading: Observation) -> str:
        """Return the reason why the tool is not at rest at the drawn start; empty if it is."""
        state = reading.state
        away_m = math.dist(state["tcp_pose"][:3].tolist(), self.start.position)
        margin = _UNDERWAY if self._underway else _SETTLED
        if away_m > margin * self._config.tolerance_m:
            return f"the tool is {1e3 * away_m:.1f} mm from its start"
        turned = rotation_between(normalize(state["tcp_pose"][3:].tolist()), self.start.quaternion)
        if math.hypot(*turned) > _TURNED_RAD:
            return f"the tool is turned by {math.hypot(*turned):.2f} rad from its start"
        if math.hypot(*state["tcp_twist"][:3].tolist()) > _REST_M_S:
            return "the tool moves"
        if self._opens and float(state["gripper"][0]) < _OPENED:
            return "the gripper does not open"
        return ""


class _Leg(NamedTuple):
    """A part of a reset's motion: first to a pose, then to a state of the gripper.

    Attributes:
        position_m: position of the tool; None for the present one.
        lift_m: distance above that position.
        orientation: orientation of the tool; None for the present one.
        closed: state of the gripper afterwards; None for the present one.
        exact: the pose is the start of an episode: errors of the controller are corrected.
    """

    position_m: Vector | None = None
    lift_m: float = 0.0
    orientation: Quaternion | None = None
    closed: bool | None = None
    exact: bool = False

    @property
    def is_taught(self) -> bool:
        """Whether the leg leads to a pose of a taught path."""
        return self.position_m is not None and not self.exact


_PathEvent = Literal["released", "laid", "lost"]
"""On a taught path: the hand opens for the last time; the path was completed; the part was lost."""


def _lets_go(closed: Sequence[bool | None]) -> bool:
    """Return whether the hand opens at the first of these poses, and closes at none of them."""
    return closed[0] is False and not any(closed)


class _LegScript:
    """Policy that follows the legs of an arm's reset, one after the other.

    Args:
        motion: meaning of its actions.
        legs: the legs, the last of which is exact.
        carries: the hand holds the part that a taught path puts back.
        grip_steps: longest duration of a change of the gripper.
        held: opening of the gripper below which it holds nothing.
        notice: called with the events of a taught path.
    """

    def __init__(
        self,
        robot: Any,
        motion: Motion,
        legs: list[_Leg],
        carries: bool,
        grip_steps: int,
        held: float,
        notice: Callable[[_PathEvent], object],
    ) -> None:
        self._robot, self._motion, self._legs, self._notice = robot, motion, legs, notice
        self._grip_steps, self._held = grip_steps, held
        self._carries = carries
        self._begun: _Leg | None = None
        self._turned: Quaternion = (0.0, 0.0, 0.0, 1.0)  # of the target
        self._aim, self._correction = np.zeros(3), np.zeros(3)
        self._gripping = 0

    def __call__(self, observation: Observation) -> Action:
        """Return the next action, given a reading."""
        state, leg = observation.state, self._legs[0]
        tool, target = (state[name][:3].astype(np.float64) for name in ("tcp_pose", "target_pose"))
        self._turned = normalize(state["target_pose"][3:].tolist())
        opening = float(state["gripper"][0])
        if self._carries and opening < self._held:
            self._carries = False
            self._notice("lost")
        if leg is not self._begun:
            self._begin(leg, target)
        shift, error = self._aim + self._correction - target, self._aim - tool
        if leg.exact:
            speed_m_s = float(np.abs(state["tcp_twist"][:3]).max())
            if speed_m_s < _REST_M_S and float(np.abs(shift).max()) < _ARRIVED_M:
                self._correction += _CORRECTION * error
                self._correction = self._correction.clip(-_CORRECTED_M, _CORRECTED_M)
            return self._action(shift)
        if float(np.abs(error).max()) > _PASSED_M:
            return self._action(shift)
        return self._grip(leg, opening, shift)

    def _begin(self, leg: _Leg, target: np.ndarray[Any, Any]) -> None:
        self._begun, self._gripping = leg, 0
        low, high = self._motion.box_low_m, self._motion.box_high_m
        place = target if leg.position_m is None else np.array(leg.position_m)
        self._aim = (place + np.array((0.0, 0.0, leg.lift_m))).clip(low, high)
        if leg.orientation is not None and isinstance(self._robot, TurningRobot):
            self._robot.turn_to(leg.orientation)

    def _grip(self, leg: _Leg, opening: float, shift: np.ndarray[Any, Any]) -> Action:
        """Bring the gripper to the state of the leg, then go on to the next leg."""
        is_done = leg.closed is None or leg.closed == (opening < _OPENED)
        if leg.closed is None or is_done or self._gripping >= self._grip_steps:
            if leg.is_taught:
                self._carries = bool(leg.closed)
                if not self._legs[1].is_taught:
                    self._carries = False
                    self._notice("laid")
            del self._legs[0]
            return self._action(shift)
        self._gripping += 1
        self._carries = False
        if leg.is_taught and _lets_go([each.closed for each in self._legs if each.is_taught]):
            self._notice("released")
        return self._action(shift, -1.0 if leg.closed else 1.0)

    def _action(self, shift_m: np.ndarray[Any, Any], gripper: float = 0.0) -> Action:
        """Return the action towards a shift of the target, straight and as fast as possible.

        The shift is in the base frame, the action in the frame of the motion.
        """
        x, y, z = shift_m.tolist()
        along = to_action_frame((x, y, z), self._turned, self._motion)
        moved = np.array(along) / self._motion.translation_m
        moved /= max(1.0, float(np.abs(moved).max()))
        parts = dict(zip("xyz", moved.tolist(), strict=True))
        values = [parts.get(axis, 0.0) for axis in self._motion.axes]
        return np.array([*values, *([gripper] if self._motion.gripper else [])], np.float32)
