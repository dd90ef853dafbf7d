"""Gains and clips of an arm's controller: set, read back, and refused when they differ."""

from __future__ import annotations

from collections.abc import Mapping

from serl.arm_profile import ArmProfile, Value, is_value
from serl.errors import BadInput, SerlError
from serl.ros.remote import Remote

_STEPS, _STEP_S = 10, 0.05
"""Gains change over half a second: a spring that is suddenly stiffer pushes."""


def settle_controller(remote: Remote, robot: str, profile: ArmProfile) -> None:
    """Make the controller's parameters what the profile says, and see that all others are so.

    Raises:
        SerlError: it refuses one, has another value afterwards, or does not answer.
    """
    controller = profile.controller
    node = _node(robot, profile)
    if controller.parameters:
        remote.set_parameters(node, controller.parameters)
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
    node, wanted = _node(robot, profile), modes[mode].parameters
    before = remote.get_parameters(node, list(wanted))
    if unknown := [name for name, value in before.items() if not isinstance(value, float)]:
        raise SerlError(f"{node}: has no gains {', '.join(unknown)}")
    for step in range(1, _STEPS):
        share = step / _STEPS
        between = {
            name: before[name] + share * (end - before[name]) for name, end in wanted.items()
        }
        remote.set_parameters(node, between)
        remote.wait(lambda: False, _STEP_S)
    remote.set_parameters(node, wanted)
    _check(remote, node, wanted)


def _node(robot: str, profile: ArmProfile) -> str:
    name = profile.controller.node
    return name if name.startswith("/") else f"{robot}/{name}"


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
