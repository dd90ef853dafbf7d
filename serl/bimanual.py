"""Two arms as one robot, observed and commanded in the same control step.

    Pair(left, right)

Names of state arrays, images and action entries begin with `left_` or `right_`; the entries of the
left arm come first. When one arm stops, so does the other; `recover` applies to both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Self, TypeVar

import numpy as np

from serl.errors import BadInput, SerlError
from serl.motion import Motion, check_action
from serl.robot import GuardedRobot, Robot
from serl.specs import ArraySpec, ObservationSpec
from serl.task import TaskConfig
from serl.types import Action, ActionSource, Observation

LEFT, RIGHT = "left_", "right_"

_Value = TypeVar("_Value")


class Pair:
    """A `serl.robot.Robot` made of two robots; two simulated ones share one world: `SimPair`.

    Args:
        left: the arm whose names get the prefix `left_`.
        right: the arm whose names get the prefix `right_`.

    Attributes:
        observation_spec: specs of both arms' readings, the left arm first.
        action_spec: spec of a joint action: the left arm's entries, then the right arm's.
        stop_reason: reason of the first stop of both arms; None while motion is allowed.
    """

    def __init__(self, left: Robot, right: Robot) -> None:
        if left is right:
            raise BadInput("a pair: expected two robots, got one twice")
        self.left, self.right = left, right
        self.stop_reason: str | None = None
        (self._split,) = left.action_spec.shape
        self.action_spec = _join_actions(left.action_spec, right.action_spec)
        both = left.observation_spec, right.observation_spec
        self.observation_spec = ObservationSpec(
            state=_join(*(each.state for each in both)),
            images=_join(*(each.images for each in both)),
        )
        self._entered: ExitStack | None = None

    def observe(self) -> Observation:
        """Return the newest reading of both arms.

        The stamp "robot" is the older of the two, so that a late reading of either arm is noticed.

        Raises:
            SerlError: one arm gives no reading; both are then stopped.
        """
        left, right = self._observe_both()
        stamps = _join(left.stamps, right.stamps)
        if "robot" in left.stamps and "robot" in right.stamps:
            stamps["robot"] = min(left.stamps["robot"], right.stamps["robot"])
        return Observation(
            state=_join(left.state, right.state),
            images=_join(left.images, right.images),
            stamps=stamps,
        )

    def act(self, action: Action) -> Action:
        """Send each arm its part of an action, or none to either; return the executed action.

        Raises:
            BadInput: the action has another shape, or is not finite and in [-1, 1].
            SerlError: one arm fails; both are then stopped.
        """
        check_action(action, self.action_spec)
        if self._stop_if_either():
            return np.zeros_like(action)
        try:
            left = self.left.act(action[: self._split].copy())
            right = self.right.act(action[self._split :].copy())
        except SerlError as error:
            self.stop(str(error))
            raise
        self._stop_if_either()
        return np.concatenate([left, right])

    def drive_as(self, source: ActionSource) -> None:
        """Set the source (person, policy or script) of the next actions of both arms."""
        for arm in (self.left, self.right):
            if isinstance(arm, GuardedRobot):
                arm.drive_as(source)

    def stop(self, reason: str) -> None:
        """Hold both arms still immediately; a failure of one does not prevent the other's stop."""
        self.stop_reason = self.stop_reason or reason
        try:
            self.left.stop(reason)
        finally:
            self.right.stop(reason)

    def recover(self) -> None:
        """Allow motion of both arms again, or of neither.

        Raises:
            SerlError: one arm cannot recover; both stay stopped.
        """
        if not self._stop_if_either():
            return
        reason = self.stop_reason
        try:
            self.left.recover()
            self.right.recover()
        except SerlError:
            self.stop(reason or "not recovered")
            raise
        self.stop_reason = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.left)
            stack.enter_context(self.right)
            self._entered = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        if self._entered is not None:
            self._entered.close()

    def _observe_both(self) -> tuple[Observation, Observation]:
        try:
            return self.left.observe(), self.right.observe()
        except SerlError as error:
            self.stop(str(error))
            raise

    def _stop_if_either(self) -> bool:
        """Return whether either arm is stopped; if so, stop both."""
        for arm, other in ((self.left, self.right), (self.right, self.left)):
            reason = getattr(arm, "stop_reason", None)
            if reason:
                self.stop_reason = self.stop_reason or str(reason)
                if not getattr(other, "stop_reason", None):
                    other.stop(str(reason))
        return self.stop_reason is not None


class PairConfig(TaskConfig):
    """The configuration of a task with two arms.

    Attributes:
        motion: meaning and limits of the left arm's action, in the frame that both arms share.
        right_motion: meaning and limits of the right arm's action, in the same frame.
    """

    right_motion: Motion

    @property
    def action_spec(self) -> ArraySpec:
        """The spec of a joint action: the left arm's entries, then the right arm's."""
        return _join_actions(self.motion.action_spec, self.right_motion.action_spec)


def _join(left: Mapping[str, _Value], right: Mapping[str, _Value]) -> dict[str, _Value]:
    return {
        **{f"{LEFT}{name}": value for name, value in left.items()},
        **{f"{RIGHT}{name}": value for name, value in right.items()},
    }


def _join_actions(left: ArraySpec, right: ArraySpec) -> ArraySpec:
    bounds = {(spec.dtype, spec.low, spec.high) for spec in (left, right)}
    if bounds != {("float32", -1.0, 1.0)} or len(left.shape) != 1 or len(right.shape) != 1:
        raise BadInput(f"a pair: expected float32 actions in [-1, 1], got {left} and {right}")
    words: list[Any] = [f"{LEFT}{word}" for word in left.unit.split()]
    words += [f"{RIGHT}{word}" for word in right.unit.split()]
    (count,), (more,) = left.shape, right.shape
    return ArraySpec(shape=(count + more,), low=-1.0, high=1.0, unit=" ".join(words))
