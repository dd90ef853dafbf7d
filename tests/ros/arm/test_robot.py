"""`RosArm` on a fake FR3 with crisp_controllers, over real DDS."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from geometry_msgs.msg import PoseStamped
from sensor_msgs.msg import JointState

from serl import plugins
from serl.agents.classifier_training import train_classifier
from serl.arm_profile import ArmProfile, Channel
from serl.errors import BadInput, NeedsPerson, SerlError, Silent
from serl.robot import Homing, Robot
from serl.ros.arm.camera import picture_topic
from serl.ros.arm.guard_topics import COMMAND_GRIPPER, COMMAND_POSE, HEARTBEAT
from serl.ros.arm.robot import RosArm
from serl.ros.arm.station import make_arm
from serl.ros.arm.topics import SENSOR, check_types, of_robot, topic_of
from serl.ros.conversions import image_message, nanoseconds_of
from serl.ros.feed import Feed
from serl.ros.node import RosNode
from serl.ros.testing.bench import SPAWN
from serl.ros.testing.processes import eventually
from serl.runs.config import resolve
from serl.runs.folder import RunFolder
from serl.runs.scene_reset import make_check
from serl.runs.task_setup import make_task
from serl.tasks.pick_cube import PickCube, PickCubeConfig
from serl.tasks.reach import ReachConfig
from serl.testing import RobotSuite
from serl.training.resets import SceneReset
from serl.types import ActionSource, Observation

from ...agents.test_classifier import CARD, QUICK, VIEWS, make_samples
from ...support.upstream import file_of
from ..conftest import Run

pytestmark = pytest.mark.ros

ROBOT = "franka"
PROFILE: ArmProfile = plugins.load("robot", "franka")
CONTROLLER = f"{ROBOT}/{PROFILE.controller.node}"
ONES = np.ones(3, np.float32)


class Bench:
    """A fake arm in its own process, and a node that forwards targets instead of a guard."""

    def __init__(self, folder: Path) -> None:
        self.processes, self.node = Run(folder), RosNode("test", folder, local=True)
        self.modes: list[str] = []
        self.beats: list[list[str]] = []
        self.grips: list[float] = []
        self._command: PoseStamped | None = None
        self.forwarding = True

    def __enter__(self) -> Bench:
        self.node.__enter__()
        place = self.node.absolute(ROBOT)
        self.process = self.processes.start(*SPAWN, str(file_of(ROBOT)), place)
        self._target = self.node.publisher(topic_of(PROFILE.target, ROBOT, 1))
        self.node.subscribe(of_robot(COMMAND_POSE, ROBOT), self._on_command)
        self.node.subscribe(of_robot(HEARTBEAT, ROBOT), self._on_beat)
        self.node.subscribe(of_robot(COMMAND_GRIPPER, ROBOT), self._on_grip)
        self.node.every(0.01, self._forward)
        self.arm = RosArm(self.node, ROBOT, PROFILE, ReachConfig(motion=MOTION))
        return self

    def __exit__(self, *failure: object) -> None:
        self.processes.end()
        self.node.__exit__(None, None, None)

    def misbehave(self, fault: str) -> None:
        self.arm.remote.set_parameters(CONTROLLER, {"fault": fault})

    def _on_command(self, message: PoseStamped) -> None:
        self._command = message

    def commanded(self) -> int:
        """Return the stamp in ns of the newest target; 0 without one."""
        command = self._command
        return 0 if command is None else nanoseconds_of(command.header.stamp)

    def _on_grip(self, message: JointState) -> None:
        self.grips.extend(message.position)

    def _on_beat(self, message: object) -> None:
        self.beats.append(getattr(message, "frame_id", "").split())
        self.modes.append(self.beats[-1][1])

    def _forward(self) -> None:
        if self._command is not None and self.forwarding:
            self._target.publish(self._command)


MOTION = ReachConfig().motion.model_copy(update={"box_high_m": (0.70, 0.30, 0.60)})


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("bench")) as made:
        yield made


@pytest.fixture
def prompt_arm(bench: Bench) -> RosArm:
    """Return the recovered arm, ready for actions; a pose that is 0.1 s old is stale."""
    bench.misbehave("")
    read(bench.arm)
    return bench.arm


@pytest.fixture
def arm(prompt_arm: RosArm, monkeypatch: pytest.MonkeyPatch) -> RosArm:
    """Return the recovered arm, ready for actions; late messages are not stale."""
    accept_late(prompt_arm, monkeypatch)
    return prompt_arm


def accept_late(arm: RosArm, monkeypatch: pytest.MonkeyPatch) -> None:
    for feed in arm.feeds:
        monkeypatch.setattr(feed, "_oldest_s", 10.0)


def test_classifier_judges_scene_on_pictures_of_a_camera(bench: Bench, tmp_path: Path) -> None:
    path, shown, number = tmp_path / "ready.safetensors", [0], count()
    train_classifier(make_samples(), CARD, QUICK).classifier.save(path)
    pictures = make_samples(seed=5).images["front"]  # of class 0 and 1 in turn
    check = {"kind": "person", "check": "classifier", "model": str(path), "transfer": True}
    own = {"robot": "franka", "intervention": "none", "demos": 0, "reset": check}
    config = resolve({"task": "pick_cube", **own})
    task = PickCube(PickCubeConfig(observe="pixels", views=VIEWS))
    reset = SceneReset(task, make_check(config, task))
    arm = RosArm(bench.node, ROBOT, PROFILE, task.config)
    camera = bench.node.publisher(picture_topic(ROBOT, VIEWS["front"].camera))

    def show() -> None:
        row, stamp_ns = 2 * (next(number) % 100), bench.node.handle.get_clock().now().nanoseconds
        camera.publish(image_message(pictures[row + shown[0]], "field", stamp_ns))

    bench.node.every(0.05, show)

    def verdict() -> str:
        try:
            assert reset(arm.observe_when_fresh(60.0)) is None
        except NeedsPerson as error:
            return str(error)
        return ""

    refusal = "a person is needed: the classifier does not see a scene that is ready"
    for label, expected in enumerate((refusal, "")):
        shown[0] = label
        eventually(lambda: verdict() == expected, found=verdict)  # noqa: B023


def test_arm_reads_pose_of_body_that_the_check_of_the_scene_needs(
    bench: Bench, tmp_path: Path
) -> None:
    corners = {"body_low_m": (0.4, 0.0, 0.0), "body_high_m": (0.5, 0.1, 0.1)}
    check = {"kind": "person", "check": "pose", "body": "tray", **corners}
    own = {"robot": "franka", "intervention": "none", "demos": 0, "reset": check}
    run = RunFolder.create(tmp_path, resolve({"task": "reach", **own}), datetime.now())
    arm = make_arm(bench.node, run, "actor0", 1)
    assert {"goal_pose", "tray_pose"} <= arm.observation_spec.state.keys()


def pose_feed(arm: RosArm) -> Feed[Any]:
    return next(iter(arm.feeds))


def pass_time(arm: RosArm) -> None:
    """Wait for one control period, measured by the stamps of the arm's pose."""
    pose = pose_feed(arm)
    begun_ns = pose.stamp_ns
    eventually(lambda: pose.stamp_ns - begun_ns >= 100_000_000)


