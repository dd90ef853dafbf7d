"""A commissioning session, and its check of the driver's topics before anything moves."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from serl.arm_profile import ArmProfile
from serl.intervention import Event
from serl.ros.arm.competitors import OtherPublishers
from serl.ros.arm.topics import (
    SENSOR,
    check_types,
    command_topics,
    measurement_channels,
    topic_of,
)
from serl.ros.node import RosNode
from serl.ros.people.teleop import ActionFrame, TopicDevices
from serl.ros.setup.arm import SetupArm
from serl.ros.setup.checks import GRIPPER_HZ, LEAST_HZ, Asker, StepFailed, check_rate, rate_of
from serl.ros.topics import Topic
from serl.system.json_fields import printable
from serl.teleop.config import TeleopConfig
from serl.teleop.device import Device
from serl.teleop.mapping import MappingConfig
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Operator


class SetupSession:
    """A commissioning session with one arm.

    Args:
        asker: asks the person.
        out: file of the profile; pictures are stored beside it.
        devices: devices of this machine for takeovers, besides those over topics.
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
        arm.is_stop_requested = self._is_stop_requested

    @property
    def profile(self) -> ArmProfile:
        """The arm's profile, as far as it is known."""
        return self.arm.profile

    @profile.setter
    def profile(self, profile: ArmProfile) -> None:
        self.arm.profile = profile

    @cached_property
    def people(self) -> TeleopMux:
        """The operators that can take over and stop: at devices of this machine, and by topics."""
        spec, config = self.arm.driver.action_spec, TeleopConfig()
        here = [
            Operator(device, mapping, config.operator, spec) for device, mapping in self.devices
        ]
        topics = TopicDevices(
            self.node, self.arm.place.robot, config, ActionFrame(self.profile.base_frame)
        )
        return TeleopMux([*here, *topics.people(spec)])

    def _is_stop_requested(self) -> bool:
        """Read all devices; return whether a person requested a stop at one since the last call."""
        self.people()
        return Event.STOP in self.people.events()


_ENOUGH = 50
_LIMIT_S = 10.0


@contextmanager
def arrival_times(node: RosNode, topics: Mapping[str, Topic]) -> Iterator[dict[str, list[float]]]:
    """Yield lists of the arrival times of each topic's messages, in monotonic seconds.

    They grow until the block ends.
    """
    times: dict[str, list[float]] = {name: [] for name in topics}

    def keep(name: str) -> Any:
        return lambda message: times[name].append(time.monotonic())

    made = [
        node.handle.create_subscription(
            topic.kind, node.absolute(topic.name), keep(name), topic.qos
        )
        for name, topic in topics.items()
    ]
    try:
        yield times
    finally:
        node.soon(lambda: [node.handle.destroy_subscription(each) for each in made])


def connection(session: SetupSession) -> str:
    """Check type, rate, frame and age of every topic of the profile; returns the rates."""
    profile, node, arm = session.profile, session.node, session.arm
    check_types(profile)
    robot = arm.place.robot
    channels = measurement_channels(profile)
    channels.pop("fault", None)
    topics = {name: topic_of(channel, robot, SENSOR) for name, channel in channels.items()}
    with arrival_times(node, topics) as times:
        arm.driver.remote.wait(lambda: min(map(len, times.values())) >= _ENOUGH, _LIMIT_S)
    rates = {name: rate_of(times[name]) for name in topics}
    if silent := [name for name in topics if not times[name]]:
        raise StepFailed("; ".join(_why_silent(node, topics[name]) for name in silent))
    for name, topic in topics.items():
        least = GRIPPER_HZ if name == "gripper" else LEAST_HZ
        check_rate(node.absolute(topic.name), rates[name], least)
    _check_target(session)
    arm.reading()  # checks frames, stamps and joints; raises an error of one line
    return ", ".join(f"{name} {rate_hz:.0f} Hz" for name, rate_hz in rates.items())


def _check_target(session: SetupSession) -> None:
    """Check that the setpoints have a subscriber, and no publisher besides serl's guard."""
    node, arm = session.node, session.arm
    arm.end_guard()
    name = node.absolute(topic_of(session.profile.target, arm.place.robot, SENSOR).name)
    names = [node.absolute(name) for name in command_topics(session.profile, arm.place.robot)]
    if others := OtherPublishers(node, names).named_report():
        raise StepFailed(f"{others}: end them first")
    takers = node.handle.get_subscriptions_info_by_topic(name)
    if not takers:
        raise StepFailed(f"no subscriber of {name}: is the controller loaded and active?")
    types = sorted({printable(each.topic_type) for each in takers})
    if session.profile.target.type not in types:
        raise StepFailed(
            f"{name}: its subscribers take {', '.join(types)}, expected "
            f"{session.profile.target.type}"
        )


def _why_silent(node: RosNode, topic: Topic) -> str:
    """Return the reason why nothing arrives on a topic."""
    name = node.absolute(topic.name)
    found = node.handle.get_publishers_info_by_topic(name)
    if not found:
        return f"no publisher of {name}"
    types = sorted({printable(each.topic_type) for each in found})
    expected = f"{topic.kind.__module__.split('.')[0]}/msg/{topic.kind.__name__}"
    if expected not in types:
        return f"{name}: is published as {', '.join(types)}, expected {expected}"
    return f"{name}: has a publisher that sends nothing"
