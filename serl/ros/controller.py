"""Gains and clips of an arm's controller: set, read back, and refused when they differ."""

from __future__ import annotations

import math
from typing import Any

from serl.arm_profile import ArmProfile
from serl.errors import SerlError
from serl.ros.remote import Remote


def settle_controller(remote: Remote, robot: str, profile: ArmProfile) -> None:
    """Make the controller's parameters what the profile says.

    Raises:
        SerlError: it refuses one, has another value afterwards, or does not answer.
    """
    wanted = profile.controller.parameters
    if not wanted:
        return
    name = profile.controller.node
    node = name if name.startswith("/") else f"{robot}/{name}"
    remote.set_parameters(node, wanted)
    found = remote.get_parameters(node, list(wanted))
    wrong = [
        f"{key} is {found[key]}, expected {value}"
        for key, value in wanted.items()
        if not _same(found[key], value)
    ]
    if wrong:
        raise SerlError(f"{node}: {'; '.join(wrong)}")


def _same(found: Any, wanted: bool | float) -> bool:
    if isinstance(wanted, bool) or not isinstance(found, (int, float)):
        return found is wanted
    return math.isclose(found, wanted, rel_tol=1e-9)
