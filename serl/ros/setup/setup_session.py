"""What the steps of an arm's first day share: the arm, the person, and what is known so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from serl.arm_profile import ArmProfile
from serl.ros.setup.checks import Asker
from serl.ros.node import RosNode
from serl.ros.setup.arm import SetupArm
from serl.ros.people.teleop import TopicDevices
from serl.teleop.config import TeleopConfig
from serl.teleop.device import Device
from serl.teleop.mapping import MappingConfig
from serl.teleop.operator import Operator
from serl.teleop.mux import OneOwner


class Session:
    """One sitting.

    Args:
        node: the process's node.
        arm: of the cell.
        asker: the person.
        out: file of the profile; pictures are kept beside it.
        devices: of this machine, to take over with, beside those that are topics.
    """

    def __init__(
        self,
        node: RosNode,
        arm: SetupArm,
        asker: Asker,
        out: Path,
        devices: Sequence[tuple[Device, MappingConfig]] = (),
    ) -> None:
        self.node, self.arm, self.asker, self.out = node, arm, asker, out
        self.devices = tuple(devices)

    @property
    def profile(self) -> ArmProfile:
        """As far as it is known."""
        return self.arm.profile

    @profile.setter
    def profile(self, profile: ArmProfile) -> None:
        self.arm.profile = profile

    @cached_property
    def people(self) -> OneOwner:
        """Everybody who can take over: at devices of this machine, and by topics."""
        spec, config = self.arm.driver.action_spec, TeleopConfig()
        here = [
            Operator(device, mapping, config.operator, spec) for device, mapping in self.devices
        ]
        topics = TopicDevices(self.node, self.arm.place.robot, config, self.profile.base_frame)
        return OneOwner([*here, *topics.people(spec)])
