"""A stop after a contact is soft: the guard brings its arm's controller to 200 N/m, and back."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from serl.arm_profile import ArmProfile, Value, differences
from serl.ros.arm.controller import STEP_S, controller_node, ramp
from serl.ros.node import RosNode

logger = logging.getLogger(__name__)

_ANSWER_S, _SILENT_S = 0.5, 2.0
_ATTEMPTS = 3


class Compliance:
    """Switches gains for a process that must not wait, in the executor's thread.

    Over half a second, from what the controller says that they are; read back. The way back, once
    the stop is over, leads to what they were, or to those of the profile's start where they were
    nothing that the profile knows, such as half way to a mode. A controller that does not become
    soft, or stiff again, or that says nothing, is named in the log, and the arm stays stopped as
    it was.

    Args:
        node: the process's node.
        robot: the arm's namespace.
        profile: what its controller takes.
        yields: whether it is to be soft; asked again and again.
    """

    def __init__(
        self, node: RosNode, robot: str, profile: ArmProfile, yields: Callable[[], bool]
    ) -> None:
        gains, self._yields = profile.controller.compliance, yields
        self._soft, self._before = False, dict[str, Value]()
        self._plan: deque[dict[str, Value]] = deque()
        self._attempts, self._asked_s = 0, -_ANSWER_S
        self._silent_s: float | None = None  # since when an answer is waited for; None: it is not
        self._asked: Any = None
        self._settled = True
        if gains is None or profile.wrench is None:
            return
        self._gains: dict[str, Value] = {**gains.parameters}
        self._controller = profile.controller
        self._name = node.absolute(controller_node(robot, profile))
        self._getter = node.handle.create_client(GetParameters, f"{self._name}/get_parameters")
        self._setter = node.handle.create_client(SetParameters, f"{self._name}/set_parameters")
        node.every(STEP_S, self._step)

    def _step(self) -> None:
        if (soft := self._yields()) != self._soft:
            self._soft, self._settled, self._attempts = soft, False, _ATTEMPTS
            self._plan.clear()
            self._asked_s = -_ANSWER_S
            self._silent_s = time.monotonic()
        if self._plan:
            self._set(self._plan.popleft())
        elif not self._settled and time.monotonic() - self._asked_s >= _ANSWER_S:
            self._ask()

    def _ask(self) -> None:
        """What the gains are: before they change, and after it."""
        self._asked_s, soft = time.monotonic(), self._soft
        if self._silent_s is not None and self._asked_s - self._silent_s > _SILENT_S:
            self._silent_s = None  # named once
            logger.warning("%s does not tell its gains: they stay as they are", self._name)

        def hear(future: Any) -> None:
            answer = future.result()
            if answer is not None and soft == self._soft and not self._plan:
                self._silent_s = None
                values = map(parameter_value_to_python, answer.values)
                self._go_on(dict(zip(self._gains, values, strict=False)))

        if self._getter.service_is_ready():
            if self._asked is not None and not self._asked.done():
                self._getter.remove_pending_request(self._asked)
            self._asked = self._getter.call_async(GetParameters.Request(names=list(self._gains)))
            self._asked.add_done_callback(hear)

    def _go_on(self, found: dict[str, Any]) -> None:
        """Plan the way from what the gains are to what they are to be, unless they are."""
        known = len(found) == len(self._gains) and None not in found.values()
        if self._soft and not self._before and known:
            self._before = self._lasting(found)
        wanted = self._gains if self._soft else self._before
        differ = differences(found, wanted)
        self._settled = not differ
        if self._settled and not self._soft:
            self._before = {}
        elif not self._settled and known and self._attempts:
            self._attempts -= 1
            self._plan.extend(ramp(found, wanted))
        elif not self._settled:
            self._settled = True
            logger.warning("%s does not take the gains of a stop: %s", self._name, differ)

    def _lasting(self, found: dict[str, Any]) -> dict[str, Value]:
        """Gains to come back to: those found, unless somebody was about to change them."""
        first = {**self._controller.parameters, **self._controller.expected}
        if not self._controller.wrong(first | found):
            return found
        return found | {name: first[name] for name in self._gains if name in first}

    def _set(self, values: dict[str, Value]) -> None:
        request = SetParameters.Request()
        request.parameters = [
            Parameter(name, value=value).to_parameter_msg() for name, value in values.items()
        ]
        self._setter.call_async(request)