class TestRosArmOnAFakeFranka(RobotSuite):
    @pytest.fixture(autouse=True)
    def _ready(self, arm: RosArm) -> None:
        self.arm = arm

    def make(self) -> RosArm:
        self.arm.mode = "policy"
        self.arm.observe_when_fresh(30.0)
        return self.arm

    def pass_period(self, robot: Robot) -> None:
        pass_time(self.arm)
        self.arm.observe_when_fresh(30.0)


def test_arm_sets_controller_gains_and_reads_them_back(arm: RosArm, bench: Bench) -> None:
    with arm:
        found = arm.remote.get_parameters(CONTROLLER, list(PROFILE.controller.parameters))
        assert found == PROFILE.controller.parameters
    bench.misbehave("stubborn")
    with pytest.raises(SerlError, match="controller is active"):
        arm.__enter__()


@pytest.mark.parametrize("found", [0.3, 0.7])
def test_gripper_gets_no_command_until_an_action_changes_it(
    arm: RosArm, bench: Bench, monkeypatch: pytest.MonkeyPatch, found: float
) -> None:
    def is_sent(driver: RosArm, action: np.ndarray, stamp_ns: int) -> bool:
        read(driver)
        driver.act(action)
        return bench.commanded() != stamp_ns

    def keep(driver: RosArm, action: np.ndarray, times: int = 5) -> None:
        for _ in range(times):
            eventually(partial(is_sent, driver, action, bench.commanded()))

    bench.grips.clear()
    arm.begin(pose_feed(arm).newest().value, found < 0.5)
    keep(arm, 0.0 * ONES)  # a task without a gripper
    motion = MOTION.model_copy(update={"gripper": True})
    driver = RosArm(bench.node, ROBOT, PROFILE, ReachConfig(motion=motion))
    accept_late(driver, monkeypatch)
    driver.observe_when_fresh(30.0)
    driver.begin(pose_feed(driver).newest().value, found < 0.5)
    keep(driver, np.zeros(4, np.float32))
    other = 1.0 if found < 0.5 else -1.0
    switch = np.array([0, 0, 0, other], np.float32)
    eventually(lambda: driver.act(switch).any() and bench.grips)
    assert set(bench.grips) == {max(other, 0.0)}, "the gripper got a command without an action"
    keep(driver, np.zeros(4, np.float32), times=1)
    count = len(bench.grips)
    keep(driver, np.zeros(4, np.float32))
    assert len(bench.grips) > count, "gripper commands are repeated, as messages may be lost"


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ("silent", r"franka/current_pose: its newest message is .* s old, over 0.1 s"),
        ("frozen", r"s old, over 0.1 s \(its stamps stand still\)"),
        ("nan", r"current_pose: .* \(position not finite"),
        ("late", r"s old, over 0.1 s"),
    ],
)
def test_invalid_pose_stops_actions_and_is_reported_in_one_line(
    prompt_arm: RosArm, bench: Bench, fault: str, complaint: str
) -> None:
    bench.misbehave(fault)
    eventually(lambda: not pose_feed(prompt_arm).is_fresh)
    assert not prompt_arm.act(ONES).any(), "an arm without a fresh pose must not act"
    eventually(lambda: re.search(complaint, silence(prompt_arm)), found=lambda: silence(prompt_arm))
    assert "\n" not in silence(prompt_arm)
    prompt_arm.stop("no pose")  # as the control loop does
    bench.misbehave("")
    eventually(lambda: recovers(prompt_arm))
    assert prompt_arm.observe_when_fresh(30.0).stamps["robot"] > 0.0


