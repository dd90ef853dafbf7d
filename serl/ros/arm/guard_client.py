"""The actor's client of a guard: its state, and in simulation the release and taking of the arm."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

from serl.errors import STUCK, ArmStuck, BadInput, SerlError, Silent
from serl.guard.config import LATCHED, MOVING, GuardState
from serl.guard.joint_move import OVER
from serl.ros.arm.guard_topics import GUARD_STATE, NOT_NOW
from serl.ros.arm.topics import of_robot
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.services import Remote
from serl.system.json_fields import printable

logger = logging.getLogger(__name__)

_AGE_S = 0.5
_RETRY_S = 0.05
_LIMIT_S = 20.0

_WAITS = ("armed", "heartbeat lost", "the actor holds", "command is stale")
"""Causes of a hold that ends when an actor begins to drive, or resumes."""


class GuardReport(NamedTuple):
    """The state that a guard reports.

    Attributes:
        cause: the reason for a hold or a stop.
        not_now: why the guard, stopped or disarmed, would refuse the operator's order; empty if it
            would accept.
    """

    state: GuardState
    cause: str
    not_now: str = ""

    @property
    def allows_motion(self) -> bool:
        """Whether the arm and its gripper may be moved now."""
        return self.state in MOVING

    @property
    def waits(self) -> bool:
        """Whether the guard holds the arm only because no controller is active."""
        return self.state is GuardState.HOLD and self.cause in _WAITS

    @property
    def has_homed(self) -> bool:
        """Whether the guard has completed the joint move that the actor asks for."""
        return self.state is GuardState.HOLD and self.cause == OVER

    @property
    def has_arm(self) -> bool:
        """Whether the guard moves or holds the arm."""
        return self.state is not GuardState.DISARMED and self.state not in LATCHED


class GuardClient:
    """Client that reads a guard's state and calls its services.

    Args:
        robot: the arm's namespace.
        remote: calls services, and sends heartbeats meanwhile.

    Attributes:
        feed: subscription to the guard's reports.
        key: file of the key that signs orders; None for a client that does not `take`.
    """

    def __init__(self, node: RosNode, robot: str, remote: Remote) -> None:
        self._node, self._robot, self._remote = node, robot, remote
        self.key: Path | None = None
        topic = of_robot(GUARD_STATE, robot)
        self.feed: Feed[GuardReport] = Feed(node, topic, parse_report, _AGE_S, stamped=False)

    @property
    def report(self) -> GuardReport | None:
        """The guard's last report; None if it is too old."""
        try:
            return self.feed.newest().value
        except Silent:
            return None

    @property
    def has_arm(self) -> bool:
        """Whether the guard is present and moves or holds the arm."""
        report = self.report
        return report is not None and report.has_arm

    def check(self) -> None:
        """Raise `Silent` if the guard is absent, has latched a stop, or holds a stuck arm.

        A stuck arm does not follow its targets, so its transitions are unusable for learning.
        """
        state, cause, _ = self.feed.newest().value
        if state in LATCHED:
            raise Silent(f"the guard stopped the arm: {state}: {cause}")
        if state is GuardState.HOLD and cause == STUCK:
            raise ArmStuck

    @property
    def allows_motion(self) -> bool:
        """Whether the arm and its gripper may be moved now."""
        report = self.report
        return report is not None and report.allows_motion

    @property
    def waits(self) -> bool:
        """Whether the arm may be moved as soon as a controller is active."""
        report = self.report
        return report is not None and report.waits

    @property
    def has_homed(self) -> bool:
        """Whether the guard has completed the joint move that the actor asks for."""
        report = self.report
        return report is not None and report.has_homed

    def release(self) -> None:
        """Make the guard release the arm, which then holds by itself; a stop stays latched.

        Raises:
            SerlError: the guard does not release the arm within 20 s.
        """

        def released() -> bool:
            report = self.report
            return report is not None and not report.has_arm

        self._remote.trigger(f"{self._robot}/guard/disarm")
        if not self._remote.wait(released, _LIMIT_S):
            state, cause, _ = self.feed.newest().value
            raise SerlError(f"{self._robot}: the guard does not disarm: {state}: {cause}")

    def take(self) -> None:
        """Make the guard take a simulated arm again, at the pose in which it was placed.

        Acknowledges a protective stop: no person can be hurt by a simulation. An emergency stop has
        to be ended by the operator; blocks until then.

        Raises:
            SerlError: the guard refuses or is silent for 20 s; the message has its last reason.
        """
        deadline_s = time.monotonic() + _LIMIT_S
        warned = False
        while not self._node.stopping:
            report, problem = self.report, "no report"
            if report is not None and report.has_arm:
                return
            if report is not None and report.state is GuardState.ESTOP:
                deadline_s = time.monotonic() + _LIMIT_S  # counted from its end
                if not warned:
                    logger.warning("%s: emergency stop: a person has to end it", self._robot)
                warned = True
            elif report is not None:
                problem = self._order("arm" if report.state is GuardState.DISARMED else "ack")
            if time.monotonic() > deadline_s:
                raise SerlError(f"{self._robot}: the guard does not take the arm: {problem}")
            self._remote.wait(lambda: False, _RETRY_S)

    def _order(self, name: str) -> str:
        """Send a signed order; return why it was refused, empty if it was accepted."""
        assert self.key is not None
        try:
            self._remote.order(f"{self._robot}/guard/{name}", self.key)
        except SerlError as error:
            return str(error)
        return ""


def parse_report(message: Any) -> GuardReport:
    """Return the guard's report from its diagnostic message.

    Raises:
        BadInput: the message names an unknown state.
    """
    text, _, cause = printable(message.message).partition(": ")
    not_now = printable(next((each.value for each in message.values if each.key == NOT_NOW), ""))
    try:
        return GuardReport(GuardState(text), cause, not_now)
    except ValueError:
        raise BadInput(f"guard state {text[:64]!r}: expected one of {list(GuardState)}") from None
