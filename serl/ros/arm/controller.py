"""Gains and clips of an arm's controller: set, read back, and rejected when they differ."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.parameter import Parameter, parameter_value_to_python

from serl.arm_profile import ArmProfile
from serl.compliance import Value, differences, is_value
from serl.errors import BadInput, SerlError
from serl.ros.arm.topics import name_of
from serl.ros.node import RosNode
from serl.ros.services import Remote

_NAMED_S = 1.0
_STEPS, STEP_S = 10, 0.05
"""Gains are ramped over half a second: a sudden increase in stiffness would push the arm."""


def settle_controller(remote: Remote, robot: str, profile: ArmProfile) -> None:
    """Set the controller's parameters from the profile, and check those that are only expected.

    Numbers that differ, for example the gains of another mode, are ramped over half a second.

    Raises:
        SerlError: the controller refuses a parameter, has another value afterwards, or does not
            answer.
    """
    controller = profile.controller
    node = controller_node(robot, profile)
    if controller.parameters:
        _bring(remote, node, controller.parameters)
    _check(remote, node, controller.parameters | controller.expected)


def switch_gains(remote: Remote, robot: str, profile: ArmProfile, mode: str | None) -> None:
    """Ramp the controller's gains to those of a mode of the profile, over half a second.

    Without a mode they return to those of the profile's start.

    Raises:
        BadInput: the profile does not have this mode.
        SerlError: the controller refuses a gain, has another value afterwards, or does not answer.
    """
    controller, modes = profile.controller, profile.controller.modes
    if mode is not None and mode not in modes:
        known = ", ".join(sorted(modes)) or "none"
        raise BadInput(f"arm {profile.name}: no gains {mode!r}: expected one of {known}")
    changed = {name for each in modes.values() for name in each.parameters}
    start = {name: value for name, value in controller.parameters.items() if name in changed}
    node = controller_node(robot, profile)
    target: Mapping[str, Value] = start if mode is None else modes[mode].parameters
    _bring(remote, node, target)
    _check(remote, node, target)


def ramp(before: Mapping[str, Any], target: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield the parameters to set, `STEP_S` apart, to get from `before` to `target`.

    Non-negative numbers change in even steps; all other values are set at once, also where the
    controller's present value is not a number or is negative (a special value of its own).
    """
    ramps = {
        name: (start, end)
        for name, end in target.items()
        if _is_amount(start := before[name]) and _is_amount(end) and not is_value(start, end)
    }
    at_once = {name: value for name, value in target.items() if name not in ramps}
    if at_once:
        yield at_once
    for step in range(1, _STEPS) if ramps else ():
        share = step / _STEPS
        yield {name: start + share * (end - start) for name, (start, end) in ramps.items()}
    if ramps:
        yield {name: end for name, (_, end) in ramps.items()}


def _bring(remote: Remote, node: str, target: Mapping[str, Value]) -> None:
    for values in ramp(remote.get_parameters(node, list(target)), target):
        remote.set_parameters(node, values)
        remote.wait(lambda: False, STEP_S)


def _is_amount(value: Any) -> bool:
    return isinstance(value, float) and value >= 0.0


def controller_node(robot: str, profile: ArmProfile) -> str:
    """Return the name of the controller's node, within the run or from the root."""
    name = profile.controller.node
    return name if name.startswith("/") else f"{robot}/{name}"


class SettledController:
    """A controller whose parameters are set from the profile, and are to be set after a restart.

    Args:
        robot: the arm's namespace.
    """

    def __init__(self, node: RosNode, robot: str, profile: ArmProfile) -> None:
        self._node, self._robot, self._profile = node, robot, profile
        self._name = node.absolute(controller_node(robot, profile))
        self._settled = set[bytes]()  # ids of the controllers whose parameters were set, or tried

    def settle(self, remote: Remote) -> None:
        """Set and check the parameters; raise as `settle_controller`."""
        present, controller = self._present(), self._profile.controller
        try:
            settle_controller(remote, self._robot, self._profile)
        finally:  # a failure counts: it is not repeated until the controller is restarted
            self._settled |= present
        if controller.parameters or controller.expected:
            remote.wait(self._is_known, _NAMED_S)

    def restart_problem(self, refusal: str) -> str:
        """Return a guard's refusal of the arm if `settle` can end it; empty otherwise.

        The controller has other parameters than the profile's, and was restarted since the last
        `settle`. Parameters that were changed while it ran stay: the change has another reason.
        """
        before, named, problem = refusal.partition(f"{self._name}: ")
        if before or not named or problem.startswith((_SILENT, _LEFT_SOFT)):
            return ""
        return refusal if self._settled and self._present() - self._settled else ""

    def _is_known(self) -> bool:
        """Return whether a controller is known, whose name may be discovered after its services."""
        self._settled = self._settled or self._present()
        return bool(self._settled)

    def _present(self) -> set[bytes]:
        """Return the ids of the controller's publishers of parameter events, one for each start.

        Every node has one. That of a process that was killed stays for up to 20 s.
        """
        found = self._node.handle.get_publishers_info_by_topic("/parameter_events")
        return {
            bytes(each.endpoint_gid)
            for each in found
            if f"{each.node_namespace.rstrip('/')}/{each.node_name}" == self._name
        }