def test_wrench_in_unknown_frame_is_rejected_with_its_topic(
    prompt_arm: RosArm, bench: Bench
) -> None:
    _, _, wrench, *_ = prompt_arm.feeds
    bench.misbehave("misframed")
    eventually(lambda: not wrench.is_fresh)
    refusal = r"in_base_frame: .* \(in the frame 'world', expected 'base' or 'fr3_link0'\)"
    eventually(lambda: re.search(refusal, silence(prompt_arm)), found=lambda: silence(prompt_arm))
    bench.misbehave("")
    prompt_arm.observe_when_fresh(30.0)


def silence(arm: RosArm) -> str:
    """Return why the arm has no observation; empty if it has one."""
    try:
        arm.observe()
    except Silent as error:
        return str(error)
    return ""


def read(arm: RosArm) -> Observation:
    """Return a reading; recover the arm before it if a busy machine was late."""
    eventually(lambda: recovers(arm))
    return arm.observe_when_fresh(30.0)


def recovers(arm: RosArm) -> bool:
    """Recover the arm; return False while its messages are late."""
    try:
        arm.recover()
    except Silent:
        return False
    return True


def test_heartbeats_carry_controller_mode_and_hold_after_stop(arm: RosArm, bench: Bench) -> None:
    bench.modes.clear()

    def sends_mode(mode: str) -> bool:
        arm.beat()
        return mode in bench.modes

    arm.drive_as(ActionSource.SCRIPT)
    eventually(lambda: sends_mode("reset"))
    arm.stop("test")
    eventually(lambda: "hold" in bench.modes)
    assert arm.stop_reason == "test"
    eventually(lambda: recovers(arm))
    arm.drive_as(ActionSource.POLICY)
    eventually(lambda: sends_mode("policy"))


