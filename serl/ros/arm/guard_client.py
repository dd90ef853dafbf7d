"""The guard as an actor sees it: what it does, and in simulation how it lets go and takes over."""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

from serl.errors import BadInput, SerlError, Silent
from serl.guard.config import LATCHED, MOVING, GuardState
from serl.intervention import STUCK
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
"""Causes of a hold that end when an actor begins to drive, or goes on."""


class GuardReport(NamedTuple):
    """What a guard says of itself.

    Attributes:
        state: what it is doing.
        cause: why, of a hold or a stop.
        not_now: why it would refuse a person's word, of a stop or when disarmed; empty if it does
            not.
    """

    state: GuardState
    cause: str
    not_now: str = ""

    @property
    def lets_move(self) -> bool:
        """The arm may be moved now, and its gripper."""
        return self.state in MOVING

    @property
    def waits(self) -> bool:
        """It holds the arm for no other reason than that nobody drives."""
        return self.state is GuardState.HOLD and self.cause in _WAITS


class GuardClient:
    """Reads a guard's state, and calls its services.

    Args:
        node: the process's node.
        robot: the arm's namespace.
        remote: calls services, and beats meanwhile.

    Attributes:
        key: file that signs orders; None for a client that does not `take`.
    """

    def __init__(self, node: RosNode, robot: str, remote: Remote) -> None:
        self._node, self._robot, self._remote = node, robot, remote
        self.key: Path | None = None
        topic = of_robot(GUARD_STATE, robot)
        self.feed: Feed[GuardReport] = Feed(node, topic, standing_of, _AGE_S, stamped=False)

    @property
    def standing(self) -> GuardReport | None:
        """What the guard said last; None when that is too long ago."""
        try:
            return self.feed.newest().value
        except Silent:
            return None

    @property
    def has_arm(self) -> bool:
        """The guard is there, and moves the arm or holds it."""
        standing = self.standing
        if standing is None:
            return False
        return standing.state is not GuardState.DISARMED and standing.state not in LATCHED

    def check(self) -> None:
        """Raise `Silent` when the guard is not there, has stopped the arm for good, or holds it.

        That is one that is stuck: what follows on its targets is nothing to learn from.
        """
        state, cause, _ = self.feed.newest().value
        if state in LATCHED:
            raise Silent(f"the guard stopped the arm: {state}: {cause}")
        if state is GuardState.HOLD and cause == STUCK:
            raise Silent(f"the guard holds the arm: {cause}")

    @property
    def lets_move(self) -> bool:
        """The arm may be moved now, and its gripper."""
        standing = self.standing
        return standing is not None and standing.lets_move

    @property
    def waits(self) -> bool:
        """The arm may be moved as soon as somebody drives."""
        standing = self.standing
        return standing is not None and standing.waits

    def release(self) -> None:
        """Have the guard let go of the arm, which then holds by itself; a stop stays one."""

        def gone() -> bool:
            standing = self.standing
            if standing is None:
                return False
            return standing.state in LATCHED or standing.state is GuardState.DISARMED

        self._remote.trigger(f"{self._robot}/guard/disarm")
        if not self._remote.wait(gone, _LIMIT_S):
            state, cause, _ = self.feed.newest().value
            raise SerlError(f"{self._robot}: the guard does not let go: {state}: {cause}")

    def take(self) -> None:
        """Have the guard take the arm again, where it is: for a simulated one that was placed.

        A protective stop is acknowledged: nobody is there who could be hurt. An emergency stop is
        a person's: it is waited for.

        Raises:
            SerlError: the guard refuses for long; its last word says why.
        """
        deadline_s = time.monotonic() + _LIMIT_S
        told = False
        while not self._node.stopping:
            state, problem = self._state(), ""
            if state is GuardState.ESTOP:
                deadline_s = math.inf
                if not told:
                    logger.warning("%s: emergency stop: a person has to end it", self._robot)
                told = True
            elif state not in LATCHED and state is not GuardState.DISARMED:
                return
            else:
                problem = self._ask("arm" if state is GuardState.DISARMED else "ack")
            if time.monotonic() > deadline_s:
                raise SerlError(f"{self._robot}: the guard does not take the arm: {problem}")
            self._remote.wait(lambda: False, _RETRY_S)

    def _ask(self, name: str) -> str:
        """Give an order; why it was refused, empty if it was not."""
        assert self.key is not None
        try:
            self._remote.order(f"{self._robot}/guard/{name}", self.key)
        except SerlError as error:
            return str(error)
        return ""

    def _state(self) -> GuardState:
        return self.feed.newest().value.state


def standing_of(message: Any) -> GuardReport:
    """The guard's state and the cause of it."""
    text, _, cause = printable(message.message).partition(": ")
    not_now = printable(next((each.value for each in message.values if each.key == NOT_NOW), ""))
    try:
        return GuardReport(GuardState(text), cause, not_now)
    except ValueError:
        raise BadInput(f"guard state {text[:64]!r}: expected one of {list(GuardState)}") from None
