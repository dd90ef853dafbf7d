"""Whether an arm's controller is set as its profile says: asked again and again, never waited for.

For a process that must not wait, the guard's. Whoever sets them is in `serl.ros.arm.controller`.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from rcl_interfaces.srv import GetParameters
from rclpy.parameter import parameter_value_to_python

from serl.arm_profile import ArmProfile, differences
from serl.ros.arm.controller import controller_node, unfelt
from serl.ros.node import RosNode

_ASK_S = 0.5
_OLD_S = 2.0
_SWITCH_S = 2.0
"""Gains are on their way from one mode to another for half a second; far longer is none."""

_STIFFEN = "call the service gains/precision of its actor, or start that anew"


class ControllerWatch:
    """Compares parameters of the controller with its profile, in the executor's thread.

    Args:
        node: the process's node.
        robot: the arm's namespace.
        profile: what is expected.
    """

    def __init__(self, node: RosNode, robot: str, profile: ArmProfile) -> None:
        self._controller = profile.controller
        self._unfelt = partial(unfelt, node, robot, profile)
        soft = self._controller.compliance
        self._soft_gains = {} if soft is None else soft.parameters
        known = self._controller.parameters | self._controller.expected | self._soft_gains
        self._names = list(known)
        self._node = node.absolute(controller_node(robot, profile))
        self._wrong, self._answered_s = "", float("-inf")
        self._right_s: float | None = None  # when all was as expected last
        self._soft = False
        self._may_pass = False  # what is wrong is what a switch of gains passes through
        self._asked: Any = None
        if self._names:
            service = f"{self._node}/get_parameters"
            self._client = node.handle.create_client(GetParameters, service)
            node.every(_ASK_S, self._ask)

    @property
    def trouble(self) -> str:
        """Why the arm must not be taken; empty when its controller is as expected."""
        if not self._names:
            return ""
        if time.monotonic() - self._answered_s > _OLD_S:
            return f"{self._node}: the controller does not tell its parameters"
        return f"{self._node}: {self._wrong}" if self._wrong else self._unfelt()

    @property
    def left_soft(self) -> str:
        """Why an arm must not be taken by a guard that began anew; empty when its gains will do.

        They may be those of a stop, which the guard before it did not live to undo.
        """
        return f"{self._node}: its gains are those of a stop: {_STIFFEN}" if self._soft else ""

    @property
    def changed(self) -> str:
        """Why an arm must not be driven on: somebody set its controller otherwise, or half way.

        A controller that does not answer has not been changed: its arm falls silent as well, or
        follows as it did.
        """
        if not self._wrong or self._right_s is None:
            return ""
        if self._may_pass and time.monotonic() - self._right_s <= _SWITCH_S:
            return ""
        return f"{self._node}: {self._wrong}"

    def _ask(self) -> None:
        if self._client.service_is_ready():
            if self._asked is not None and not self._asked.done():
                self._client.remove_pending_request(self._asked)
            self._asked = self._client.call_async(GetParameters.Request(names=self._names))
            self._asked.add_done_callback(self._hear)

    def _hear(self, future: Any) -> None:
        answer = future.result()
        if answer is None:
            return
        values = map(parameter_value_to_python, answer.values)
        found = dict(zip(self._names, values, strict=False))
        self._wrong = self._controller.wrong(found)
        gains = self._soft_gains
        self._soft = bool(gains) and not differences(found, gains)
        self._may_pass = self._controller.is_between(found)
        self._answered_s = time.monotonic()
        if not self._wrong:
            self._right_s = self._answered_s
