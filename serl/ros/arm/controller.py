"""Gains and clips of an arm's controller: set, read back, and refused when they differ."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from serl.arm_profile import ArmProfile, Value, differences, is_value
from serl.errors import BadInput, SerlError
from serl.ros.arm.topics import name_of
from serl.ros.node import RosNode
from serl.ros.services import Remote

_STEPS, STEP_S = 10, 0.05
"""Gains change over half a second: a spring that is suddenly stiffer pushes."""


def settle_controller(remote: Remote, robot: str, profile: ArmProfile) -> None:
    """Make the controller's parameters what the profile says, and see that all others are so.

    Numbers that are others now, such as the gains of another mode, change over half a second.

    Raises:
        SerlError: it refuses one, has another value afterwards, or does not answer.
    """
    controller = profile.controller
    node = controller_node(robot, profile)
    if controller.parameters:
        _bring(remote, node, controller.parameters)
    _check(remote, node, controller.parameters | controller.expected)


def switch_gains(remote: Remote, robot: str, profile: ArmProfile, mode: str) -> None:
    """Bring the controller's gains to those of a mode of the profile, over half a second.

    Raises:
        BadInput: the profile has no such mode.
        SerlError: it refuses one, has another value afterwards, or does not answer.
    """
    modes = profile.controller.modes
    if mode not in modes:
        known = ", ".join(sorted(modes)) or "none"
        raise BadInput(f"arm {profile.name}: no gains {mode!r}: expected one of {known}")
    node, wanted = controller_node(robot, profile), modes[mode].parameters
    _bring(remote, node, wanted)
    _check(remote, node, wanted)


def ramp(before: Mapping[str, Any], wanted: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """What to set, one after the other and `STEP_S` apart, to get from some parameters to others.

    Numbers change evenly, unless the controller has none, or a sign for its own; all else at once.
    """
    ramps = {
        name: (start, end)
        for name, end in wanted.items()
        if _is_amount(start := before[name]) and _is_amount(end) and not is_value(start, end)
    }
    at_once = {name: value for name, value in wanted.items() if name not in ramps}
    if at_once:
        yield at_once
    for step in range(1, _STEPS) if ramps else ():
        share = step / _STEPS
        yield {name: start + share * (end - start) for name, (start, end) in ramps.items()}
    if ramps:
        yield {name: end for name, (_, end) in ramps.items()}


def _bring(remote: Remote, node: str, wanted: Mapping[str, Value]) -> None:
    for values in ramp(remote.get_parameters(node, list(wanted)), wanted):
        remote.set_parameters(node, values)
        remote.wait(lambda: False, STEP_S)


def _is_amount(value: Any) -> bool:
    return isinstance(value, float) and value >= 0.0


def controller_node(robot: str, profile: ArmProfile) -> str:
    """Whose parameters they are, within the run or from the root."""
    name = profile.controller.node
    return name if name.startswith("/") else f"{robot}/{name}"


def unfelt(node: RosNode, robot: str, profile: ArmProfile) -> str:
    """Return why the controller's stiffness bounds no force; empty where it does, or need not.

    An admittance whose controller does not listen to the force sensor is as stiff as the arm,
    whatever its parameters are.
    """
    if not profile.controller.hears_wrench or profile.wrench is None:
        return ""
    sensor = node.absolute(name_of(profile.wrench, robot))
    controller = node.absolute(controller_node(robot, profile))
    listeners = node.handle.get_subscriptions_info_by_topic(sensor)
    if any(
        f"{each.node_namespace.rstrip('/')}/{each.node_name}" == controller for each in listeners
    ):
        return ""
    return f"{controller} does not listen to {sensor}: its stiffness bounds no force"


def _check(remote: Remote, node: str, wanted: Mapping[str, Value]) -> None:
    """Raise `SerlError`, naming all that differ from what the controller says."""
    if not wanted:
        return
    found = remote.get_parameters(node, list(wanted))
    wrong = [
        f"{key} is {found[key]}, expected {value}"
        for key, value in wanted.items()
        if not is_value(found[key], value)
    ]
    if wrong:
        raise SerlError(f"{node}: {'; '.join(wrong)}")


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
