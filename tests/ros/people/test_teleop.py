"""Teleoperation by topics, over real DDS."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rclpy
from geometry_msgs.msg import PoseStamped, Twist, TwistStamped, Vector3
from hypothesis import given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Header

from serl.intervention import Event
from serl.ros.node import RosNode
from serl.ros.people.control import OperatorInterface, action_frame
from serl.ros.people.teleop import (
    ActionFrame,
    RemoteHand,
    TopicDevice,
    TopicDevices,
    _twist_into,
    console_topic,
    console_topics,
    device_topics,
    joy_topic,
    leader_command_topic,
    leader_joints_topic,
    leader_topic,
    twist_topic,
)
from serl.ros.testing.processes import eventually
from serl.ros.topics import Topic
from serl.runs.config import resolve
from serl.specs import ArraySpec
from serl.teleop import mapping
from serl.teleop.config import TWIST, TWIST_AXES, TeleopConfig
from serl.teleop.leader_joints import LeaderJointsConfig
from serl.teleop.mapping import AXES, BUTTONS, MappingConfig, Wish, read_wish
from serl.teleop.mux import TeleopMux
from serl.teleop.operator import Hands
from serl.testing import DeviceSuite, FakeRobot
from serl.types import Action, Observation

pytestmark = pytest.mark.ros

SPEC = ArraySpec(shape=(3,), low=-1, high=1, unit="x z gripper")
PUSH = (0.5, 0.0, -0.25, 0.0, 0.0, 0.0, -1.0)
REST = (0.0,) * len(AXES)
TWO_ARMS = "left_x left_z right_x right_y"


@dataclass
class TopicBench:
    """A device that receives its messages directly, without DDS."""

    device: TopicDevice
    mapping: MappingConfig
    on: tuple[list[float], list[int]]
    off: tuple[list[float], list[int]]
    time_s: float = 0.0

    def now_s(self) -> float:
        return self.time_s

    def wait(self, seconds: float) -> None:
        self.time_s += seconds

    def push(self) -> None:
        self.device.receive(*self.on)

    def release(self) -> None:
        self.device.receive(*self.off)

    def die(self) -> None:
        """Stop sending; the device needs no call for that."""


class TestRemote(DeviceSuite):
    def make(self) -> TopicBench:
        device = TopicDevice("console", AXES, mapping.BUTTONS, lambda: bench.time_s)
        on = mapping.to_joystick(Wish(PUSH, True, ()))
        bench = TopicBench(device, mapping.MAPPING, on, mapping.to_joystick(Wish(REST, False, ())))
        return bench


class TestTwist(DeviceSuite):
    def make(self) -> TopicBench:
        device = TopicDevice("twist", TWIST_AXES, now_s=lambda: bench.time_s)
        bench = TopicBench(device, TWIST, (list(PUSH[:6]), []), ([0.0] * 6, []))
        return bench


@settings(max_examples=150, deadline=None)
@given(axes=st.lists(st.floats(), max_size=12), buttons=st.lists(st.integers(), max_size=12))
def test_any_message_gives_motion_within_bounds_or_none(
    axes: list[float], buttons: list[int]
) -> None:
    names = TWIST_AXES if len(buttons) % 2 else AXES
    device = TopicDevice("a topic", names, mapping.BUTTONS)
    device.receive(axes, buttons)
    report = device.read()
    assert report is not None
    wish = read_wish(report, mapping.MAPPING)
    assert (wish is None) == (not all(map(math.isfinite, axes[: len(names)])))
    assert wish is None or all(-1.0 <= value <= 1.0 for value in wish.motion)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[RosNode, RosNode]]:
    """Yield the node of an actor, and a second node that publishes to it."""
    folder = tmp_path / "2026-11-22_10-00-00"
    folder.mkdir()
    with RosNode("actor0", folder) as node, RosNode("other", folder) as other:
        yield node, other


@pytest.fixture
def ends(nodes: tuple[RosNode, RosNode]) -> tuple[TopicDevices, RosNode]:
    """Return the device topics of the actor, and the second node."""
    node, other = nodes
    return TopicDevices(node, "actor0", TeleopConfig(), ActionFrame("base")), other


def drives(people: Callable[[], Action | None], hand: RemoteHand, wish: Wish) -> bool:
    """Send an input; return whether its operator then drives."""
    hand.send(wish)
    time.sleep(0.02)
    return people() is not None


def test_action_axes_without_device_yield_no_operators(ends: tuple[TopicDevices, RosNode]) -> None:
    assert ends[0].people(ArraySpec(shape=(2,), low=-1, high=1, unit="x elbow")) == []
    assert len(ends[0].people(SPEC)) == 5


def test_leader_joints_drive_arm_and_leader_follows_before_takeover(
    tmp_path: Path, nodes: tuple[RosNode, RosNode]
) -> None:
    urdf = tmp_path / "leader.urdf"
    urdf.write_text(
        '<robot name="leader"><joint name="slide" type="prismatic"><parent link="base"/>'
        '<child link="tool"/><axis xyz="1 0 0"/></joint></robot>'
    )
    leader = LeaderJointsConfig(urdf=urdf, base="base", tip="tool", follow=True)
    node, other = nodes
    config = TeleopConfig(leader_joints=leader)
    devices = TopicDevices(node, "actor0", config, ActionFrame("base"))
    people, commands = TeleopMux(devices.people(SPEC)), list[float]()
    other.subscribe(
        leader_command_topic("actor0"), lambda message: commands.extend(message.position)
    )
    joints = other.publisher(leader_joints_topic("actor0"))
    state = {"tcp_pose": np.array([0, 0, 0, 0, 0, 0, 1.0]), "q": np.array([0.25])}
    devices.on_reading(Observation(state))
    eventually(lambda: 0.25 in commands)
    place_m = 0.0

    def follows() -> bool:
        nonlocal place_m
        place_m += 0.005
        joints.publish(JointState(name=["slide"], position=[place_m % 0.04]))
        time.sleep(0.02)
        return people() is not None

    eventually(follows)
    assert devices.has_operator


def test_console_input_drives_over_dds_and_its_timeout_holds_arm(
    ends: tuple[TopicDevices, RosNode],
) -> None:
    devices, other = ends
    mux = TeleopMux(devices.people(SPEC))
    hand = RemoteHand(other, console_topic("actor0"))
    assert not devices.has_operator
    eventually(lambda: not drives(mux, hand, Wish(REST, False, ())) and devices.has_operator)
    eventually(lambda: drives(mux, hand, Wish(PUSH, True, ())))
    np.testing.assert_allclose(np.array(mux()), np.array([0.5, -0.25, -1.0]), atol=1e-6)
    hand.send(Wish(REST, True, (Event.SUCCESS,)))
    eventually(lambda: mux() is not None and Event.SUCCESS in mux.events())
    eventually(lambda: mux.silence_s > 0.3)  # without a call of the mux
    assert not np.any(mux())
    assert mux.silent == "the console"
    assert mux.operators[0].hands is Hands.SILENT


def test_press_on_remote_device_survives_loss_of_its_message(
    nodes: tuple[RosNode, RosNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Joy] = []
    publisher = SimpleNamespace(publish=sent.append)
    monkeypatch.setattr(nodes[1], "publisher", lambda topic: publisher)
    hand, device = RemoteHand(nodes[1], console_topic("actor0")), TopicDevice("", (), BUTTONS)
    for events in ((), (Event.STOP,), *[()] * 9, (Event.STOP,), ()):
        hand.send(Wish(REST, False, events))
    presses = list[str]()
    for number, message in enumerate(sent):
        if number != 1:  # the newest message replaces one that was not read yet
            device.receive(message.axes, message.buttons)
            presses.extend(report.presses if (report := device.read()) else ())
    assert presses == ["stop", "stop"]


def test_device_silence_is_reported_for_the_running_stage_only(
    nodes: tuple[RosNode, RosNode], tmp_path: Path
) -> None:
    node, other = nodes
    frame = ActionFrame("base")
    people = OperatorInterface(node, "actor0", TeleopConfig(), frame, tmp_path / "link")
    hand = RemoteHand(other, console_topic("actor0"))
    assert people.silence_s() == 0.0, "no stage has an operator input yet"
    first, second = (people.human_input(FakeRobot(), None, tmp_path / stage) for stage in "ab")
    eventually(lambda: not drives(second, hand, Wish(REST, False, ())) and people.has_operator())
    eventually(lambda: drives(second, hand, Wish(PUSH, True, ())))
    eventually(lambda: second.mux.silence_s > 0.3)
    assert people.silence_s() == 0.0, "no operator drives the running first stage"
    people.use(second)
    assert people.silence_s() > 0.3
    assert first() is None


def test_paused_actor_obeys_stop_of_a_device(
    nodes: tuple[RosNode, RosNode], tmp_path: Path
) -> None:
    frame, number = ActionFrame("base"), count()
    people = OperatorInterface(nodes[0], "actor0", TeleopConfig(), frame, tmp_path / "link")
    people.use(people.human_input(FakeRobot(), None, tmp_path))
    people.hold.pause("paused")
    hand = RemoteHand(nodes[1], device_topics("actor0")[0])

    def is_stopped() -> bool:
        events = (Event.STOP,) if next(number) % 20 == 19 else ()
        hand.send(Wish(REST, False, events))
        people.hold.wait_paused(iter((False, True, True)).__next__)
        return people.hold.stopped == "stopped by the device"

    eventually(is_stopped, 20.0)


@pytest.mark.parametrize(
    ("place", "topics", "name", "trouble"),
    [
        (0, console_topics, "the console", "the console fell silent"),
        (1, device_topics, "the pair of devices", "left device fell silent"),
    ],
    ids=["page", "devices"],
)
def test_pair_of_remote_devices_drives_two_arms_and_one_timeout_holds_both(
    ends: tuple[TopicDevices, RosNode],
    place: int,
    topics: Callable[[str, int], tuple[Topic, ...]],
    name: str,
    trouble: str,
) -> None:
    devices, other = ends
    person = devices.people(ArraySpec(shape=(4,), low=-1, high=1, unit=TWO_ARMS))[place]
    assert person.name == name
    assert devices.people(ArraySpec(shape=(4,), low=-1, high=1, unit=TWO_ARMS))
    left, right = (RemoteHand(other, topic) for topic in topics("actor0", 2))

    def drives(wish: Wish) -> bool:
        left.send(wish)
        right.send(Wish((0.0, 1.0, *REST[2:]), wish.hands, ()))
        time.sleep(0.02)
        return person() is not None

    eventually(lambda: not drives(Wish(REST, False, ())) and devices.has_operator)
    eventually(lambda: drives(Wish(PUSH, True, ())))
    np.testing.assert_allclose(np.array(person()), np.array([0.5, -0.25, 0.0, 1.0]), atol=1e-6)

    def holds_both_arms() -> bool:
        right.send(Wish(PUSH, True, ()))
        time.sleep(0.02)
        return not np.any(person())

    eventually(holds_both_arms)
    eventually(lambda: person() is not None and person.trouble == trouble)


def test_pair_of_twist_topics_drives_two_arms_over_dds(
    ends: tuple[TopicDevices, RosNode],
) -> None:
    devices, other = ends
    *_, person = devices.people(ArraySpec(shape=(4,), low=-1, high=1, unit=TWO_ARMS))
    assert person.name == "the pair of twist topics"
    sides = {side: other.publisher(twist_topic("actor0", side)) for side in ("left", "right")}

    def drives(left: float) -> bool:
        for side, publisher in sides.items():
            twist = Twist(linear=Vector3(x=left if side == "left" else 0.0))
            publisher.publish(TwistStamped(twist=twist))
        time.sleep(0.02)
        action = person()
        return action is not None and bool(np.any(action))

    eventually(lambda: not drives(0.0) and devices.has_operator)
    eventually(lambda: drives(0.5))
    action = np.array(person())
    assert action[0] != 0.0
    assert not action[2:].any(), "the right arm stands"


def test_topics_of_arm_in_the_root_namespace_are_absolute() -> None:
    assert [topic("").name for topic in (joy_topic, twist_topic)] == ["/joy", "/teleop/twist"]


def test_joystick_and_twist_topics_drive_arm(ends: tuple[TopicDevices, RosNode]) -> None:
    devices, other = ends
    mux = TeleopMux(devices.people(SPEC))
    joy, twist = other.publisher(joy_topic("actor0")), other.publisher(twist_topic("actor0"))

    def pad(deadman: int) -> bool:
        buttons = [0, 0, 0, 0, 0, deadman]
        joy.publish(Joy(axes=[0.0, 1.0, 0.0, 0.0, 0.0, 0.0], buttons=buttons))
        time.sleep(0.02)
        return mux() is not None and mux.owner is not None

    eventually(lambda: not pad(0) and devices.has_operator)
    eventually(lambda: pad(1) and np.array_equal(np.array(mux()), [1.0, 0.0, 0.0]))
    assert mux.owner is not None
    assert mux.owner.name == "the joystick"
    # A message gap on a busy machine counts as a timeout, which a takeover ends.
    eventually(lambda: not pad(1 if mux.silent else 0))

    def command(x: float, frame: str = "base") -> bool:
        message = TwistStamped(header=Header(frame_id=frame))
        message.twist.linear.x = x
        twist.publish(message)
        time.sleep(0.02)
        return mux() is not None

    eventually(lambda: not command(0.0))
    eventually(lambda: command(0.525, ""))
    eventually(lambda: not command(0.525 if mux.silent else 0.0))
    eventually(lambda: command(0.525) and np.allclose(np.array(mux()), [0.5, 0.0, 0.0]))
    assert mux.owner is not None
    assert mux.owner.name == "the twist topic"
    eventually(lambda: command(float("nan")) and mux.silent)


def _forward(x: float) -> Twist:
    return Twist(linear=Vector3(x=x))


def test_twist_in_unknown_frame_is_ignored_and_warned_of_once(
    ends: tuple[TopicDevices, RosNode], caplog: pytest.LogCaptureFixture
) -> None:
    devices, other = ends
    mux = TeleopMux(devices.people(SPEC))
    stock = rclpy.create_node("stock", context=other.handle.context)
    twist = stock.create_publisher(TwistStamped, other.absolute("actor0/teleop/twist"), 10)

    def command(x: float, frame: str) -> bool:
        twist.publish(TwistStamped(header=Header(frame_id=frame), twist=_forward(x)))
        time.sleep(0.02)
        return mux() is not None

    def frame_warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "frame" in record.getMessage()]

    eventually(lambda: not command(0.0, "camera\x1b[31m") and frame_warnings())
    for _ in range(10):
        assert not command(0.5, "camera\x1b[31m")
    assert not devices.has_operator
    expected = "the twist topic: ignored a twist in the frame '{}': expected 'base' or no frame"
    assert frame_warnings() == [expected.format("camera\\x1b[31m")]
    eventually(lambda: not command(0.0, "base") and devices.has_operator)
    eventually(lambda: command(0.5, "base"))
    eventually(lambda: command(0.5, "camera") and mux.silent)
    stock.destroy_node()


def test_warnings_of_unknown_twist_frames_stop_after_eight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    device = TopicDevice("the twist topic", TWIST_AXES)
    take = _twist_into(device, "base")
    for number in range(100):
        take(TwistStamped(header=Header(frame_id=f"camera{number}" * 50)))
    assert device.read() is None
    assert len(caplog.records) == 8
    assert max(len(record.getMessage()) for record in caplog.records) < 200


@pytest.mark.parametrize(
    ("robot", "frame", "name"),
    [
        (None, "base", "base"),
        (None, "tool", "tcp"),
        ("ur5e", "base", "base"),
        ("ur5e", "tool", "tool0"),
        ("xarm7", "base", "link_base"),
        ("kinova_gen3", "tool", "end_effector_link"),
    ],
)
def test_action_frame_has_frame_name_of_arm_driver(
    robot: str | None, frame: str, name: str
) -> None:
    config = resolve({"task": "reach", "task_config": {"motion": {"frame": frame}}})
    assert action_frame(config, robot).name == name


def test_leader_arm_drives_while_it_is_moved(ends: tuple[TopicDevices, RosNode]) -> None:
    devices, other = ends
    mux = TeleopMux(devices.people(SPEC))
    leader = other.publisher(leader_topic("actor0"))

    def moved_to(x_m: float) -> Action | None:
        message = PoseStamped()
        message.pose.position.x, message.pose.orientation.w = x_m, 1.0
        leader.publish(message)
        time.sleep(0.02)
        return mux()

    eventually(lambda: moved_to(0.3) is None and devices.has_operator)
    eventually(lambda: moved_to(0.33) is not None)
    assert mux.owner is not None
    assert mux.owner.name == "the leader arm"
    eventually(lambda: moved_to(0.33) is None)
