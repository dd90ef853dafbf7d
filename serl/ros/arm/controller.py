"""Gains and clips of an arm's controller: set, read back, and refused when they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from serl.arm_profile import ArmProfile, Value, is_value
from serl.errors import BadInput, SerlError
from serl.ros.arm.topics import name_of
from serl.ros.node import RosNode
from serl.ros.remote import Remote

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