def stiffness_problem(node: RosNode, robot: str, profile: ArmProfile) -> str:
    """Return why the controller's stiffness does not bound forces; empty if it does.

    An admittance controller that does not subscribe to the force sensor is as stiff as the arm,
    whatever its parameters are. Other controllers need no sensor.
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


def _check(remote: Remote, node: str, target: Mapping[str, Value]) -> None:
    """Raise `SerlError`, naming all parameters whose values in the controller differ."""
    if not target:
        return
    if wrong := differences(remote.get_parameters(node, list(target)), target):
        raise SerlError(f"{node}: {wrong}")


logger = logging.getLogger(__name__)

_ANSWER_S, _SILENT_S = 0.5, 2.0
_ATTEMPTS = 3


class Compliance:
    """Non-blocking switch to soft gains during a stop, in the executor's thread.

    Gains are ramped over half a second from the values that the controller reports, and read back.
    During the stop they are read again: gains that others have set, such as an actor that starts,
    are lowered again once they have not changed for half a second.
    After the stop they return to their earlier values, or to the profile's initial ones if the
    earlier values match no mode of the profile, for example halfway to a mode. A controller that
    does not become soft, or stiff again, or that does not answer, is named in the log, and the arm
    stays stopped as it was.

    Args:
        robot: the arm's namespace.
        profile: the arm's profile, with the gains of its controller.
        yields: whether the controller has to be soft; called repeatedly.
    """

    def __init__(
        self, node: RosNode, robot: str, profile: ArmProfile, yields: Callable[[], bool]
    ) -> None:
        gains, self._yields = profile.controller.compliance, yields
        self._soft, self._before = False, dict[str, Value]()
        self._plan: deque[dict[str, Value]] = deque()
        self._attempts, self._requested_s = 0, -_ANSWER_S
        self._silent_s: float | None = None  # when the wait for an answer began; None: no wait
        self._request: Any = None
        self._settled, self._found = True, dict[str, Any]()
        self._is_watching = False  # the gains of this stop were reached
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
            self._is_watching = False
            self._plan.clear()
            self._requested_s = -_ANSWER_S
            self._silent_s = time.monotonic()
        if self._plan:
            self._set(self._plan.popleft())
        elif (self._is_watching or not self._settled) and self._is_due:
            self._ask()

    @property
    def _is_due(self) -> bool:
        return time.monotonic() - self._requested_s >= _ANSWER_S

    def _ask(self) -> None:
        """Request the present gains, before they change and again afterwards."""
        self._requested_s, soft = time.monotonic(), self._soft
        if self._silent_s is not None and self._requested_s - self._silent_s > _SILENT_S:
            self._silent_s = None  # named once
            logger.warning("%s does not report its gains: they stay as they are", self._name)

        def on_answer(future: Any) -> None:
            answer = future.result()
            if answer is not None and soft == self._soft and not self._plan:
                self._silent_s = None
                values = map(parameter_value_to_python, answer.values)
                self._go_on(dict(zip(self._gains, values, strict=False)))

        if self._getter.service_is_ready():
            if self._request is not None and not self._request.done():
                self._getter.remove_pending_request(self._request)
            self._request = self._getter.call_async(GetParameters.Request(names=list(self._gains)))
            self._request.add_done_callback(on_answer)

    def _go_on(self, found: dict[str, Any]) -> None:
        """Plan the steps from the gains found to those wanted, unless they are equal."""
        known = len(found) == len(self._gains) and None not in found.values()
        if self._soft and not self._before and known:
            self._before = self._lasting(found)
        target = self._gains if self._soft else self._before
        differ = differences(found, target)
        if differ and self._is_watching:
            if not known or found != self._found:  # others are changing them
                self._found = found
                return
            self._before, self._attempts = self._lasting(found), _ATTEMPTS
        self._settled = not differ
        self._is_watching = self._settled and self._soft
        if self._settled and not self._soft:
            self._before = {}
        elif not self._settled and known and self._attempts:
            self._attempts -= 1
            self._plan.extend(ramp(found, target))
        elif not self._settled:
            self._settled = True
            logger.warning("%s does not take the gains of a stop: %s", self._name, differ)

    def _lasting(self, found: dict[str, Any]) -> dict[str, Value]:
        """Return the gains to restore: those found, unless they were being changed."""
        first = {**self._controller.parameters, **self._controller.expected}
        if not self._controller.mismatch(first | found):
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
"""Longest plausible time between the gains of two modes; a switch takes half a second."""
_NO_ANSWER_S = 5.0
"""Time since the first answer between two modes after which it must have ended, reported or not."""

_SILENT = "the controller does not report its parameters"
_LEFT_SOFT = "its gains are those of a stop"
_STIFFEN = "call the service gains/precision of its actor, or start that anew"


class ControllerWatch:
    """Monitor that compares the controller's parameters with the profile, in the executor's thread.

    Args:
        robot: the arm's namespace.
        profile: the arm's profile, with the expected parameters.
    """

    def __init__(self, node: RosNode, robot: str, profile: ArmProfile) -> None:
        self._controller = profile.controller
        self._stiffness_problem = partial(stiffness_problem, node, robot, profile)
        soft = self._controller.compliance
        self._soft_gains = {} if soft is None else soft.parameters
        self._node = node.absolute(controller_node(robot, profile))
        self._start = self._controller.parameters | self._controller.expected
        self._names = list(self._start | self._soft_gains)
        self._wrong, self._answered_s, self._forgotten = "", float("-inf"), False
        self._is_start = False  # the last answer has the gains of the start, not those of a mode
        self._was_right = False
        self._wrong_s = 0.0  # time of the first answer that differs
        self._soft = False
        self._may_pass = False  # the difference occurs during a switch of gains
        self._request: Any = None
        if self._names:
            service = f"{self._node}/get_parameters"
            self._client = node.handle.create_client(GetParameters, service)
            node.every(_ASK_S, self._ask)

    @property
    def trouble(self) -> str:
        """The reason why the arm must not be taken; empty if its controller is as expected."""
        if not self._names:
            return ""
        if self._forgotten or time.monotonic() - self._answered_s > _OLD_S:
            return f"{self._node}: {_SILENT}"
        return f"{self._node}: {self._wrong}" if self._wrong else self._stiffness_problem()

    def forget(self) -> None:
        """Ignore the last answer in `trouble`: a silent driver may have been started anew since."""
        self._forgotten = True

    @property
    def has_start_gains(self) -> bool:
        """Whether the controller reported the gains of the start, not of a mode, within 2 s."""
        fresh = time.monotonic() - self._answered_s <= _OLD_S
        return not self._names or (self._is_start and fresh)

    @property
    def left_soft(self) -> str:
        """The reason why a restarted guard must not take the arm; empty if its gains are fine.

        The gains may be those of a stop that the previous guard ended without restoring.
        """
        return f"{self._node}: {_LEFT_SOFT}: {_STIFFEN}" if self._soft else ""

    @property
    def changed(self) -> str:
        """The reason to stop: the controller's parameters were changed, or only partly switched.

        A controller that does not answer has not been changed: its arm times out as well, or
        follows as before. Only one that falls silent halfway through a switch is stopped.
        """
        if not self._wrong or not self._was_right:
            return ""
        may_end = (
            self._answered_s - self._wrong_s <= _SWITCH_S
            and time.monotonic() - self._wrong_s <= _NO_ANSWER_S
        )
        if self._may_pass and may_end:
            return ""
        return f"{self._node}: {self._wrong}"

    def _ask(self) -> None:
        if self._client.service_is_ready():
            if self._request is not None and not self._request.done():
                self._client.remove_pending_request(self._request)
            self._request = self._client.call_async(GetParameters.Request(names=self._names))
            self._request.add_done_callback(self._on_answer)

    def _on_answer(self, future: Any) -> None:
        answer = future.result()
        if answer is None:
            return
        values = map(parameter_value_to_python, answer.values)
        found = dict(zip(self._names, values, strict=False))
        self._answered_s, self._forgotten = time.monotonic(), False
        if not self._wrong:
            self._wrong_s = self._answered_s
        self._wrong = self._controller.mismatch(found)
        self._was_right |= not self._wrong
        self._is_start = not differences(found, self._start)
        gains = self._soft_gains
        self._soft = bool(gains) and not differences(found, gains)
        self._may_pass = self._controller.is_switching(found)