def test_joint_move_is_asked_for_while_script_drives_and_until_pause_or_stop(
    arm: RosArm, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sends_last(mode: str, acts: bool = True) -> bool:
        if acts:
            arm.act(0.0 * ONES)
        arm.beat()
        return bench.modes[-1] == mode

    assert isinstance(arm, Homing)
    assert arm.is_home, "the fake stands at home"
    arm.home()
    assert not arm.is_home
    arm.drive_as(ActionSource.SCRIPT)
    eventually(lambda: sends_last("joints"))
    arm.drive_as(ActionSource.POLICY)
    eventually(lambda: sends_last("policy"))
    arm.drive_as(ActionSource.SCRIPT)
    eventually(lambda: sends_last("joints"))
    eventually(lambda: sends_last("reset", acts=False), 5.0)  # a pause: heartbeats go on
    eventually(lambda: sends_last("joints"))
    arm.stop("test")
    eventually(lambda: recovers(arm))
    eventually(lambda: sends_last("reset"))
    turned = PROFILE.model_copy(update={"home_rad": (0.1, *PROFILE.home_rad[1:])})
    monkeypatch.setattr(arm, "profile", turned)
    assert not arm.is_home
    arm.drive_as(ActionSource.POLICY)


def test_heartbeat_holds_when_operator_sends_no_actions(arm: RosArm, bench: Bench) -> None:
    def drives() -> bool:
        arm.act(0.0 * ONES)
        arm.beat()
        return "teleop" in bench.modes

    def pauses() -> bool:
        arm.beat()
        return bench.modes[-1] == "hold"

    arm.drive_as(ActionSource.HUMAN)
    eventually(drives)
    eventually(pauses)  # without actions the guard would report a lost operator
    assert arm.stop_reason is None
    arm.drive_as(ActionSource.POLICY)


def test_teleop_heartbeats_carry_silence_of_device_in_milliseconds(
    arm: RosArm, bench: Bench
) -> None:
    def sends_beat(mode: str, *silence: str) -> bool:
        if arm.stop_reason is not None:  # a busy machine was late; the control loop does the same
            with suppress(Silent):
                arm.recover()
        arm.act(0.0 * ONES)
        arm.beat()
        return bench.beats[-1][1] == mode and bench.beats[-1][3:] == list(silence)

    arm.drive_as(ActionSource.HUMAN)
    eventually(lambda: sends_beat("teleop", "0"))
    arm.silence_s = lambda: 0.0634
    eventually(lambda: sends_beat("teleop", "63"))
    arm.silence_s = lambda: math.inf
    eventually(lambda: sends_beat("teleop", "99000"))
    arm.drive_as(ActionSource.POLICY)
    eventually(lambda: sends_beat("policy"))  # no device is active then
    arm.silence_s = lambda: 0.0


def test_arm_rejects_wrench_task_before_it_uses_a_node() -> None:
    flip = make_task(resolve({"task": "object_flip"}))
    nobody = cast(Any, None)
    with pytest.raises(BadInput, match="arm left: wrenches are exerted in this process only"):
        RosArm(nobody, "left", plugins.load("robot", "sim"), flip.config)


def test_check_types_names_missing_message_packages() -> None:
    strange = Channel(name="gripper", type="no_such_msgs/action/Grip")
    assert PROFILE.gripper is not None
    gripper = PROFILE.gripper.model_copy(update={"command": strange})
    with pytest.raises(BadInput, match="arm franka: not installed: no_such_msgs/action/Grip"):
        check_types(PROFILE.model_copy(update={"gripper": gripper}))
    check_types(PROFILE)
    topic = topic_of(Channel(name="/pose", type="geometry_msgs/msg/PoseStamped"), "a", SENSOR)
    assert topic.name == "/pose"
